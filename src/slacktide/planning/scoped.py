"""`ScopedPlanner`: a planner that keeps a state for each of its scopes.

A scope is a part that is planned independently: a scaled model, a family of variants, a pool with
early exits. The planner collects the questions of all scopes that are due and answers them in one
job. A fault in one scope does not affect the others. Subclasses add the states and the decisions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from slacktide.engine import Snapshot
from slacktide.planning.draft import Draft
from slacktide.planning.planner import JobDone, Planner


class ScopeState:
    """A planner's state for one scope."""

    error: Exception | None = None
    """Error of its last computation. The next call of `plan` raises it."""

    def __init__(self, model: str, stated: object) -> None:
        """`stated`: its settings. A scope whose settings change begins anew."""
        self.model = model
        self.stated = stated

    @property
    def wakeup_at(self) -> float:
        """When its planner must be asked at the latest (absolute seconds)."""
        return math.inf

    @property
    def meanwhile_at(self) -> float:
        """When it must be planned even while a job runs (absolute seconds)."""
        return math.inf

    def accept(self, answer: Any, seconds: float) -> None:
        """Take the answer to its last question, or the exception that the question raised.
        `seconds`: how long the whole job took."""

    def put_off(self, until: float) -> None:
        """Do not plan this scope again before `until`: planning it failed."""


Scope = TypeVar("Scope", bound=Hashable)
State = TypeVar("State", bound=ScopeState)
Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Answers:
    """The outcome of a job: the answer of each scope, or its exception."""

    by_scope: Mapping[Any, object]
    seconds: float


def answer_all(
    questions: Mapping[Any, Callable[[], object]], stopwatch: Callable[[], float]
) -> Answers:
    """Answer every question. If a question raises, the exception is its answer."""
    begin = stopwatch()
    answers: dict[Any, object] = {}
    for scope, question in questions.items():
        try:
            answers[scope] = question()
        except Exception as error:
            answers[scope] = error
    return Answers(answers, stopwatch() - begin)


class ScopedPlanner(Planner, Generic[Scope, State]):
    """A planner of scopes that do not depend on each other."""

    def __init__(self, *, stopwatch: Callable[[], float] = lambda: 0.0) -> None:
        """`stopwatch`: a clock in seconds that times jobs."""
        self.states: dict[Scope, State] = {}
        self._computing: Mapping[Scope, State] = {}
        """The scopes in the last job, with the states that asked."""
        self._active: State | None = None
        """The state being planned, which is at fault if planning raises."""
        self._stopwatch = stopwatch

    def keep_states(
        self, stated: Mapping[Scope, Settings], create: Callable[[Scope, Settings], State]
    ) -> None:
        """Keep one state for each scope: the present state if its settings are unchanged, else a
        new state. If `create` raises, nothing has changed."""
        states = {}
        for scope, settings in stated.items():
            state = self.states.get(scope)
            if state is None or state.stated != settings:
                state = create(scope, settings)
            states[scope] = state
        self.states = states

    def next_wakeup(self, snapshot: Snapshot) -> float:
        return min([state.wakeup_at for state in self.states.values()], default=math.inf)

    def meanwhile_at(self) -> float:
        return min([state.meanwhile_at for state in self.states.values()], default=math.inf)

    def questions(self, snapshot: Snapshot, *, now: float) -> Mapping[Scope, Callable[[], object]]:
        """Return computations for the scopes that need one now."""
        return {}

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if self.meanwhile_at() <= now:
            return None  # plan first
        questions = self.questions(snapshot, now=now)
        if not questions:
            return None
        self._computing = {scope: self.states[scope] for scope in questions}
        return partial(answer_all, questions, self._stopwatch)

    def accept_answers(self, done: JobDone) -> None:
        """Hand the answers of a job to the states that asked, if they are still in use."""
        if done.planner == self.name and isinstance(done.answer, Answers):
            for scope, answer in done.answer.by_scope.items():
                state = self.states.get(scope)
                if state is not None and state is self._computing.get(scope):
                    state.error = answer if isinstance(answer, Exception) else None
                    state.accept(answer, done.answer.seconds)

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        for state in self.states.values():
            self._active = state
            if state.error is not None:
                error, state.error = state.error, None
                raise error
            draft = self.write(state, draft, snapshot, now=now)
        self._active = None
        return draft

    @abstractmethod
    def write(self, state: State, draft: Draft, snapshot: Snapshot, *, now: float) -> Draft:
        """Bring `state` up to date, and return `draft` with the fields of its scope written."""

    def put_off(self, until: float) -> str | None:
        state, self._active = self._active, None
        if state is not None:
            state.put_off(until)
        return None if state is None else state.model
