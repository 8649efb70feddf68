"""The request table: every known request in exactly one place, and counts of those that ended.

Conservation law: for every model, at every instant,

    requests = served + late + dropped + rejected + failed + cancelled + in flight

An *entry* lives until nothing refers to its payload any more. That can be after its outcome: a
cancelled member of a running batch keeps its slot until the batch ends (state ENDED), a held
request until it has run again (HELD), and a request whose batch died until it has been judged
(`answered`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from slacktide.domain import Notice, OutcomeKind, Reason, Request
from slacktide.engine.lanes import Pool, PoolCrash


class State(Enum):
    """Where a request is."""

    ANNOUNCED = "announced"
    """Its headers have arrived; the scheduler holds its notice."""
    QUEUED = "queued"
    """The scheduler holds it."""
    UNMEASURED = "unmeasured"
    """Its run time cannot be predicted; the pool holds it, to run it alone."""
    QUARANTINED = "quarantined"
    """It was in a batch whose replica died; the pool holds it, to run it again alone."""
    RUNNING = "running"
    """A member of a running batch."""
    HELD = "held"
    """It has its outcome; the pool holds it, to run it again alone."""
    ENDED = "ended"
    """It has its outcome, but a running batch still refers to its payload."""


QUEUED: Final = State.QUEUED
RUNNING: Final = State.RUNNING
"""Module constants, since every request reads them: until Python 3.12 it takes 90 ns to look up an
enum member."""


class Entry:
    """One request in the table; mutable and slotted, since one is made for every request."""

    __slots__ = (
        "answered", "crash", "crashes", "pool", "request", "rescued", "state", "trial"
    )  # fmt: skip

    def __init__(self, request: Request | Notice, pool: Pool, state: State) -> None:
        self.request = request
        self.pool = pool
        self.state = state
        self.crashes = 0
        self.crash: PoolCrash | None = None
        """Its first crash, until it is judged."""
        self.answered = False
        """Whether its client left while the request ran, or waited to run again. If its batch dies,
        the request still runs again, to be judged."""
        self.rescued = False
        """Whether it has moved to a smaller variant for lack of time."""
        self.trial = False
        """Whether it runs although its profile would refuse it."""


@dataclass(slots=True)
class ModelCounts:
    """Counts of one model's requests: all so far, those in flight, and those that ended, by
    reason."""

    requests: int = 0
    in_flight: int = 0
    by_reason: dict[Reason, int] = field(default_factory=dict)
    rescued: int = 0
    """Requests that moved to a smaller variant for lack of time, whatever their outcome."""

    def count(self, kind: OutcomeKind) -> int:
        return sum(n for reason, n in self.by_reason.items() if reason.kind is kind)

    @property
    def ended(self) -> int:
        return sum(self.by_reason.values())


class RequestTable:
    """Entries by id, counts by model."""

    __slots__ = ("counts", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.counts: dict[str, ModelCounts] = {}

    def counts_of(self, model: str) -> ModelCounts:
        counts = self.counts.get(model)
        if counts is None:
            counts = self.counts[model] = ModelCounts()
        return counts

    def open(self, request: Request | Notice, pool: Pool, state: State) -> Entry:
        """Add a request. Raises ValueError if its id is already in use."""
        if request.id in self.entries:
            raise ValueError(f"request id {request.id} is already in use")
        entry = self.entries[request.id] = Entry(request, pool, state)
        counts = self.counts.get(request.model) or self.counts_of(request.model)
        counts.requests += 1
        counts.in_flight += 1
        return entry

    def end(self, model: str, reason: Reason) -> None:
        """Count the outcome of a request in flight."""
        counts = self.counts[model]
        counts.in_flight -= 1
        by_reason = counts.by_reason
        by_reason[reason] = by_reason.get(reason, 0) + 1

    def turned_away(self, model: str, reason: Reason) -> None:
        """Count a request that is refused before it gets an entry."""
        counts = self.counts_of(model)
        counts.requests += 1
        counts.by_reason[reason] = counts.by_reason.get(reason, 0) + 1
