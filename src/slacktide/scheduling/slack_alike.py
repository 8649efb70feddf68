"""`AllAlike`: what `slack` does where requests differ in rows and deadlines alone, for one pool."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from slacktide.domain import Request
from slacktide.scheduling.best_effort import worth
from slacktide.scheduling.queue import DeadlineQueue, Entry, within_rows
from slacktide.scheduling.slack_candidates import (
    LOOK,
    Candidate,
    Outlook,
    Stance,
    best_candidate,
)
from slacktide.scheduling.slack_table import SlackTable, up_to
from slacktide.scheduling.tables import Cached


class AllAlike:
    """Chooses among the requests with a deadline. Changes nothing."""

    __slots__ = ("_queue", "_tables")

    def __init__(self, queue: DeadlineQueue, tables: Cached[SlackTable]) -> None:
        self._queue = queue
        self._tables = tables

    def alone(self, cores: int) -> float:
        """Expected time of a request by itself, in seconds."""
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
        stance: Stance,
    ) -> Candidate | None:
        """The best batch of any of `groups`, the first of which `announced` are counted among."""
        table = self._tables(cores)
        outlook = Outlook(stance, alone=table.expected)
        best: Candidate | None = None
        single = len(self._queue) == self._queue.rows
        if announced:
            first = list(groups[0])
            for request in announced:
                insort(first, (request.deadline, request.id, request))
            groups = [first, *groups[1:]]
        for among in self._choices(groups, limit, stance.now + table[1].needs[0]):
            # A request of many rows fits only in a size that may not pay: then all are tried.
            sizes = (
                table.prefixes(min(limit, len(among))).sizes if single else up_to(limit, table.grid)
            )
            found = best_candidate(among, single=single, sizes=sizes, table=table, outlook=outlook)
            if found is not None and (best is None or found.score > best.score):
                best = found
        return best

    def _choices(
        self, groups: Sequence[Sequence[Entry]], limit: int, earliest: float
    ) -> Iterator[Sequence[Entry]]:
        """Sorted lists of requests that may share a batch, from which candidates are made.

        Each group; and, where penalties differ, the costliest of it alone, among the first
        LOOK × `limit` due at `earliest` or later, as class prefixes are batches of the short alone.
        One more list, not one per penalty: more do not measure better everywhere.
        """
        penalties = self._queue.penalties()
        for group in groups:
            yield group
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
        stance: Stance,
    ) -> list[Request]:
        """Best-effort requests among `waiting` that raise the score of `best` by joining it."""
        table = self._tables(cores)
        outlook = Outlook(stance, alone=table.expected)
        chosen: list[Request] = []
        score = best.score
        for size in up_to(limit, table.grid):
            extra = within_rows(waiting, size - best.rows) if size > best.rows else []
            rows = best.rows + sum(request.rows for request in extra)
            time = table[rows]
            if best.entries[0][0] < stance.now + time.needs[0]:
                break
            value = sum(outlook.values(best.entries, time))
            value += sum(worth(request, now=stance.now) for request in extra)
            if value / time.expected > score:
                score = value / time.expected
                chosen = extra
        return chosen
