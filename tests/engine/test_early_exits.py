"""Which members may leave a batch early, what is judged, and which batch is stopped for others."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from slacktide.domain import (
    AbortBatch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Deployment,
    ExitMode,
    ExitPolicy,
    LaneSpec,
    Leaving,
    Plan,
    PlanChanged,
    PoolId,
    PublishExits,
    Reason,
    ReplicaLost,
    ReplicaUp,
    Route,
    RowsReleased,
    RunBatch,
    Submitted,
    TimerFired,
    is_in_run,
    is_judged,
)

POOL = PoolId("m", "1")
AUTO = ExitPolicy(POOL, (2, 5), (0.3, 0.2), ExitMode.AUTO, 0.0)


@pytest.fixture
def exiting(make_world, one_model_plan):
    """A world of one model and one lane, whose requests leave early by a policy."""

    def make(policy=AUTO, lanes=1):
        world = make_world()
        world.plan = replace(one_model_plan("1", lanes=lanes), exits=(policy,))
        world.deploy(world.plan)
        return world

    return make


def aborted(commands):
    return [command.batch.id for command in commands if isinstance(command, AbortBatch)]


def published(commands):
    publications = [command for command in commands if isinstance(command, PublishExits)]
    return {publication.replica.id: publication.policy for publication in publications}


class TestPolicies:
    def test_are_published_once_a_replica_is_up_and_before_its_first_batch(
        self, make_world, one_model_plan
    ):
        world = make_world()
        world.send(PlanChanged(replace(one_model_plan("1"), exits=(AUTO,))))
        world.submit(1)
        commands = world.send(ReplicaUp(0))
        assert [type(command) for command in commands] == [PublishExits, RunBatch]
        assert commands[0].policy is AUTO

    def test_go_to_every_replica_when_they_change_and_only_then(self, exiting):
        world = exiting(lanes=2)
        tuned = replace(AUTO, thresholds=(0.4, 0.2))
        assert published(world.send(PlanChanged(replace(world.plan, exits=(tuned,))))) == {
            0: tuned,
            1: tuned,
        }
        assert published(world.send(PlanChanged(replace(world.plan, exits=(tuned,))))) == {}
        assert published(world.send(PlanChanged(replace(world.plan, exits=())))) == {
            0: ExitPolicy(POOL),
            1: ExitPolicy(POOL),
        }

    def test_reach_a_replica_that_is_started_again(self, exiting):
        world = exiting()
        world.send(ReplicaLost(0, "died"))
        while len(world.started) == 1:
            world.send(TimerFired(), after=1.0)
        assert published(world.send(ReplicaUp(1))) == {1: AUTO}


MEMORY = replace(AUTO, ramps=(0, 5), remember_frames=2)


class TestRemembering:
    @pytest.mark.parametrize(
        ("policy", "refreshes"),
        [
            (replace(AUTO, mode=ExitMode.RELEASE), True),
            (replace(AUTO, mode=ExitMode.SHRINK), False),
            (AUTO, True),
            (replace(AUTO, feedback=1.0), True),
            (replace(AUTO, feedback=1.0, mode=ExitMode.SHRINK), False),
        ],
    )
    def test_a_judged_batch_refreshes_only_if_its_rows_would_run_on_anyway(
        self, exiting, policy, refreshes
    ):
        world = exiting(policy)
        world.submit(1)
        assert world.batches[0].refreshes is refreshes

    @pytest.mark.parametrize("in_run", [True, False])
    def test_frames_of_a_run_stay_where_others_leave(self, exiting, in_run):
        frame = next(frame for frame in range(1, 200) if is_in_run(1, frame) is in_run)
        world = exiting(replace(MEMORY, mode=ExitMode.SHRINK))
        world.send(Submitted(world.request(1)), Submitted(world.request(2, session=1, frame=frame)))
        assert world.batches[0].held == ((1,) if in_run else ())

    def test_a_batch_with_a_frame_of_a_run_is_not_stopped(self, exiting):
        for session in (0, 1):
            world = exiting(MEMORY)
            frame = next(frame for frame in range(1, 200) if is_in_run(1, frame))
            world.submit(1, session=session, frame=frame)
            world.send(RowsReleased(0, (1,), 0))
            assert aborted(world.submit(2)) == ([] if session else [0])


class TestWhoMayLeave:
    @pytest.mark.parametrize(
        ("policy", "leaving"),
        [
            (replace(AUTO, mode=ExitMode.RELEASE), Leaving.RUN_ON),
            (replace(AUTO, mode=ExitMode.SHRINK), Leaving.SHRINK),
            (AUTO, Leaving.RUN_ON),
            (replace(AUTO, thresholds=(0.0, 0.0)), Leaving.RUN_ON),
            (ExitPolicy(POOL), Leaving.NONE),
        ],
    )
    def test_depends_on_the_mode_while_nothing_else_waits(self, exiting, policy, leaving):
        world = exiting(policy)
        world.submit(1)
        assert (world.batches[0].leaving, world.batches[0].judged) == (leaving, False)

    def test_in_auto_rows_leave_if_more_wait_than_the_batch_takes(self, exiting):
        world = exiting()
        world.submit(*range(5))  # a batch is of four
        assert world.batches[0].leaving is Leaving.SHRINK

    def test_in_auto_rows_leave_where_the_lane_was_busy_though_no_other_request_waits(
        self, exiting
    ):
        world = exiting()
        world.submit(1)
        world.submit(2)
        world.finish()
        assert world.batches[1].leaving is Leaving.SHRINK
        world.finish()
        world.now += 0.001
        world.submit(3)
        assert world.batches[2].leaving is Leaving.RUN_ON

    def test_in_auto_what_another_lane_takes_at_once_does_not_count(self, exiting):
        world = exiting(lanes=2)
        world.submit(*range(5))
        assert [b.leaving for b in world.batches] == [Leaving.RUN_ON, Leaving.RUN_ON]

    def test_in_auto_another_model_on_the_lane_counts(self, make_world):
        world = make_world()
        pools = (POOL, PoolId("n", "1"))
        world.deploy(
            Plan(
                (LaneSpec("lane", (0,)),),
                tuple(Deployment(pool, "lane", 4) for pool in pools),
                tuple(Route(pool.model, pool) for pool in pools),
                exits=(AUTO,),
            )
        )
        world.submit(1, model="n")
        world.submit(2, 3)
        world.submit(4, model="n")
        world.finish()
        assert world.batches[1].replica.pool == POOL
        assert world.batches[1].leaving is Leaving.SHRINK
        world.finish()
        assert world.batches[2].leaving is Leaving.NONE

    def test_a_share_of_batches_is_judged_and_always_runs_on(self, exiting):
        world = exiting(replace(AUTO, mode=ExitMode.SHRINK, feedback=0.25))
        for id in range(200):
            world.submit(id)
            world.finish()
        judged = [batch.id for batch in world.batches if batch.judged]
        assert 48 <= len(judged) <= 52
        assert max(b - a for a, b in pairwise(judged)) <= 5
        for batch in world.batches:
            assert batch.leaving is (Leaving.RUN_ON if batch.judged else Leaving.SHRINK)

    def test_all_batches_are_judged_at_a_share_of_1_and_none_at_0(self):
        assert all(is_judged(id, 1.0) for id in range(1000))
        assert not any(is_judged(id, 0.0) for id in range(1000))

    def test_pools_that_take_turns_are_judged_as_often(self):
        for start in range(3):
            judged = [is_judged(id, 0.1) for id in range(start, 3000, 3)]
            assert 95 <= sum(judged) <= 105


class TestReleased:
    def test_members_are_answered_by_their_ramp_and_the_others_at_the_end(self, exiting):
        world = exiting()
        world.submit(1, 2)
        world.send(RowsReleased(0, (1,), 2), after=0.1)
        assert (world.answers[1].reason, world.answers[1].ramp) == (Reason.EARLY_EXIT, 2)
        assert world.answers[1].compute_s == pytest.approx(0.1)
        world.finish()
        assert (world.answers[2].reason, world.answers[2].ramp) == (Reason.ON_TIME, None)
        assert world.freed == [1, 2]

    def test_members_after_their_deadline_are_late(self, exiting):
        world = exiting()
        world.submit(1, slo=0.05)
        world.send(RowsReleased(0, (1,), 2), after=0.1)
        assert (world.answers[1].reason, world.answers[1].ramp) == (Reason.AFTER_DEADLINE, 2)

    def test_final_members_are_never(self, exiting):
        world = exiting()
        world.submit(1, final=True)
        with pytest.raises(ValueError, match="released request 1, which may not leave early"):
            world.engine.handle(RowsReleased(0, (1,), 2), now=world.now)
        assert world.answers == {}

    @pytest.mark.parametrize("end", ["aborted", "failed", "lost"])
    def test_members_stay_answered_whatever_becomes_of_the_batch(self, exiting, end):
        world = exiting(replace(AUTO, mode=ExitMode.SHRINK))
        world.submit(1, 2, 3)
        world.send(RowsReleased(0, (2,), 2), after=0.01)
        event = {
            "aborted": BatchAborted(0),
            "failed": BatchFailed(0, "raised"),
            "lost": ReplicaLost(0, "died"),
        }[end]
        world.send(event)
        assert world.answers[2].reason is Reason.EARLY_EXIT
        assert 2 in world.freed
        if end == "failed":
            world.finish()
            world.finish()
            assert [[m.id for m in batch.members] for batch in world.batches[1:]] == [[1], [3]]
            assert world.reasons()[3] is Reason.ON_TIME
        elif end == "lost":
            assert set(world.answers) == {2}
            assert len(world.engine.state.pools[POOL].quarantine) == 2


class TestStopping:
    def test_a_batch_whose_members_are_all_answered_is_stopped_for_the_next_request(self, exiting):
        world = exiting()
        world.submit(1, 2)
        assert aborted(world.send(RowsReleased(0, (1, 2), 2), after=0.01)) == []
        assert world.engine.snapshot(now=world.now).pools[POOL].free_in == 0.0
        assert aborted(world.submit(3)) == [0]
        assert aborted(world.submit(4)) == []  # it is being stopped
        world.send(BatchAborted(0))
        assert [m.id for m in world.batches[1].members] == [3, 4]
        assert world.freed == [1, 2]

    def test_it_is_stopped_at_once_if_a_request_waits_already(self, exiting):
        world = exiting()
        world.submit(1)
        world.submit(2)
        assert aborted(world.send(RowsReleased(0, (1,), 2))) == [0]
        world.send(BatchFinished(0))  # it was over sooner
        assert [m.id for m in world.batches[1].members] == [2]

    def test_it_runs_on_while_a_member_waits(self, exiting):
        world = exiting()
        world.submit(1, 2)
        world.submit(3)
        assert aborted(world.send(RowsReleased(0, (1,), 2))) == []
        assert aborted(world.send(RowsReleased(0, (2,), 5))) == [0]

    @pytest.mark.parametrize(
        "policy", [replace(AUTO, feedback=1.0), replace(AUTO, mode=ExitMode.RELEASE)]
    )
    def test_judged_and_released_batches_are_never_aborted(self, exiting, policy):
        world = exiting(policy)
        world.submit(1)
        world.send(RowsReleased(0, (1,), 2))
        assert aborted(world.submit(2)) == []
        world.finish()
        assert [m.id for m in world.batches[1].members] == [2]

    def test_a_judged_batch_runs_on_even_if_its_last_member_withdraws(self, exiting):
        world = exiting(replace(AUTO, feedback=1.0))
        world.submit(1, 2)
        world.send(RowsReleased(0, (1,), 2))
        assert aborted(world.send(Cancelled(2))) == []

    def test_a_batch_whose_last_member_withdraws_is_stopped_once(self, exiting):
        world = exiting()
        world.submit(1, 2)
        world.send(RowsReleased(0, (1,), 2))
        assert aborted(world.send(Cancelled(2))) == [0]
        assert aborted(world.send(RowsReleased(0, (2,), 5))) == []
        assert aborted(world.submit(3)) == []


def test_a_batch_that_shrinks_teaches_no_time_of_a_whole_one(exiting):
    world = exiting(replace(AUTO, mode=ExitMode.SHRINK))
    world.submit(1)
    world.finish()
    assert world.times[POOL].observed == []
    world.send(PlanChanged(replace(world.plan, exits=(replace(AUTO, mode=ExitMode.RELEASE),))))
    world.submit(2)
    world.finish()
    assert [rows for _, rows, _ in world.times[POOL].observed] == [1]
