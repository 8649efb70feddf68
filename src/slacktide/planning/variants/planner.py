"""`VariantsPlanner`: which variant of a family each lane runs, and which each client is mapped to.

Twice a second, and at once when a session opens, closes or its link falls, the clients of a family
are planned for anew by `search`, off the loop. Until that is done a client that has come, or whose
link has fallen, gets the largest variant that has room for it in the plan in force: so it waits for
no search. The size that a session is to send is that of the variant it is mapped to.

Variants that share one process are all on every lane: a plan then moves no replica, only routes,
and no lane stands idle while frames of another variant wait. Variants with memory of their own are
on the lanes that run them, and beside them are their neighbours, as `resident` says (update.py). A
client follows its variant once a replica of that is up.

Requests without a session are one more client, whose variant is that of the plain route; those that
ask for a size of their own go where they ask, and only count as load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slacktide.domain import Event, Plan, ReplicaUp, Submitted
from slacktide.domain.options import OptionError
from slacktide.engine import Snapshot
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.planner import (
    JobDone,
    Owned,
    PlanField,
    Planner,
    PlannerError,
    Stated,
    stated_as,
)
from slacktide.planning.sessions import SessionClosed, SessionEvent, SessionOpened
from slacktide.planning.variants.demand import Session
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.fleet import UNMAPPED
from slacktide.planning.variants.planned_family import PlannedFamily, VariantsStatus, replicas_up
from slacktide.planning.variants.question import SearchResult

OWNED = (PlanField.ROUTES, PlanField.INPUTS, PlanField.VARIANTS, PlanField.BATCH_CAPS)

REPORT_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a job has found, by model, and how long it took."""

    by_model: dict[str, tuple[Family, SearchResult | Exception]]
    seconds: float


class VariantsPlanner(Planner):
    """The planner of every family that names it."""

    name = "variants"

    def __init__(
        self,
        *,
        stopwatch: Callable[[], float] = lambda: 0.0,
        report: Callable[[str, int, int], None] = lambda model, unmapped, sessions: None,
    ) -> None:
        """`stopwatch`: a clock in seconds by which searches are timed. `report` gets (model,
        sessions without a variant, all sessions) when the second has changed, every
        `REPORT_INTERVAL` seconds at most."""
        self._stopwatch = stopwatch
        self._report = report
        self._reported: dict[str, tuple[float, int]] = {}
        """By model: when, and what."""
        self._families: dict[str, PlannedFamily] = {}
        self._sessions: dict[str, Session] = {}
        self._came_up = False
        """Whether the engine was about to handle the start of a replica."""
        self._at_work: str | None = None

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, field) for model in _planned(stated) for field in OWNED)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Families that stay keep what is known of them."""
        families = {}
        for model, family in _planned(stated).items():
            planned_family = self._families.get(model)
            try:
                if planned_family is None or planned_family.family != family:
                    planned_family = PlannedFamily(family, now=now)
            except OptionError as error:
                raise PlannerError(f"{model}: variants: {error}") from error
            families[model] = planned_family
        self._families = families
        bounds = stated_as(ModelBounds, stated)
        for model, state in families.items():
            state.bound(bounds.get(model))
            deployments = [
                deployment for deployment in base.deployments if deployment.pool.model == model
            ]
            state.fields.rebase({placed.pool: placed.max_batch for placed in deployments})
            state.due_at, state.held_until = min(state.due_at, now), -math.inf
            for id, session in self._sessions.items():
                if session.opened.model == model and id not in state.mapped:
                    state.mapped[id] = UNMAPPED
                    state.ask(id, now=now)

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        for event in events:
            session = self._sessions.get(event.id)
            if isinstance(event, SessionOpened):
                if session is None or session.opened.model != event.model:
                    self._close(event.id, now)
                    self._sessions[event.id] = Session(event)
                else:
                    session.state(event)
                state = self._families.get(event.model)
                if state is not None:
                    state.mapped.setdefault(event.id, UNMAPPED)
                    state.ask(event.id, now=now)
            elif isinstance(event, SessionClosed):
                self._close(event.id, now)
            elif session is not None:
                first = session.measured is None
                state = self._families.get(session.opened.model)
                if state is not None:
                    state.learnt.count(event, session.measured)
                session.measure(event)
                if state is not None and (first or event.fell or state.overcharged(session)):
                    state.ask(event.id, now=now)

    def _close(self, id: str, now: float) -> None:
        session = self._sessions.pop(id, None)
        state = None if session is None else self._families.get(session.opened.model)
        if state is not None:
            state.forget(id)
            state.urge(now=now)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        families = self._families
        if not families:
            return
        self._catch_up()
        for event in events:
            if isinstance(event, Submitted):
                request = event.request
                state = families.get(request.model)
                if state is not None and (
                    request.names_variant or request.client not in self._sessions
                ):
                    state.see(request, now=now)
            elif isinstance(event, ReplicaUp):
                self._came_up = True
            elif isinstance(event, JobDone) and isinstance(event.answer, _Answers):
                for model, (family, answer) in event.answer.by_model.items():
                    state = families.get(model)
                    if state is not None and state.family is family:
                        state.ready = answer
                        state.plans += 1
                        state.search_s = event.answer.seconds
                        state.planning_s += state.search_s

    def _catch_up(self) -> None:
        """The engine has handled what was observed last: clients may follow their variants."""
        if self._came_up:
            self._came_up = False
            for state in self._families.values():
                state.stale = state.stale or not state.family.switches_free

    def next_wakeup(self, snapshot: Snapshot) -> float:
        self._catch_up()
        at = math.inf
        for state in self._families.values():
            at = min(at, state.answer_at, state.due_at)
        return at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        return self.next_wakeup(snapshot) <= now

    def meanwhile_at(self) -> float:
        return min((state.answer_at for state in self._families.values()), default=math.inf)

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if self.meanwhile_at() <= now:
            return None
        questions = {}
        for model, state in self._families.items():
            if state.due_at <= now:
                question = state.question(model, self._sessions, snapshot, now=now)
                if question is not None:
                    questions[model] = question
        stopwatch = self._stopwatch

        def compute() -> object:
            begin = stopwatch()
            answers: dict[str, tuple[Family, SearchResult | Exception]] = {}
            for model, question in questions.items():
                try:
                    answers[model] = question.family, question.answer()
                except Exception as error:  # of this family alone
                    answers[model] = question.family, error
            return _Answers(answers, stopwatch() - begin)

        return compute if questions else None

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        for model, state in self._families.items():
            if now < state.held_until:
                continue  # others are planned
            self._at_work = model
            up = replicas_up(model, snapshot)
            state.settle(self._sessions, up, now=now)
            draft = state.filled(model, draft, up, now=now)
            state.failures = 0
            at, before = self._reported.get(model, (-math.inf, 0))
            unmapped = state.unmapped
            if unmapped != before and now >= at + REPORT_INTERVAL:
                self._reported[model] = now, unmapped
                self._report(model, unmapped, len(state.mapped))
        self._at_work = None
        return draft

    def put_off(self, until: float) -> str | None:
        """See `Planner`. Its clients stay where they are. If it fails again, it is left
        out until then, for no other family could be planned either."""
        model, self._at_work = self._at_work, None
        if model is not None:
            state = self._families[model]
            state.due_at = until
            state.failures += 1
            if state.failures > 1:
                state.held_until = until
        return model

    def status(self) -> dict[str, VariantsStatus]:
        """Where each family stands."""
        return {model: state.status(self._sessions) for model, state in self._families.items()}


def _planned(stated: Stated) -> dict[str, Family]:
    """The families that name this planner."""
    return {
        model: family
        for model, family in stated_as(Family, stated).items()
        if family.planner == VariantsPlanner.name
    }
