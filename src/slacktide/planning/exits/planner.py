"""`ExitsPlanner`: which ramps of each model are active, and how sure they must be.

Every batch that ends says what its ramps said. From rows that were judged, thresholds are tuned
and ramps move, off the loop; an alarm takes thresholds to 0 at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import BatchAborted, BatchFinished, Event, Plan, PoolId, Submitted
from slacktide.engine import Snapshot
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.exits.events import (
    ExitEvent,
    ExitsArranged,
    RampsJudged,
    RampsLearnt,
    RampsRefused,
    StatedExits,
)
from slacktide.planning.exits.pool_exits import ExitsStatus, PoolExits
from slacktide.planning.exits.ramps import ExitsAnswer
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as

RECENT = 128
"""Requests whose deadlines say what answers are worth."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a job has found: by pool, which doubts it knew of, and what comes of it."""

    by_pool: dict[PoolId, tuple[int, ExitsAnswer | Exception]]


class ExitsPlanner(Planner):
    """The planner of every model that states early exits."""

    name = "exits"

    def __init__(self) -> None:
        self._stated: dict[str, StatedExits] = {}
        self._pools: dict[PoolId, PoolExits] = {}
        self._heard: dict[PoolId, RampsLearnt | RampsRefused] = {}
        """The last of each pool, which may be heard before the pool is served."""
        self._bounds: dict[str, ModelBounds] = {}
        self._left: dict[str, deque[float]] = {}
        """By model: seconds to the deadline of the last requests, as they came."""
        self._at_work: str | None = None

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.EXITS) for model in stated_as(StatedExits, stated))

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Pools that stay keep what is known of them."""
        self._stated = stated_as(StatedExits, stated)
        self._bounds = stated_as(ModelBounds, stated)
        self._left = {m: self._left.get(m, deque(maxlen=RECENT)) for m in self._stated}
        pools = {}
        for pool in {deployment.pool: None for deployment in base.deployments}:
            stated_exits = self._stated.get(pool.model)
            if stated_exits is None:
                continue
            state = self._pools.pop(pool, None)
            if state is None or state.stated != stated_exits:
                state = PoolExits(pool, stated_exits)
                if pool in self._heard:
                    state.hear(self._heard[pool])
            pools[pool] = state
        for pool in self._pools:
            self._heard.pop(pool, None)
        self._pools = pools

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        for event in events:
            state = self._pools.get(event.pool)
            if isinstance(event, ExitsArranged):
                if state is not None:
                    state.arrange(event)
                continue
            if isinstance(event, RampsJudged):
                if state is not None:
                    state.judge_everywhere(event)
                continue
            self._heard[event.pool] = event
            if state is not None:
                state.hear(event)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self._pools:
            return
        for event in events:
            if isinstance(event, Submitted):
                seconds_left = self._left.get(event.request.model)
                if seconds_left is not None and not event.request.best_effort:
                    seconds_left.append(event.request.deadline - now)
            elif isinstance(event, (BatchFinished, BatchAborted)):
                running = snapshot.running(event.batch) if event.exits is not None else None
                if running is None or event.exits is None:
                    continue
                state = self._pools.get(running.batch.replica.pool)
                if state is not None:
                    stopped = isinstance(event, BatchAborted)
                    state.take(event.exits, running.batch, stopped=stopped, now=now)
            elif isinstance(event, JobDone) and isinstance(event.answer, _Answers):
                for pool, (doubts, answer) in event.answer.by_pool.items():
                    state = self._pools.get(pool)
                    if state is not None:
                        state.settle(answer, doubts)
        for state in self._pools.values():
            state.grow_old(now=now)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        at = math.inf
        for state in self._pools.values():
            at = min(at, state.stale_at, state.retry_at)
        return at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        at_once = self.next_wakeup(snapshot) <= now
        return at_once or any(state.changed or state.due for state in self._pools.values())

    def meanwhile_at(self) -> float:
        """An alarm does not wait for what is being computed."""
        return -math.inf if any(state.changed for state in self._pools.values()) else math.inf

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if any(state.changed for state in self._pools.values()):
            return None  # first that
        questions = {}
        for pool, state in self._pools.items():
            if state.due and pool in snapshot.pools:
                served = snapshot.pools[pool]
                end_s = served.times.of(1, served.cores).p99
                state.times.hurry(self._left[pool.model], end_s)
                questions[pool] = state.doubts, state.question()
        if not questions:
            return None

        def compute() -> object:
            answers: dict[PoolId, tuple[int, ExitsAnswer | Exception]] = {}
            for pool, (doubts, question) in questions.items():
                try:
                    answers[pool] = doubts, question.answer()
                except Exception as error:  # of this pool alone
                    answers[pool] = doubts, error
            return _Answers(answers)

        return compute

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        served = {deployment.pool for deployment in draft.deployments}
        exits = []
        for pool, state in self._pools.items():
            if state.error is not None:
                self._at_work, error, state.error = pool.model, state.error, None
                raise error
            state.changed = False
            policy = state.policy() if pool in served else None
            bounds = self._bounds.get(pool.model)
            if policy is not None and (bounds is None or bounds.exits):
                state.feedback = policy.feedback
                exits.append(policy)
        return replace(draft, exits=(*draft.exits, *exits)) if exits else draft

    def put_off(self, until: float) -> str | None:
        """See `Planner`. No row of it leaves until thresholds are found from rows to come."""
        model, self._at_work = self._at_work, None
        return model

    def status(self) -> dict[PoolId, ExitsStatus]:
        """Where each pool stands."""
        return {pool: state.status() for pool, state in self._pools.items()}
