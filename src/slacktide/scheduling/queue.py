"""`DeadlineQueue`: requests in (deadline, id) order, also split by signature and by kind.

Theory of operation. One sorted list holds all entries; two `Partition`s hold the same entries split
by key: by *signature* (only equal signatures share a batch) and by *kind*, i.e. (rows, penalty), or
((rows, class), penalty) for a policy with classes. All requests of a kind need the same time alone,
so the requests that expire are a prefix of each kind's list, and the work ahead of a deadline is
one bisection per kind. While there is only one key, the only part of a partition *is* that sorted
list. So the common queue (one shape, one row, one penalty) pays for one insertion, not three.

Plain lists and `bisect` were chosen over `sortedcontainers` by measurement
(bench/scheduler_decisions.py): 1 to 2 µs per insertion at 10,000 pending, slices and bisections in
C, and no relevant difference below 100,000. Classes (by application or work hint) are kept in an
`Index` beside the queue (class_queue.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from slacktide.domain import Request, Signature
from slacktide.engine.ports import Idle, Proposal
from slacktide.scheduling.tables import TimeByRows

Entry = tuple[float, int, Request]
"""(deadline, id, request). Ids are unique, so two entries never compare their requests."""

Kind = tuple[Any, float]
"""(rows, penalty) of a request, or ((rows, class), penalty) if there are classes."""

# `attrgetter` runs in C, which matters since every request needs it.
by_rows: Callable[[Request], Kind] = attrgetter("rows", "penalty")
signature_of: Callable[[Request], Signature] = attrgetter("signature")


def by_class(class_of: Callable[[Request], int]) -> Callable[[Request], Kind]:
    """A function that returns kinds with classes."""
    return lambda request: ((request.rows, class_of(request)), request.penalty)


K = TypeVar("K")


def cut(entries: list[Entry], gone: Sequence[Entry], *beside: array[Any]) -> None:
    """Remove `gone` (sorted, all present) from `entries`, one contiguous run at a time, and the
    same places from the parallel arrays `beside`."""
    count = len(gone)
    if entries[:count] == gone:  # usually they are the first ones
        del entries[:count]
        for column in beside:
            del column[:count]
        return
    i = 0
    while i < count:
        at = bisect_left(entries, gone[i])
        n = 1
        while i + n < count and entries[at + n] is gone[i + n]:
            n += 1
        del entries[at : at + n]
        for column in beside:
            del column[at : at + n]
        i += n


def split(entries: Iterable[Entry], key: Callable[[Request], K]) -> dict[K, list[Entry]]:
    """The entries grouped by `key` of their requests; each group keeps their order."""
    parts: dict[K, list[Entry]] = {}
    for entry in entries:
        parts.setdefault(key(entry[2]), []).append(entry)
    return parts


def within_rows(entries: Sequence[Entry], rows: int) -> list[Request]:
    """Requests in order, as many as fit into `rows` together; requests that do not fit are skipped.
    Examines at most 4 × `rows` entries, so that a queue of large requests stays cheap."""
    members: list[Request] = []
    room = rows
    for _, _, request in entries[: 4 * rows]:
        if request.rows <= room:
            members.append(request)
            room -= request.rows
            if not room:
                break
    return members


def proposal_of(members: Sequence[Request]) -> Proposal | Idle:
    """A proposal to run these requests; `Idle` if there are none."""
    if not members:
        return Idle()
    return Proposal(tuple(members), sum(member.rows for member in members))


class Partition(Generic[K]):
    """The entries of `order` split by `key` into sorted parts; a sole part is `order` itself."""

    def __init__(self, order: list[Entry], key: Callable[[Request], K]) -> None:
        self._order = order
        self._key = key
        self.parts = split(order, key)
        """Parts by key, none empty. Read only."""
        if len(self.parts) == 1:
            self.parts = dict.fromkeys(self.parts, order)

    def add(self, entry: Entry) -> None:
        """Add `entry`, before it enters `order`."""
        key = self._key(entry[2])
        part = self.parts.get(key)
        if part is self._order:
            return
        if part is None:
            if not self.parts:
                self.parts[key] = self._order
                return
            if len(self.parts) == 1:
                (sole,) = self.parts
                self.parts[sole] = self._order.copy()
            part = self.parts[key] = []
        insort(part, entry)

    def discard(self, gone: Sequence[Entry]) -> None:
        """Remove `gone` (sorted), after they have left `order`."""
        parts = self.parts
        if len(parts) > 1:
            for key, members in split(gone, self._key).items():
                part = parts[key]
                if len(members) == len(part):
                    del parts[key]
                else:
                    cut(part, members)
            if len(parts) == 1:
                (sole,) = parts
                parts[sole] = self._order
        if not self._order:
            parts.clear()


class Index(Protocol):
    """Another order of the same entries, which follows every change."""

    def add(self, entry: Entry) -> None:
        """`entry` is about to enter the order."""

    def discard(self, gone: Sequence[Entry]) -> None:
        """`gone` (sorted) have left the order."""


class DeadlineQueue:
    """Requests waiting, earliest deadline first (ties: lower id first)."""

    def __init__(self) -> None:
        self.order: list[Entry] = []
        """Every entry, sorted. Read only."""
        self.rows = 0
        """Rows of all requests."""
        self.removals = 0
        """Number of removals, by which a cache sees that it is stale."""
        self.index: Index | None = None
        """An index to notify of every change; None: there is none."""
        self._entries: dict[int, Entry] = {}
        self._signatures: Partition[Signature] = Partition(self.order, signature_of)
        self.kind = by_rows
        """Returns the kind of a request. Read only; see `sort_by`."""
        self.kinds: Partition[Kind] = Partition(self.order, self.kind)
        """The entries by kind. Read only."""
        self._expiry: float | None = None
        self._timed_at = (0, 0)
        """(removals, length) when `_expiry` was computed, with the lead `_timed_by`."""
        self._timed_by: TimeByRows | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Request]:
        """Every request in order."""
        return (request for _, _, request in self.order)

    @property
    def uniform(self) -> bool:
        """Whether all requests are alike: one signature, one row each, one penalty."""
        return (
            len(self.kinds.parts) == 1
            and len(self._signatures.parts) == 1
            and self.rows == len(self.order)
        )

    def sort_by(self, kind: Callable[[Request], Kind]) -> None:
        """Split requests by the kinds that the function `kind` returns, from now on."""
        self.kind = kind
        self.kinds = Partition(self.order, kind)
        self._timed_by = None

    def add(self, request: Request) -> None:
        """Insert a request. Raises ValueError if its id is already queued."""
        id = request.id
        if id in self._entries:
            raise ValueError(f"request {id} is already queued")
        entry = self._entries[id] = (request.deadline, id, request)
        order = self.order
        # Usually the order itself is the only part, and nothing is left to do.
        if self._signatures.parts.get(request.signature) is not order:
            self._signatures.add(entry)
        if self.index is not None:
            self.index.add(entry)
        if self.kinds.parts.get((request.rows, request.penalty)) is not order:
            self.kinds.add(entry)  # after the index: the kind's class, if any, is read from it
        insort(order, entry)
        self.rows += request.rows

    def take(self, members: Sequence[Request]) -> int:
        """Like `remove`, but fast if the requests are the first in order."""
        count = len(members)
        gone = self.order[:count]
        if len(gone) < count:
            return self.remove([member.id for member in members])
        for entry, member in zip(gone, members, strict=True):
            if entry[2] is not member:
                return self.remove([member.id for member in members])
        entries = self._entries
        for entry in gone:
            del entries[entry[1]]
        self._drop(gone)
        return count

    def remove(self, ids: Iterable[int]) -> int:
        """Remove requests, ignoring unknown ids. Returns how many were removed."""
        entries = self._entries
        removed = [entry for id in ids if (entry := entries.pop(id, None)) is not None]
        if removed:
            removed.sort()
            self._drop(removed)
        return len(removed)

    def expire(self, lead: TimeByRows, *, now: float) -> list[Request]:
        """Remove and return, in order, the requests past their latest start, deadline − lead.
        `lead` is the time in seconds that a request needs, by rows or by (rows, class)."""
        expired: list[Entry] = []
        for (rows, _), part in self.kinds.parts.items():
            need = lead[rows]
            if part[0][0] - need <= now:
                expired += part[: bisect_right(part, now, key=lambda entry: entry[0] - need)]
        if not expired:
            return []
        expired.sort()
        for entry in expired:
            del self._entries[entry[1]]
        self._drop(expired)
        return [entry[2] for entry in expired]

    def next_expiry(self, lead: TimeByRows) -> float | None:
        """When the first request passes its latest start (see `expire`); None: queue is empty."""
        parts = self.kinds.parts
        if len(parts) == 1:  # the usual case, cheaper than a look at the cache
            for (rows, _), part in parts.items():
                return part[0][0] - lead[rows]
        # Called after every event, and most events do not change this queue.
        state = (self.removals, len(self.order))
        if state != self._timed_at or lead is not self._timed_by:
            self._timed_at, self._timed_by = state, lead
            starts = [part[0][0] - lead[rows] for (rows, _), part in parts.items()]
            self._expiry = min(starts, default=None)
        return self._expiry

    def rows_due(self, deadline: float, penalty: float) -> int:
        """Rows of requests due no later than `deadline` with at least this penalty."""
        after = (deadline, float("inf"))
        return sum(
            part[0][2].rows * bisect_right(part, after)
            for (_, cost), part in self.kinds.parts.items()
            if cost >= penalty
        )

    def penalties(self) -> list[float]:
        """The distinct penalties, ascending."""
        return sorted({penalty for _, penalty in self.kinds.parts})

    def batchable(self, signature: Signature) -> list[Entry]:
        """Entries with this signature, sorted; empty if there are none. Read only."""
        return self._signatures.parts.get(signature, [])

    def groups(self, limit: int, *, look: int = 256) -> list[list[Entry]]:
        """The groups of equal signature with the earliest deadlines: at most `limit`, earliest
        first. Examines only the first `look` requests, which bounds the cost if hardly any two have
        the same shape."""
        parts = self._signatures.parts
        if len(parts) <= 1:
            return list(parts.values())
        by_signature: dict[Signature, list[Entry]] = {}
        for _, _, request in self.order[:look]:
            if request.signature not in by_signature:
                by_signature[request.signature] = parts[request.signature]
                if len(by_signature) == limit:
                    break
        return list(by_signature.values())

    def _drop(self, gone: list[Entry]) -> None:
        """Remove `gone` (sorted) from the order, its partitions and the index."""
        cut(self.order, gone)
        self._signatures.discard(gone)
        self.kinds.discard(gone)
        if self.index is not None:
            self.index.discard(gone)
        for entry in gone:
            self.rows -= entry[2].rows
        self.removals += 1
