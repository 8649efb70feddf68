"""The ledger: every request the engine knows, in exactly one place, and how the others ended.

Conservation law: for every model, at every instant,

    known = served + late + dropped + rejected + failed + cancelled + in flight

An *entry* lives until nothing names its payload any more. That can be after its outcome: a
cancelled member of a running batch keeps its slot until the batch ends (state ENDED), one that is
held until it has run again (HELD), and one whose batch died until it has been judged (`answered`).
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
    """Its headers are here; the scheduler holds its notice."""
    QUEUED = "queued"
    """The scheduler holds it."""
    UNMEASURED = "unmeasured"
    """Its run time cannot be judged; the pool holds it, to be run alone."""
    QUARANTINED = "quarantined"
    """It was in a batch that died; the pool holds it, to be run again alone."""
    RUNNING = "running"
    """A member of a running batch."""
    HELD = "held"
    """It has its outcome; the pool holds it, to be run again alone."""
    ENDED = "ended"
    """It has its outcome, but a running batch still names its payload."""


QUEUED: Final = State.QUEUED
RUNNING: Final = State.RUNNING
"""As names of their own, for each request asks: until Python 3.12 an enum takes 90 ns to find a
member."""


class Entry:
    """One request in the ledger. Mutable and slotted: made once for every request."""

    __slots__ = (
        "answered", "crash", "crashes", "pool", "request", "rescued", "state", "trial"
    )  # fmt: skip

    def __init__(self, request: Request | Notice, pool: Pool, state: State) -> None:
        self.request = request
        self.pool = pool
        self.state = state
        self.crashes = 0
        self.crash: PoolCrash | None = None
        """The first of them, until it is judged."""
        self.answered = False
        """Its client left while it ran or was to run again. If its batch dies, it runs all the
        same: to be judged."""
        self.rescued = False
        """Whether it has moved to a smaller variant, for lack of time."""
        self.trial = False
        """Whether it runs although its profile refuses it."""


@dataclass(slots=True)
class ModelCounts:
    """How the requests of one model have ended since the engine was made."""

    known: int = 0
    in_flight: int = 0
    by_reason: dict[Reason, int] = field(default_factory=dict)
    rescued: int = 0
    """Requests that moved to a smaller variant, for lack of time, however they have ended."""

    def count(self, kind: OutcomeKind) -> int:
        return sum(n for reason, n in self.by_reason.items() if reason.kind is kind)

    @property
    def ended(self) -> int:
        return sum(self.by_reason.values())


class Ledger:
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
        """A request becomes known. Raises ValueError if its id is already in use."""
        if request.id in self.entries:
            raise ValueError(f"request id {request.id} is already in use")
        entry = self.entries[request.id] = Entry(request, pool, state)
        counts = self.counts.get(request.model) or self.counts_of(request.model)
        counts.known += 1
        counts.in_flight += 1
        return entry

    def end(self, model: str, reason: Reason) -> None:
        """A known request gets its outcome."""
        counts = self.counts[model]
        counts.in_flight -= 1
        by_reason = counts.by_reason
        by_reason[reason] = by_reason.get(reason, 0) + 1

    def turned_away(self, model: str, reason: Reason) -> None:
        """A request becomes known and ends in the same breath."""
        counts = self.counts_of(model)
        counts.known += 1
        counts.by_reason[reason] = counts.by_reason.get(reason, 0) + 1
