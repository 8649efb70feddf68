"""`clockwork`: plan by a point estimate, and lose what stands behind an overrun.

Clockwork (OSDI 2020) sends its workers batches with the time at which each must start, and a worker
cancels one that it cannot start in time. Where batch times are certain nothing is ever cancelled.
Where they are not, Orloj (§2.3, §5.3) reports that it "suffers from the same fail-every-other-batch
pattern". The readings that fit the figures of its Tables 2 and 3:

- a batch of some size is taken to last the *median* of its last ten batches;
- the batch is the largest that keeps the request due first on time, of sizes 1, 2, 4, …;
- when a batch has outlasted its estimate, the one that would run next is *lost*: its members are
  dropped (`behind_overrun`), and the lane goes on with the one after it.

It refuses on arrival what its estimates say cannot be met. Best effort is never lost: it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slacktide.domain import Batch, Reason, Replica
from slacktide.domain.options import option
from slacktide.engine.ports import BatchTimes, PoolView, Proposal
from slacktide.scheduling.edf import Edf, EdfOptions
from slacktide.scheduling.options import DeadlineOptions
from slacktide.scheduling.recent_times import RecentTimes
from slacktide.scheduling.tables import powers_of_two


@dataclass(frozen=True, slots=True)
class ClockworkOptions(DeadlineOptions):
    """The default tolerance fits the printed figures; on a real machine it makes jitter cost every
    other batch of the most regular model, and 0.1 is closer to Clockwork's own windows."""

    window: int = option(10, "Batches of a size that its median time is taken over.", least=1)
    tolerance: float = option(
        0.001,
        "Share of its estimate that a batch may take longer before the one behind it is lost.",
        least=0,
    )


class Clockwork(Edf):
    """Earliest deadline first by point estimates, with batches lost behind overruns."""

    Options: type[DeadlineOptions] = ClockworkOptions

    def __init__(
        self, options: ClockworkOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        self._recent = RecentTimes(times, powers_of_two(max_batch), window=options.window)
        super().__init__(
            EdfOptions(admission=options.admission, max_queue=options.max_queue),
            max_batch=max_batch,
            times=self._recent,
            view=view,
        )
        self._patience = 1.0 + options.tolerance
        self._ends: dict[int, float] = {}
        """When each running batch is to end, by its id."""
        self._behind: list[Replica] = []
        """Where a batch has just outlasted its estimate."""
        self._overrun_at = 0.0

    def take(self, batch: Batch) -> None:
        """The members leave the queue; the batch has its estimate to run."""
        super().take(batch)
        estimate = self._recent.of(batch.rows, max(1, len(batch.replica.cores))).expected
        self._ends[batch.id] = batch.started + self._patience * estimate

    def ended(self, batch: Batch, *, now: float) -> None:
        """Remember its time, and whether it took too long."""
        self._recent.observe(
            now - batch.started, batch.members, batch.rows, max(1, len(batch.replica.cores))
        )
        if now > self._ends.pop(batch.id, now):
            self._behind.append(batch.replica)
            self._overrun_at = now

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Requests whose latest start has passed, and members of batches lost behind an overrun."""
        gone = list(super().expire(now=now))
        while self._behind:
            lost = self.propose(self._behind.pop(), now=now)
            if isinstance(lost, Proposal):
                timed = [member.id for member in lost.members if not member.best_effort]
                self._timed.remove(timed)
                gone += [(id, Reason.BEHIND_OVERRUN) for id in timed]
        return gone

    def next_expiry(self) -> float | None:
        """At once behind an overrun, else the earliest latest start."""
        return self._overrun_at if self._behind else super().next_expiry()
