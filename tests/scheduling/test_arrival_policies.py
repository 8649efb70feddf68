"""`clipper` and `nexus`: exact batches, in order of arrival."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slacktide.domain import Notice, Reason
from slacktide.engine.ports import Idle, Proposal, Scheduler
from slacktide.scheduling import make_scheduler
from slacktide_papers.policies.sized_fifo import Clipper, ClipperOptions, Nexus, NexusOptions


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def clipper(**options: float) -> Clipper:
    return Clipper(ClipperOptions(**options), max_batch=8)


def nexus(lab: SimpleNamespace, **options: float) -> Nexus:
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows)
    return Nexus(NexusOptions(**options), max_batch=8, times=times)


def run(lab: SimpleNamespace, scheduler: Scheduler, *, now: float, until: float) -> list[int]:
    """Run one batch from `now` `until` then; the ids of its members."""
    batch = lab.batch(scheduler.propose(lab.REPLICA, now=now), now=now)
    scheduler.take(batch)
    scheduler.ended(batch, now=until)
    return [member.id for member in batch.members]


def test_clipper_grows_while_answers_are_in_time_and_shrinks_when_one_is_late(lab) -> None:
    scheduler = clipper(increase=2.0, decrease=0.5)
    assert scheduler.propose(lab.REPLICA, now=0.0) == Idle()
    for id in range(20):
        assert scheduler.add(lab.request(id, 1.0 if id < 9 else 9.0), now=0.0) is None
    assert run(lab, scheduler, now=0.0, until=0.5) == [0]
    assert run(lab, scheduler, now=0.5, until=1.0) == [1, 2, 3]
    assert run(lab, scheduler, now=1.0, until=1.5) == [4, 5, 6, 7, 8]  # late: half of 5
    assert run(lab, scheduler, now=1.5, until=2.0) == [9, 10]
    assert run(lab, scheduler, now=2.0, until=2.5) == [11, 12, 13, 14]


def test_clipper_judges_by_what_the_client_sees_and_never_calls_best_effort_late(lab) -> None:
    scheduler = clipper()
    scheduler.add(lab.request(0, 1.0, best_effort=True), now=0.0)
    for id in (1, 2, 3, 4):
        scheduler.add(lab.request(id, 3.0), now=0.0)
    assert run(lab, scheduler, now=5.0, until=5.1) == [0]
    assert run(lab, scheduler, now=5.1, until=5.2) == [1, 2]  # quick, but they had waited
    assert ids(scheduler.propose(lab.REPLICA, now=6.0)) == [3]


def test_clipper_stays_between_one_and_max_batch(lab) -> None:
    scheduler = clipper(increase=100.0, decrease=0.01)
    for id in range(20):
        scheduler.add(lab.request(id, 1.0), now=0.0)
    run(lab, scheduler, now=0.0, until=0.5)
    assert len(run(lab, scheduler, now=0.5, until=5.0)) == 8
    assert len(run(lab, scheduler, now=5.0, until=6.0)) == 1


def test_nexus_plans_with_four_batches_to_an_slo(lab) -> None:
    for slo, planned in ((0.01, 1), (0.08, 2), (0.159, 2), (0.16, 4), (0.5, 8)):
        scheduler = nexus(lab)
        for id in range(20):
            scheduler.add(lab.request(id, slo), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == list(range(planned))
    assert ids(scheduler.propose(lab.REPLICA, now=9.0)) == list(range(8))  # late ones run


def test_nexus_plans_each_by_its_own_slo_and_best_effort_by_none(lab) -> None:
    scheduler = nexus(lab, cycles=2.0)
    scheduler.add(lab.request(0, 0.01, best_effort=True), now=0.0)
    for id, slo in enumerate([0.16, 0.16, 0.08, 0.16, 0.16], start=1):
        scheduler.add(lab.request(id, slo), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 1, 2, 3]


def test_predictions_that_change_change_the_plan(lab) -> None:
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows)
    scheduler = Nexus(NexusOptions(), max_batch=8, times=times)
    for id in range(8):
        scheduler.add(lab.request(id, 0.16), now=0.0)
    assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) == 4
    times.latency = lambda rows: 0.02 * rows
    times.revision += 1
    assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) == 2


@pytest.mark.parametrize("name", ["clipper", "nexus"])
def test_rows_fill_a_batch_and_another_shape_ends_it(lab, name: str) -> None:
    times = lab.LogNormalTimes(lambda rows: 0.01)
    scheduler = make_scheduler(name, {}, max_batch=8, times=times, view=lab.LaneView())
    for id, (rows, shape) in enumerate([(64, 4), (7, 4), (2, 4), (3, 4), (3, 5)]):
        scheduler.add(lab.request(id, 9.0, rows=rows, signature=((shape,),)), now=0.0)
    assert run(lab, scheduler, now=0.0, until=0.1) == [1]
    for _ in range(6):  # let clipper grow
        scheduler.ended(lab.batch(scheduler.propose(lab.REPLICA, now=0.1)), now=0.2)
    proposal = scheduler.propose(lab.REPLICA, now=0.2)
    assert (ids(proposal), proposal.rows) == ([2, 3], 5)
    assert [request.id for request in scheduler.pending()] == [0, 2, 3, 4]


@pytest.mark.parametrize("name", ["clipper", "nexus"])
def test_nobody_is_refused_but_by_the_limit_or_given_up(lab, name: str) -> None:
    times = lab.LogNormalTimes(lab.residual)
    scheduler = make_scheduler(
        name, {"max_queue": 2}, max_batch=8, times=times, view=lab.LaneView()
    )
    early = Notice(id=0, model="m", arrival=0, deadline=1, payload_bytes=9, complete_at=0.5)
    assert scheduler.announce(early, now=0.0) is None
    assert scheduler.add(lab.request(1, 1.0), now=5.0) is None
    assert scheduler.add(lab.request(2, 9.0), now=5.0) is Reason.QUEUE_FULL
    assert scheduler.add(lab.request(0, 9.0), now=5.0) is None
    scheduler.admit_moved(lab.request(3, 9.0), now=5.0)
    assert (scheduler.expire(now=50.0), scheduler.next_expiry()) == ((), None)
    assert scheduler.remove(3)
    assert not scheduler.remove(3)
    assert len(scheduler) == 2
