"""`Composer`: when planners are asked, and the one plan that comes of what they say.

A driver's runtime calls `before` with the events that the engine is about to handle and puts
the plan that may come of them in front. So a request that needs more cores finds its lane grown, or
growing, before admission looks at it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slacktide.domain import Event, Plan, PlanChanged
from slacktide.engine import Snapshot
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.planner import (
    Job,
    JobDone,
    Owned,
    Planner,
    PlannerError,
    Stated,
    also,
    stated_as,
)
from slacktide.planning.sessions import SessionEvent

if TYPE_CHECKING:  # its package needs planner.py
    from slacktide.planning.exits.events import ExitEvent


class Composer:
    """The planners of one engine. Pure."""

    def __init__(self, planners: Sequence[Planner] = ()) -> None:
        """Drafts pass through `planners` in their order. Raises PlannerError if two of them have
        one name, or own one field of one scope."""
        self.planners = {planner.name: planner for planner in planners}
        if len(self.planners) < len(planners):
            names = [planner.name for planner in planners]
            raise PlannerError(f"two planners share a name: {names}")
        self.jobs: list[Job] = []
        """To be run off the loop; drivers take them out."""
        self.computing: set[str] = set()
        """Planners whose job is not done yet."""
        self._error: Exception | None = None
        """Error of a failed job, not reported yet."""
        self._owners = self._owners_of({})
        self._base = Plan()
        self._stated: Stated = {}
        self._bounds: list[Stated] = []
        """By planner: those that the others know of."""
        self._plan = Plan()
        """In force, or about to be."""
        self._rebasing = False
        """Whether a rebased plan is yet to be put in force."""
        self._at_work: Planner | None = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to plan."""
        return not self._owners and not self.computing

    def rebase(self, base: Plan, stated: Stated, snapshot: Snapshot, *, now: float) -> Plan:
        """The plan to put in force where `base` is wanted, with what is `stated` of its models.

        The driver must hand it to the engine; until it does, nothing else is planned. Raises
        PlannerError if a field would have two owners or a planner cannot be: it must then be called
        again, without what it was called for.
        """
        owners = self._owners_of(stated)
        for planner in self.planners.values():
            planner.rebase(base, self._bounded(stated), now=now)
        self._owners, self._base, self._stated = owners, base, stated
        self._keep_bounds(now)
        self._plan = self._composed(snapshot, now)
        self._rebasing = True
        return self._plan

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        """Tell every planner."""
        for planner in self.planners.values():
            planner.observe_sessions(events, now=now)

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        """Tell every planner."""
        for planner in self.planners.values():
            planner.observe_exits(events, now=now)

    def jobs_done(self, events: Sequence[Event | JobDone]) -> Sequence[Event]:
        """`events` without the ends of jobs, whose planners may be asked again."""
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
        """What to hand to the engine before `events`: a new plan, or nothing."""
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
        urgent = self._keep_bounds(now)
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
        """When TimerFired must be delivered (absolute seconds); None if nothing is waited for."""
        if self._rebasing:
            return None
        at = math.inf
        for name, planner in self.planners.items():
            busy = name in self.computing
            at = min(at, planner.meanwhile_at() if busy else planner.next_wakeup(snapshot))
        return at if at < math.inf else None

    def put_off(self, until: float) -> str | None:
        """`before` has raised. The model whose planning is to blame and waits until then; None if
        it is no single one's: then nothing is to be planned before."""
        planner, self._at_work = self._at_work, None
        return None if planner is None else planner.put_off(until)

    def _keep_bounds(self, now: float) -> bool:
        """Tell all planners what is stated if bounds are others than they know of; whether so."""
        bounds = [planner.bounds for planner in self.planners.values()]
        if not any(bounds) and not any(self._bounds):
            return False
        previous_bounds = self._bounds
        if len(bounds) == len(previous_bounds) and all(map(operator.is_, bounds, previous_bounds)):
            return False
        self._bounds = bounds
        stated = self._bounded(self._stated)
        for planner in self.planners.values():
            self._at_work = planner
            planner.rebase(self._base, stated, now=now)
        return True

    def _bounded(self, stated: Stated) -> Stated:
        """With the bounds that planners give, of models of which anything is stated; below what
        settings state none goes."""
        statements, floors = dict(stated), stated_as(ModelBounds, stated)
        for planner in self.planners.values():
            for model, bounds in planner.bounds.items():
                if model in statements:
                    if model in floors and isinstance(bounds, ModelBounds):
                        bounds = replace(bounds, smallest=floors[model].smallest)
                    statements[model] = also(statements[model], bounds)
        return statements

    def _composed(self, snapshot: Snapshot, now: float) -> Plan:
        draft = self._base
        for planner in self.planners.values():
            self._at_work = planner
            draft = planner.plan(snapshot, draft, now=now)
        self._at_work = None
        return draft

    def _owners_of(self, stated: Stated) -> dict[Owned, str]:
        owners: dict[Owned, str] = {}
        for name, planner in self.planners.items():
            for scope, field in planner.owns(stated):
                owner = owners.setdefault((scope, field), name)
                if owner != name:
                    raise PlannerError(
                        f"{scope}: the planners {owner!r} and {name!r} would both decide "
                        f"{field.value}; only one may"
                    )
        return owners
