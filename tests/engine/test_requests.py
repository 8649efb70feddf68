"""The life of single requests: submitted, announced, refused, cancelled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from slacktide.domain import (
    AbortBatch,
    Announced,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    FreeSlots,
    Notice,
    OutcomeKind,
    PoolId,
    Reason,
    Refused,
    RowsReleased,
    RunBatch,
    Submitted,
    TimerFired,
)


def test_a_request_on_a_free_lane_runs_at_once_and_is_served(world):
    (run,) = world.submit(1)
    assert isinstance(run, RunBatch)
    assert [m.id for m in run.batch.members] == [1]
    world.finish(after=0.25)
    outcome = world.answers[1]
    assert outcome.reason is Reason.ON_TIME
    assert outcome.queue_s == 0.0
    assert outcome.compute_s == pytest.approx(0.25)
    assert outcome.budget_s == pytest.approx(0.75)
    assert world.freed == [1]


def test_a_refusal_carries_what_the_policy_reckons_where_it_can(world):
    pool = world.engine.state.pools[PoolId("m", "1")]
    world.now = 5.0
    for id, deadline, wait in ((2, 4.0, 0.2), (3, 4.5, math.inf)):
        pool.scheduler.explanation = (0.3, wait)
        world.send(Submitted(world.request(id, arrival=1.0, deadline=deadline)))
    assert world.answers[2].needed_s == 0.3
    assert (world.answers[2].wait_s, world.answers[3].wait_s) == (0.2, None)
    world.send(Cancelled(9, Reason.CLIENT_CANCELLED), Refused(4, "m", Reason.BAD_INPUT))
    assert (world.answers[4].needed_s, world.answers[4].wait_s) == (None, None)
    pool.scheduler.explanation = None
    world.send(Submitted(world.request(5, arrival=1.0, deadline=4.0)))
    assert (world.answers[5].reason, world.answers[5].needed_s) == (Reason.EXPIRED, None)


def test_requests_that_come_together_share_a_batch_and_the_rest_waits(world):
    world.submit(1, 2, 3, 4, 5)
    assert [m.id for m in world.batches[-1].members] == [1, 2, 3, 4]
    world.finish()
    assert [m.id for m in world.batches[-1].members] == [5]


def test_the_next_batch_is_handed_over_before_answers_are_written(world):
    world.submit(1)
    world.submit(2)
    commands = world.finish()
    assert isinstance(commands[0], RunBatch)


def test_commands_carry_the_event_that_caused_them(world):
    event_number = world.engine.events_seen
    (run,) = world.submit(1)
    assert run.cause == event_number
    assert {command.cause for command in world.finish()} == {event_number + 1}


def test_an_answer_after_the_deadline_is_late(world):
    world.submit(1, slo=0.1)
    world.finish(after=0.2)
    assert world.answers[1].kind is OutcomeKind.LATE
    assert world.answers[1].budget_s == pytest.approx(-0.1)


def test_best_effort_is_never_late(world):
    world.submit(1, slo=0.1, best_effort=True)
    world.finish(after=5.0)
    assert world.answers[1].reason is Reason.ON_TIME
    assert world.answers[1].budget_s is None


def test_a_deadline_that_has_passed_is_dropped_at_the_door(world):
    world.now = 5.0
    world.send(Submitted(world.request(1, arrival=1.0, deadline=4.0)))
    assert world.answers[1].reason is Reason.EXPIRED


def test_more_rows_than_the_model_takes_is_bad_input(world):
    world.submit(1, rows=5)
    assert world.answers[1].reason is Reason.BAD_INPUT
    assert "takes 4" in world.answers[1].detail


def test_an_unknown_model_is_unavailable_and_counted(world):
    world.submit(1, model="other")
    assert world.answers[1].reason is Reason.UNAVAILABLE
    assert world.engine.state.request_table.counts["other"].requests == 1


def test_a_refusal_of_the_scheduler_is_answered_with_its_reason(world):
    world.schedulers[PoolId("m", "1")].refuse = Reason.QUEUE_FULL
    world.submit(1)
    assert world.reasons() == {1: Reason.QUEUE_FULL}
    assert world.freed == [1]


def test_an_id_in_use_is_the_drivers_fault(world):
    world.submit(1)
    with pytest.raises(ValueError, match="already in use"):
        world.submit(1)


def test_time_does_not_run_backwards(world):
    world.submit(1)
    with pytest.raises(ValueError, match="backwards"):
        world.engine.handle(TimerFired(), now=-1.0)


class TestNotices:
    def test_an_announced_request_is_known_and_becomes_the_submitted_one(self, world):
        assert world.announce(1) == []
        assert world.engine.state.request_table.counts["m"].in_flight == 1
        world.submit(1)
        assert [m.id for m in world.batches[-1].members] == [1]
        assert world.engine.state.request_table.counts["m"].requests == 1

    def test_a_refused_notice_is_answered_before_the_body(self, world):
        world.schedulers[PoolId("m", "1")].refuse = Reason.BEHIND_WORK
        world.announce(1)
        assert world.reasons() == {1: Reason.BEHIND_WORK}

    def test_a_body_that_never_comes_is_dropped_at_the_deadline(self, world):
        world.announce(1, slo=0.5)
        assert world.engine.next_wakeup() == 0.5
        world.send(TimerFired(), after=0.5)
        assert world.answers[1].reason is Reason.EXPIRED
        assert world.engine.next_wakeup() is None

    def test_a_withdrawn_notice_is_cancelled(self, world):
        world.announce(1)
        world.send(Cancelled(1, Reason.NO_BODY))
        assert world.reasons() == {1: Reason.NO_BODY}

    def test_a_bad_body_is_refused_by_the_driver(self, world):
        world.announce(1)
        world.send(Refused(1, "m", Reason.BAD_INPUT, detail="input x: 3 bytes missing"))
        assert world.answers[1].detail == "input x: 3 bytes missing"

    @pytest.mark.parametrize("end", ["refused", "overdue", "no room"])
    def test_a_lane_is_not_held_for_a_body_that_will_not_come(
        self, make_world, one_model_plan, end
    ):
        world = make_world()
        world.wait = 0.5
        world.deploy(one_model_plan("1"))
        world.submit(1)
        world.announce(2, slo=0.2)
        assert world.batches == []
        scheduler = world.schedulers[PoolId("m", "1")]
        scheduler.wait = None  # it had held the lane for the notice
        if end == "no room":
            scheduler.refuse = Reason.BEHIND_WORK
            world.submit(2)
        elif end == "refused":
            world.send(Refused(2, "m", Reason.BAD_INPUT))
        else:
            world.send(TimerFired(), after=0.2)
        assert [m.id for m in world.batches[-1].members] == [1]


def test_a_refusal_of_an_unannounced_request_is_counted(world):
    world.send(Refused(9, "m", Reason.TOO_LARGE))
    counts = world.engine.state.request_table.counts["m"]
    assert (counts.requests, counts.by_reason) == (1, {Reason.TOO_LARGE: 1})


class TestCancellation:
    def test_of_a_queued_request_forgets_it_at_once(self, world):
        world.submit(1)
        world.submit(2)
        world.send(Cancelled(2))
        assert world.reasons() == {2: Reason.CLIENT_CANCELLED}
        world.finish()
        assert len(world.batches) == 1

    def test_of_a_running_member_frees_its_slot_only_after_the_batch(self, world):
        world.submit(1, 2)
        world.send(Cancelled(1, Reason.DISCONNECTED))
        assert world.reasons() == {1: Reason.DISCONNECTED}
        assert world.freed == []
        world.finish()
        assert world.reasons()[2] is Reason.ON_TIME
        assert world.freed == [1, 2]

    def test_of_every_member_stops_the_batch_once(self, world):
        world.submit(1, 2)
        assert world.send(Cancelled(1))[-1:] != []
        commands = world.send(Cancelled(2))
        assert [type(c) for c in commands].count(AbortBatch) == 1
        world.submit(3)
        assert len(world.batches) == 1  # the lane is free only after the batch has ended
        world.send(BatchAborted(world.batches[0].id))
        assert world.freed[:2] == [1, 2]
        assert [m.id for m in world.batches[-1].members] == [3]

    def test_may_cross_the_answer(self, world):
        world.submit(1)
        world.finish()
        assert world.send(Cancelled(1)) == []
        assert world.send(Cancelled(77)) == []


class TestReleasedRows:
    def test_are_answered_early_and_keep_their_slot(self, world):
        world.submit(1, 2)
        world.send(RowsReleased(world.batches[0].id, (1,)), after=0.1)
        assert world.answers[1].reason is Reason.EARLY_EXIT
        assert world.freed == []
        world.finish()
        assert world.freed == [1, 2]

    def test_of_a_stranger_are_the_drivers_fault(self, world):
        world.submit(1)
        with pytest.raises(ValueError, match="not a member"):
            world.engine.handle(RowsReleased(world.batches[0].id, (5,)), now=world.now)


class TestFailure:
    def test_a_batch_that_raises_is_judged_member_by_member(self, world):
        world.submit(1, 2)
        world.send(BatchFailed(world.batches[-1].id, "index out of range"))
        assert [m.id for m in world.batches[-1].members] == [1]
        world.send(BatchFailed(world.batches[-1].id, "index out of range"))
        assert world.answers[1].reason is Reason.RUNTIME_ERROR
        assert world.answers[1].detail == "index out of range"
        assert [m.id for m in world.batches[-1].members] == [2]
        world.finish()
        assert world.answers[2].reason is Reason.ON_TIME

    def test_an_unknown_batch_is_the_drivers_fault(self, world):
        with pytest.raises(ValueError, match="no batch 5"):
            world.engine.handle(BatchFinished(5), now=0.0)


def test_a_policy_that_waits_is_asked_again_in_time(make_world, one_model_plan):
    world = make_world()
    world.wait = 0.02
    world.deploy(one_model_plan("1"))
    world.submit(1)
    assert world.batches == []
    assert world.engine.next_wakeup() == pytest.approx(0.02)
    world.send(TimerFired(), after=0.02)
    assert [m.id for m in world.batches[-1].members] == [1]


def test_an_expired_request_in_the_queue_is_dropped_at_once(world):
    world.submit(1)
    world.submit(2, slo=0.5)
    assert world.engine.next_wakeup() == pytest.approx(0.5)
    commands = world.send(TimerFired(), after=0.5)
    assert world.answers[2].reason is Reason.EXPIRED
    assert commands[-1] == FreeSlots((2,), commands[-1].cause)


def test_notices_that_have_moved_on_do_not_pile_up(world):
    for id in range(1, 1001):
        world.announce(id, slo=1e6)
        world.submit(id, slo=1e6)
        world.finish(after=0.001)
    assert len(world.engine._requests._notices) <= 65
    world.announce(2000, slo=1.0)
    world.send(TimerFired(), after=1.0)
    assert world.answers[2000].reason is Reason.EXPIRED


def test_a_notice_due_now_is_refused_and_a_best_effort_one_never(world):
    now = world.now
    due = Notice(1, "m", now - 1.0, now, 10, now)
    world.send(Announced(due))
    assert world.reasons() == {1: Reason.EXPIRED}
    world.send(Announced(replace(due, id=2, best_effort=True)))
    world.send(Announced(replace(due, id=3, deadline=now + 1e-9)))
    assert 2 not in world.answers
    assert 3 not in world.answers


def test_decoding_large_pictures_is_part_of_a_batch(world):
    """Runs take 10 ms. The hang limit is 1 s, and forty times what decoding takes at least."""
    (run,) = world.submit(1, 2, decoding=0.3)
    assert (run.expected, run.p99) == (pytest.approx(0.61), pytest.approx(0.61))
    assert run.batch.hang_at == pytest.approx(1.0 + 24.0)
    world.submit(3)
    world.finish(after=0.65)
    times = world.times[PoolId("m", "1")]
    assert times.observed == [(pytest.approx(0.05), 2, 1)]
    assert world.batches[-1].hang_at == pytest.approx(world.now + 1.0)
    world.finish(after=0.02)
    assert times.observed[-1] == (pytest.approx(0.02), 1, 1)


def test_members_of_one_frame_share_the_decoding_of_its_picture(world):
    (run,) = world.send(
        *[Submitted(world.request(id, parent=7 + id // 3, decoding=0.1)) for id in (1, 2, 3)]
    )
    assert run.batch.hang_at == pytest.approx(1.0 + 8.0)


def test_a_picture_that_cannot_be_decoded_in_time_is_refused(world):
    world.submit(1, slo=0.31, decoding=0.305)
    assert world.reasons() == {1: Reason.SHORTER_THAN_ALONE}
    world.submit(2, slo=0.32, decoding=0.305)
    world.submit(3, slo=0.0, decoding=0.305, best_effort=True)
    assert set(world.reasons()) == {1}
    world.announce(4, slo=0.2)
    world.submit(4, slo=0.2, decoding=0.3)
    assert world.answers[4].reason is Reason.SHORTER_THAN_ALONE
