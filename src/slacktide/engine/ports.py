"""The interfaces of the engine: what it needs from schedulers and profiles, and what it offers.

All are pure: `now` is an argument, and nothing reads a clock.
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
    """A batch that a scheduler would run now: members of one signature, in any order."""

    members: tuple[Request, ...]
    rows: int


@read_only
class WaitUntil:
    """Run nothing now; ask again at `at`, or when a request arrives before that."""

    at: float


@read_only
class Idle:
    """A scheduler's answer if it has nothing to run."""


class PoolView(Protocol):
    """A scheduler's view of the lanes of its pool."""

    def free_in(self, *, now: float) -> float:
        """Seconds until a lane of this pool should be free; 0 if one is. Infinite without a
        replica that is up or starting."""

    def leave(self, *, now: float) -> Callable[[float], float]:
        """Return a function that takes a number of seconds from now on, and returns the seconds of
        lane time within them that the other models on these lanes leave to this pool."""

    @property
    def lanes(self) -> int:
        """Number of lanes that serve this pool, at least 1."""

    @property
    def cores(self) -> int:
        """Cores of the smallest of these lanes, at least 1."""


class Scheduler(Protocol):
    """The queue of one pool, and the rule that chooses the requests to run. The engine calls
    `expire` before `propose`, and `take` for every batch that it starts. A scheduler owns a request
    from a successful `add` on, until the request is named by `take`, `remove` or `expire`."""

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        """Note a request whose body is on its way. Returns a reason to refuse it, or None."""

    def add(self, request: Request, *, now: float) -> Reason | None:
        """Queue a request and forget its notice. Returns a reason to refuse it, or None."""

    def admit_moved(self, request: Request, *, now: float) -> None:
        """Queue a request that another pool admitted. Never refuses."""

    def remove(self, id: int) -> bool:
        """Forget a request or notice; False if there is none."""

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Forget and return all requests that can no longer be on time."""

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The batch this policy would run on `replica` now. Changes nothing."""

    def take(self, batch: Batch) -> None:
        """Remove the members of `batch`, which the engine runs, from the queue."""

    def ended(self, batch: Batch, *, now: float) -> None:
        """Note that a batch of this pool left its lane at `now`: finished, failed or lost."""

    def next_expiry(self) -> float | None:
        """Earliest time at which `expire` may return a request; None: never. If this is None while
        nothing is queued or announced, the engine asks again only at the next event for this
        pool."""

    def outlook(self, arrival: Request | Notice, *, now: float) -> tuple[float, float] | None:
        """Explain the refusal of a request that is not queued, by the rules that refuse it:
        (seconds that it needs even alone, seconds until a lane should be free for it; infinite:
        never). None: this policy gives no explanation. The call changes no decision."""

    def pending(self) -> tuple[Request, ...]:
        """Every queued request (not the notices), in the order of the policy."""

    def __len__(self) -> int:
        """Number of queued requests, without notices."""


@dataclass(frozen=True, slots=True)
class PoolParts:
    """The parts of a pool that its factory makes."""

    scheduler: Scheduler
    times: BatchTimes
    share: float = 1.0
    """Weight of this pool on shared lanes."""
    solo: SoloProfiling | None = None
    """Which requests run again alone, to learn their lengths; None: no request does."""
    unmeasured: UnmeasuredRules | None = None
    """Which requests have no prediction, and how to treat them; None: all have a prediction."""
    size: int = 0
    """Side in pixels of the images of a variant of a family. Requests may ask for the variant of
    their own size. 0: no request can ask for this pool."""
    rescue: tuple[str, ...] = ()
    """Smaller variants of its family, most accurate first, that take requests for which there is no
    time here; empty: such requests are refused or dropped."""


PoolFactory = Callable[[PoolId, int, PoolView], PoolParts]
"""(pool, max_batch, view) -> parts. Called once, when a plan first deploys the pool."""
