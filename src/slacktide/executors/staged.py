"""`StageChain`: a model cut at its active ramps. `StagedBatch`: a batch on its way through it.

Each stage is a session. It takes the outputs of the previous stage and evaluates its own ramp: an
uncertainty and outputs for each row. Members whose rows are certain enough are *released* with the
outputs of the ramp. Their rows then run on, or leave the batch: they are removed from the tensor
that is passed on and from inputs of later stages. A batch ends when all rows have left it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import NEVER, ExitReport, Leaving, going_on
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.ports import FeaturesSeen
from slacktide.executors.remembering import RememberedRow, RowMemory, encode_row

if TYPE_CHECKING:
    from slacktide.executors.gathering import GatheredBatch
    from slacktide.exits.positions import Position

ANSWER = "exits/answer"
UNCERTAINTY = "exits/uncertainty"
"""Output with the model's own uncertainty, if answers are remembered."""
MEANS = "exits/0/means"
"""Output that ends the stage of the ramp that remembers."""
MEANS_BESIDE = "exits/means"
"""Name of that output if the ramp is not active."""
SAMPLED = "exits/sampled"
"""An input of stages: whether to report features of the batch."""


class Stage(NamedTuple):
    """One session of the chain."""

    session: Any
    ramp: int
    """Position of the ramp at its end; −1: the model's own end."""
    inputs: tuple[str, ...]
    outputs: list[str]
    row_inputs: tuple[str, ...]
    """Inputs that have a row for each row of the batch."""


class StageChain:
    """A model as chains of stages, one for each number of threads."""

    def __init__(
        self,
        chains: Mapping[int, list[Stage]],
        interface: ModelInterface,
        ramp_outputs: Set[str],
        positions: Sequence[Position] | None = None,
        whole_model_only: Sequence[int] = (),
        *,
        remembers: bool = False,
    ) -> None:
        """`ramp_outputs`: outputs that ramps make. `positions`: positions whose features are
        reported; None: no features. `whole_model_only`: classes that ramps may not give.
        `remembers`: whether ramp 0, if active, gives remembered answers."""
        self.remembers = remembers
        self.whole_model_only = frozenset(whole_model_only)
        self._chains = chains
        self.interface = interface
        self.ramp_outputs = ramp_outputs
        self.shrinks = interface.batches
        """Whether rows can leave a batch."""
        self.positions = positions
        (first, *_) = chains.values()
        self.ramps = tuple([stage.ramp for stage in first if stage.ramp >= 0])
        self.outputs = [spec.name for spec in interface.outputs]
        self.planned_end = -1
        """Index of the ramp at which batches are planned to end; −1: the model's end."""
        self._sizes: list[int] = []
        self._ends: list[list[float]] = []

    def enlarge(self, sizes: Sequence[int], ends: Sequence[Sequence[float]]) -> None:
        """Plan batches to end at the last ramp. Rows run beyond it only if earlier exits have saved
        enough time. `ends`: seconds up to the end of each stage, for batches of these sizes."""
        self.planned_end = len(self.ramps) - 1
        self._sizes = [0, *sizes]
        self._ends = [[0.0, *column] for column in zip(*ends, strict=True)]

    def seconds(self, rows: int, stage: int) -> float:
        """Seconds of a stage: interpolated between the sizes of `enlarge`, proportional beyond."""
        sizes, last = self._sizes, self._sizes[-1]
        at, scale = min(rows, last), max(1.0, rows / last)
        ends = [float(np.interp(at, sizes, times)) for times in self._ends[max(0, stage - 1) :][:2]]
        return scale * (ends[0] if stage == 0 else ends[1] - ends[0])

    def stages(self, threads: int) -> list[Stage]:
        return self._chains[threads]


class Released(NamedTuple):
    """Members that a ramp has answered."""

    ramp: int
    """Position of the ramp."""
    places: list[int]
    rows: list[int]
    """The members' rows in the batch as it began."""
    arrays: list[NDArray[Any] | None]
    """The members' rows of each output; None for an output that ramps do not make."""


class StagedBatch:
    """One batch. `released` grows while it runs."""

    def __init__(
        self,
        model: StageChain,
        batch: GatheredBatch,
        thresholds: Mapping[int, float],
        leaving: Leaving,
        final: Sequence[int],
        *,
        sampled: bool = False,
        memory: RowMemory | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`thresholds` by position. `final`: places of members that only the end may answer.
        `sampled`: whether to report features. `memory`: remembered answers. `clock`: the clock of
        `batch.begin`."""
        self._memory = memory or RowMemory()
        self._model = model
        self._clock = clock
        self._begin = batch.begin
        self._sampled = sampled
        self._values: dict[str, NDArray[Any]] = {**batch.feeds, SAMPLED: np.array(sampled)}
        self._thresholds = {} if leaving is Leaving.NONE else thresholds
        self._shrinks = leaving is Leaving.SHRINK and model.shrinks
        self._unreleasable = {*final, *batch.faults}
        self._faulty = frozenset(batch.faults)
        self.rows = batch.rows
        """Number of rows of each member."""
        self.released: set[int] = set()
        """Places of members that ramps have answered."""
        # Lists, because one call of NumPy costs as much as many rows here.
        self._row_owners = [place for place, rows in enumerate(batch.rows) for _ in range(rows)]
        self._batch_rows = list(range(len(self._row_owners)))  # rows still in the batch
        self._uncertainties: list[list[float]] = [[] for _ in self._batch_rows]
        self._answers: list[list[int | None]] = [[] for _ in self._batch_rows]
        self._exit_stages = [-1] * len(self._batch_rows)
        self._stage_s: list[float] = []
        self._stage_rows: list[int] = []  # number of rows at each stage
        self.finished = False
        """Whether rows have reached the model's end."""

    def run(self, stages: Sequence[Stage], run_options: Any = None) -> Iterator[Released]:
        """Run through the stages; yields members as soon as a ramp has answered them. Raises errors
        of ONNX Runtime."""
        values = self._values
        for at, stage in enumerate(stages):
            feeds = {name: values[name] for name in stage.inputs}
            arrays = stage.session.run(stage.outputs, feeds, run_options)
            values.update(zip(stage.outputs, arrays, strict=True))
            if self._model.remembers:
                for name in (MEANS, MEANS_BESIDE):
                    if name in stage.outputs:
                        self._remember(name)
            if stage.ramp < 0:
                continue
            released = self._judge(stage.ramp)
            if released is not None:
                yield released
                if self._shrinks:
                    self._remove(released.places, stages[at + 1 :])
                    if not self._batch_rows:
                        return
        self.finished = True

    def end_outputs(self) -> tuple[list[NDArray[Any]], list[int]]:
        """The model's own outputs, and the rows that are still in the batch at the model's end."""
        return [self._values[name] for name in self._model.outputs], self._batch_rows

    def unanswered(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The rows of members that no ramp has answered, from the model's outputs."""
        if not self.released or self._shrinks:
            return list(arrays)
        owners = enumerate(self._row_owners)
        rows = [row for row, owner in owners if owner not in self.released]
        return [array[rows] for array in arrays]

    def report(self) -> ExitReport | None:
        """The results of the ramps so far; None without ramps."""
        model = self._model
        if not model.ramps:
            return None
        agrees: list[tuple[bool, ...]] = [()] * len(self._exit_stages)
        classes: list[int] = []
        if self.finished and ANSWER in self._values:  # built-in exits have no class
            ends = self._values[ANSWER].ravel().tolist()
            classes = [-1] * len(self._exit_stages)
            for row, end in zip(self._batch_rows, ends, strict=True):
                agrees[row] = tuple([answer in (end, None) for answer in self._answers[row]])
                classes[row] = int(end)
        uncertainties = tuple(
            [tuple([1.0 if math.isnan(u) else u for u in row]) for row in self._uncertainties]
        )
        lefts, stage_s = tuple(self._exit_stages), tuple(self._stage_s)
        return ExitReport(model.ramps, uncertainties, tuple(agrees), lefts, stage_s, tuple(classes))

    @property
    def is_whole(self) -> bool:
        """Whether every row has reached the model's end, and none had a fault."""
        stayed = len(self._batch_rows) == len(self._exit_stages)
        return self.finished and stayed and not self._faulty

    def features(self) -> FeaturesSeen | None:
        """Features of the batch; None if none were requested, or it is not whole."""
        positions = self._model.positions
        rows = len(self._batch_rows)
        if positions is None or not (self._sampled and self.is_whole):
            return None
        names = [f"exits/features/{number}" for number in range(len(positions))]
        return FeaturesSeen(
            rows,
            tuple([position.tensor for position in positions]),
            tuple([position.cost for position in positions]),
            tuple([self._values[name].tobytes() for name in names]),
            self._values["exits/logits"].tobytes(),
            tuple(sorted(self._model.ramp_outputs)),
            memory=self._memory_verdicts() if self._model.remembers else b"",
        )

    def to_remember(self) -> dict[int, bytes]:
        """Return rows to remember, by place: the model's answers to members that no ramp was sure
        of, or that run to the end anyway."""
        memory, values, model = self._memory, self._values, self._model
        if not (self.finished and model.remembers and ANSWER in values):
            return {}
        limits = [self._thresholds.get(ramp, 0.0) for ramp in model.ramps]
        contents = {}
        answers = (values[name].ravel().tolist() for name in (ANSWER, UNCERTAINTY))
        for at, (row, end, doubt) in enumerate(zip(self._batch_rows, *answers, strict=True)):
            place, verdicts = self._row_owners[row], self._uncertainties[row]
            is_sure = any(unsure < limit for unsure, limit in zip(verdicts, limits, strict=True))
            if place not in memory.features or (is_sure and not memory.refreshes):
                continue
            outputs = {name: values[name][at : at + 1] for name in model.ramp_outputs}
            content = encode_row(RememberedRow(int(end), doubt, memory.features[place], outputs))
            if content and place not in self._faulty:
                contents[place] = content
        return contents

    def _remember(self, means: str) -> None:
        """Compare the rows with what is remembered of their sessions. `means`: output with the
        means of the rows."""
        values, memory = self._values, self._memory
        places = [self._row_owners[row] for row in self._batch_rows]
        memory.compare(places, values[means])
        if means != MEANS:
            return
        verdicts = [memory.verdict(place) for place in places]
        values["exits/0/uncertainty"] = np.array([unsure for unsure, _ in verdicts])
        values["exits/0/answer"] = np.array([answer for _, answer in verdicts], object)
        if memory.uncertainty:
            for name in self._model.ramp_outputs:
                values[f"exits/0/{name}"] = memory.output(name, places)

    def _memory_verdicts(self) -> bytes:
        """Uncertainty and agreement of remembered answers, [rows, 2] 32-bit floats."""
        ends = self._values["exits/logits"].argmax(axis=1).tolist()
        verdicts = [self._memory.verdict(owner) for owner in self._row_owners]
        pairs = [
            (unsure, answer in (end, None))
            for (unsure, answer), end in zip(verdicts, ends, strict=True)
        ]
        return np.array(pairs, np.float32).tobytes()

    def _judge(self, ramp: int) -> Released | None:
        """Record the results of a ramp. Returns the members that it answers; None if none."""
        values, present, at = self._values, self._batch_rows, len(self._stage_s)
        self._stage_s.append(self._clock() - self._begin)
        uncertainties = values[f"exits/{ramp}/uncertainty"].ravel().tolist()
        if (answers := values.get(f"exits/{ramp}/answer")) is not None:
            for at_row, answer in enumerate(answers.ravel().tolist()):
                self._answers[present[at_row]].append(answer)
                if answer in self._model.whole_model_only:
                    uncertainties[at_row] = NEVER
        for row, uncertainty in zip(present, uncertainties, strict=True):
            self._uncertainties[row].append(uncertainty)
        threshold = self._thresholds.get(ramp, 0.0)
        deeper = None
        if self._shrinks and self._model.planned_end >= 0:
            deeper = self._rows_beyond_end(uncertainties, at)
        if threshold <= 0.0 and deeper is None:
            return None
        owners = [self._row_owners[row] for row in present]
        stay = {*self.released, *self._unreleasable}
        # `not u <`, because an uncertainty may be NaN.
        stay.update(
            [
                owner
                for place, (owner, u) in enumerate(zip(owners, uncertainties, strict=True))
                if not u < threshold and (deeper is None or place in deeper)
            ]
        )
        places = [owner for owner in dict.fromkeys(owners) if owner not in stay]
        if not places:
            return None
        self.released.update(places)
        rows = [place for place, owner in enumerate(owners) if owner not in stay]
        for place in rows:
            self._exit_stages[present[place]] = at
        model = self._model
        arrays: list[NDArray[Any] | None] = []
        for name in model.outputs:
            array = values[f"exits/{ramp}/{name}"] if name in model.ramp_outputs else None
            arrays.append(array if array is None or len(rows) == len(present) else array[rows])
        return Released(ramp, places, [present[row] for row in rows], arrays)

    def _rows_beyond_end(self, uncertainties: list[float], at: int) -> set[int] | None:
        """The rows that may run beyond the planned end of the batch; None at other ramps."""
        self._stage_rows.append(len(uncertainties))
        if at != self._model.planned_end:
            return None
        unreleasable = {
            place
            for place, row in enumerate(self._batch_rows)
            if self._row_owners[row] in self._unreleasable or math.isnan(uncertainties[place])
        }
        return going_on(uncertainties, unreleasable, self._stage_rows, self._model.seconds)

    def _remove(self, places: Sequence[int], later_stages: Sequence[Stage]) -> None:
        """Remove these members' rows from the inputs of later stages, and from outputs so far."""
        owners, removed = self._row_owners, {*places}
        keep = [at for at, row in enumerate(self._batch_rows) if owners[row] not in removed]
        self._batch_rows = [self._batch_rows[at] for at in keep]
        inputs = chain.from_iterable(stage.row_inputs for stage in later_stages)
        for name in dict.fromkeys([*inputs, *self._model.outputs]):
            if name in self._values:
                self._values[name] = self._values[name][keep]
