"""A broken engine is found out: each thing that must hold is broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slacktide.domain import (
    Deployment,
    LaneSpec,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaUp,
    Route,
)
from slacktide.domain.commands import Circuit
from slacktide.engine.invariants import InvariantError, check_invariants
from slacktide.engine.phases import ReplicaState
from slacktide.engine.request_table import State

A, B = PoolId("a", "1"), PoolId("b", "1")
NOTICE = Notice(1, "a", arrival=0.0, deadline=1.0, payload_bytes=9, complete_at=0.5)


@pytest.fixture
def busy(make_world: Any) -> Any:
    """`a` on two lanes, `b` on the second; requests 1 and 3 run, 2 waits in `b`."""
    world = make_world()
    plan = Plan(
        (LaneSpec("lane0", (0,)), LaneSpec("lane1", (1,))),
        (Deployment(A, "lane0", 4), Deployment(A, "lane1", 4), Deployment(B, "lane1", 4)),
        (Route("a", A), Route("b", B)),
    )
    world.deploy(plan)
    world.submit(1, model="a")
    world.submit(3, model="b")
    world.submit(2, model="b")
    return world


BREAKS: dict[str, Callable[[Any], object]] = {
    "a: 2 requests": lambda state: state.request_table.counts["a"].__setattr__("requests", 2),
    "b: .* in the table": lambda state: state.request_table.entries.pop(2),
    "in the queues twice": lambda state: twice(state.pools[B]),
    "request 2 is .* in": lambda state: state.pools[B].scheduler.queue.pop(2),
    "has a wrong type": lambda state: setattr(state.request_table.entries[1], "request", NOTICE),
    "but not in the table": lambda state: stray(state),
    "counts 1 notices": lambda state: setattr(state.pools[A], "announced", 1),
    "counts 7": lambda state: setattr(state.pools[B], "scheduler", Long(state.pools[B].scheduler)),
    "lanes run": lambda state: setattr(state.lanes["lane1"], "running", None),
    "runs on no live replica": lambda state: setattr(
        state.lanes["lane0"].running.placement, "state", ReplicaState.STARTING
    ),
    "batch 0: 1 members wait": lambda state: setattr(state.lanes["lane0"].running, "waiting", 2),
    "awaits cores that it has": lambda state: setattr(state.lanes["lane0"], "awaited_until", 3.0),
    "does not hold its cores": lambda state: setattr(state.lanes["lane0"], "held", ()),
    "counts on 5 cores": lambda state: setattr(state.lanes["lane0"], "size", 5),
    "counts on a different number of cores": lambda state: setattr(
        state.lanes["lane0"].running, "cores", 4
    ),
    "disagree on placements": lambda state: state.lanes["lane0"].placements.clear(),
    "has left the plan and is empty": lambda state: empty(state),
    "has left, but exists": lambda state: removed(state),
    "counts on 7 lanes": lambda state: setattr(state.pools[A], "lanes", 7),
    "has wrong cores": lambda state: setattr(state.lanes["lane0"], "usable", (9,)),
    "has a wrong cap": lambda state: setattr(state.pools[B].placements[0], "cap", 1),
    "is down, but holds": lambda state: down(state.pools[B], Circuit.TRIAL),
    "open, but not down": lambda state: setattr(state.pools[B].crashes, "circuit", Circuit.OPEN),
    "down, but closed": lambda state: setattr(state.pools[B], "down_reason", "broken"),
    "retry time": lambda state: setattr(state.pools[B].crashes, "retry_at", 3.0),
}


class Long:
    """A scheduler that miscounts itself."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __len__(self) -> int:
        return 7

    def pending(self) -> Any:
        return self._scheduler.pending()


def down(pool: Any, circuit: Circuit) -> None:
    pool.down_reason, pool.crashes.circuit = "broken", circuit


def twice(pool: Any) -> None:
    request = pool.scheduler.queue[2]
    pool.scheduler.queue[99] = request


def stray(state: Any) -> None:
    entry = state.request_table.entries[2]
    queue = state.pools[B].scheduler.queue
    queue[77] = type(entry.request)(77, "b", 0.0, 1.0)


def empty(state: Any) -> None:
    spare = type(state.lanes["lane0"])(LaneSpec("spare", (5,)))
    spare.removed = True
    state.lanes["spare"] = spare


def removed(state: Any) -> None:
    pool = state.pools[B]
    for placement in pool.placements:
        placement.lane.placements.remove(placement)
    pool.placements.clear()
    pool.removed, pool.lanes = True, 1


@pytest.mark.parametrize("complaint", BREAKS)
def test_broken_invariants_are_named(busy: Any, complaint: str) -> None:
    check_invariants(busy.engine)
    BREAKS[complaint](busy.engine.state)
    with pytest.raises(InvariantError, match=complaint):
        check_invariants(busy.engine)


def test_an_ended_request_that_is_queued_is_named(busy: Any) -> None:
    busy.engine.state.request_table.entries[2].state = State.RUNNING
    with pytest.raises(InvariantError, match=r"request 2 is State\.RUNNING"):
        check_invariants(busy.engine)


def test_a_pool_that_is_down_and_serves_is_named(busy: Any) -> None:
    busy.finish()
    busy.send(PlanChanged(Plan((LaneSpec("l", (3,)),), (Deployment(PoolId("c", "1"), "l", 1),))))
    busy.send(ReplicaUp(busy.started[-1].id))
    pool = busy.engine.state.pools[PoolId("c", "1")]
    down(pool, Circuit.TRIAL)
    with pytest.raises(InvariantError, match="is down, but serves"):
        check_invariants(busy.engine)
