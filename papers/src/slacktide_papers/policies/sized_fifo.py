"""`clipper` and `nexus`: first in, first out, in batches of a size that the policy chooses.

Published baselines: they refuse no request, and run late requests, too.

`clipper` finds the size by trial (Clipper, NSDI 2017).

The size grows by a constant while answers come in time and shrinks by a factor once an answer is
late: additive increase, multiplicative decrease (Clipper, §4.3). "In time" is judged by the latency
the client sees, waiting included. That reading fits the figures in Orloj's Tables 2 and 3; judged
by the batch time alone, Clipper would do far better than these tables say. Nothing is predicted.

Each request is judged by its own deadline, so requests with different deadlines need no common
objective: a batch was slow if any of its members is late. Best-effort requests are never late.

`nexus` plans the size from the mean (Nexus, SOSP 2019).

The plan is the largest size whose expected batch time fits `cycles` times into the SLO. Nexus plans
with 2: a request that has just missed a batch waits for that batch and runs in the next. The
figures for Nexus in Orloj's Tables 2 and 3 fit 4 cycles without early drop, so both are used here.

Each request is planned by its own SLO (deadline - arrival), and the tightest in a batch decides.
Best-effort requests have no SLO and join batches of any size.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from slacktide.domain import Batch, Replica, Request, option
from slacktide.engine import Idle, Proposal
from slacktide.profiles import BatchTimes, ShapeClasses, batch_sizes
from slacktide.scheduling import ArrivalPolicy, Cached, Lazy, QueueOptions, TimeByRows


@dataclass(frozen=True, slots=True)
class ClipperOptions(QueueOptions):
    """Options of `clipper`."""

    increase: float = option(
        1.0, "Rows that the batch size grows by after a batch on time.", above=0
    )
    decrease: float = option(0.9, "Factor on the batch size after a late one.", above=0, below=1)


class Clipper(ArrivalPolicy):
    """First in, first out, with a batch size found by trial."""

    Options: ClassVar = ClipperOptions

    def __init__(self, options: ClipperOptions, *, max_batch: int, **context: object) -> None:
        super().__init__(options, max_batch=max_batch)
        self._options = options
        self._size = 1.0
        """Maximum rows of a batch, before rounding down; from 1 to `max_batch`."""

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The front of the queue, up to the present size. Changes nothing."""
        size = int(self._size)
        return self._front(lambda _: size, replica)

    def ended(self, batch: Batch, *, now: float) -> None:
        """Reduce the size if any member was late, else increase it."""
        late = any(now > member.deadline and not member.best_effort for member in batch.members)
        options = self._options
        if late:
            self._size = max(1.0, self._size * options.decrease)
        else:
            self._size = min(float(self._max_batch), self._size + options.increase)


@dataclass(frozen=True, slots=True)
class NexusOptions(QueueOptions):
    """Options of `nexus`."""

    cycles: float = option(
        4.0, "Number of batches of the planned size that fit in an SLO.", least=1
    )


class Nexus(ArrivalPolicy):
    """First in, first out, with a batch size planned from expected batch times."""

    Options: ClassVar = NexusOptions

    def __init__(
        self, options: NexusOptions, *, max_batch: int, times: BatchTimes, **context: object
    ) -> None:
        super().__init__(options, max_batch=max_batch)
        self._times = times
        self._cycles = options.cycles
        self._sizes = batch_sizes(max_batch)
        self._expected: Cached[TimeByRows] = Cached(times, self._table)

    def _table(self, cores: int) -> TimeByRows:
        """Expected seconds by (rows, class); the class is None if the profile has no classes."""
        times, classes = self._times, self._times.classes(cores)

        def expected(kind: tuple[int, int | None]) -> float:
            rows, of = kind
            if of is not None and isinstance(classes, ShapeClasses):
                return classes.times[of].of(rows, cores).expected
            return times.of(rows, cores).expected

        return Lazy(expected)

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The front of the queue, up to the planned size. Changes nothing."""
        cores = max(1, len(replica.cores))
        expected, classes = self._expected(cores), self._times.classes(cores)

        def planned(request: Request) -> int:
            slo = inf if request.best_effort else request.deadline - request.arrival
            of = classes.class_of(request) if isinstance(classes, ShapeClasses) else None
            budget = slo / self._cycles
            fitting = bisect_right(self._sizes, budget, key=lambda size: expected[size, of])
            return self._sizes[max(0, fitting - 1)]

        return self._front(planned, replica)
