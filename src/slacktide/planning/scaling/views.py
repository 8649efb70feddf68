"""From the state of the engine to what a planner sees of each model. Reads, changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Notice, Request
from slacktide.engine import Engine
from slacktide.engine.lane import Lane, Placement, ReplicaState
from slacktide.engine.ledger import State
from slacktide.engine.pool import Pool
from slacktide.planning.scaling.view import (
    BatchSeconds,
    ModelView,
    ReplicaView,
    ScalingLimits,
    Waiting,
)

LEAST_LEFT = 0.05
"""Part of a shared lane that a model can always count on."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a model's arrivals, see `ModelView`."""

    rate: float = 0.0
    budget: float = math.inf
    arrived: int = 0
    burst: float = 0.0


def pools_of(engine: Engine, model: str) -> list[Pool]:
    """Its pools that serve or are about to, those that came last at the end."""
    return [
        pool
        for pool in engine.state.pools.values()
        if pool.id.model == model and not pool.removed and pool.down_reason is None
    ]


def view_of(
    engine: Engine,
    model: str,
    lanes: Sequence[str],
    limits: ScalingLimits,
    expected: Expected,
    *,
    fresh: Mapping[int, Waiting],
    beside: Mapping[str, Expected],
    now: float,
) -> ModelView | None:
    """`model` on its `lanes`; None if no pool of it is deployed.

    `fresh`: requests that the engine is about to be told of, by id, announced before or not.
    `beside`: the other models on these lanes; their share of the lanes' time makes this one's
    batches take the longer.
    """
    pools = pools_of(engine, model)
    if not pools:
        return None
    newest = pools[-1]
    state = engine.state
    waiting = [*fresh.values()]
    for pool in pools:
        waiting += [_waiting(request) for request in pool.scheduler.pending()]
        waiting += [_waiting(request) for request in pool.suspects]
    if any(pool.announced for pool in pools):
        waiting += [
            _announced(entry.request)
            for entry in state.ledger.entries.values()
            if entry.state is State.ANNOUNCED
            and entry.pool.id.model == model
            and isinstance(entry.request, Notice)
            and entry.request.id not in fresh
        ]
    waiting.sort(key=lambda one: one.deadline)
    placed = {
        placement.lane.name: placement
        for pool in pools
        for placement in pool.placements
        if not placement.retiring
    }
    placements = [placed[name] for name in lanes if name in placed]
    return ModelView(
        model,
        tuple(waiting),
        tuple(_replica(placement, now) for placement in placements),
        expected.rate,
        expected.budget,
        max((placement.replica.max_batch for placement in placements), default=newest.max_batch),
        _shared(engine, newest.times, beside),
        replace(limits, batch_max=min(limits.batch_max, newest.max_batch)),
        newest.start_time,
        expected.arrived,
        burst=expected.burst,
    )


def _waiting(request: Request) -> Waiting:
    deadline = math.inf if request.best_effort else request.deadline
    return Waiting(request.arrival, deadline, request.rows)


def _announced(notice: Notice) -> Waiting:
    due = notice.planned_due
    return Waiting(notice.complete_at, math.inf if due is None else due)


def coming(request: Request | Notice) -> Waiting:
    """A request that the engine is about to be told of."""
    return _announced(request) if isinstance(request, Notice) else _waiting(request)


def _replica(placement: Placement, now: float) -> ReplicaView:
    lane = placement.lane
    ready = now
    if placement.state is not ReplicaState.UP:
        starting = placement.state is ReplicaState.STARTING
        begun = placement.since if starting else placement.until
        ready = max(now, begun + placement.pool.start_time)
    return ReplicaView(len(lane.target) or 1, ready, now + max(0.0, lane.free_in(now=now)))


def _shared(engine: Engine, times: BatchSeconds, beside: Mapping[str, Expected]) -> BatchSeconds:
    others = []
    for model, expected in beside.items():
        pools = pools_of(engine, model)
        if pools and expected.rate > 0.0:
            caps = [placement.replica.max_batch for placement in pools[-1].placements]
            others.append((pools[-1].times, max(caps, default=1), expected.rate))
    return _OnASharedLane(times, others) if others else times


class _OnASharedLane:
    """Batch times stretched by what the other models take of the lane's time."""

    def __init__(
        self, times: BatchSeconds, others: Sequence[tuple[BatchSeconds, int, float]]
    ) -> None:
        """`others`: (their batch times, rows in a batch, rows per second)."""
        self._times = times
        self._others = others
        self._left: dict[int, float] = {}

    def expected(self, rows: int, cores: int) -> float:
        return self._times.expected(rows, cores) / self._left_at(cores)

    def p99(self, rows: int, cores: int) -> float:
        return self._times.p99(rows, cores) / self._left_at(cores)

    def _left_at(self, cores: int) -> float:
        left = self._left.get(cores)
        if left is None:
            taken = sum(
                rate * times.expected(batch, cores) / batch for times, batch, rate in self._others
            )
            left = self._left[cores] = max(LEAST_LEFT, 1.0 - taken)
        return left


def pressure(view: ModelView, *, now: float) -> float:
    """The largest part of the time left that its own work takes, on the most cores it may have, of
    any request that can still be on time; 0 without deadlines, 1 at most."""
    alone = view.times.p99(1, view.limits.cores_max)
    left = [one.deadline - max(now, one.ready_at) for one in view.waiting]
    if view.rate > 0.0:
        left.append(view.budget)
    return max((alone / each for each in left if alone <= each < math.inf), default=0.0)


def holds_up(lane: Lane) -> bool:
    """Whether something on `lane` serves."""
    return any(placement.serves for placement in lane.placements)
