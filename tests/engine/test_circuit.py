"""Versions that crash are made unavailable for a while, and requests that crash them are not."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.domain import (
    AbortBatch,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Circuit,
    OutcomeKind,
    PlanChanged,
    Reason,
    ReplicaLost,
    ReplicaUp,
    TimerFired,
)
from slacktide.engine.phases import ReplicaState

WINDOW, LIMIT = 60.0, 5


def crash(world, replica=-1, detail="killed by signal 9", **fields):
    world.send(ReplicaLost(world.started[replica].id, detail, **fields), after=0.001)


def wait_for_start(world):
    """Let pauses pass until the engine starts a replica; how long that took."""
    began, count = world.now, len(world.started)
    while len(world.started) == count:
        at = world.engine.next_wakeup()
        assert at is not None, "no replica is ever started again"
        world.send(TimerFired(), after=max(0.0, at - world.now))
    return world.now - began


def restart(world):
    wait_for_start(world)
    world.send(ReplicaUp(world.started[-1].id), after=0.2)


def convict(world, id, **fields):
    """A request crashes its replica twice."""
    world.submit(id, slo=1000.0, **fields)
    for _ in range(2):
        crash(world)
        restart(world)
    assert world.answers[id].reason is Reason.CRASHED


def open_circuit(world):
    for _ in range(LIMIT - 1):
        crash(world)
        restart(world)
    crash(world)
    assert circuit(world) is Circuit.OPEN


def pool(world):
    return next(iter(world.engine.state.pools.values()))


def circuit(world):
    return pool(world).crashes.circuit


def is_served(world, id):
    world.submit(id)
    if id not in world.answers:
        world.finish()
    return world.answers[id].reason is Reason.ON_TIME


def test_five_crashes_in_a_minute_make_the_version_unavailable_with_the_reason(world):
    open_circuit(world)
    world.submit(1)
    assert world.answers[1].reason is Reason.UNAVAILABLE
    assert world.answers[1].detail == "5 crashes within 60 s; the last: killed by signal 9"
    assert [(t.circuit, t.retry_s) for t in world.told] == [(Circuit.OPEN, 10.0)]
    assert world.told[0].reason == world.answers[1].detail


def test_crashes_under_batches_count_once_their_members_have_been_judged(world):
    for _ in range(LIMIT - 1):
        crash(world)
        restart(world)
    world.submit(1, 2, slo=100.0)
    crash(world)
    restart(world)
    world.finish()
    assert circuit(world) is Circuit.CLOSED
    assert [m.id for m in world.batches[-1].members] == [2]
    world.finish()
    assert set(world.reasons().values()) == {Reason.ON_TIME}
    assert circuit(world) is Circuit.OPEN


def leave(world, how):
    """Request 1, of which a replica has died or may do so, is late, or its client leaves."""
    if how == "expired":
        world.send(TimerFired(), after=0.5)
    else:
        world.send(Cancelled(1))


LEAVING = pytest.mark.parametrize("how", ["expired", "cancelled", "cancelled while it ran"])


@LEAVING
def test_poison_that_is_late_or_whose_client_leaves_is_convicted(world, how):
    for _ in range(LIMIT + 1):
        world.answers.clear()
        world.freed.clear()
        world.submit(1, slo=0.5)
        if how == "cancelled while it ran":
            leave(world, how)
        crash(world)
        if how != "cancelled while it ran":
            leave(world, how)
        restart_now(world)
        assert [member.id for member in world.batches[-1].members] == [1]
        crash(world)
        reason = Reason.CRASHED if how == "expired" else Reason.CLIENT_CANCELLED
        assert world.answers[1].reason is reason
        assert world.freed == [1]
        restart(world)
    assert circuit(world) is Circuit.CLOSED
    assert is_served(world, 2)


@LEAVING
def test_a_crash_counts_once_its_request_has_run_well_however_late(world, how):
    for _ in range(LIMIT - 1):
        crash(world)
        restart(world)
    world.submit(1, slo=0.5)
    if how == "cancelled while it ran":
        leave(world, how)
    crash(world)
    if how != "cancelled while it ran":
        leave(world, how)
    assert circuit(world) is Circuit.CLOSED
    restart_now(world)
    world.finish()
    reason = Reason.AFTER_DEADLINE if how == "expired" else Reason.CLIENT_CANCELLED
    assert world.answers[1].reason is reason
    assert world.freed == [1]
    assert circuit(world) is Circuit.OPEN


def test_who_leaves_while_it_runs_again_is_judged_at_its_end(world):
    world.submit(1, slo=100.0)
    crash(world)
    restart(world)
    before = len(world.batches)
    assert not any(isinstance(command, AbortBatch) for command in world.send(Cancelled(1)))
    assert world.answers[1].reason is Reason.CLIENT_CANCELLED
    world.send(Cancelled(1))
    crash(world)
    restart(world)
    assert len(world.batches) == before
    assert pool(world).crashes._convicted == 1


def test_a_crash_counts_if_its_request_raises_when_it_runs_alone(world):
    for _ in range(LIMIT - 1):
        crash(world)
        restart(world)
    world.submit(1, slo=0.5)
    crash(world)
    restart_now(world)
    world.send(BatchFailed(world.batches[-1].id, "it raised"))
    assert world.answers[1].reason is Reason.RUNTIME_ERROR
    assert circuit(world) is Circuit.OPEN


def hang(world, *, computed):
    """The latest batch runs into its limit, and its worker is killed."""
    at = world.engine.next_wakeup()
    world.send(TimerFired(), after=max(0.0, at - world.now))
    assert world.stopped[-1] == (world.started[-1], True)
    crash(world, computed=computed)


def test_a_request_that_hangs_alone_while_its_worker_computes_is_convicted_at_once(world):
    for id in range(1, 3 * LIMIT, 2):
        world.submit(id, slo=0.05)
        hang(world, computed=True)
        assert world.answers[id].reason is Reason.CRASHED
        restart(world)
        assert is_served(world, id + 1)
    assert world.told == []


def test_one_whose_worker_did_not_compute_runs_again_however_late(world):
    world.submit(1, slo=0.05)
    hang(world, computed=False)
    assert world.answers == {}
    assert [at for at in [world.engine.next_wakeup()] if at <= world.now] == []
    restart(world)
    world.finish()
    assert world.answers[1].reason is Reason.AFTER_DEADLINE


def test_who_hangs_among_others_is_found_by_a_run_alone(world):
    world.submit(1, slo=0.05)
    world.submit(2, 3, slo=5.0)
    world.finish()
    assert [member.id for member in world.batches[-1].members] == [2, 3]
    hang(world, computed=True)
    restart(world)
    world.finish()
    assert world.answers[2].reason is Reason.ON_TIME
    hang(world, computed=True)
    assert world.answers[3].reason is Reason.CRASHED
    assert not pool(world).crashes._crashes


def test_the_same_input_elsewhere_is_not_convicted_once_more(make_world, one_model_plan):
    world = make_world()
    world.deploy(one_model_plan("1", max_batch=16))
    world.submit(*range(16), slo=100.0)
    crash(world)
    restart(world)
    crash(world)
    assert world.answers[0].reason is Reason.CRASHED
    world.send(*[Cancelled(id, Reason.CRASHED_BEFORE) for id in range(1, 16)])
    assert {world.answers[id].reason for id in range(1, 16)} == {Reason.CRASHED_BEFORE}
    assert pool(world).crashes._convicted == 1
    assert not pool(world).crashes._crashes
    restart(world)
    assert is_served(world, 16)


def test_a_process_of_several_variants_is_lost_once(world):
    for _ in range(2 * LIMIT):
        crash(world, shared=True)
        assert wait_for_start(world) < 0.2
        world.send(ReplicaUp(world.started[-1].id), after=0.2)
    assert world.told == []
    assert is_served(world, 1)


def restart_now(world):
    """Start again without waiting, as if the pause were over."""
    placement = pool(world).placements[0]
    if placement.state is ReplicaState.BACKOFF:
        placement.until = world.now
        world.send(TimerFired())
    world.send(ReplicaUp(world.started[-1].id))


def test_an_unavailable_version_is_tried_again_after_pauses_that_double(world):
    open_circuit(world)
    pauses = []
    for _ in range(7):
        pauses.append(wait_for_start(world))
        assert circuit(world) is Circuit.TRIAL
        crash(world)  # while it starts
    assert pauses == pytest.approx([10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0])
    assert pool(world).down_reason == "it crashed when it was tried again: killed by signal 9"
    tries = [transition.retry_s for transition in world.told if transition.circuit is Circuit.OPEN]
    assert tries == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_requests_are_refused_until_the_replica_on_trial_is_up(world):
    open_circuit(world)
    wait_for_start(world)
    world.submit(1)
    assert world.answers[1].reason is Reason.UNAVAILABLE
    world.send(ReplicaUp(world.started[-1].id), after=0.2)
    assert circuit(world) is Circuit.TRIAL
    assert pool(world).down_reason is None
    assert is_served(world, 2)


def test_a_batch_after_twelve_seconds_on_trial_closes_the_circuit(world):
    open_circuit(world)
    restart(world)
    assert is_served(world, 1)
    assert circuit(world) is Circuit.TRIAL
    world.now += WINDOW / LIMIT
    assert is_served(world, 2)
    assert circuit(world) is Circuit.CLOSED
    assert [transition.circuit for transition in world.told] == [
        Circuit.OPEN,
        Circuit.TRIAL,
        Circuit.CLOSED,
    ]
    # From here on it has five crashes again, and ten seconds if it uses them up.
    open_circuit(world)
    assert world.told[-1].retry_s == 10.0


def test_one_crash_on_trial_opens_the_circuit_again(world):
    open_circuit(world)
    restart(world)
    crash(world)
    assert circuit(world) is Circuit.OPEN
    assert world.told[-1].retry_s == 20.0


def test_a_poison_request_on_trial_is_to_blame_and_not_the_version(world):
    open_circuit(world)
    restart(world)
    convict(world, 1)
    assert circuit(world) is Circuit.TRIAL
    assert is_served(world, 2)


def test_one_replica_is_tried_and_the_others_follow_once_it_has_proved_itself(
    make_world, one_model_plan
):
    world = make_world()
    world.deploy(one_model_plan("1", lanes=3))
    for _ in range(LIMIT):
        crash(world)
        if circuit(world) is Circuit.CLOSED:
            restart(world)
    assert circuit(world) is Circuit.OPEN
    assert {replica.id for replica, _ in world.stopped} == {0, 1}
    before = len(world.started)
    restart(world)
    assert len(world.started) == before + 1
    world.now += WINDOW
    assert is_served(world, 1)
    assert len(world.started) == before + 3
    states = [placement.state for placement in pool(world).placements]
    assert sorted(state.value for state in states) == ["starting", "starting", "up"]


def open_beside_a_batch(world, one_model_plan):
    """The batch that runs on one lane, while the replica of another has crashed too often."""
    world.seconds["m"] = 50.0
    world.deploy(one_model_plan("1", lanes=2))
    world.submit(1, slo=100.0)
    running = world.batches[-1]
    lost = next(r for r in world.started if r.id != running.replica.id)
    for _ in range(LIMIT):
        world.send(ReplicaLost(lost.id, "killed"), after=0.001)
        if circuit(world) is Circuit.CLOSED:
            restart(world)
            lost = world.started[-1]
    assert circuit(world) is Circuit.OPEN
    return running


def test_a_batch_on_another_lane_is_finished_before_its_replica_stops(make_world, one_model_plan):
    world = make_world()
    running = open_beside_a_batch(world, one_model_plan)
    assert running.replica.id not in {replica.id for replica, _ in world.stopped}
    world.finish()
    assert world.answers[1].reason is Reason.ON_TIME
    assert running.replica.id in {replica.id for replica, _ in world.stopped}
    assert all(placement.parked for placement in pool(world).placements)


def test_a_batch_from_before_proves_no_trial(make_world, one_model_plan):
    world = make_world()
    open_beside_a_batch(world, one_model_plan)
    wait_for_start(world)
    assert circuit(world) is Circuit.TRIAL
    world.finish()  # its replica was up for longer than a trial takes
    assert world.answers[1].reason is Reason.ON_TIME
    assert circuit(world) is Circuit.TRIAL
    world.send(ReplicaUp(world.started[-1].id), after=0.2)
    assert circuit(world) is Circuit.TRIAL
    assert pool(world).down_reason is None


def test_ten_poison_requests_with_service_between_leave_the_version_alone(world):
    for id in range(0, 40, 2):
        convict(world, id)
        assert is_served(world, id + 1)
    assert world.told == []
    assert world.engine.state.request_table.counts["m"].count(OutcomeKind.FAILED) == 20


def test_five_poison_requests_and_nothing_else_do_not_count(world):
    for id in range(1, 6):
        convict(world, id)
    assert world.told == []
    assert is_served(world, 6)


def test_five_poison_requests_at_once_on_five_lanes_do_not_count(make_world, one_model_plan):
    world = make_world()
    world.deploy(one_model_plan("1", lanes=5))
    for id in range(1, 6):
        world.submit(id, slo=100.0)
    lost = [batch.replica.id for batch in world.batches[:5]]
    assert len(set(lost)) == 5
    for id in lost:
        world.send(ReplicaLost(id, "killed"))
    while len(world.answers) < 5:
        starting = len(world.started)
        world.send(TimerFired(), after=max(0.0, world.engine.next_wakeup() - world.now))
        for replica in world.started[starting:]:
            count = len(world.batches)
            world.send(ReplicaUp(replica.id))
            for batch in world.batches[count:]:
                world.send(ReplicaLost(batch.replica.id, "killed"))
    assert set(world.reasons().values()) == {Reason.CRASHED}
    assert world.told == []


def test_a_version_that_serves_nothing_between_ten_convictions_is_to_blame(world):
    for id in range(1, 10):
        convict(world, id)
    world.submit(10, slo=1000.0)
    crash(world)
    restart(world)
    crash(world)
    assert world.answers[10].reason is Reason.CRASHED
    assert circuit(world) is Circuit.OPEN
    assert pool(world).down_reason == "10 requests in a row crashed it"


def test_a_version_that_was_up_is_tried_again_although_its_file_is_broken(world):
    crash(world, detail="the model cannot be opened", permanent=True)
    assert circuit(world) is Circuit.OPEN
    assert wait_for_start(world) == pytest.approx(10.0)


def test_a_version_that_never_was_up_is_given_up_for_good(make_world, one_model_plan):
    world = make_world()
    plan = one_model_plan("1")
    world.send(PlanChanged(plan))
    crash(world, detail="not an ONNX file", permanent=True)
    assert world.told[-1].retry_s is None
    world.send(PlanChanged(plan))
    assert len(world.started) == 1
    assert world.engine.next_wakeup() is None


def test_a_trial_moves_with_the_plan(make_world, one_model_plan):
    world = make_world()
    world.deploy(one_model_plan("1", lanes=2))
    for _ in range(LIMIT):
        crash(world)
        if circuit(world) is Circuit.CLOSED:
            restart(world)
    wait_for_start(world)
    tried = world.started[-1]
    assert tried.lane == "lane0"
    plan = one_model_plan("1", lanes=2)
    rest = type(plan)(plan.lanes[1:], plan.deployments[1:], plan.routes)
    world.send(PlanChanged(rest))
    assert (tried, False) in world.stopped
    assert world.started[-1].lane == "lane1"
    world.send(ReplicaUp(world.started[-1].id))
    assert is_served(world, 1)


def test_an_unavailable_version_that_leaves_the_plan_is_forgotten(world, one_model_plan):
    open_circuit(world)
    world.send(PlanChanged(one_model_plan()))
    assert world.engine.state.pools == {}
    assert world.send(TimerFired(), after=100.0) == []
    assert world.engine.next_wakeup() is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    lanes=st.integers(1, 3),
    steps=st.lists(st.sampled_from(["submit", "crash", "up", "finish", "wait"]), max_size=120),
)
def test_an_unavailable_version_always_comes_back(data, lanes, steps, make_world, one_model_plan):
    """Invariants hold throughout (`World.send` checks them), and once replicas stay up the version
    serves again, on all of its lanes."""
    world = make_world()
    world.deploy(one_model_plan("1", lanes=lanes))
    placements = pool(world).placements
    id = 0
    for step in steps:
        if step == "submit":
            id += 1
            world.submit(id, slo=data.draw(st.sampled_from([0.05, 5.0, 1000.0])))
        elif step == "crash":
            alive = [p for p in placements if p.state is not ReplicaState.BACKOFF]
            if alive:
                placement = data.draw(st.sampled_from(alive))
                world.send(ReplicaLost(placement.replica.id, "killed"), after=0.001)
        elif step == "up":
            bring_up(world)
        elif step == "finish" and world.engine.state.running:
            finish_one(world)
        elif step == "wait":
            at = world.engine.next_wakeup()
            if at is not None:
                world.send(TimerFired(), after=max(0.0, at - world.now))
    for _ in range(40):
        bring_up(world)
        while world.engine.state.running:
            finish_one(world)
        at = world.engine.next_wakeup()
        if at is not None:
            world.send(TimerFired(), after=max(0.0, at - world.now))
    world.now += WINDOW
    world.submit(10_000)
    finish_one(world)
    bring_up(world)
    assert world.answers[10_000].reason is Reason.ON_TIME
    assert circuit(world) is Circuit.CLOSED
    assert [placement.state for placement in placements] == [ReplicaState.UP] * lanes


def bring_up(world):
    """What hung dies; what starts comes up."""
    for placement in pool(world).placements:
        if placement.phase.dying:
            world.send(ReplicaLost(placement.replica.id, "killed"))
        elif placement.state is ReplicaState.STARTING:
            world.send(ReplicaUp(placement.replica.id))


def finish_one(world):
    world.send(BatchFinished(next(iter(world.engine.state.running))), after=0.01)


def test_a_place_that_waits_for_a_trial_knows_the_cores_of_its_lane(world, one_model_plan):
    open_circuit(world)
    plan = one_model_plan("1", lanes=2, max_batch=2)
    world.send(PlanChanged(plan))
    waiting = pool(world).placements[-1]
    assert waiting.parked
    assert (waiting.replica.cores, waiting.replica.max_batch) == ((1,), 2)
