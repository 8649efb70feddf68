"""`UniformChooser`: the decisions of `slack` for requests that differ only in rows and deadlines.

If all requests have one row, the candidates of one size are windows of one sorted list. Each member
is valued once, and prefix sums yield the score of every window. That keeps a decision under 100 µs
in plain Python (bench/scheduler_decisions.py).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp

from slacktide.domain import Request
from slacktide.domain.read_only import read_only
from slacktide.scheduling.best_effort import worth
from slacktide.scheduling.queue import DeadlineQueue, Entry, within_rows
from slacktide.scheduling.slack_table import BatchTime, SlackTable, up_to
from slacktide.scheduling.tables import Cached, TimeByRows

LOOK = 8
"""The search for the costliest requests covers this many batches of the largest size."""


@read_only
class DecisionContext:
    """The parameters of one decision. Times in seconds."""

    now: float
    kappa: float
    tau: float
    """Likely wait of a request that is not chosen."""
    held: float = 0.0
    """Idle time before the batch starts. If not 0, `now` is a future start, not the present."""


class UniformPricer:
    """Prices requests in one decision. Times in seconds."""

    __slots__ = ("alone", "held", "kappa", "now", "tau")

    def __init__(self, context: DecisionContext, *, alone: TimeByRows) -> None:
        self.now = context.now
        self.kappa = context.kappa
        self.tau = context.tau
        self.held = context.held
        self.alone = alone
        """Expected time of a request that runs alone, by its rows."""

    def values(self, entries: Sequence[Entry], time: BatchTime) -> list[float]:
        """The value of answering each of `entries` in a batch that takes `time`."""
        over = self.now + time.expected
        alone, tau, kappa = self.alone, self.tau, self.kappa
        base_worth = 1.0 - kappa
        worths = []
        for deadline, _, request in entries:
            spare = deadline - over - alone[request.rows]
            patience = base_worth + kappa * exp(-spare / tau) if spare > 0.0 else 1.0
            worths.append(request.penalty * patience)
        return self._weighted(worths, entries, time)

    def values_of_single(self, entries: Sequence[Entry], time: BatchTime) -> list[float]:
        """Like `values` but twice as fast; requires sorted entries of one row each."""
        over = self.now + time.expected + self.alone[1]
        tau, kappa = self.tau, self.kappa
        base_worth = 1.0 - kappa
        urgent = bisect_left(entries, (over,))
        worths = [request.penalty for _, _, request in entries[:urgent]]
        worths += [
            request.penalty * (base_worth + kappa * exp((over - deadline) / tau))
            for deadline, _, request in entries[urgent:]
        ]
        return self._weighted(worths, entries, time)

    def _weighted(
        self, values: list[float], entries: Sequence[Entry], time: BatchTime
    ) -> list[float]:
        """Multiply `values` by P(on time), in place. `entries` must be sorted by deadline."""
        in_doubt = bisect_left(entries, (self.now + time.high,))
        if not in_doubt:
            return values
        low, cdf, scale = self.now + time.low, time.cdf, time.scale
        for i in range(in_doubt):
            x = (entries[i][0] - low) * scale
            if x > 0.0:
                j = int(x)
                below = cdf[j]
                values[i] *= below + (x - j) * (cdf[j + 1] - below)
            else:
                values[i] = 0.0
        return values


@read_only
class Candidate:
    """A batch that might run: its entries in deadline order, and its score."""

    entries: Sequence[Entry]
    rows: int
    score: float
    """Expected on-time value per second of lane time, which includes the time it is held idle."""


def best_candidate(
    entries: Sequence[Entry],
    *,
    single: bool,
    sizes: Sequence[int],
    table: SlackTable,
    pricer: UniformPricer,
) -> Candidate | None:
    """The best batch of `entries`, which share one signature; None if no batch can be on time.
    `single`: every entry has one row. `sizes` is ascending. Ties go to the smallest size, then to
    the earliest start."""
    evaluate = _best_window if single else _best_filling
    best: Candidate | None = None
    low = 0
    for size in sizes:
        starts: list[int] = []
        for need in table[size].needs:
            start = bisect_left(entries, (pricer.now + need,))
            if not starts or start != starts[-1]:
                starts.append(start)
        if starts[-1] == len(entries):
            starts.pop()
            if not starts:
                break
        candidate = evaluate(entries, starts, low, size, table, pricer)
        if candidate is not None and (best is None or candidate.score > best.score):
            best = candidate
        low = size
    return best


def _best_window(
    entries: Sequence[Entry],
    starts: Sequence[int],
    low: int,
    size: int,
    table: SlackTable,
    pricer: UniformPricer,
) -> Candidate | None:
    """The best batch of one size if every request has one row. Overlapping windows share values."""
    time = table[size]
    last = len(entries) - size
    best = 0.0
    chosen: slice | None = None
    done = -1  # end of the valued entries; overlapping windows are valued in one call
    for i, start in enumerate(starts):
        if start <= last:
            if start >= done:
                first, done = start, start + size
                for later in starts[i + 1 :]:
                    if later > last or later > done:
                        break
                    done = later + size
                values = pricer.values_of_single(entries[first:done], time)
                sums = list(accumulate(values, initial=0.0))
            score = (sums[start - first + size] - sums[start - first]) / (
                time.expected + pricer.held
            )
        elif len(entries) - start > low:
            batch_time = table[len(entries) - start]
            score = sum(pricer.values_of_single(entries[start:], batch_time)) / (
                batch_time.expected + pricer.held
            )
        else:
            break
        if chosen is None or score > best:
            best = score
            chosen = slice(start, start + size)
    if chosen is None:
        return None
    members = entries[chosen]
    return Candidate(members, len(members), best)


def _best_filling(
    entries: Sequence[Entry],
    starts: Sequence[int],
    low: int,
    size: int,
    table: SlackTable,
    pricer: UniformPricer,
) -> Candidate | None:
    """The best batch of one size if requests may have several rows: one batch is filled per
    start."""
    best: Candidate | None = None
    for start in starts:
        members = within_rows(entries[start : start + 4 * size], size)
        rows = sum(member.rows for member in members)
        if rows > low:
            filled = [(member.deadline, member.id, member) for member in members]
            time = table[rows]
            score = sum(pricer.values(filled, time)) / (time.expected + pricer.held)
            if best is None or score > best.score:
                best = Candidate(filled, rows, score)
    return best


class UniformChooser:
    """Chooses among the requests with a deadline. Changes nothing."""

    def __init__(self, queue: DeadlineQueue, tables: Cached[SlackTable]) -> None:
        self._queue = queue
        self._tables = tables

    def table_of(self, request: Request, cores: int) -> SlackTable:
        """The table for batches of requests like `request`."""
        return self._tables(cores)

    def worth_of(self, request: Request, cores: int) -> float:
        """The value of an answer to `request`, without its penalty."""
        return 1.0

    def alone(self, cores: int) -> float:
        """Expected time of a request alone, in seconds."""
        return self._tables(cores).expected[1]

    def seconds(self, members: Sequence[Request], rows: int, cores: int) -> float:
        """Expected time of a batch."""
        return self._tables(cores).expected[rows]

    def best(
        self,
        groups: Sequence[Sequence[Entry]],
        announced: Sequence[Request],
        cores: int,
        limit: int,
        context: DecisionContext,
    ) -> Candidate | None:
        """The best batch of any of `groups`; `announced` requests are added to the first."""
        best: Candidate | None = None
        single = len(self._queue) == self._queue.rows
        if announced:
            first = list(groups[0])
            for request in announced:
                insort(first, (request.deadline, request.id, request))
            groups = [first, *groups[1:]]
        for group in groups:
            table = self.table_of(group[0][2], cores)
            weight = self.worth_of(group[0][2], cores)
            pricer = UniformPricer(context, alone=table.expected)
            for among in self._choices(group, limit, context.now + table[1].needs[0]):
                # A request of many rows may fit only a size that saves no time per row: try all.
                sizes = (
                    table.prefixes(min(limit, len(among))).sizes
                    if single
                    else up_to(limit, table.grid)
                )
                offer = best_candidate(
                    among, single=single, sizes=sizes, table=table, pricer=pricer
                )
                if offer is not None and (best is None or weight * offer.score > best.score):
                    best = offer if weight == 1.0 else replace(offer, score=weight * offer.score)
        return best

    def _choices(
        self, group: Sequence[Entry], limit: int, earliest: float
    ) -> Iterator[Sequence[Entry]]:
        """Sorted lists of requests from which candidates are made: the whole group and, if
        penalties differ, the costliest of its first LOOK × `limit` requests due at `earliest` or
        later. One list per penalty was better in some measurements only."""
        yield group
        penalties = self._queue.penalties()
        if len(penalties) > 1:
            first = bisect_left(group, (earliest,))
            near = group[first : first + LOOK * limit]
            costliest = [entry for entry in near if entry[2].penalty == penalties[-1]]
            if costliest:
                yield costliest

    def filling(
        self,
        best: Candidate,
        waiting: Sequence[Entry],
        cores: int,
        limit: int,
        context: DecisionContext,
    ) -> list[Request]:
        """Best-effort requests among `waiting` that raise the score of `best` by joining it."""
        first = best.entries[0][2]
        table = self.table_of(first, cores)
        pricer = UniformPricer(context, alone=table.expected)
        chosen: list[Request] = []
        score = best.score / self.worth_of(first, cores)
        for size in up_to(limit, table.grid):
            extra = within_rows(waiting, size - best.rows) if size > best.rows else []
            rows = best.rows + sum(request.rows for request in extra)
            time = table[rows]
            if best.entries[0][0] < context.now + time.needs[0]:
                break
            value = sum(pricer.values(best.entries, time), 0.0)
            value += sum((worth(request, now=context.now) for request in extra), 0.0)
            if value / time.expected > score:
                score = value / time.expected
                chosen = extra
        return chosen
