"""`nexus`: first in, first out, in batches of a size planned from the mean (Nexus, SOSP 2019).

The plan is the largest size whose expected batch time fits `cycles` times into the SLO. Nexus plans
with 2: a request that has just missed a batch waits for one and runs in the next. The figures that
Orloj's Tables 2 and 3 give for it ask for 4, and for no early drop: both are the readings taken
here. A published baseline: nothing is refused, and late requests run all the same.

Each request is planned by its own SLO (deadline - arrival), and the tightest in a batch decides.
Best effort has none and goes along with any size.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf

from slacktide.domain import Replica, Request
from slacktide.domain.options import option
from slacktide.engine.ports import BatchTimes, Idle, Proposal
from slacktide.profiles import batch_sizes
from slacktide.scheduling.arrival_policy import ArrivalPolicy
from slacktide.scheduling.options import QueueOptions
from slacktide.scheduling.tables import Cached, Lazy, TimeByRows


@dataclass(frozen=True, slots=True)
class NexusOptions(QueueOptions):
    """Options of `nexus`."""

    cycles: float = option(
        4.0, "How many batches of the planned size an SLO has room for.", least=1
    )


class Nexus(ArrivalPolicy):
    """First in, first out, at a planned size."""

    Options = NexusOptions

    def __init__(
        self, options: NexusOptions, *, max_batch: int, times: BatchTimes, **known: object
    ) -> None:
        super().__init__(options, max_batch=max_batch)
        self._cycles = options.cycles
        self._sizes = batch_sizes(max_batch)
        self._expected: Cached[TimeByRows] = Cached(
            times, lambda cores: Lazy(lambda rows: times.of(rows, cores).expected)
        )

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The front of the queue, as much as the plan allows. Changes nothing."""
        expected = self._expected(max(1, len(replica.cores)))

        def planned(request: Request) -> int:
            slo = inf if request.best_effort else request.deadline - request.arrival
            fitting = bisect_right(self._sizes, slo / self._cycles, key=expected.__getitem__)
            return self._sizes[max(0, fitting - 1)]

        return self._front(planned, replica)
