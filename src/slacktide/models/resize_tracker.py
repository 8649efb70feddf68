"""`ResizeTracker`: resizes under way, by lane; over once every replica there reports what it has.

The engine gets what was read back. Where a replica got less than was asked for (a
core that is not ours, a pod that does not fit its node), the lane has the least that any of its
replicas got. That holds for replicas that start, too; and should the rest come later, the engine
gets another report.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from slacktide.domain import LaneResized
from slacktide.executors.ports import Resized
from slacktide.models.calls.model_counters import Histogram

log = logging.getLogger("slacktide.driver")

SECONDS_BOUNDS: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
)  # fmt: skip


class ResizeOutcome(Enum):
    CONFIRMED = "confirmed"
    """The lane has what was asked for."""
    REFUSED = "refused"
    """It has something else."""
    SUPERSEDED = "superseded"
    """Something else was asked for before it was settled."""


class _Resize:
    """One under way, or settled with less than was asked for."""

    __slots__ = ("began", "cores", "reported", "short", "waiting")

    def __init__(self, cores: tuple[int, ...], waiting: set[int], began: float) -> None:
        self.cores = cores
        self.waiting = waiting
        """Replicas that have not said what they have."""
        self.began = began
        self.short: dict[int, tuple[int, ...]] = {}
        """Replicas that have something else, and what."""
        self.reported: tuple[int, ...] | None = None
        """What was reported to the engine; None: it is under way."""

    @property
    def got(self) -> tuple[int, ...]:
        return min(self.short.values(), key=len, default=self.cores)


class ResizeTracker:
    """Belongs to the driver's loop."""

    def __init__(self, clock: Callable[[], float], settled: Callable[[LaneResized], None]) -> None:
        """`settled` is called once for each resize that nothing supersedes, and once more whenever
        what the lane has changes after that."""
        self._clock = clock
        self._settled = settled
        self._lanes: dict[str, _Resize] = {}
        self._refusals: dict[str, str] = {}
        self.outcomes: Counter[ResizeOutcome] = Counter()
        self.seconds = Histogram(SECONDS_BOUNDS)
        """From the command to the confirmation by the last replica; of those confirmed."""

    def begin(self, lane: str, cores: tuple[int, ...], replicas: Iterable[int]) -> None:
        """Replicas of `lane` are to have `cores`, and will say so."""
        before = self._lanes.get(lane)
        if before is not None and before.reported is None:
            self.outcomes[ResizeOutcome.SUPERSEDED] += 1
        self._lanes[lane] = _Resize(cores, set(replicas), self._clock())
        self._maybe_settle(lane)

    def reported(
        self, lane: str, replica: int, report: Resized, *, intended: tuple[int, ...]
    ) -> None:
        """A replica of `lane`, which was started to have `intended`, says what it has."""
        resize = self._lanes.get(lane)
        if resize is None:  # no resize since: it is about how the replica started
            resize = self._lanes[lane] = _Resize(intended, set(), self._clock())
            resize.reported = intended
        resize.waiting.discard(replica)
        resize.short.pop(replica, None)
        if set(report.cores) != set(resize.cores):
            resize.short[replica] = report.cores
        if report.detail and self._refusals.get(lane) != report.detail:
            log.warning("lane %s does not have its cores: %s", lane, report.detail)
            self._refusals[lane] = report.detail
        self._maybe_settle(lane)

    def gone(self, lane: str, replica: int) -> None:
        """A replica of `lane` will say nothing more."""
        resize = self._lanes.get(lane)
        if resize is not None and (replica in resize.waiting or replica in resize.short):
            resize.waiting.discard(replica)
            resize.short.pop(replica, None)
            self._maybe_settle(lane)

    def _maybe_settle(self, lane: str) -> None:
        resize = self._lanes[lane]
        if resize.waiting:
            return
        got, before = resize.got, resize.reported
        resize.reported = got
        if not resize.short:
            del self._lanes[lane]
            self._refusals.pop(lane, None)
        if before is None:
            ended = ResizeOutcome.REFUSED if resize.short else ResizeOutcome.CONFIRMED
            self.outcomes[ended] += 1
            if not resize.short:
                self.seconds.add(self._clock() - resize.began)
        if got != before:
            self._settled(LaneResized(lane, got))
