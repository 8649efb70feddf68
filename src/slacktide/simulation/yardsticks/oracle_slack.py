"""`OracleSlack`: the rule of `slack` with classes, told the length of every request.

What is a class there is a length here: candidates are, for each of some lengths x, each size k, the
first k requests no longer than x, in deadline order, that would be on time in a batch of k rows as
long as x. Their batch takes c0 + c1 · k · max(l), nobody is in doubt, and so

    score = Σ worth_i · (1 − κ (1 − e^(−spare_i / τ))) / T

with worth, spare and τ as in `scheduling/slack_classes.py`. (The plain alternative, earliest
deadline first with true lengths, is no yardstick: it wastes the lane on those who are about to be
late, and finishes less than `orloj` does without knowing lengths.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

import numpy as np

from slacktide.domain import Batch, Notice, Reason, Replica, Request
from slacktide.engine.ports import Idle, PoolView, Proposal
from slacktide.profiles import BatchLatency
from slacktide.scheduling import SlackOptions
from slacktide.scheduling.tables import size_grid
from slacktide.simulation.execution import length_of

MOST_LENGTHS = 32
"""Lengths x tried: those of all requests pending, or so many of them, evenly by rank."""

COST_GAIN = 0.05
"""Weight of the newest batch in the average cost of a request."""

_Entry = tuple[float, int, Request]


class OracleSlack:
    """A `Scheduler` (engine/ports.py). One row per request; refuses nobody; waits for nobody."""

    def __init__(
        self,
        latency: BatchLatency,
        *,
        mean_length: float,
        max_batch: int,
        view: PoolView,
        options: SlackOptions | None = None,
        length: Callable[[Request], float] = length_of,
    ) -> None:
        """`mean_length` is that of all arrivals. Of `options`, kappa and theta matter."""
        self._latency = latency
        self._max_batch = max_batch
        self._view = view
        self._options = SlackOptions() if options is None else options
        self._length = length
        self._mean_alone = latency.seconds(1, mean_length)
        self._order: list[_Entry] = []
        self._pending: dict[int, _Entry] = {}
        self._notices: set[int] = set()
        self._cost = self._mean_alone

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        """Let in."""
        self._notices.add(notice.id)
        return None

    def add(self, request: Request, *, now: float) -> Reason | None:
        """Queue a request."""
        self.admit_moved(request, now=now)
        return None

    def admit_moved(self, request: Request, *, now: float) -> None:
        """Queue a request. Raises ValueError if it has several rows."""
        if request.rows != 1:
            raise ValueError(f"request {request.id} has {request.rows} rows, not one")
        self._notices.discard(request.id)
        entry = self._pending[request.id] = (request.deadline, request.id, request)
        insort(self._order, entry)

    def remove(self, id: int) -> bool:
        """Forget a request or a notice."""
        if id in self._notices:
            self._notices.discard(id)
            return True
        entry = self._pending.pop(id, None)
        if entry is None:
            return False
        self._order.remove(entry)
        return True

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Give up whoever would be late even alone and at once."""
        gone = [
            entry for entry in self._order if not entry[2].best_effort and self._due(entry) <= now
        ]
        for entry in gone:
            del self._pending[entry[1]]
        if gone:
            self._order = [entry for entry in self._order if entry[1] in self._pending]
        return [(id, Reason.HOPELESS) for _, id, _ in gone]

    def next_expiry(self) -> float | None:
        """The earliest latest start."""
        return min((self._due(e) for e in self._order if not e[2].best_effort), default=None)

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        """The batch worth most per second of lane time. Changes nothing."""
        if not self._order:
            return Idle()
        members = self._best(min(self._max_batch, replica.max_batch), now)
        return Proposal(tuple(members), len(members))

    def take(self, batch: Batch) -> None:
        """The members leave the queue; their share of the batch's time is what a request costs."""
        took = self._latency.seconds(batch.rows, max(map(self._length, batch.members)))
        self._cost += COST_GAIN * (took / len(batch.members) - self._cost)
        for member in batch.members:
            del self._pending[member.id]
        self._order = [entry for entry in self._order if entry[1] in self._pending]

    def ended(self, batch: Batch, *, now: float) -> None:
        """Nothing to learn."""

    def pending(self) -> tuple[Request, ...]:
        """Every queued request, earliest deadline first."""
        return tuple(entry[2] for entry in self._order)

    def __len__(self) -> int:
        return len(self._order)

    def _due(self, entry: _Entry) -> float:
        """The latest start of a request by itself."""
        return entry[0] - self._latency.seconds(1, self._length(entry[2]))

    def _best(self, limit: int, now: float) -> list[Request]:
        latency, kappa = self._latency, self._options.kappa
        tau = len(self._order) * self._cost / self._view.lanes + self._mean_alone
        deadlines = np.array([entry[0] for entry in self._order])
        lengths = np.array([self._length(entry[2]) for entry in self._order])
        alone = latency.c0 + latency.c1 * latency.paid(1) * lengths
        penalties = np.array([entry[2].penalty for entry in self._order])
        worth = penalties * (alone / self._mean_alone) ** self._options.theta

        best, chosen = 0.0, np.zeros(1, dtype=np.int64)
        for longest in _spread(np.unique(lengths)):
            fitting = lengths <= longest
            for size in self._sizes(limit):
                able = fitting & (deadlines >= now + latency.seconds(size, longest))
                members = able.nonzero()[0][:size]
                if not members.size:
                    continue
                took = latency.seconds(members.size, float(lengths[members].max()))
                spare = np.maximum(deadlines[members] - now - alone[members] - took, 0.0)
                value = worth[members] * (1.0 - kappa * (1.0 - np.exp(-spare / tau)))
                score = float(value.sum()) / took
                if score > best:
                    best, chosen = score, members
        return [self._order[int(i)][2] for i in chosen]

    def _sizes(self, limit: int) -> Sequence[int]:
        padded = [size for size in self._latency.sizes if size < limit]
        return (*padded, limit) if padded else size_grid(limit)


def _spread(lengths: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Sequence[float]:
    """At most MOST_LENGTHS of `lengths` (ascending), the longest among them."""
    if lengths.size > MOST_LENGTHS:
        places = np.linspace(0, lengths.size - 1, MOST_LENGTHS)
        lengths = lengths[np.round(places).astype(np.int64)]
    found: list[float] = lengths.tolist()
    return found
