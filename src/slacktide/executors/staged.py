"""`StageChain`: a model cut at its active ramps, and a batch on its way through the stages.

A stage is a session of its own. It takes what the one before gives, and answers for its ramp: an
uncertainty and outputs for each row. Members whose rows are sure enough are *released* with the
outputs of the ramp. Then their rows run on, or leave the batch: they are cut out of the tensor that
is handed on and of the inputs that stages behind still read. Where all have left, the batch ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import ExitReport, Leaving, going_on
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.ports import FeaturesSeen

if TYPE_CHECKING:
    from slacktide.executors.session import GatheredBatch

ANSWER = "exits/answer"
SAMPLED = "exits/sampled"
"""An input of stages: whether features are wanted of the batch."""


class Stage(NamedTuple):
    """One session of the chain."""

    session: Any
    ramp: int
    """Position of the ramp that answers at its end; −1: the model's own end."""
    takes: tuple[str, ...]
    gives: list[str]
    rows: tuple[str, ...]
    """What it takes that has a row for each of the batch's."""


@dataclass(frozen=True, slots=True)
class SeenPositions:
    """What is said of the features that the last stages hand out."""

    tensors: tuple[str, ...]
    costs: tuple[float, ...]


class StageChain:
    """A chain of sessions for each number of threads."""

    def __init__(
        self,
        chains: Mapping[int, list[Stage]],
        interface: ModelInterface,
        ramp_outputs: Set[str],
        positions: SeenPositions | None = None,
    ) -> None:
        """`ramp_outputs`: outputs that ramps make; `positions`: those whose features are
        handed out, if any."""
        self._chains = chains
        self.interface = interface
        self.made = ramp_outputs
        self.shrinks = interface.batches
        """Whether rows can leave a batch."""
        self.positions = positions
        (first, *_) = chains.values()
        self.ramps = tuple([stage.ramp for stage in first if stage.ramp >= 0])
        self.outputs = [spec.name for spec in interface.outputs]
        self.planned = -1
        """The ramp, by its place, at which batches are planned to end; −1: at the model's end."""
        self._sizes: list[int] = []
        self._ends: list[list[float]] = []

    def enlarge(self, sizes: Sequence[int], ends: Sequence[Sequence[float]]) -> None:
        """Plan batches to end at the last ramp; rows go on only where others have left time for it.
        `ends`: what batches of these sizes take up to the end of each stage."""
        self.planned = len(self.ramps) - 1
        self._sizes = [0, *sizes]
        self._ends = [[0.0, *column] for column in zip(*ends, strict=True)]

    def seconds(self, rows: int, stage: int) -> float:
        """What a stage takes, as `enlarge` was told: on a line between sizes, in proportion beyond
        the last."""
        sizes, last = self._sizes, self._sizes[-1]
        at, scale = min(rows, last), max(1.0, rows / last)
        ends = [float(np.interp(at, sizes, times)) for times in self._ends[max(0, stage - 1) :][:2]]
        return scale * (ends[0] if stage == 0 else ends[1] - ends[0])

    def stages(self, threads: int) -> list[Stage]:
        return self._chains[threads]


class Released(NamedTuple):
    """Members that a ramp has answered."""

    ramp: int
    """Its position."""
    places: list[int]
    arrays: list[NDArray[Any] | None]
    """Of each output of the model: the members' rows; None: no ramp makes it."""


class StagedBatch:
    """One batch. `released` grows as it runs."""

    def __init__(
        self,
        model: StageChain,
        batch: GatheredBatch,
        thresholds: Mapping[int, float],
        leaving: Leaving,
        final: Sequence[int],
        *,
        sampled: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`thresholds` by position; `final`: places of members that only the end may answer;
        `sampled`: whether features are wanted; `clock`: by which the batch began."""
        self._model = model
        self._clock = clock
        self._began = batch.began
        self._sampled = sampled
        self._values: dict[str, NDArray[Any]] = {**batch.feeds, SAMPLED: np.array(sampled)}
        self._thresholds = {} if leaving is Leaving.NONE else thresholds
        self._shrinks = leaving is Leaving.SHRINK and model.shrinks
        self._stay = {*final, *batch.faults}
        self._faults = bool(batch.faults)
        self.rows = batch.rows
        """Of each member."""
        self.released: set[int] = set()
        """Places of members that ramps have answered."""
        # Lists: batches are small, and each call of NumPy would cost what many rows do here.
        self._owner = [place for place, rows in enumerate(batch.rows) for _ in range(rows)]
        self._here = list(range(len(self._owner)))  # rows that have not left the batch
        self._said: list[list[float]] = [[] for _ in self._here]
        self._answers: list[list[int]] = [[] for _ in self._here]
        self._left = [-1] * len(self._here)
        self._stage_s: list[float] = []
        self._present: list[int] = []  # rows at each stage
        self.finished = False
        """Whether some rows have come to the model's end."""

    def run(self, stages: Sequence[Stage], run_options: Any = None) -> Iterator[Released]:
        """Run through the stages; what each ramp answers comes as soon as it is known. Raises what
        ONNX Runtime raises."""
        values = self._values
        for at, stage in enumerate(stages):
            feeds = {name: values[name] for name in stage.takes}
            values.update(
                zip(stage.gives, stage.session.run(stage.gives, feeds, run_options), strict=True)
            )
            if stage.ramp < 0:
                continue
            released = self._judge(stage.ramp)
            if released is not None:
                yield released
                if self._shrinks:
                    self._leave(released.places, stages[at + 1 :])
                    if not self._here:
                        return
        self.finished = True

    def rest(self) -> tuple[list[NDArray[Any]], int]:
        """The model's outputs, and how many rows they have: those in the batch at its end."""
        return [self._values[name] for name in self._model.outputs], len(self._here)

    def unanswered(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Of the model's outputs the rows of members that no ramp has answered."""
        if not self.released or self._shrinks:
            return list(arrays)
        unanswered = [row for row, owner in enumerate(self._owner) if owner not in self.released]
        return [array[unanswered] for array in arrays]

    def report(self) -> ExitReport | None:
        """What ramps have said so far; None where there are none."""
        model = self._model
        if not model.ramps:
            return None
        agrees: list[tuple[bool, ...]] = [()] * len(self._left)
        if self.finished and ANSWER in self._values:  # a model's own exits have no class
            for row, end in zip(self._here, self._values[ANSWER].ravel().tolist(), strict=True):
                agrees[row] = tuple([answer == end for answer in self._answers[row]])
        said = [tuple([1.0 if math.isnan(u) else u for u in row]) for row in self._said]
        return ExitReport(
            model.ramps,
            tuple(said),
            tuple(agrees),
            tuple(self._left),
            tuple(self._stage_s),
        )

    def features(self) -> FeaturesSeen | None:
        """What the batch looked like inside; None where rows have left it, or were wrong."""
        positions = self._model.positions
        rows = len(self._here)
        stayed = self.finished and rows == len(self._left)
        if positions is None or not (self._sampled and stayed) or self._faults:
            return None
        names = [f"exits/features/{number}" for number in range(len(positions.tensors))]
        parts = [self._values[name].tobytes() for name in (*names, "exits/logits")]
        ramp_outputs = tuple(sorted(self._model.made))
        return FeaturesSeen(
            rows, positions.tensors, positions.costs, tuple(parts[:-1]), parts[-1], ramp_outputs
        )

    def _judge(self, ramp: int) -> Released | None:
        """Take down what a ramp says; the members that it answers."""
        values, present, at = self._values, self._here, len(self._stage_s)
        self._stage_s.append(self._clock() - self._began)
        said = values[f"exits/{ramp}/uncertainty"].ravel().tolist()
        for row, unsure in zip(present, said, strict=True):
            self._said[row].append(unsure)
        if (answers := values.get(f"exits/{ramp}/answer")) is not None:
            for row, answer in zip(present, answers.ravel().tolist(), strict=True):
                self._answers[row].append(answer)
        threshold = self._thresholds.get(ramp, 0.0)
        deeper = self._deeper(said, at) if self._shrinks and self._model.planned >= 0 else None
        if threshold <= 0.0 and deeper is None:
            return None
        owners = [self._owner[row] for row in present]
        stay = {*self.released, *self._stay}
        # Nor where it is NaN.
        stay.update(
            [
                owner
                for place, (owner, u) in enumerate(zip(owners, said, strict=True))
                if not u < threshold and (deeper is None or place in deeper)
            ]
        )
        places = [owner for owner in dict.fromkeys(owners) if owner not in stay]
        if not places:
            return None
        self.released.update(places)
        gone = [place for place, owner in enumerate(owners) if owner not in stay]
        for place in gone:
            self._left[present[place]] = at
        whole = len(gone) == len(present)
        model = self._model
        arrays: list[NDArray[Any] | None] = []
        for name in model.outputs:
            array = values[f"exits/{ramp}/{name}"] if name in model.made else None
            arrays.append(array if array is None or whole else array[gone])
        return Released(ramp, places, arrays)

    def _deeper(self, said: list[float], at: int) -> set[int] | None:
        """Where the batch was planned to end, which of its rows may go on; None elsewhere."""
        self._present.append(len(said))
        if at != self._model.planned:
            return None
        present = enumerate(self._here)
        held = {at for at, row in present if self._owner[row] in self._stay or math.isnan(said[at])}
        return going_on(said, held, self._present, self._model.seconds)

    def _leave(self, places: Sequence[int], behind: Sequence[Stage]) -> None:
        """Cut the rows of these members out of what stages behind take, and of outputs so far."""
        gone = {*places}
        keep = [at for at, row in enumerate(self._here) if self._owner[row] not in gone]
        self._here = [self._here[at] for at in keep]
        read_behind = chain.from_iterable(stage.rows for stage in behind)
        for name in dict.fromkeys([*read_behind, *self._model.outputs]):
            if name in self._values:
                self._values[name] = self._values[name][keep]
