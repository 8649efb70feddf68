"""`DeadlinePolicy`: base class of policies that serve by deadline.

It has two queues (requests with a deadline; best effort), the notices, admission and expiry. A
policy adds `propose`. Best-effort requests have a deadline that only orders them: only the queue
limit refuses them, and they never expire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from slacktide.domain import Batch, Notice, Reason, Replica, Request
from slacktide.engine.ports import Idle, PoolView, Proposal, WaitUntil
from slacktide.profiles import BatchTimes, Classes, ShapeClasses, sorted_alike
from slacktide.scheduling.admission import Admission, AllWorkAhead
from slacktide.scheduling.announcements import Announcements, as_request
from slacktide.scheduling.class_tables import ClassWorkAhead
from slacktide.scheduling.options import DeadlineOptions
from slacktide.scheduling.queue import DeadlineQueue, by_class, by_rows
from slacktide.scheduling.tables import ClassLead, Lead, RowTimes, TimeByRows, row_times

WorkBefore = tuple[RowTimes, AllWorkAhead | ClassWorkAhead]
"""Input of admission: a request's times and the work ahead of it."""


class DeadlinePolicy(ABC):
    """A `Scheduler` (engine/ports.py) without `propose`. A request with less time left than `lead`
    is dropped as hopeless; `class_lead`, if given, replaces `lead` when predictions have
    classes."""

    def __init__(
        self,
        options: DeadlineOptions,
        *,
        max_batch: int,
        times: BatchTimes,
        view: PoolView,
        lead: Lead,
        class_lead: ClassLead | None = None,
    ) -> None:
        self._max_batch = max_batch
        self._view = view
        self._times = times
        self._row_times = row_times(times, max_batch, lead, class_lead, self._sort_by)
        self._timed = DeadlineQueue()
        self._best_effort = DeadlineQueue()
        self._notices = Announcements()
        self._doubtful = {Reason.SHORTER_THAN_ALONE}
        """Reasons for refusals that are due to predictions alone if the lane is idle."""
        if isinstance(times.classes(view.cores), ShapeClasses):  # their medians may be guesses
            self._doubtful.add(Reason.BEHIND_WORK)
        self._sorted_by: Classes | None = None
        self._ahead: AllWorkAhead | None = None
        self._admission = Admission(
            queue=self._timed, view=view, max_queue=options.max_queue, enabled=options.admission
        )

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        """Apply admission before the body is read, assuming one row."""
        reason = self._refuse(notice, 1, now)
        if reason is None:
            self._notices.add(notice)
        return reason

    def add(self, request: Request, *, now: float) -> Reason | None:
        """Queue a request, or return a reason to refuse it. Its notice is forgotten either way."""
        if self._notices.by_id:
            self._notices.arrived(request.id, now=now)
        reason = self._refuse(request, request.rows, now)
        if reason is None:
            (self._best_effort if request.best_effort else self._timed).add(request)
        return reason

    def admit_moved(self, request: Request, *, now: float) -> None:
        """Queue a request without admission."""
        self._notices.arrived(request.id, now=now)
        (self._best_effort if request.best_effort else self._timed).add(request)

    def remove(self, id: int) -> bool:
        if self._notices.withdraw(id):
            return True
        return bool(self._timed.remove((id,)) or self._best_effort.remove((id,)))

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Drop requests past their latest start: EXPIRED past the deadline, else HOPELESS."""
        if not self._timed.order:
            return ()
        given_up = self._timed.expire(self._lead_by_kind(), now=now)
        return [
            (request.id, Reason.EXPIRED if request.deadline <= now else Reason.HOPELESS)
            for request in given_up
        ]

    @abstractmethod
    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """See `Scheduler`."""

    def take(self, batch: Batch) -> None:
        if not self._best_effort.order:
            self._timed.take(batch.members)
        elif not self._timed.order:
            self._best_effort.take(batch.members)
        else:
            ids = [member.id for member in batch.members]
            if self._timed.remove(ids) < len(ids):
                self._best_effort.remove(ids)

    def ended(self, batch: Batch, *, now: float) -> None:  # noqa: B027  # optional
        """Do nothing: the engine itself updates the predictions."""

    def next_expiry(self) -> float | None:
        """When the first request with a deadline passes its latest start."""
        if not self._timed.order:
            return None
        return self._timed.next_expiry(self._lead_by_kind())

    def outlook(self, arrival: Request | Notice, *, now: float) -> tuple[float, float] | None:
        """See `Scheduler`."""
        rows = arrival.rows if isinstance(arrival, Request) else 1
        times, ahead = self._work_before(arrival)
        return self._admission.outlook(arrival, rows, times=times, now=now, ahead=ahead)

    def pending(self) -> tuple[Request, ...]:
        """Every queued request, earliest deadline first."""
        if not self._best_effort.order:
            return tuple(self._timed)
        merged = sorted(self._timed.order + self._best_effort.order)
        return tuple(entry[2] for entry in merged)

    def __len__(self) -> int:
        return len(self._timed.order) + len(self._best_effort.order)

    def _lead_by_kind(self) -> TimeByRows:
        """Time that a request must have left, by the queue's kinds."""
        return self._row_times(self._view.cores).lead

    def _work_before(self, arrival: Request | Notice) -> WorkBefore:
        times = self._row_times(self._view.cores)
        if self._ahead is None or self._ahead.times is not times:
            self._ahead = AllWorkAhead(self._timed, times)
        if times.classes is None:
            return times, self._ahead
        kind, _ = self._timed.kind(arrival if isinstance(arrival, Request) else as_request(arrival))
        class_times = RowTimes(
            times.expected.__getitem__, lambda _: times.lead[kind], self._max_batch
        )
        return class_times, self._ahead

    def _sort_by(self, classes: Classes | None) -> None:
        """Sort the queue by the classes of new row times."""
        before, self._sorted_by = self._sorted_by, classes
        if not sorted_alike(before, classes):
            self._timed.sort_by(by_rows if classes is None else by_class(classes.class_of))

    def _refuse(self, arrival: Request | Notice, rows: int, now: float) -> Reason | None:
        waiting = len(self._timed.order) + len(self._best_effort.order) + len(self._notices.by_id)
        if arrival.best_effort:
            return self._admission.limit(waiting)
        times, ahead = self._work_before(arrival)
        reason = self._admission.refuse(
            arrival, rows, waiting=waiting, times=times, now=now, ahead=ahead
        )
        if (
            reason is not None  # rare, so test it first
            and not waiting
            and reason in self._doubtful
            and self._view.free_in(now=now) == 0.0
        ):
            self._times.discount(arrival if isinstance(arrival, Request) else None)
        return reason
