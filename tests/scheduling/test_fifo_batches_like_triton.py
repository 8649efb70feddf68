"""`fifo`: exact batches, waits, limits and timeouts."""

from __future__ import annotations

import pytest

from slacktide.domain import Notice, Reason
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.scheduling import FifoOptions
from slacktide.scheduling.fifo import Fifo


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def notice(id: int) -> Notice:
    return Notice(id=id, model="m", arrival=0, deadline=1, payload_bytes=9, complete_at=0.5)


def test_without_delay_whatever_waits_runs_at_once_in_order_of_arrival(lab) -> None:
    fifo = Fifo(FifoOptions(), max_batch=3)
    assert fifo.propose(lab.REPLICA, now=0.0) == Idle()
    for id, deadline in enumerate([9.0, 5.0, 1.0, 7.0]):
        assert fifo.add(lab.request(id, deadline), now=0.0) is None
    assert ids(fifo.propose(lab.REPLICA, now=0.0)) == [0, 1, 2]
    assert ids(fifo.propose(lab.REPLICA, now=0.0)) == [0, 1, 2]
    fifo.take(lab.batch(fifo.propose(lab.REPLICA, now=0.0)))
    assert [request.id for request in fifo.pending()] == [3]


def test_late_requests_run_all_the_same(lab) -> None:
    fifo = Fifo(FifoOptions(), max_batch=3)
    assert fifo.add(lab.request(0, 1.0), now=5.0) is None
    assert fifo.expire(now=9.0) == ()
    assert fifo.next_expiry() is None
    assert ids(fifo.propose(lab.REPLICA, now=9.0)) == [0]


def test_a_lane_waits_for_a_fuller_batch_until_the_oldest_has_waited_max_delay(lab) -> None:
    fifo = Fifo(FifoOptions(max_delay=0.25), max_batch=3)
    fifo.add(lab.request(0, 9.0), now=1.0)
    fifo.add(lab.request(1, 9.0), now=1.125)
    assert fifo.propose(lab.REPLICA, now=1.125) == WaitUntil(1.25)
    assert ids(fifo.propose(lab.REPLICA, now=1.25)) == [0, 1]
    fifo.add(lab.request(2, 9.0), now=1.2)
    assert ids(fifo.propose(lab.REPLICA, now=1.2)) == [0, 1, 2]


def test_a_preferred_size_runs_before_the_delay_is_over(lab) -> None:
    fifo = Fifo(FifoOptions(max_delay=1.0, preferred=(2, 4)), max_batch=8)
    fifo.add(lab.request(0, 9.0), now=0.0)
    assert fifo.propose(lab.REPLICA, now=0.0) == WaitUntil(1.0)
    for id in (1, 2):
        fifo.add(lab.request(id, 9.0), now=0.0)
    assert ids(fifo.propose(lab.REPLICA, now=0.0)) == [0, 1]
    assert ids(fifo.propose(lab.REPLICA, now=1.0)) == [0, 1, 2]


def test_rows_fill_a_batch_and_another_shape_ends_it(lab) -> None:
    fifo = Fifo(FifoOptions(max_delay=1.0), max_batch=8)
    fifo.add(lab.request(0, 9.0, rows=3), now=0.0)
    fifo.add(lab.request(1, 9.0, rows=3), now=0.0)
    fifo.add(lab.request(2, 9.0, rows=3), now=0.0)
    proposal = fifo.propose(lab.REPLICA, now=0.0)
    assert ids(proposal) == [0, 1]
    assert proposal.rows == 6
    fifo.remove(1)
    fifo.remove(2)
    assert fifo.propose(lab.REPLICA, now=0.0) == WaitUntil(1.0)
    fifo.add(lab.request(3, 9.0, signature=((5,),)), now=0.0)
    assert ids(fifo.propose(lab.REPLICA, now=0.0)) == [0]


def test_the_queue_limit_counts_notices_and_spares_what_was_admitted_elsewhere(lab) -> None:
    fifo = Fifo(FifoOptions(max_queue=2), max_batch=8)
    assert fifo.announce(notice(0), now=0.0) is None
    assert fifo.add(lab.request(1, 9.0), now=0.0) is None
    assert fifo.add(lab.request(2, 9.0), now=0.0) is Reason.QUEUE_FULL
    assert fifo.announce(notice(3), now=0.0) is Reason.QUEUE_FULL
    assert fifo.add(lab.request(0, 9.0), now=0.0) is None
    fifo.admit_moved(lab.request(4, 9.0), now=0.0)
    assert len(fifo) == 3
    assert fifo.remove(4)
    assert not fifo.remove(4)


def test_a_timeout_rejects(lab) -> None:
    fifo = Fifo(FifoOptions(timeout=2.0), max_batch=8)
    fifo.add(lab.request(0, 99.0), now=1.0)
    fifo.add(lab.request(1, 99.0), now=2.0)
    assert fifo.next_expiry() == 3.0
    assert fifo.expire(now=2.9) == []
    assert fifo.expire(now=3.0) == [(0, Reason.EXPIRED)]
    assert fifo.next_expiry() == 4.0


def test_a_timeout_may_delay_instead(lab) -> None:
    fifo = Fifo(FifoOptions(timeout=2.0, timeout_action="delay"), max_batch=1)
    fifo.add(lab.request(0, 99.0), now=1.0)
    fifo.add(lab.request(1, 99.0), now=2.0)
    assert fifo.expire(now=3.0) == []
    assert [request.id for request in fifo.pending()] == [1, 0]
    assert ids(fifo.propose(lab.REPLICA, now=3.0)) == [1]
    assert fifo.remove(0)
    assert len(fifo) == 1


@pytest.mark.parametrize(
    "bad", [{"max_delay": -1.0}, {"preferred": (0,)}, {"max_queue": 0}, {"timeout": 0.0}]
)
def test_contradictions_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        FifoOptions(**bad)
