"""`Announcements`: the notices of one pool, and for which of them a lane may be held.

A request is known before its body arrives. Holding a free lane for a body that is almost complete
pays off if deadlines are tight, but delays all other requests if the body never comes. So

- a notice is waited for only until its announced time, never after;
- a client is waited for only while its announcements are right: if a body took more than 1.5 times
  as long as announced, or never came, the client is not waited for again until one of its bodies is
  on time;
- since each of many clients may be late once, the lane time lost in waiting for late bodies is
  limited to a share of all time (`HoldBudget`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from heapq import heappop, heappush
from math import inf

from slacktide.domain import Notice, Request, Signature

LATE = 1.5
"""A body that takes this many times as long as announced is late."""

GRACE = 0.001
"""Delay in seconds that is always tolerated: a body of one packet is announced to take no time."""

MOST_AT_ONCE = 4
"""Largest number of notices that a lane is held for at the same time."""

LOOK = 64
"""Maximum number of notices to examine for that, since notices of late clients are skipped."""

MOST_CLIENTS = 4096
"""Limit on clients remembered as late; beyond it, the client that was late longest ago is
forgiven."""

WASTE = 0.02
"""Largest share of all time that may be lost in waiting for bodies that do not come."""


class Announcements:
    """Notices by id. Each is added once, and removed by `arrived` or `withdraw`."""

    def __init__(self) -> None:
        self.by_id: dict[int, Notice] = {}
        """Read only."""
        self._ahead: list[tuple[float, int]] = []
        """Sorted (complete_at, id) of the notices with a deadline to plan with; some times are
        past."""
        self._overdue: list[tuple[float, int]] = []
        """Heap of (time when the body is late, id) of notices past `complete_at`. Some of these
        notices are gone."""
        self._late: OrderedDict[str, None] = OrderedDict()
        """Clients that are not waited for; the client that was late longest ago comes first."""

    def add(self, notice: Notice) -> None:
        """Add a notice whose body is on its way."""
        self.by_id[notice.id] = notice
        if notice.planned_due is not None:
            insort(self._ahead, (notice.complete_at, notice.id))

    def arrived(self, id: int, *, now: float) -> None:
        """Remove a notice whose body has arrived; unknown ids are ignored."""
        notice = self._forget(id)
        if notice is None:
            return
        if now > _late_at(notice):
            self._mark(notice.client)
        else:
            self._late.pop(notice.client, None)

    def withdraw(self, id: int) -> bool:
        """Remove a notice whose body will not come; False if there is none."""
        notice = self._forget(id)
        if notice is None:
            return False
        self._mark(notice.client)
        return True

    def soon(self, within: float, *, now: float) -> list[Notice]:
        """Notices to wait for whose bodies should be complete within `within` seconds, in order."""
        ahead, overdue, notices = self._ahead, self._overdue, self.by_id
        if ahead and ahead[0][0] <= now:
            passed = bisect_right(ahead, (now, inf))
            for _, id in ahead[:passed]:
                heappush(overdue, (_late_at(notices[id]), id))
            del ahead[:passed]
        while overdue and overdue[0][0] < now:
            notice = notices.get(heappop(overdue)[1])
            if notice is not None:
                self._mark(notice.client)
        nearest: list[Notice] = []
        for complete_at, id in ahead[:LOOK]:
            if complete_at > now + within:
                break
            if notices[id].client not in self._late:
                nearest.append(notices[id])
                if len(nearest) == MOST_AT_ONCE:
                    break
        return nearest

    def _forget(self, id: int) -> Notice | None:
        notice = self.by_id.pop(id, None)
        if notice is not None and notice.planned_due is not None:
            at = bisect_right(self._ahead, (notice.complete_at, id)) - 1
            if at >= 0 and self._ahead[at][1] == id:
                del self._ahead[at]
        return notice

    def _mark(self, client: str) -> None:
        late = self._late
        late[client] = None
        late.move_to_end(client)
        if len(late) > MOST_CLIENTS:
            late.popitem(last=False)


def _late_at(notice: Notice) -> float:
    """When the body of `notice` becomes late."""
    announced = max(0.0, notice.complete_at - notice.arrival)
    return notice.arrival + max(LATE * announced, announced + GRACE)


class HoldBudget:
    """Limits the lane time lost in waiting for missing bodies to a share `WASTE` of all time."""

    def __init__(self) -> None:
        self._again = -inf
        self._awaited: Notice | None = None
        self._since = 0.0
        self._lost = 0.0
        """Seconds lost since the last batch; several bodies in a row may have failed to come."""

    def lasts(self, *, now: float) -> bool:
        """Whether the lane may be held."""
        return now >= self._again

    def hold(self, notice: Notice, *, now: float) -> None:
        """Record that the lane is held for `notice`, the first of the notices it waits for."""
        awaited = self._awaited
        if awaited is None:
            self._since = now
        elif awaited is not notice and awaited.complete_at <= now:
            self._lost += awaited.complete_at - self._since
            self._since = now
        self._awaited = notice

    def arrived(self, id: int) -> None:
        """Record that a body has arrived."""
        if self._awaited is not None and self._awaited.id == id:
            self._awaited = None

    def run(self, *, now: float) -> None:
        """Record that a batch starts. Time held for a body that has not come is lost."""
        if self._awaited is not None:
            # The lane is never held beyond the announced time, whenever the next batch runs.
            self._lost += min(now, self._awaited.complete_at) - self._since
            self._awaited = None
        if self._lost > 0.0:
            self._again = now + self._lost / WASTE
            self._lost = 0.0


def as_request(notice: Notice, signature: Signature = ()) -> Request:
    """An announced request to plan with, assumed to have one row and this shape."""
    planned_due = notice.planned_due
    return Request(
        id=notice.id,
        model=notice.model,
        arrival=notice.arrival,
        deadline=notice.deadline if planned_due is None else planned_due,
        penalty=notice.penalty,
        signature=signature,
        best_effort=planned_due is None,
        version=notice.version,
        application=notice.application,
        client=notice.client,
    )
