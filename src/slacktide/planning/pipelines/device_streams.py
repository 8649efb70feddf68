"""The portions of one device's streams: which are free, and which replica has which.

See streams.py for when a replica fits into one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from slacktide.planning.pipelines.problem import DeviceView, PlacedPortion

Key = tuple[str, int, int]
"""(pipeline, stage, replica)."""


class Resident(NamedTuple):
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
    """A portion of a stream, free or taken. `left` and `right` are its neighbours."""

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
        portion: _Portion | None = self.first
        while portion is not None:
            yield portion
            portion = portion.right


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
        self._placed: dict[Key, PlacedPortion] = {}
        """Taken portions, as callers see them."""

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
                return self._placed[resident.key]
        return None

    def give_back(self, key: Key) -> None:
        """Its portion is free again, as one with its free neighbours. Raises KeyError."""
        portion = self._taken.pop(key)
        resident, lane = portion.resident, portion.stream
        assert resident is not None
        portion.resident = None
        del self._placed[key]
        for gap in (portion.left, portion.right):
            if gap is not None and gap.resident is None:
                self._free.remove((gap.end - gap.start, lane.number, gap.start, gap))
                self._merge(portion, gap)
        at = lane.accelerator
        self.weights[at] -= resident.weights
        self.intermediate[at] -= lane.intermediate
        self.utilisation[at] -= lane.utilisation
        residents = [part.resident for part in lane.portions() if part.resident is not None]
        lane.intermediate = max((resident.intermediate for resident in residents), default=0.0)
        lane.utilisation = max((resident.utilisation for resident in residents), default=0.0)
        self.intermediate[at] += lane.intermediate
        self.utilisation[at] += lane.utilisation
        if not residents:
            lane.cycle = 0.0
            portion.end = math.inf
        self._add_free(portion)

    def portions(self) -> list[PlacedPortion]:
        """All that are taken."""
        return list(self._placed.values())

    def free(self) -> list[tuple[int, float, float]]:
        """(stream, start, end) of all that are not."""
        return [(number, portion.start, portion.end) for _, number, _, portion in self._free]

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
        self._placed[resident.key] = PlacedPortion(
            self.device.name, lane.number, start, end, lane.cycle, *resident.key
        )
        at = lane.accelerator
        self.weights[at] += resident.weights
        self.intermediate[at] += max(0.0, resident.intermediate - lane.intermediate)
        self.utilisation[at] += max(0.0, resident.utilisation - lane.utilisation)
        lane.intermediate = max(lane.intermediate, resident.intermediate)
        lane.utilisation = max(lane.utilisation, resident.utilisation)

    def _split(self, portion: _Portion, start: float, end: float, *, left: bool) -> None:
        """What is left over of it, beside it."""
        remainder = _Portion(portion.stream, start, end)
        if left:
            remainder.left, remainder.right, portion.left = portion.left, portion, remainder
            if remainder.left is None:
                portion.stream.first = remainder
            else:
                remainder.left.right = remainder
        else:
            remainder.right, remainder.left, portion.right = portion.right, portion, remainder
            if remainder.right is not None:
                remainder.right.left = remainder
        self._add_free(remainder)

    def _merge(self, portion: _Portion, gap: _Portion) -> None:
        """Extend `portion` over `gap`, its free neighbour."""
        portion.start = min(portion.start, gap.start)
        portion.end = max(portion.end, gap.end)
        if gap is portion.left:
            portion.left = gap.left
            if gap.left is None:
                portion.stream.first = portion
            else:
                gap.left.right = portion
        else:
            portion.right = gap.right
            if gap.right is not None:
                gap.right.left = portion

    def _add_free(self, portion: _Portion) -> None:
        length = portion.end - portion.start
        insort(self._free, (length, portion.stream.number, portion.start, portion))
