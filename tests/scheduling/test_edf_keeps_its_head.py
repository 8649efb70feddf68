"""`edf`: exact batches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from slacktide.domain import Notice, Reason
from slacktide.engine.ports import Idle, Proposal
from slacktide.profiles import BatchLatency, FixedTimes, classes_of_samples
from slacktide.scheduling import Edf, EdfOptions


def edf(lab: SimpleNamespace, sigma: float = 0.05, **options: object) -> Edf:
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows, sigma)
    return Edf(EdfOptions(**options), max_batch=8, times=times, view=lab.LaneView())


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def test_the_largest_batch_that_keeps_the_head_on_time(lab) -> None:
    scheduler = edf(lab)
    assert scheduler.propose(lab.REPLICA, now=0.0) == Idle()
    for id, deadline in enumerate([0.3, 0.035, 0.2, 0.1, 0.5]):
        assert scheduler.add(lab.request(id, deadline), now=0.0) is None
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [1, 3, 2]
    assert ids(scheduler.propose(lab.REPLICA, now=0.02)) == [1]
    assert [request.id for request in scheduler.pending()] == [1, 3, 2, 0, 4]
    scheduler.take(lab.batch(scheduler.propose(lab.REPLICA, now=0.0)))
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 4]


def test_p99_leaves_room_for_a_slow_batch(lab) -> None:
    deadlines = [0.031, 0.2, 0.3]
    for guarantee, expected in (("expected", [0, 1, 2]), ("p99", [0, 1])):
        scheduler = edf(lab, guarantee=guarantee)
        for id, deadline in enumerate(deadlines):
            scheduler.add(lab.request(id, deadline), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == expected


def test_p99_holds_for_members_of_any_class(lab) -> None:
    latency = BatchLatency(c0=0.005, c1=0.001, sizes=(1, 2, 4, 8))
    lengths = {"short": np.array([1.0, 2.0]), "long": np.array([18.0, 20.0])}
    times = FixedTimes(classes_of_samples(lengths, latency, most=2))
    options = EdfOptions(guarantee="p99", admission=False)
    scheduler = Edf(options, max_batch=8, times=times, view=lab.LaneView())
    for id in range(8):
        scheduler.add(lab.request(id, 0.06, application="short"), now=0.0)
    # Four rows take 5 + 4 · 20 ms if one is long, and edf does not ask whether one is.
    assert times.p99(2, 1) < 0.06 < times.p99(3, 1)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 1]


def test_who_cannot_be_on_time_even_alone_is_given_up(lab) -> None:
    scheduler = edf(lab)
    scheduler.add(lab.request(0, 0.05), now=0.0)
    scheduler.add(lab.request(1, 0.05, rows=2), now=0.0)
    assert scheduler.next_expiry() == pytest.approx(0.03)
    assert scheduler.expire(now=0.029) == []
    assert scheduler.expire(now=0.031) == [(1, Reason.HOPELESS)]
    assert scheduler.expire(now=0.06) == [(0, Reason.EXPIRED)]
    assert scheduler.next_expiry() is None
    assert scheduler.expire(now=0.07) == ()


def test_only_equal_signatures_share_a_batch(lab) -> None:
    scheduler = edf(lab)
    for id, shape in enumerate([(4,), (5,), (4,)]):
        scheduler.add(lab.request(id, 1.0 + id, signature=(shape,)), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]


def test_large_requests_are_passed_over_when_they_do_not_fit(lab) -> None:
    scheduler = edf(lab)
    for id, rows in enumerate([2, 7, 6]):
        scheduler.add(lab.request(id, 1.0 + id, rows=rows), now=0.0)
    proposal = scheduler.propose(lab.REPLICA, now=0.0)
    assert ids(proposal) == [0, 2]
    assert proposal.rows == 8


def test_best_effort_is_ordered_but_binds_nobody_and_never_expires(lab) -> None:
    scheduler = edf(lab)
    for id in range(3):
        scheduler.add(lab.request(id, 0.01 + id * 0.001, best_effort=True), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=9.0)) == [0, 1, 2]
    scheduler.add(lab.request(3, 9.025), now=9.0)
    assert scheduler.expire(now=9.0) == []
    assert ids(scheduler.propose(lab.REPLICA, now=9.0)) == [0, 1, 2]
    assert [request.id for request in scheduler.pending()] == [0, 1, 2, 3]
    assert scheduler.remove(2)
    scheduler.add(lab.request(4, 9.5), now=9.0)
    assert ids(scheduler.propose(lab.REPLICA, now=8.99)) == [0, 1, 3]
    scheduler.take(lab.batch(scheduler.propose(lab.REPLICA, now=8.99)))
    assert ids(scheduler.propose(lab.REPLICA, now=9.0)) == [4]


def test_a_notice_is_replaced_by_its_request_and_can_be_withdrawn(lab) -> None:
    scheduler = edf(lab, max_queue=1)
    early = Notice(id=0, model="m", arrival=0, deadline=1, payload_bytes=9, complete_at=0.5)
    assert scheduler.announce(early, now=0.0) is None
    assert len(scheduler) == 0
    assert scheduler.add(lab.request(1, 1.0), now=0.0) is Reason.QUEUE_FULL
    assert scheduler.add(lab.request(0, 1.0), now=0.0) is None
    assert scheduler.remove(0)
    assert scheduler.announce(early, now=0.0) is None
    assert scheduler.remove(0)
    assert not scheduler.remove(0)
    hopeless = Notice(id=2, model="m", arrival=0, deadline=0.001, payload_bytes=9, complete_at=0)
    assert scheduler.announce(hopeless, now=0.0) is Reason.SHORTER_THAN_ALONE
