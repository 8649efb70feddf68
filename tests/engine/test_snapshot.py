"""What is read of an engine from outside: one moment, frozen if need be, and as JSON."""

from __future__ import annotations

import json

import pytest

from slacktide.domain import Cancelled, Plan, PlanChanged, PoolId, Reason
from slacktide.engine.phases import ReplicaState
from slacktide.engine.request_table import State

M = PoolId("m", "1")


@pytest.fixture
def busy(world):
    """One request runs, two wait, one is announced."""
    world.submit(1)
    world.submit(2, 3, slo=2.0)
    world.announce(4)
    return world


def test_a_detached_one_is_read_after_the_engine_has_gone_on(busy):
    snapshot = busy.engine.snapshot().detach()
    busy.submit(5)
    assert [lane.running.batch.members[0].id for lane in snapshot.lanes.values()] == [1]
    assert [pool.queued for pool in snapshot.pools.values()] == [2]
    assert snapshot.requests[M][State.QUEUED] == 2
    assert snapshot.counts["m"].requests == 4


def test_it_tells_lanes_pools_and_requests_apart(busy):
    snapshot = busy.engine.snapshot(now=busy.now + 0.004)
    (lane,) = snapshot.lanes.values()
    assert (lane.name, lane.cores, lane.target, lane.serves) == ("lane0", (0,), (0,), True)
    assert [member.id for member in lane.running.batch.members] == [1]
    assert lane.free_at == lane.running.expected_end == pytest.approx(0.01)
    (pool,) = snapshot.pools.values()
    assert (pool.id, pool.max_batch, pool.queued, pool.in_service) == (M, 4, 2, True)
    assert pool.free_in == pytest.approx(0.006)
    (replica,) = pool.replicas
    assert (replica.state, replica.staying, replica.ready_at) == (
        ReplicaState.UP,
        True,
        snapshot.now,
    )
    assert [request.id for request in snapshot.waiting(M)] == [2, 3, 4]
    assert snapshot.requests[M] == {State.RUNNING: 1, State.QUEUED: 2, State.ANNOUNCED: 1}
    assert (snapshot.counts["m"].requests, snapshot.counts["m"].in_flight) == (4, 4)
    assert (snapshot.request(4).payload_bytes, snapshot.request(5)) == (100, None)
    assert snapshot.pool_for(snapshot.request(2)) is pool
    assert (snapshot.running(busy.batches[-1].id).steady, snapshot.running(99)) == (True, None)
    assert (snapshot.serving("m"), snapshot.is_served("m"), snapshot.is_served("n")) == (
        [pool],
        True,
        False,
    )


def test_a_part_that_was_not_read_in_time_is_gone(busy):
    snapshot = busy.engine.snapshot()
    lanes = snapshot.lanes
    busy.send(Cancelled(2, Reason.CLIENT_CANCELLED))
    assert snapshot.lanes is lanes
    with pytest.raises(RuntimeError, match="has moved on"):
        snapshot.waiting(M)


def test_nothing_can_be_changed_through_it(busy):
    snapshot = busy.engine.snapshot()
    for part in (*snapshot.lanes.values(), *snapshot.pools.values()):
        assert type(part).__dataclass_params__.frozen
    snapshot.counts["m"].requests = 99
    assert busy.engine.snapshot().counts["m"].requests == 4


def test_a_frozen_one_stays_as_it_is_while_the_engine_goes_on(busy):
    frozen = busy.engine.snapshot().freeze()
    plain = frozen.to_plain()
    busy.finish()
    busy.times[M].seconds = 9.0
    assert frozen.to_plain() == plain
    assert [request.id for request in frozen.waiting(M)] == [2, 3, 4]
    assert [pool.id for pool in frozen.serving("m")] == [M]
    assert frozen.serving("n") == []
    assert frozen.pools[M].times.of(1, 1).expected == 0.01
    with pytest.raises(RuntimeError, match="has moved on"):
        frozen.request(2)


def test_it_is_told_in_json(busy):
    plain = json.loads(json.dumps(busy.engine.snapshot().to_plain(), allow_nan=False))
    assert plain["lanes"][0]["running"]["batch"]["members"][0]["id"] == 1
    (pool,) = plain["pools"]
    assert (pool["id"], pool["states"]["queued"], pool["circuit"]) == ("m:1", 2, "closed")
    assert pool["seconds"] == {"1": [0.01, 0.01], "2": [0.01, 0.01], "4": [0.01, 0.01]}
    assert [request["id"] for request in pool["waiting"]] == [2, 3, 4]
    assert plain["outcomes"]["m"] == {"requests": 4, "in_flight": 4, "by_reason": {}, "rescued": 0}


def test_changes_of_lanes_are_counted(world):
    before = world.engine.lane_changes
    world.submit(1)
    assert world.engine.lane_changes == before
    world.send(PlanChanged(Plan()))
    changed = world.engine.lane_changes
    assert changed > before
    world.finish()
    assert world.engine.lane_changes > changed, "it went after its last batch"
    assert not world.engine.snapshot().lanes
