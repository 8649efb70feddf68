"""Who comes before a request that asks to be let in, where classes are known.

The policy prefers the short: a request of class g is behind those of class ≤ g only, whatever the
deadlines of the longer ones. Each counts with the least that it can take of a lane, which is its
share of the fixed part in the fullest batch and its own length: in a batch of k, whoever is in it,
c0 + c1 · k · max(l) is at least the sum of c0 / k + c1 · l over the members.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf

from slacktide.scheduling.class_tables import ClassTables
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.tables import Lazy, TimeByRows


class ClassTimes:
    """`RowRates` (admission.py) of the requests of one class; seconds."""

    __slots__ = ("expected", "lead", "per_row")

    def __init__(self, tables: ClassTables, of: int) -> None:
        latency, longest = tables.classes.latency, tables.classes.means[-1]
        self.lead: TimeByRows = Lazy(lambda rows: tables.lead[rows, of])
        """Time that a request of so many rows must have left."""
        self.expected: TimeByRows = Lazy(lambda rows: latency.seconds(rows, longest))
        """Time of a batch of the longest class."""
        self.per_row = least_share(tables, of)
        """The least that a row of this class takes of a lane."""


def least_share(tables: ClassTables, of: int) -> float:
    """Seconds of a lane that a row of class `of` takes at the least."""
    latency = tables.classes.latency
    return latency.c0 / tables.limit + latency.c1 * tables.classes.means[of]


class ClassAhead:
    """`Ahead` of a request of class `of`: those of its class and shorter ones in `queue`."""

    __slots__ = ("_queue", "_weights", "of")

    def __init__(self, of: int, queue: DeadlineQueue, tables: ClassTables) -> None:
        self.of = of
        self._queue = queue
        own = least_share(tables, of)
        self._weights = [least_share(tables, g) / own for g in range(of + 1)]

    def rows_due(self, deadline: float, penalty: float) -> float:
        after = (deadline, inf)
        rows_due = 0.0
        for ((rows, of), cost), part in self._queue.kinds.parts.items():
            if of <= self.of and cost >= penalty:
                rows_due += self._weights[of] * rows * bisect_right(part, after)
        return rows_due
