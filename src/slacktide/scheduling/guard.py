"""`GuardedScheduler`: enforces the contract of `engine/ports.py` on foreign schedulers.

The engine trusts built-in schedulers and runs their proposals unchecked. A foreign scheduler might
raise, propose requests that are not queued, or name a request twice, and the engine's request table
would no longer be consistent. So the guard keeps its own record of the queue. At the first breach,
it calls `failed` with a description, and from then on never calls the scheduler: all waiting and
new requests end as `unavailable`. Other pools are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isnan
from typing import Any

from slacktide.domain import Batch, Notice, Reason, Replica, Request
from slacktide.engine.ports import Idle, Proposal, Scheduler, WaitUntil


class GuardedScheduler:
    """A `Scheduler` that wraps and checks a foreign scheduler."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Scheduler],
        *,
        max_queue: int | None,
        failed: Callable[[str], None] | None,
    ) -> None:
        """`make` makes the foreign scheduler. The guard itself enforces `max_queue`."""
        self._name = name
        self._failed = failed
        self._max_queue = max_queue
        self._queued: dict[int, Request] = {}
        self._notices: set[int] = set()
        self._broken = False
        self._scheduler: Any = None
        try:
            self._scheduler = make()
        except Exception as error:
            self._fail(f"construction raised {type(error).__name__}: {error}")

    def outlook(self, arrival: Request | Notice, *, now: float) -> tuple[float, float] | None:
        """See `Scheduler`; foreign schedulers may lack this method."""
        try:
            self._scheduler.outlook  # noqa: B018  # AttributeError from a call is a breach
        except AttributeError:
            return None
        seconds = self._call("outlook", arrival, now=now)
        if seconds is None and not self._broken:
            return None
        try:
            needed, wait = seconds
            return float(needed), float(wait)
        except (TypeError, ValueError):
            self._fail(f"outlook: expected (seconds needed, seconds to wait), got {seconds!r:.100}")
            return inf, inf

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        reason = self._refusal() or self._answer("announce", notice, now=now)
        if reason is None:
            self._notices.add(notice.id)
        return reason

    def add(self, request: Request, *, now: float) -> Reason | None:
        self._notices.discard(request.id)
        reason = self._refusal()
        if reason is not None:
            self._call("remove", request.id)
            return reason
        reason = self._answer("add", request, now=now)
        if reason is None:
            self._queued[request.id] = request
        return reason

    def admit_moved(self, request: Request, *, now: float) -> None:
        self._notices.discard(request.id)
        self._queued[request.id] = request
        self._call("admit_moved", request, now=now)

    def remove(self, id: int) -> bool:
        is_present = id in self._notices or id in self._queued
        self._forget(id)
        self._call("remove", id)
        return is_present

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """See `Scheduler`; after a breach, all waiting requests. It is a breach to expire nothing
        while `next_expiry` is due, since the timer would fire again and again."""
        expired = self._call("expire", now=now)
        dropped: dict[int, Reason] = {}
        try:
            for id, reason in () if self._broken else expired:
                if id in dropped or not (id in self._queued or id in self._notices):
                    raise ValueError(f"request {id} is not queued")
                if not isinstance(reason, Reason):
                    raise TypeError(f"expected a Reason, got {reason!r}")
                dropped[id] = reason
            if not dropped and (expiry := self.next_expiry()) is not None and expiry <= now:
                raise ValueError(f"no request expired at {now}, but next_expiry is {expiry}")
        except Exception as error:
            self._fail(f"expire: {error}")
        if self._broken:
            dropped = dict.fromkeys((*self._notices, *self._queued), Reason.UNAVAILABLE)
        for id in dropped:
            self._forget(id)
        return tuple(dropped.items())

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        proposal = self._call("propose", replica, now=now)
        if self._broken or isinstance(proposal, Idle):
            return Idle()
        if isinstance(proposal, WaitUntil) and proposal.at > now:
            return proposal
        problem = self._problem(proposal, replica)
        if problem:
            self._fail(f"propose: {problem}")
            return Idle()
        return proposal  # type: ignore[no-any-return]  # checked to be a proposal

    def _problem(self, offer: object, replica: Replica) -> str:
        """Why a proposal is invalid; empty if it is valid."""
        if not (isinstance(offer, Proposal) and isinstance(offer.members, tuple) and offer.members):
            return f"expected a proposal with members, got {offer!r:.100}"
        proposed_ids: set[int] = set()
        members: tuple[object, ...] = offer.members
        for member in members:
            if not isinstance(member, Request):
                return f"expected requests as members, got {member!r:.100}"
            if self._queued.get(member.id) is not member:
                return f"request {member.id} is not queued"
            if member.id in proposed_ids:
                return f"request {member.id} is proposed twice"
            proposed_ids.add(member.id)
        if len({member.signature for member in offer.members}) > 1:
            return "members have different shapes"
        rows = sum(member.rows for member in offer.members)
        if offer.rows != rows or (rows > replica.max_batch and len(offer.members) > 1):
            return f"expected {rows} rows, at most {replica.max_batch}, got {offer.rows}"
        return ""

    def take(self, batch: Batch) -> None:
        for member in batch.members:
            self._forget(member.id)
        self._call("take", batch)

    def ended(self, batch: Batch, *, now: float) -> None:
        self._call("ended", batch, now=now)

    def next_expiry(self) -> float | None:
        """See `Scheduler`; after a breach, 0 (i.e. now) while any request waits."""
        expiry = self._call("next_expiry")
        if not self._broken and not (expiry is None or isinstance(expiry, int | float)):
            self._fail(f"next_expiry: expected seconds or None, got {expiry!r:.100}")
        if self._broken:
            return 0.0 if self._queued or self._notices else None
        return None if expiry is None or isnan(expiry) else expiry

    def pending(self) -> tuple[Request, ...]:
        """Every queued request, in the order of arrival."""
        return tuple(self._queued.values())

    def __len__(self) -> int:
        return len(self._queued)

    def _refusal(self) -> Reason | None:
        if self._broken:
            return Reason.UNAVAILABLE
        waiting = len(self._queued) + len(self._notices)
        full = self._max_queue is not None and waiting >= self._max_queue
        return Reason.QUEUE_FULL if full else None

    def _answer(self, method: str, *args: object, now: float) -> Reason | None:
        """The scheduler's answer to a new request, checked."""
        reason = self._call(method, *args, now=now)
        if not (self._broken or reason is None or isinstance(reason, Reason)):
            self._fail(f"{method}: expected a reason or None, got {reason!r:.100}")
        return Reason.UNAVAILABLE if self._broken else reason

    def _call(self, method: str, *args: object, **named: object) -> Any:
        """Call a method of the scheduler; None after a breach."""
        if self._broken:
            return None
        try:
            return getattr(self._scheduler, method)(*args, **named)
        except Exception as error:  # foreign code may raise anything
            self._fail(f"{method} raised {type(error).__name__}: {error}")
            return None

    def _forget(self, id: int) -> None:
        self._notices.discard(id)
        self._queued.pop(id, None)

    def _fail(self, breach: str) -> None:
        if not self._broken:
            self._broken = True
            if self._failed is not None:
                self._failed(f"scheduler {self._name!r} broke its contract: {breach}")
