"""`VariantsPlanner`: which variant of a family each lane runs, and which each client is mapped to.

The clients of a family are planned anew by `search`, off the loop: twice a second, and immediately
when a session opens or closes, or the bandwidth of its link drops. Until a search is done, a new
client, or a client whose bandwidth dropped, gets the largest variant that has room for it in the
plan in force. So nobody waits for a search. The planner tells each session to send pictures of its
variant's size.

Variants that share one process are all on every lane: a plan moves no replica, only routes, and no
lane stands idle while frames of another variant wait. A variant with memory of its own is loaded on
the lanes that run it or a variant close to it in size (`resident` in update.py). A client moves to
its new variant once a replica of it is up.

Requests without a session count as one more client, whose variant is that of the plain route.
Requests that ask for a size run on that size's variant, and only count as load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slacktide.domain import Event, Plan, ReplicaUp, Submitted
from slacktide.domain.options import OptionError
from slacktide.engine import Snapshot
from slacktide.planning.draft import UNBOUNDED, Draft
from slacktide.planning.planner import JobDone, Owned, PlanField, PlannerError, Stated, stated_as
from slacktide.planning.scoped import ScopedPlanner
from slacktide.planning.sessions import SessionClosed, SessionEvent, SessionOpened
from slacktide.planning.variants.demand import Session
from slacktide.planning.variants.family import Family
from slacktide.planning.variants.planned_family import PlannedFamily, VariantsStatus, replicas_up

OWNED = (PlanField.ROUTES, PlanField.INPUTS, PlanField.VARIANTS, PlanField.BATCH_CAPS)

REPORT_INTERVAL = 10.0


class VariantsPlanner(ScopedPlanner[str, PlannedFamily]):
    """The planner of every family that names it."""

    name = "variants"

    def __init__(
        self,
        *,
        stopwatch: Callable[[], float] = lambda: 0.0,
        report: Callable[[str, int, int], None] = lambda model, unmapped, sessions: None,
    ) -> None:
        """`stopwatch`: a clock in seconds that times searches. `report` gets (model, sessions
        without a variant, all sessions) when the number of sessions without a variant has changed,
        at most every `REPORT_INTERVAL` seconds."""
        super().__init__(stopwatch=stopwatch)
        self._report = report
        self._reports: dict[str, tuple[float, int]] = {}
        """By model: when its unmapped sessions were last reported, and how many."""
        self._sessions: dict[str, Session] = {}
        self._replica_came_up = False
        """Whether the last events included a replica that came up."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, field) for model in _planned(stated) for field in OWNED)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        def create(model: str, family: Family) -> PlannedFamily:
            try:
                return PlannedFamily(model, family, now=now)
            except OptionError as error:
                raise PlannerError(f"{model}: variants: {error}") from error

        self.keep_states(_planned(stated), create)
        for model, state in self.states.items():
            state.rebase(
                {
                    deployment.pool: deployment.max_batch
                    for deployment in base.deployments
                    if deployment.pool.model == model
                },
                now=now,
            )
            for id, session in self._sessions.items():
                if session.opened.model == model and id not in state.mapped:
                    state.open(id, now=now)

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        for event in events:
            session = self._sessions.get(event.id)
            if isinstance(event, SessionOpened):
                if session is None or session.opened.model != event.model:
                    self._close(event.id, now)
                    self._sessions[event.id] = Session(event)
                else:
                    session.restate(event)
                state = self.states.get(event.model)
                if state is not None:
                    state.open(event.id, now=now)
            elif isinstance(event, SessionClosed):
                self._close(event.id, now)
            elif session is not None:
                is_first = session.measured is None
                state = self.states.get(session.opened.model)
                if state is not None:
                    state.learnt.count(event, session.measured)
                session.measure(event)
                if state is not None and (is_first or event.fell or state.exceeds_link(session)):
                    state.request_update(event.id, now=now)

    def _close(self, id: str, now: float) -> None:
        session = self._sessions.pop(id, None)
        state = None if session is None else self.states.get(session.opened.model)
        if state is not None:
            state.close(id, now=now)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self.states:
            return
        self._follow_replicas()
        for event in events:
            if isinstance(event, Submitted):
                request = event.request
                state = self.states.get(request.model)
                if state is not None and (
                    request.names_variant or request.client not in self._sessions
                ):
                    state.count_request(request, now=now)
            elif isinstance(event, ReplicaUp):
                self._replica_came_up = True
            elif isinstance(event, JobDone):
                self.accept_answers(event)

    def _follow_replicas(self) -> None:
        """Let clients move to variants that came up, as the engine has handled the last events."""
        if self._replica_came_up:
            self._replica_came_up = False
            for state in self.states.values():
                state.stale = state.stale or not state.family.switches_free

    def next_wakeup(self, snapshot: Snapshot) -> float:
        self._follow_replicas()
        return super().next_wakeup(snapshot)

    def questions(self, snapshot: Snapshot, *, now: float) -> Mapping[str, Callable[[], object]]:
        questions = {}
        for model, state in self.states.items():
            if state.due_at <= now:
                question = state.question(self._sessions, snapshot, now=now)
                if question is not None:
                    questions[model] = question.answer
        return questions

    def write(self, state: PlannedFamily, draft: Draft, snapshot: Snapshot, *, now: float) -> Draft:
        if now < state.held_until:
            return draft
        model = state.model
        state.bound(draft.bounds.get(model, UNBOUNDED), now=now)
        up = replicas_up(model, snapshot)
        state.apply(self._sessions, up, now=now)
        plan = state.write(draft.plan, up, now=now)
        state.failures = 0
        reported_at, reported = self._reports.get(model, (-math.inf, 0))
        if state.unmapped != reported and now >= reported_at + REPORT_INTERVAL:
            self._reports[model] = now, state.unmapped
            self._report(model, state.unmapped, len(state.mapped))
        return replace(draft, plan=plan)

    def status(self) -> dict[str, VariantsStatus]:
        """Return the status of each family."""
        return {model: state.status(self._sessions) for model, state in self.states.items()}


def _planned(stated: Stated) -> dict[str, Family]:
    """Return the families that name this planner."""
    return {
        model: family
        for model, family in stated_as(Family, stated).items()
        if family.planner == VariantsPlanner.name
    }
