"""`ExitsPlanner`: which ramps of each model are active, and how sure they must be.

Every batch reports its ramps' answers. Judged rows (which the model answered too) tune thresholds
and move ramps, off the event loop. An alarm (too many wrong answers) zeroes thresholds immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slacktide.domain import BatchAborted, BatchFinished, Event, Plan, PoolId, Submitted
from slacktide.engine import Snapshot
from slacktide.planning.draft import UNBOUNDED, Draft
from slacktide.planning.exits.events import (
    ExitEvent,
    RampsLearnt,
    RampsRefused,
    StatedExits,
)
from slacktide.planning.exits.exits_status import ExitsStatus, exits_status
from slacktide.planning.exits.pool_exits import PoolExits
from slacktide.planning.planner import JobDone, Owned, PlanField, Stated, stated_as
from slacktide.planning.scoped import ScopedPlanner

RECENT = 128
"""Number of the latest requests, per model, whose time to the deadline is kept."""


class ExitsPlanner(ScopedPlanner[PoolId, PoolExits]):
    """The planner of every model that states early exits."""

    name = "exits"

    def __init__(self) -> None:
        super().__init__()
        self._ramps: dict[PoolId, RampsLearnt | RampsRefused] = {}
        """The last report of each pool, which may come before the pool is served."""
        self._seconds_left: dict[str, deque[float]] = {}
        """By model: seconds to the deadline of the last requests, in order of arrival."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.EXITS) for model in stated_as(StatedExits, stated))

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        by_model = stated_as(StatedExits, stated)
        self._seconds_left = {
            model: self._seconds_left.get(model, deque(maxlen=RECENT)) for model in by_model
        }

        def create(pool: PoolId, stated_exits: StatedExits) -> PoolExits:
            state = PoolExits(pool, stated_exits)
            if pool in self._ramps:
                state.on_event(self._ramps[pool])
            return state

        before = self.states
        self.keep_states(
            {
                deployment.pool: by_model[deployment.pool.model]
                for deployment in base.deployments
                if deployment.pool.model in by_model
            },
            create,
        )
        for pool in before.keys() - self.states.keys():
            self._ramps.pop(pool, None)

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        for event in events:
            if isinstance(event, (RampsLearnt, RampsRefused)):
                self._ramps[event.pool] = event
            if (state := self.states.get(event.pool)) is not None:
                state.on_event(event)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self.states:
            return
        for event in events:
            if isinstance(event, Submitted):
                seconds_left = self._seconds_left.get(event.request.model)
                if seconds_left is not None and not event.request.best_effort:
                    seconds_left.append(event.request.deadline - now)
            elif isinstance(event, (BatchFinished, BatchAborted)):
                running = snapshot.running(event.batch) if event.exits is not None else None
                if running is None or event.exits is None:
                    continue
                state = self.states.get(running.batch.replica.pool)
                if state is not None:
                    stopped = isinstance(event, BatchAborted)
                    state.count_batch(event.exits, running.batch, stopped=stopped, now=now)
            elif isinstance(event, JobDone):
                self.accept_answers(event)
        for state in self.states.values():
            state.grow_old(now=now)

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        return super().is_urgent(snapshot, now=now) or any(
            state.changed or state.due for state in self.states.values()
        )

    def questions(self, snapshot: Snapshot, *, now: float) -> Mapping[PoolId, Callable[[], object]]:
        questions = {}
        for pool, state in self.states.items():
            if state.due and pool in snapshot.pools:
                served = snapshot.pools[pool]
                end_s = served.times.of(1, served.cores).p99
                state.times.hurry(self._seconds_left[pool.model], end_s)
                questions[pool] = state.question().answer
        return questions

    def write(self, state: PoolExits, draft: Draft, snapshot: Snapshot, *, now: float) -> Draft:
        plan = draft.plan
        state.changed = False
        is_served = any(deployment.pool == state.pool for deployment in plan.deployments)
        policy = state.policy() if is_served else None
        if policy is None or not draft.bounds.get(state.model, UNBOUNDED).exits:
            return draft
        state.feedback = policy.feedback
        return replace(draft, plan=replace(plan, exits=(*plan.exits, policy)))

    def status(self) -> dict[PoolId, ExitsStatus]:
        """Return the status of each pool."""
        return {pool: exits_status(state) for pool, state in self.states.items()}
