"""`Composer`: asks planners when they are due, and makes one plan of their drafts.

The runtime calls `before` with the events that the engine is about to handle, and puts the new
plan, if any, in front of them. So if a request needs more cores, its lane is already growing when
the request reaches admission.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain import Event, Plan, PlanChanged
from slacktide.engine import Snapshot
from slacktide.planning.draft import Draft, ModelBounds
from slacktide.planning.planner import (
    Job,
    JobDone,
    Owned,
    Planner,
    PlannerError,
    Stated,
    stated_as,
)
from slacktide.planning.sessions import SessionEvent

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.exits.events import ExitEvent


class Composer:
    """The planners of one engine. Pure."""

    def __init__(self, planners: Sequence[Planner] = ()) -> None:
        """`planners` change the draft in this order. Raises PlannerError if two of them have the
        same name, or own the same field of one scope."""
        self.planners = {planner.name: planner for planner in planners}
        if len(self.planners) < len(planners):
            names = [planner.name for planner in planners]
            raise PlannerError(f"two planners share a name: {names}")
        self.jobs: list[Job] = []
        """Jobs to run off the loop; drivers take them out."""
        self.computing: set[str] = set()
        """Planners whose job is not done yet."""
        self._error: Exception | None = None
        """Error of a failed job, not reported yet."""
        self._owners = self._owners_of({})
        self._base = Draft(Plan(), {})
        self._plan = Plan()
        """The plan in force, or about to come into force."""
        self._rebasing = False
        """Whether the plan of the last `rebase` is yet to come into force."""
        self._at_work: Planner | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan."""
        return not self._owners and not self.computing

    def rebase(self, base: Plan, stated: Stated, snapshot: Snapshot, *, now: float) -> Plan:
        """Return the plan to put in force for `base`, with the settings `stated` for its models.

        The driver must hand it to the engine; until then, nothing else is planned. Raises
        PlannerError if a field would have two owners, or if a planner refuses its settings. In that
        case, call `rebase` again with the previous base and settings.
        """
        owners = self._owners_of(stated)
        for planner in self.planners.values():
            planner.rebase(base, stated, now=now)
        self._owners, self._base = owners, Draft(base, stated_as(ModelBounds, stated))
        self._plan = self._composed(snapshot, now)
        self._rebasing = True
        return self._plan

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        """Pass events of sessions to every planner."""
        for planner in self.planners.values():
            planner.observe_sessions(events, now=now)

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        """Pass events of early exits to every planner."""
        for planner in self.planners.values():
            planner.observe_exits(events, now=now)

    def jobs_done(self, events: Sequence[Event | JobDone]) -> Sequence[Event]:
        """Return `events` without `JobDone`. Planners whose job is done may be asked again."""
        engine_events: list[Event] = []
        for event in events:
            if isinstance(event, JobDone):
                self.computing.discard(event.planner)
                self._error = event.error or self._error
            else:
                engine_events.append(event)
        return engine_events

    def before(
        self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float
    ) -> PlanChanged | None:
        """Return a new plan that the engine must get before `events`; None: no new plan."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        for planner in self.planners.values():
            self._at_work = planner
            planner.observe(events, snapshot, now=now)
        if self._rebasing:
            self._rebasing = not any(
                isinstance(event, PlanChanged) and event.plan == self._plan for event in events
            )
            return None
        urgent = False
        for name, planner in self.planners.items():
            self._at_work = planner
            if name in self.computing:
                urgent = urgent or planner.meanwhile_at() <= now
                continue
            if not planner.is_urgent(snapshot, now=now):
                continue
            compute = planner.job(snapshot, now=now)
            if compute is None:
                urgent = True
            else:
                self.computing.add(name)
                self.jobs.append(Job(name, compute))
        plan = self._composed(snapshot, now) if urgent else self._plan
        self._at_work = None
        if plan == self._plan:
            return None
        self._plan = plan
        reasons = (planner.reason for planner in self.planners.values())
        return PlanChanged(plan, "; ".join(filter(None, reasons)))

    def next_wakeup(self, snapshot: Snapshot) -> float | None:
        """Return when TimerFired must be delivered (absolute seconds); None: no need."""
        if self._rebasing:
            return None
        at = math.inf
        for name, planner in self.planners.items():
            busy = name in self.computing
            at = min(at, planner.meanwhile_at() if busy else planner.next_wakeup(snapshot))
        return at if at < math.inf else None

    def put_off(self, until: float) -> str | None:
        """Postpone planning after `before` has raised. Returns the model at fault; None: no single
        model is at fault, so do not call `before` again until `until`."""
        planner, self._at_work = self._at_work, None
        return None if planner is None else planner.put_off(until)

    def _composed(self, snapshot: Snapshot, now: float) -> Plan:
        draft = self._base
        for planner in self.planners.values():
            self._at_work = planner
            draft = planner.plan(snapshot, draft, now=now)
        self._at_work = None
        return draft.plan

    def _owners_of(self, stated: Stated) -> dict[Owned, str]:
        owners: dict[Owned, str] = {}
        for name, planner in self.planners.items():
            for scope, field in planner.owns(stated):
                owner = owners.setdefault((scope, field), name)
                if owner != name:
                    raise PlannerError(
                        f"{scope}: the planners {owner!r} and {name!r} both decide "
                        f"{field.value}; only one may"
                    )
        return owners
