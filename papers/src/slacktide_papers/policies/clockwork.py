"""`clockwork`: plans by point estimates; an overrun costs the batch that would run next.

Clockwork (OSDI 2020) sends its workers batches with the time at which each must start, and a worker
cancels a batch that it cannot start in time. If batch times are certain, nothing is ever cancelled.
If not, Orloj (§2.3, §5.3) reports that Clockwork "suffers from the same fail-every-other-batch
pattern". These readings fit the figures in Orloj's Tables 2 and 3:

- the estimate for a batch size is the *median* time of the last ten batches of that size;
- each batch has the largest size (1, 2, 4, …) with which the earliest deadline is still met;
- when a batch has outlasted its estimate, the batch that would run next is *lost*: its members are
  dropped (`behind_overrun`), and the lane runs the batch after that.

A request that would be late by the estimates is refused on arrival. Best-effort requests are never
lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from slacktide.domain import Batch, Reason, Replica, Request, option
from slacktide.engine import PoolView, Proposal
from slacktide.profiles import BatchTimes, PointTime, ShapeClasses, batch_sizes, sorted_alike
from slacktide.scheduling import DeadlineOptions, Edf, EdfOptions


class RecentTimes(BatchTimes):
    """Medians of the last `window` batch times, by size and cores; rows are rounded up to a size.

    In seconds. Non-decreasing in rows: no size counts as quicker than a smaller one. Every quantile
    equals the estimate. For a size that has not run yet, the profile gives the time.
    """

    learns = True

    def __init__(self, profile: BatchTimes, sizes: Sequence[int], *, window: int) -> None:
        self._profile = profile
        self._sizes = sizes
        self._window = window
        self._last: dict[tuple[int, int], deque[float]] = {}
        self._medians: dict[tuple[int, int], float] = {}
        self._changes = 0
        self._shapes: ShapeClasses | None = None

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        """The median of the smallest size that holds `rows`, or a longer median of a smaller size.

        If the profile distinguishes shapes, only the times of the members' class count."""
        if members and (classes := self.classes(cores)) is not None:
            time = classes.times[classes.class_of(members[0])].of(rows, cores)
            return PointTime(time.expected)
        until = bisect_left(self._sizes, rows) + 1
        return PointTime(max(self._of(size, cores) for size in self._sizes[:until]))

    def classes(self, cores: int) -> ShapeClasses | None:
        """The shape classes, each with its own medians; None if the profile has no such classes."""
        classes = self._profile.classes(cores)
        if not isinstance(classes, ShapeClasses):
            return None
        if self._shapes is None or not sorted_alike(classes, self._shapes):
            recent = [RecentTimes(base, self._sizes, window=self._window) for base in classes.times]
            self._shapes = replace(classes, times=tuple(recent))
        return self._shapes

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        """Note that a batch of `rows` rows took `seconds`; 0 (stopped as it began) is ignored."""
        if seconds <= 0.0:
            return
        if members and (classes := self.classes(cores)) is not None:
            times = classes.times[classes.class_of(members[0])]
            assert isinstance(times, RecentTimes)
            times.observe(seconds, (), rows, cores)
            self._changes += 1
            return
        key = (self._size(rows), cores)
        last = self._last.get(key)
        if last is None:
            last = self._last[key] = deque(maxlen=self._window)
        last.append(seconds)
        self._keep(key)

    def discount(self, request: Request | None = None) -> None:
        """Forget the oldest time of each size, so that repeated calls lead back to the profile. If
        there are shape classes, do so in the class of `request` too; None: in all classes."""
        if (shapes := self._shapes) is not None:
            every = shapes.times
            for times in every if request is None else (every[shapes.class_of(request)],):
                assert isinstance(times, RecentTimes)
                times.discount()
            self._changes += 1
        for key, last in self._last.items():
            if last:
                last.popleft()
                self._keep(key)
        self._profile.discount(request)

    def settle(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        self._profile.settle(seconds, members, rows, cores)

    @property
    def revision(self) -> int:
        """Rises whenever a median changes or the profile's revision rises."""
        return self._changes + self._profile.revision

    def _size(self, rows: int) -> int:
        return self._sizes[min(bisect_left(self._sizes, rows), len(self._sizes) - 1)]

    def _of(self, size: int, cores: int) -> float:
        median_s = self._medians.get((size, cores))
        return self._profile.of(size, cores).expected if median_s is None else median_s

    def _keep(self, key: tuple[int, int]) -> None:
        """Recompute the median of `key`."""
        last = self._last[key]
        median_s = median(last) if last else None
        if median_s != self._medians.get(key):
            self._changes += 1
            if median_s is None:
                del self._medians[key]
            else:
                self._medians[key] = median_s


@dataclass(frozen=True, slots=True)
class ClockworkOptions(DeadlineOptions):
    """The default tolerance fits the printed figures; on a real machine it makes jitter cost every
    other batch of the most regular model, and 0.1 is closer to Clockwork's own windows."""

    window: int = option(
        10, "Number of last batches of a size, whose median time is used.", least=1
    )
    tolerance: float = option(
        0.001,
        "Overrun, as a share of its estimate, after which the next batch is lost.",
        least=0,
    )


class Clockwork(Edf):
    """Earliest deadline first by point estimates, with batches lost behind overruns."""

    Options: ClassVar[type[DeadlineOptions]] = ClockworkOptions

    def __init__(
        self, options: ClockworkOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        self._recent = RecentTimes(times, batch_sizes(max_batch), window=options.window)
        super().__init__(
            EdfOptions(admission=options.admission, max_queue=options.max_queue),
            max_batch=max_batch,
            times=self._recent,
            view=view,
        )
        self._patience = 1.0 + options.tolerance
        self._ends: dict[int, float] = {}
        """By id of a running batch: the time after which it counts as an overrun."""
        self._behind: list[Replica] = []
        """Replicas whose batch has just outlasted its estimate."""
        self._overrun_at = 0.0

    def take(self, batch: Batch) -> None:
        """Remove the members from the queue, and note when the batch will count as an overrun."""
        super().take(batch)
        estimate = self._recent.of(
            batch.rows, max(1, len(batch.replica.cores)), batch.members
        ).expected
        self._ends[batch.id] = batch.started + self._patience * estimate

    def ended(self, batch: Batch, *, now: float) -> None:
        """Record how long the batch took, and whether that was too long."""
        self._recent.observe(
            now - batch.started, batch.members, batch.rows, max(1, len(batch.replica.cores))
        )
        if now > self._ends.pop(batch.id, now):
            self._behind.append(batch.replica)
            self._overrun_at = now

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Requests whose latest start has passed, and members of batches lost behind an overrun."""
        dropped = list(super().expire(now=now))
        while self._behind:
            lost = self.propose(self._behind.pop(), now=now)
            if isinstance(lost, Proposal):
                timed = [member.id for member in lost.members if not member.best_effort]
                self._timed.remove(timed)
                dropped += [(id, Reason.BEHIND_OVERRUN) for id in timed]
        return dropped

    def next_expiry(self) -> float | None:
        """When `expire` is due: immediately after an overrun, else when the first latest start
        passes."""
        return self._overrun_at if self._behind else super().next_expiry()
