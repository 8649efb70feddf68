"""`NextBatch`: what a lane could run next, for an admission that plans with the best rate.

If a large part of a batch's time is fixed, a batch of new requests is more efficient than one of
requests that have waited, because it has time for more rows. In a burst it is then wrong to refuse
new requests in favour of those that wait: no batch becomes large. So a request without a place in
the plan (promises.py) is admitted if the largest batch that it has time for still has room, and
would answer at least GAIN more rows per second than any batch of waiting requests. Where batching
saves little, no batch does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from slacktide.domain import Request
from slacktide.engine.ports import PoolView
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.tables import TimeByRows, size_grid

GAIN = 0.02
"""Least gain in rows per second for which a request without a place is admitted."""

LOOK = 4
"""The search for the members of a batch examines this many requests for each of its rows."""


class NextBatch:
    """The batches that could be made of the requests in a queue."""

    def __init__(
        self,
        queue: DeadlineQueue,
        class_of: Callable[[Request], int],
        times: Callable[[int], TimeByRows],
        max_batch: int,
        view: PoolView,
    ) -> None:
        """`times`: expected seconds by rows of a batch whose longest member is of a class."""
        self._queue, self._class_of, self._times = queue, class_of, times
        self._view = view
        self._max_batch = max_batch
        self._sizes = size_grid(max_batch)

    def admits(self, request: Request, of: int, *, start: float) -> bool:
        """Whether the next batch, which begins at `start`, should have room for a new request of
        class `of`."""
        seconds = self._times(of)
        budget = request.deadline - start
        if self._shared(budget, start):
            return False
        size = bisect_right(range(1, self._max_batch + 1), budget, key=seconds.__getitem__)
        if size < request.rows:
            return False
        members = self._first(start + seconds[size], size, request, of)
        if sum([member.rows for member in members]) + request.rows > size:
            return False
        rates = [rate for rate, _ in self._batches(request, of, start)]
        return size >= (1.0 + GAIN) * max(rates, default=0.0) * seconds[size]

    def members(self, without: Iterable[Request], *, start: float) -> set[int]:
        """Ids of the members of all batches that requests `without` a place could join, and that
        are within GAIN of the most efficient such batch."""
        kinds = {(self._class_of(request), request.signature): request for request in without}
        ids: set[int] = set()
        for (of, _), request in kinds.items():
            if self._shared(request.deadline - start, start):
                break
            batches = self._batches(request, of, start)
            least = max([rate for rate, _ in batches], default=0.0) / (1.0 + GAIN)
            ids.update(
                member.id for rate, members in batches if rate >= least for member in members
            )
        return ids

    def _batches(self, like: Request, of: int, start: float) -> list[tuple[float, list[Request]]]:
        """(rows per second, members) of the batch of each size that could run at `start`, of
        requests that may share one with `like`."""
        seconds = self._times(of)
        batches = []
        for size in self._sizes:
            members = self._first(start + seconds[size], size, like, of)
            if not members:
                break
            rows = sum([member.rows for member in members])
            batches.append((rows / seconds[rows], members))
        return batches

    def _shared(self, seconds: float, start: float) -> bool:
        """Whether other models take some of the `seconds` from `start` on: then only the plan knows
        how much is left."""
        return self._view.leave(now=start)(seconds) < seconds

    def _first(self, due: float, rows: int, like: Request, of: int) -> list[Request]:
        """The requests due first from `due` on that fill a batch of `rows` rows: of class `of` or a
        shorter one, with the signature of `like` and at least its penalty."""
        order = self._queue.order
        begin = bisect_left(order, (due,))
        members = []
        for _, _, request in order[begin : begin + LOOK * rows]:
            if (
                request.rows <= rows
                and request.penalty >= like.penalty
                and request.signature == like.signature
                and self._class_of(request) <= of
            ):
                members.append(request)
                rows -= request.rows
                if not rows:
                    break
        return members
