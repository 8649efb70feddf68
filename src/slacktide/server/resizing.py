"""`Resizing`: resizes under way, by lane; over once every replica there says what it has.

What is told to the engine is what was read back. Where somebody gave less than was asked for (a
core that is not ours, a pod that does not fit its node), the lane has the least that any of its
replicas got.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from slacktide.domain import LaneResized
from slacktide.executors.ports import Resized
from slacktide.server.tally import Histogram

log = logging.getLogger("slacktide.driver")

SECONDS_BOUNDS: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
)  # fmt: skip


class ResizeOutcome(Enum):
    """How a resize ended."""

    CONFIRMED = "confirmed"
    """The lane has what was asked for."""
    REFUSED = "refused"
    """It has something else."""
    SUPERSEDED = "superseded"
    """Something else was asked for before it was settled."""


class _Resize:
    """One under way."""

    __slots__ = ("began", "cores", "got", "waiting")

    def __init__(self, cores: tuple[int, ...], waiting: set[int], began: float) -> None:
        self.cores = cores
        self.waiting = waiting
        """Replicas that have not said what they have."""
        self.began = began
        self.got = cores
        """The same object, or the least that one has instead."""


class Resizing:
    """Belongs to the driver's loop."""

    def __init__(self, clock: Callable[[], float], settled: Callable[[LaneResized], None]) -> None:
        """`settled` is called once for each resize that nothing supersedes."""
        self._clock = clock
        self._settled = settled
        self._lanes: dict[str, _Resize] = {}
        self._refusals: dict[str, str] = {}
        self.outcomes: Counter[ResizeOutcome] = Counter()
        self.seconds = Histogram(SECONDS_BOUNDS)
        """From the command to the confirmation by the last replica; of those confirmed."""

    def begin(self, lane: str, cores: tuple[int, ...], replicas: Iterable[int]) -> None:
        """Replicas of `lane` are to have `cores`, and will say so."""
        if lane in self._lanes:
            self.outcomes[ResizeOutcome.SUPERSEDED] += 1
        self._lanes[lane] = _Resize(cores, set(replicas), self._clock())
        self._maybe_settle(lane)

    def told(self, lane: str, replica: int, report: Resized) -> None:
        """A replica of `lane` says what it has."""
        resize = self._lanes.get(lane)
        if resize is None or replica not in resize.waiting:
            return
        resize.waiting.discard(replica)
        if set(report.cores) != set(resize.cores):
            refused = resize.got is not resize.cores
            if not refused or len(report.cores) < len(resize.got):
                resize.got = report.cores
        if report.detail and self._refusals.get(lane) != report.detail:
            log.warning("lane %s has not got its cores: %s", lane, report.detail)
            self._refusals[lane] = report.detail
        self._maybe_settle(lane)

    def gone(self, lane: str, replica: int) -> None:
        """A replica of `lane` will say nothing more."""
        resize = self._lanes.get(lane)
        if resize is not None and replica in resize.waiting:
            resize.waiting.discard(replica)
            self._maybe_settle(lane)

    def _maybe_settle(self, lane: str) -> None:
        resize = self._lanes[lane]
        if resize.waiting:
            return
        del self._lanes[lane]
        if resize.got is resize.cores:
            self.outcomes[ResizeOutcome.CONFIRMED] += 1
            self.seconds.add(self._clock() - resize.began)
            self._refusals.pop(lane, None)
        else:
            self.outcomes[ResizeOutcome.REFUSED] += 1
        self._settled(LaneResized(lane, resize.got))
