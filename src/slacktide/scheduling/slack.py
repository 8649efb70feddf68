"""`slack`, the default: the batch with the most expected on-time value per second of lane time.

Theory of operation (SCHEDULING §3 with one class; docs/decisions/0005-slack-one-class.md). At every
decision, for a grid of sizes k and a few start points v:

- *candidate*: the first k requests, in deadline order, that have at least `need(k, v)` left, the
  quantile (v + ½) / levels of the time of k rows. Several start points, because the most urgent
  requests may not be worth the smaller batch that they force: dropping the head is a choice.
  Where penalties differ, also of the costliest alone.
- *value* of a member: penalty × P(on time) × (1 − κ (1 − e^(−spare/τ))), spare = the time it would
  have left if it waited out this batch and then ran alone. That is what answering it now is worth,
  less what is likely still to be had if it is passed over once: the urgent count fully, the patient
  1 − κ. τ = n × cost + alone, the likely wait behind n pending requests.
- *score*: sum of the values / expected time of the batch. The highest runs; on ties the smallest.

What differs from the study: a batch of n rows takes l(n), read from the profile (no padding to k on
a CPU), so a part-filled candidate is priced at its own size, and is considered if it is larger than
the next smaller size; the sizes are half octaves, less those that save next to nothing per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from slacktide.domain import Batch, Replica, Request
from slacktide.engine.ports import BatchTimes, Idle, PoolView, Proposal
from slacktide.scheduling.best_effort import Floor, batch_of, size_of_single, worth
from slacktide.scheduling.deadline_policy import DeadlinePolicy
from slacktide.scheduling.queue import Entry, within_rows
from slacktide.scheduling.slack_candidates import Candidate, Outlook, best_candidate
from slacktide.scheduling.slack_prefix import clear_prefix
from slacktide.scheduling.slack_table import SlackTable, slack_tables, up_to

GROUPS = 8
"""Signatures tried per decision: those of the earliest deadlines."""

LOOK = 8
"""Requests looked at for the costliest ones, in batches of the largest size."""

COST_GAIN = 0.05
"""Weight of the newest batch in the average cost of a request."""


@dataclass(frozen=True, slots=True)
class SlackOptions:
    """Settings of `slack`. All are flat near their defaults. Raises ValueError if out of range."""

    levels: int = 4
    """Start points tried per batch size."""
    kappa: float = 0.9
    """Share of a patient request's worth that is not lost by passing it over; 0 to 1."""
    drop: float = 0.2
    """Given up once P(on time, alone) is this or less; 0 to 1, exclusive."""
    guarantee: Literal["none", "p99"] = "none"
    """p99: a batch starts only if its p99 finish meets the deadline of every member."""
    best_effort_share: float = 0.1
    """Lane time kept for overdue requests without a deadline; 0 to 1."""
    admission: bool = True
    """Refuse at the door what cannot be on time behind the work ahead."""
    max_queue: int | None = 10_000
    """Most requests waiting, notices included; None: no limit."""

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise ValueError(f"levels must be at least 1, got {self.levels}")
        if not 0.0 <= self.kappa <= 1.0:
            raise ValueError(f"kappa must be between 0 and 1, got {self.kappa}")
        if not 0.0 < self.drop < 1.0:
            raise ValueError(f"drop must lie between 0 and 1, got {self.drop}")
        if not 0.0 <= self.best_effort_share <= 1.0:
            raise ValueError(
                f"best_effort_share must be between 0 and 1, got {self.best_effort_share}"
            )
        if self.max_queue is not None and self.max_queue < 1:
            raise ValueError(f"max_queue must be at least 1, got {self.max_queue}")


class Slack(DeadlinePolicy):
    """The default policy. One class; distributions from the pool's batch times."""

    def __init__(
        self, options: SlackOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        guaranteed = options.guarantee == "p99"
        levels = [(v + 0.5) / options.levels for v in range(options.levels)]

        def needs(times: BatchTimes, rows: int, cores: int) -> tuple[float, ...]:
            if guaranteed:
                return (times.p99(rows, cores),)
            return tuple(times.quantile(level, rows, cores) for level in levels)

        def lead(times: BatchTimes, rows: int, cores: int) -> float:
            if guaranteed:
                return times.p99(rows, cores)
            return times.quantile(options.drop, rows, cores)

        super().__init__(
            max_batch=max_batch,
            times=times,
            view=view,
            lead=lead,
            admission=options.admission,
            max_queue=options.max_queue,
        )
        self._kappa = options.kappa
        self._tables = slack_tables(times, needs, max_batch)
        self._floor = Floor(options.best_effort_share)
        self._cost: float | None = None

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The batch worth most per second of lane time. Changes nothing."""
        cores = max(1, len(replica.cores))
        table = self._tables(cores)
        limit = min(self._max_batch, replica.max_batch)
        timed, best_effort = self._timed, self._best_effort
        if best_effort.order:
            oldest = best_effort.order[0][2]
            if not timed.order or self._floor.claims(oldest, now=now):
                return self._of_best_effort(oldest, limit, table)
        elif not timed.order:
            return Idle()
        elif len(timed.order) == 1:
            return _proposal([timed.order[0][2]])
        elif timed.uniform and (size := self._clear_prefix(limit, table, now)) is not None:
            return _proposal([entry[2] for entry in timed.order[:size]])
        return self._of_timed(cores, limit, table, now)

    def _of_best_effort(self, oldest: Request, limit: int, table: SlackTable) -> Proposal | Idle:
        """A batch led by `oldest`, of best-effort requests alone."""
        entries = self._best_effort.batchable(oldest.signature)
        if self._best_effort.rows == len(self._best_effort.order):
            size = size_of_single(min(limit, len(entries)), table)
            return _proposal([entry[2] for entry in entries[:size]])
        return _proposal(batch_of(entries, table, up_to(limit, table.grid)))

    def _clear_prefix(self, limit: int, table: SlackTable, now: float) -> int | None:
        """The short cut for requests that are all alike: see slack_prefix.py."""
        order = self._timed.order
        return clear_prefix(
            order,
            table.prefixes(min(limit, len(order))),
            now=now,
            kappa=self._kappa,
            tau=self._tau(table),
            alone=table.expected[1],
        )

    def _of_timed(self, cores: int, limit: int, table: SlackTable, now: float) -> Proposal | Idle:
        """The best of all candidates, filled up with best-effort requests where that pays."""
        outlook = Outlook(now=now, kappa=self._kappa, tau=self._tau(table), alone=table.expected)
        best: Candidate | None = None
        single = len(self._timed) == self._timed.rows
        for among in self._choices(limit, now + table[1].needs[0]):
            # A request of many rows fits only in a size that may not pay: then all are tried.
            sizes = (
                table.prefixes(min(limit, len(among))).sizes if single else up_to(limit, table.grid)
            )
            found = best_candidate(among, single=single, sizes=sizes, table=table, outlook=outlook)
            if found is not None and (best is None or found.score > best.score):
                best = found
        if best is None:
            return _proposal([self._timed.order[0][2]])
        members = [entry[2] for entry in best.entries]
        if self._best_effort.order and best.rows < limit:
            members += self._filling(best, limit, table, outlook)
        return _proposal(members)

    def take(self, batch: Batch) -> None:
        """The members leave the queue; their share of the batch's time is what a request costs."""
        timed = len(self._timed.order)
        super().take(batch)
        expected = self._tables(max(1, len(batch.replica.cores))).expected
        seconds = expected[batch.rows]
        cost = self._cost if self._cost is not None else expected[1]
        self._cost = cost + COST_GAIN * (seconds / len(batch.members) - cost)
        if len(self._timed.order) == timed:  # of best-effort requests alone
            self._floor.spend(seconds, now=batch.started)

    def _choices(self, limit: int, earliest: float) -> Iterator[Sequence[Entry]]:
        """Sorted lists of requests that may share a batch, from which candidates are made.

        Each group; and, where penalties differ, the costliest of it alone, among the first
        LOOK × `limit` due at `earliest` or later, as the study's class prefixes are batches of the
        short alone. One more list, not one per penalty: more do not measure better everywhere.
        """
        penalties = self._timed.penalties()
        for group in self._timed.groups(GROUPS):
            yield group
            if len(penalties) > 1:
                first = bisect_left(group, (earliest,))
                near = group[first : first + LOOK * limit]
                costliest = [entry for entry in near if entry[2].penalty == penalties[-1]]
                if costliest:
                    yield costliest

    def _tau(self, table: SlackTable) -> float:
        """τ = n × cost ÷ lanes + alone: the likely wait behind what is pending, in seconds."""
        alone = table.expected[1]
        cost = self._cost if self._cost is not None else alone
        return len(self._timed.order) * cost / self._view.lanes + alone

    def _filling(
        self, best: Candidate, limit: int, table: SlackTable, outlook: Outlook
    ) -> list[Request]:
        """Best-effort requests that raise the score of `best` by joining it."""
        waiting = self._best_effort.batchable(best.entries[0][2].signature)
        chosen: list[Request] = []
        score = best.score
        if not waiting:
            return chosen
        for size in up_to(limit, table.grid):
            extra = within_rows(waiting, size - best.rows) if size > best.rows else []
            rows = best.rows + sum(request.rows for request in extra)
            time = table[rows]
            if best.entries[0][0] < outlook.now + time.needs[0]:
                break
            value = sum(outlook.values(best.entries, time))
            value += sum(worth(request, now=outlook.now) for request in extra)
            if value / time.expected > score:
                score = value / time.expected
                chosen = extra
        return chosen


def _proposal(members: Sequence[Request]) -> Proposal | Idle:
    if not members:
        return Idle()
    return Proposal(tuple(members), sum(member.rows for member in members))
