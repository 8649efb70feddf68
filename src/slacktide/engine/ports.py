"""The engine's seams: what a scheduler, a profile and a planner must offer it.

All of them are pure: `now` comes in as an argument, nothing reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slacktide.domain import Batch, Notice, PoolId, Reason, Replica, Request
from slacktide.domain.read_only import read_only
from slacktide.engine.time_share import SoloProfiling
from slacktide.engine.unmeasured_queue import UnmeasuredRules
from slacktide.profiles import BatchTimes


@read_only
class Proposal:
    """The batch a scheduler would run now: members of one signature, in any order."""

    members: tuple[Request, ...]
    rows: int


@read_only
class WaitUntil:
    """Nothing now; ask again at `at`, or when a request comes, whichever is first."""

    at: float


@read_only
class Idle:
    """Nothing to run."""


class PoolView(Protocol):
    """What a scheduler may know of the lanes its pool runs on."""

    def free_in(self, *, now: float) -> float:
        """Seconds until a lane of this pool is expected to be free; 0 if one is. Infinite while the
        pool has no replica, up or starting."""

    def leave(self, *, now: float) -> Callable[[float], float]:
        """Of so many seconds of a lane, how many the other models on it leave to this pool."""

    @property
    def lanes(self) -> int:
        """How many lanes serve this pool (at least 1)."""

    @property
    def cores(self) -> int:
        """Cores of the smallest of them (at least 1)."""


class Scheduler(Protocol):
    """One pool's queue and the rule that says which requests run now. The engine calls `expire`
    before `propose`, and `take` with every batch it starts. A scheduler owns a request from a
    successful `add` until `take`, `remove` or `expire` names it."""

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        """A request is on its way. A reason refuses it before its body is read."""

    def add(self, request: Request, *, now: float) -> Reason | None:
        """Queue a request (replacing its notice, if any). A reason refuses it."""

    def admit_moved(self, request: Request, *, now: float) -> None:
        """Queue a request that another pool had admitted; never refuses."""

    def remove(self, id: int) -> bool:
        """Forget a request or notice; False if it is not here."""

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Forget and name every request that can no longer be on time."""

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The batch this policy would run on `replica` now. Changes nothing."""

    def take(self, batch: Batch) -> None:
        """The engine runs `batch`: its members leave the queue."""

    def ended(self, batch: Batch, *, now: float) -> None:
        """A batch of this pool has left its lane, at `now`: finished, failed or lost."""

    def next_expiry(self) -> float | None:
        """When `expire` will next have something to say, at the earliest; None if never: then, if
        nothing waits or is announced, it is not asked again until it is told something."""

    def pending(self) -> tuple[Request, ...]:
        """Every queued request (not the notices), in the order of the policy."""

    def __len__(self) -> int:
        """Number of queued requests, notices not counted."""


class Outlook(Protocol):
    """The method `outlook` of a scheduler that can say why there is no time for a request."""

    def __call__(self, arrival: Request | Notice, *, now: float) -> tuple[float, float]:
        """(seconds that it must have left even alone, seconds until a lane is expected to take it)
        for a request that is not queued, by the rules that refuse it. Infinite: never. Changes
        nothing that is decided."""


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What the engine needs to open a pool."""

    scheduler: Scheduler
    times: BatchTimes
    share: float = 1.0
    """Weight of this pool where several share a lane."""
    solo: SoloProfiling | None = None
    """Which of its requests are run again alone, to learn from; None: none."""
    unmeasured: UnmeasuredRules | None = None
    """Which of its requests its times cannot judge, and what becomes of them; None: they can judge
    all."""
    size: int = 0
    """Side in pixels of the images that it runs, of a variant of a family: requests may ask for the
    variant of their own size. 0: they cannot."""
    rescue: tuple[str, ...] = ()
    """Smaller variants of its family, most accurate first, to which a request goes for which there
    is no time here; none: it is refused or dropped."""


PoolFactory = Callable[[PoolId, int, PoolView], PoolParts]
"""(pool, max_batch, view) -> parts. Called once when a plan first deploys the pool."""
