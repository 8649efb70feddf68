"""The timetables of one device's lanes: free windows, and windows of replicas.

A lane repeats a cycle. Each replica with a window runs one batch there in every cycle. A replica
gets the free window that fits it best:

1. the replica's window lies within the free window, and starts between `earliest` and `latest`;
2. the accelerator has enough memory (weights of all replicas, plus each lane's largest
   intermediate) and utilisation (each lane's largest) (OctopInf, eq. 4 and 5);
3. the lane's cycle, which its first window fixes, is no longer than the replica's.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.pipelines.problem import DeviceView

Key = tuple[str, int, int]
"""(pipeline, stage, replica)."""


@dataclass(frozen=True, slots=True)
class PlacedWindow:
    """The part of a lane's cycle that belongs to one replica of a stage. Times are in seconds."""

    device: str
    lane: int
    """Number on the device: lanes of its first accelerator come first."""
    start: float
    end: float
    period: float
    """The lane's cycle."""
    pipeline: str
    stage: int
    replica: int


class Resident(NamedTuple):
    """A replica that needs a window. Times are seconds within a cycle; sizes are bytes."""

    key: Key
    seconds: float
    earliest: float
    """Earliest start of its window."""
    latest: float
    """Latest start of its window."""
    cycle: float
    """Cycle of its pipeline."""
    weights: float = 0.0
    intermediate: float = 0.0
    utilisation: float = 0.0


class _Window:
    """A part of a lane's cycle, free or taken. `left` and `right` are its neighbours."""

    __slots__ = ("end", "lane", "left", "resident", "right", "start")

    def __init__(self, lane: _LaneSchedule, start: float, end: float) -> None:
        self.lane, self.start, self.end = lane, start, end
        self.resident: Resident | None = None
        self.left: _Window | None = None
        self.right: _Window | None = None


class _LaneSchedule:
    """Cycle of one lane, divided into windows."""

    __slots__ = ("accelerator", "cycle", "first", "intermediate", "number", "utilisation")

    def __init__(self, number: int, accelerator: int) -> None:
        self.number, self.accelerator = number, accelerator
        self.cycle = 0.0
        """0: no replica has a window."""
        self.intermediate = self.utilisation = 0.0
        """Largest among replicas with a window."""
        self.first = _Window(self, 0.0, math.inf)

    def windows(self) -> Iterator[_Window]:
        window: _Window | None = self.first
        while window is not None:
            yield window
            window = window.right


class DeviceSchedule:
    """The schedules of all lanes of one device."""

    def __init__(self, device: DeviceView) -> None:
        self.device = device
        self.lanes = [_LaneSchedule(at, at // device.streams) for at in range(device.lanes)]
        self.weights = [0.0] * device.accelerators
        self.intermediate = [0.0] * device.accelerators
        self.utilisation = [0.0] * device.accelerators
        self._free: list[tuple[float, int, float, _Window]] = []
        """(length, lane, start, window), ascending: the first window that fits is the best one."""
        for lane in self.lanes:
            self._add_free(lane.first)
        self._taken_windows: dict[Key, _Window] = {}
        self._placed: dict[Key, PlacedWindow] = {}
        """Taken windows, as given to callers."""

    def place(self, resident: Resident) -> PlacedWindow | None:
        """Give the resident the free window that fits it best; None if no window fits. Raises
        ValueError if it already has a window."""
        if resident.key in self._taken_windows:
            raise ValueError(f"{resident.key} already has a window")
        begin = bisect_left(self._free, (resident.seconds,))
        for at in range(begin, len(self._free)):
            window = self._free[at][-1]
            start = self._start(window, resident)
            if start is not None:
                del self._free[at]
                self._take(window, start, resident)
                return self._placed[resident.key]
        return None

    def give_back(self, key: Key) -> None:
        """Free a replica's window, and merge it with free neighbours. Raises KeyError if it has
        none."""
        window = self._taken_windows.pop(key)
        resident, lane = window.resident, window.lane
        assert resident is not None
        window.resident = None
        del self._placed[key]
        for gap in (window.left, window.right):
            if gap is not None and gap.resident is None:
                self._free.remove((gap.end - gap.start, lane.number, gap.start, gap))
                self._merge(window, gap)
        at = lane.accelerator
        self.weights[at] -= resident.weights
        self.intermediate[at] -= lane.intermediate
        self.utilisation[at] -= lane.utilisation
        residents = [part.resident for part in lane.windows() if part.resident is not None]
        lane.intermediate = max((resident.intermediate for resident in residents), default=0.0)
        lane.utilisation = max((resident.utilisation for resident in residents), default=0.0)
        self.intermediate[at] += lane.intermediate
        self.utilisation[at] += lane.utilisation
        if not residents:
            lane.cycle = 0.0
            window.end = math.inf
        self._add_free(window)

    def windows(self) -> list[PlacedWindow]:
        """Return all windows of replicas."""
        return list(self._placed.values())

    def free(self) -> list[tuple[int, float, float]]:
        """Return (lane, start, end) of all free windows."""
        return [(number, window.start, window.end) for _, number, _, window in self._free]

    def _start(self, window: _Window, resident: Resident) -> float | None:
        """Return the start of the resident's window within a free window; None: it does not fit."""
        lane, at = window.lane, window.lane.accelerator
        start = max(window.start, resident.earliest)
        cycle = lane.cycle or resident.cycle
        fits = start <= resident.latest and start + resident.seconds <= min(window.end, cycle)
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

    def _take(self, window: _Window, start: float, resident: Resident) -> None:
        lane, end = window.lane, start + resident.seconds
        if not lane.cycle:
            lane.cycle = window.end = resident.cycle
        if start > window.start:
            self._split(window, window.start, start, left=True)
        if end < window.end:
            self._split(window, end, window.end, left=False)
        window.start, window.end, window.resident = start, end, resident
        self._taken_windows[resident.key] = window
        self._placed[resident.key] = PlacedWindow(
            self.device.name, lane.number, start, end, lane.cycle, *resident.key
        )
        at = lane.accelerator
        self.weights[at] += resident.weights
        self.intermediate[at] += max(0.0, resident.intermediate - lane.intermediate)
        self.utilisation[at] += max(0.0, resident.utilisation - lane.utilisation)
        lane.intermediate = max(lane.intermediate, resident.intermediate)
        lane.utilisation = max(lane.utilisation, resident.utilisation)

    def _split(self, window: _Window, start: float, end: float, *, left: bool) -> None:
        """Add a free window beside `window`, which is about to shrink."""
        remainder = _Window(window.lane, start, end)
        if left:
            remainder.left, remainder.right, window.left = window.left, window, remainder
            if remainder.left is None:
                window.lane.first = remainder
            else:
                remainder.left.right = remainder
        else:
            remainder.right, remainder.left, window.right = window.right, window, remainder
            if remainder.right is not None:
                remainder.right.left = remainder
        self._add_free(remainder)

    def _merge(self, window: _Window, gap: _Window) -> None:
        """Extend `window` over `gap`, its free neighbour."""
        window.start = min(window.start, gap.start)
        window.end = max(window.end, gap.end)
        if gap is window.left:
            window.left = gap.left
            if gap.left is None:
                window.lane.first = window
            else:
                gap.left.right = window
        else:
            window.right = gap.right
            if gap.right is not None:
                gap.right.left = window

    def _add_free(self, window: _Window) -> None:
        length = window.end - window.start
        insort(self._free, (length, window.lane.number, window.start, window))
