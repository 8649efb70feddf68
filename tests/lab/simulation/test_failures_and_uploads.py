"""Replicas that start slowly, hang, die or stop; bodies that take time or never come."""

from __future__ import annotations

import math

import pytest

from slacktide.domain import Cancelled, Reason
from slacktide.lab.simulation import SimulatedUpload
from slacktide.lab.simulation.items import ExternalEvent, Failure


def test_a_replica_is_up_after_its_start_time(make):
    world = make.world(start_s=2.0).run(make.request(1, 0.0))
    assert world.batches == [(2.0, (1,))]


def test_members_of_a_lost_batch_run_again_alone_once_a_replica_is_back(make):
    world = make.world(start_s=0.5).run(
        make.request(1, 0.0), make.request(2, 0.0), Failure(1.0, "lane0")
    )
    # Up at 0.5, lost at 1.0, started again 0.1 s later, up 0.5 s after that.
    assert world.batches == [(0.5, (1, 2)), (1.6, (1,)), (2.6, (2,))]
    assert set(world.reasons.values()) == {Reason.ON_TIME}
    assert world.simulation.hardware.busy_s == 0.5 + 1.0 + 1.0


def test_a_failure_of_another_lane_or_model_changes_nothing(make):
    world = make.world().run(
        make.request(1, 0.0), Failure(0.5, "lane7"), Failure(0.5, "lane0", model="other")
    )
    assert world.batches == [(0.0, (1,))]


def test_a_permanent_failure_makes_the_model_unavailable(make):
    world = make.world().run(
        make.request(1, 0.0), Failure(0.5, "lane0", permanent=True), make.request(2, 1.0)
    )
    assert world.reasons == dict.fromkeys((1, 2), Reason.UNAVAILABLE)


def test_a_batch_that_hangs_has_its_replica_killed(make):
    class HangsOnce(make.LinearTimes):
        asked = 0

        def seconds(self, batch, cores):
            self.asked += 1
            return math.inf if self.asked == 1 else 1.0

    world = make.world(execution=HangsOnce(0.0, 1.0)).run(make.request(1, 0.0))
    # Ten times the p99 of one second, then 0.1 s of pause.
    assert world.batches == [(0.0, (1,)), (10.1, (1,))]


def test_a_batch_that_nobody_waits_for_is_aborted_at_once(make):
    world = make.world().run(
        make.request(1, 0.0), ExternalEvent(0.25, Cancelled(1)), make.request(2, 0.5)
    )
    assert world.batches == [(0.0, (1,)), (0.5, (2,))]
    assert world.simulation.hardware.busy_s == 0.25 + 1.0


def test_an_upload_is_announced_at_its_first_byte_and_submitted_when_complete(make):
    world = make.world().run(SimulatedUpload(make.notice(1, 0.5, 1.0), make.request(1, 0.5), 2.0))
    assert world.events[2:4] == [(0.5, "Announced"), (2.0, "Submitted")]
    assert world.subjects[1] == make.request(1, 0.5)


def test_the_body_of_a_request_that_has_ended_is_not_sent(make):
    world = make.world().run(
        SimulatedUpload(make.notice(1, 0.0, 1.0, slo=1.5), make.request(1, 0.0, slo=1.5), 2.0)
    )
    assert world.reasons == {1: Reason.EXPIRED}
    assert world.outcomes[1].at == 1.5
    assert "Submitted" not in [name for _, name in world.events]


def test_a_body_that_never_comes_ends_at_the_deadline_of_its_notice(make):
    world = make.world().run(SimulatedUpload(make.notice(1, 0.0, 1.0, slo=3.0), None, 1.0))
    assert world.outcomes[1].at == 3.0
    assert world.subjects[1] == make.notice(1, 0.0, 1.0, slo=3.0)


def test_uploads_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="notice 1 announces request 2"):
        SimulatedUpload(make.notice(1, 0.0, 1.0), make.request(2, 0.0), 1.0)
    with pytest.raises(ValueError, match="complete before it begins"):
        SimulatedUpload(make.notice(1, 1.0, 1.0), make.request(1, 1.0), 0.5)
