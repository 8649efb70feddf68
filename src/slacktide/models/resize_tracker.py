"""`ResizeTracker`: resizes of lanes in progress, until every replica reports its cores.

The engine gets the cores that were read back. If a replica got fewer cores than requested (a core
is not ours, a pod does not fit its node), the lane counts as having the smallest set of any
replica, including starting replicas. If the missing cores arrive later, the engine gets another
report.
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
    """The lane has the requested cores."""
    REFUSED = "refused"
    """The lane has other cores than requested."""
    SUPERSEDED = "superseded"
    """Another resize began before this one ended."""


class _Resize:
    """A resize in progress, or a resize that ended with fewer cores than requested."""

    __slots__ = ("began", "cores", "reported", "short", "waiting")

    def __init__(self, cores: tuple[int, ...], waiting: set[int], began: float) -> None:
        self.cores = cores
        self.waiting = waiting
        """Replicas that have not reported yet."""
        self.began = began
        self.short: dict[int, tuple[int, ...]] = {}
        """Cores of each replica whose cores differ from the requested cores."""
        self.reported: tuple[int, ...] | None = None
        """Cores reported to the engine; None while in progress."""

    @property
    def got(self) -> tuple[int, ...]:
        return min(self.short.values(), key=len, default=self.cores)


class ResizeTracker:
    """Tracks resizes by lane. Belongs to the driver's loop."""

    def __init__(self, clock: Callable[[], float], settled: Callable[[LaneResized], None]) -> None:
        """`settled` is called at the end of each resize that is not superseded, and again whenever
        the lane's cores change afterwards."""
        self._clock = clock
        self._on_settled = settled
        self._lanes: dict[str, _Resize] = {}
        self._refusals: dict[str, str] = {}
        self.outcomes: Counter[ResizeOutcome] = Counter()
        self.seconds = Histogram(SECONDS_BOUNDS)
        """Seconds of confirmed resizes, from the command to the last replica's confirmation."""

    def begin(self, lane: str, cores: tuple[int, ...], replicas: Iterable[int]) -> None:
        """Begin a resize of `lane`: its replicas will report their cores."""
        before = self._lanes.get(lane)
        if before is not None and before.reported is None:
            self.outcomes[ResizeOutcome.SUPERSEDED] += 1
        self._lanes[lane] = _Resize(cores, set(replicas), self._clock())
        self._maybe_settle(lane)

    def reported(
        self, lane: str, replica: int, report: Resized, *, intended: tuple[int, ...]
    ) -> None:
        """Note a replica's report. `intended`: the cores it was started with."""
        resize = self._lanes.get(lane)
        if resize is None:  # no resize: the report is about the replica's start
            resize = self._lanes[lane] = _Resize(intended, set(), self._clock())
            resize.reported = intended
        resize.waiting.discard(replica)
        resize.short.pop(replica, None)
        if set(report.cores) != set(resize.cores):
            resize.short[replica] = report.cores
        if report.detail and self._refusals.get(lane) != report.detail:
            log.warning("lane %s did not get its cores: %s", lane, report.detail)
            self._refusals[lane] = report.detail
        self._maybe_settle(lane)

    def gone(self, lane: str, replica: int) -> None:
        """Wait no longer for a replica that has ended."""
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
            self._on_settled(LaneResized(lane, got))
