"""When replicas run that share accelerators: CORAL (OctopInf, Algorithm 2).

A stream is a lane of an accelerator that repeats a cycle. Each replica has a portion of one, as
long as its batch takes (p99), and gets the free portion that fits it best:

1. the portion lies within the free one;
2. the accelerator has the memory (weights of all, and of each stream the largest intermediate) and
   the utilisation (of each stream the largest) (eq. 4 and 5);
3. the stream's cycle is no longer than that of the pipeline, half its SLO: so what is there already
   fixes it.

A portion begins after those of the stages before it on the same device, and early enough for those
that come after it to end within the cycle; the paper knows one start only, by which two pipelines
could share no stream. As an instance with a portion runs one batch in a cycle, there are as many of
them as take the rows that come in one (decision 0063).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.problem import (
    DeviceView,
    PipelineView,
    PlacedPortion,
    PlacedStage,
    PlacementAnswer,
    PlacementQuestion,
)

Key = tuple[str, int, int]
"""(pipeline, stage, replica)."""


def cycle_of(pipeline: PipelineView) -> float:
    """Seconds after which its portions come again (paper, §III-C1)."""
    return 0.5 * pipeline.slo


@dataclass(frozen=True, slots=True)
class Resident:
    """A replica that wants a portion. Seconds within a cycle, bytes."""

    key: Key
    seconds: float
    earliest: float
    """When its portion may begin."""
    latest: float
    """When it must."""
    cycle: float
    """The pipeline's."""
    weights: float = 0.0
    intermediate: float = 0.0
    utilisation: float = 0.0


class _Portion:
    """Of a stream, free or taken. `left` and `right` are its neighbours."""

    __slots__ = ("end", "left", "resident", "right", "start", "stream")

    def __init__(self, stream: _Lane, start: float, end: float) -> None:
        self.stream, self.start, self.end = stream, start, end
        self.resident: Resident | None = None
        self.left: _Portion | None = None
        self.right: _Portion | None = None


class _Lane:
    """A stream."""

    __slots__ = ("accelerator", "cycle", "first", "intermediate", "number", "utilisation")

    def __init__(self, number: int, accelerator: int) -> None:
        self.number, self.accelerator = number, accelerator
        self.cycle = 0.0
        """0: nothing has a portion of it."""
        self.intermediate = self.utilisation = 0.0
        """The largest of those who have."""
        self.first = _Portion(self, 0.0, math.inf)

    def portions(self) -> Iterator[_Portion]:
        each: _Portion | None = self.first
        while each is not None:
            yield each
            each = each.right


class DeviceStreams:
    """The streams of one device."""

    def __init__(self, device: DeviceView) -> None:
        self.device = device
        self.lanes = [_Lane(at, at // device.streams) for at in range(device.lanes)]
        self.weights = [0.0] * device.accelerators
        self.intermediate = [0.0] * device.accelerators
        self.utilisation = [0.0] * device.accelerators
        self._free: list[tuple[float, int, float, _Portion]] = []
        """(length, stream, start): what fits best comes first."""
        for lane in self.lanes:
            self._add_free(lane.first)
        self._taken: dict[Key, _Portion] = {}

    def place(self, resident: Resident) -> PlacedPortion | None:
        """The free portion that fits best becomes the resident's; None: none fits. Raises
        ValueError if it has one already."""
        if resident.key in self._taken:
            raise ValueError(f"{resident.key} has a portion already")
        begin = bisect_left(self._free, (resident.seconds,))
        for at in range(begin, len(self._free)):
            portion = self._free[at][-1]
            start = self._start(portion, resident)
            if start is not None:
                del self._free[at]
                self._take(portion, start, resident)
                return self._placed(portion)
        return None

    def give_back(self, key: Key) -> None:
        """Its portion is free again, as one with its free neighbours. Raises KeyError."""
        portion = self._taken.pop(key)
        resident, lane = portion.resident, portion.stream
        assert resident is not None
        portion.resident = None
        for other in (portion.left, portion.right):
            if other is not None and other.resident is None:
                self._free.remove((other.end - other.start, lane.number, other.start, other))
                self._merge(portion, other)
        at = lane.accelerator
        self.weights[at] -= resident.weights
        self.intermediate[at] -= lane.intermediate
        self.utilisation[at] -= lane.utilisation
        left = [each.resident for each in lane.portions() if each.resident is not None]
        lane.intermediate = max((each.intermediate for each in left), default=0.0)
        lane.utilisation = max((each.utilisation for each in left), default=0.0)
        self.intermediate[at] += lane.intermediate
        self.utilisation[at] += lane.utilisation
        if not left:
            lane.cycle = 0.0
            portion.end = math.inf
        self._add_free(portion)

    def portions(self) -> list[PlacedPortion]:
        """All that are taken."""
        return [self._placed(portion) for portion in self._taken.values()]

    def free(self) -> list[tuple[int, float, float]]:
        """(stream, start, end) of all that are not."""
        return [(number, each.start, each.end) for _, number, _, each in self._free]

    def _start(self, portion: _Portion, resident: Resident) -> float | None:
        """When it would begin there; None if one of the conditions does not hold."""
        lane, at = portion.stream, portion.stream.accelerator
        start = max(portion.start, resident.earliest)
        cycle = lane.cycle or resident.cycle
        fits = start <= resident.latest and start + resident.seconds <= min(portion.end, cycle)
        if not fits or resident.cycle < cycle:
            return None
        intermediate = max(lane.intermediate, resident.intermediate) - lane.intermediate
        utilisation = max(lane.utilisation, resident.utilisation) - lane.utilisation
        memory = self.weights[at] + resident.weights + self.intermediate[at] + intermediate
        if memory > self.device.memory:
            return None
        if self.utilisation[at] + utilisation > self.device.utilisation + 1e-9:
            return None
        return start

    def _take(self, portion: _Portion, start: float, resident: Resident) -> None:
        lane, end = portion.stream, start + resident.seconds
        if not lane.cycle:
            lane.cycle = portion.end = resident.cycle
        if start > portion.start:
            self._split(portion, portion.start, start, left=True)
        if end < portion.end:
            self._split(portion, end, portion.end, left=False)
        portion.start, portion.end, portion.resident = start, end, resident
        self._taken[resident.key] = portion
        at = lane.accelerator
        self.weights[at] += resident.weights
        self.intermediate[at] += max(0.0, resident.intermediate - lane.intermediate)
        self.utilisation[at] += max(0.0, resident.utilisation - lane.utilisation)
        lane.intermediate = max(lane.intermediate, resident.intermediate)
        lane.utilisation = max(lane.utilisation, resident.utilisation)

    def _split(self, portion: _Portion, start: float, end: float, *, left: bool) -> None:
        """What is left over of it, beside it."""
        rest = _Portion(portion.stream, start, end)
        if left:
            rest.left, rest.right, portion.left = portion.left, portion, rest
            if rest.left is None:
                portion.stream.first = rest
            else:
                rest.left.right = rest
        else:
            rest.right, rest.left, portion.right = portion.right, portion, rest
            if rest.right is not None:
                rest.right.left = rest
        self._add_free(rest)

    def _merge(self, portion: _Portion, other: _Portion) -> None:
        """It takes the place of a neighbour, too."""
        portion.start = min(portion.start, other.start)
        portion.end = max(portion.end, other.end)
        if other is portion.left:
            portion.left = other.left
            if other.left is None:
                portion.stream.first = portion
            else:
                other.left.right = portion
        else:
            portion.right = other.right
            if other.right is not None:
                other.right.left = portion

    def _add_free(self, portion: _Portion) -> None:
        length = portion.end - portion.start
        insort(self._free, (length, portion.stream.number, portion.start, portion))

    def _placed(self, portion: _Portion) -> PlacedPortion:
        resident, lane = portion.resident, portion.stream
        assert resident is not None
        return PlacedPortion(
            self.device.name, lane.number, portion.start, portion.end, lane.cycle, *resident.key
        )


class Streams:
    """All devices."""

    def __init__(self, question: PlacementQuestion) -> None:
        self.question = question
        self.devices = {device.name: DeviceStreams(device) for device in question.devices}
        self._ends: dict[Key, float] = {}
        """Of each portion."""
        self._known: dict[tuple[str, int, str, int, int], float] = {}
        """Seconds by pipeline, stage, device, form and batch."""

    def schedule(self, placed: Placed) -> PlacementAnswer:
        """Portions for all that is placed: one replica of each stage in a round, so that all
        pipelines get one before any gets two. What is placed counts replicas that run back to
        back; one with a portion runs one batch in a cycle. So where a cycle brings more rows than
        their batches take there are more, as far as portions are free."""
        unscheduled: list[Key] = []
        room = EstimateRules().room
        found = [list(stages) for stages in placed]
        wanted = [
            [
                max(each.replicas, math.ceil(rate * cycle_of(pipeline) / (room * each.batch)))
                for each, rate in zip(stages, pipeline.rates(), strict=True)
            ]
            for pipeline, stages in zip(self.question.pipelines, placed, strict=True)
        ]
        for replica in range(max((most for each in wanted for most in each), default=0)):
            for number, pipeline in enumerate(self.question.pipelines):
                stages = found[number]
                for at, stage in enumerate(stages):
                    if wanted[number][at] <= replica:
                        continue
                    if self.add(pipeline, stages, at, replica) is not None:
                        stages[at] = replace(stage, replicas=max(stage.replicas, replica + 1))
                    elif replica < placed[number][at].replicas:
                        unscheduled.append((pipeline.name, at, replica))
                    else:
                        wanted[number][at] = replica
        portions = [each for one in self.devices.values() for each in one.portions()]
        return PlacementAnswer(tuple(map(tuple, found)), tuple(portions), tuple(unscheduled))

    def add(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> PlacedPortion | None:
        """A portion for one more replica of a stage; None: there is none for it."""
        resident = self._resident(pipeline, stages, at, replica)
        found = self.devices[stages[at].device].place(resident)
        if found is not None:
            self._ends[resident.key] = found.end
        return found

    def remove(self, pipeline: str, stages: Sequence[PlacedStage], at: int, replica: int) -> None:
        """Its portion is given back. Raises KeyError if it has none."""
        key = pipeline, at, replica
        self.devices[stages[at].device].give_back(key)
        del self._ends[key]

    def _resident(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> Resident:
        device, cycle = stages[at].device, cycle_of(pipeline)
        seconds = [self._seconds(pipeline, stages, each) for each in range(len(stages))]
        earliest = 0.0
        for inflow in pipeline.stages[at].inflows:
            other = inflow.stage
            if stages[other].device == device:
                key = pipeline.name, other, min(replica, stages[other].replicas - 1)
                earliest = max(earliest, self._ends.get(key, 0.0))
        after = [0.0] * len(stages)
        for each in range(len(stages) - 1, at, -1):
            for inflow in pipeline.stages[each].inflows:
                if stages[each].device == stages[inflow.stage].device:
                    rest = seconds[each] + after[each]
                    after[inflow.stage] = max(after[inflow.stage], rest)
        form = pipeline.stages[at].forms[stages[at].form]
        return Resident(
            (pipeline.name, at, replica),
            seconds[at],
            earliest,
            cycle - seconds[at] - after[at],
            cycle,
            form.weights,
            form.intermediate,
            form.utilisation,
        )

    def _seconds(self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int) -> float:
        stage = stages[at]
        key = pipeline.name, at, stage.device, stage.form, stage.batch
        found = self._known.get(key)
        if found is None:
            kind = self.devices[stage.device].device.kind
            times = pipeline.stages[at].forms[stage.form].times
            p99 = next(each.p99 for each in times if each.kind == kind)
            found = self._known[key] = p99[self.question.batches.index(stage.batch)]
        return found
