"""The lane is held for announced requests: when, for whom, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Batch, Notice
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.profiles import BatchLatency, FixedTimes, classes_of_samples
from slacktide.scheduling import SlackOptions
from slacktide.scheduling import announcements as announcements_module
from slacktide.scheduling.announcements import GRACE, WASTE, Announcements
from slacktide.scheduling.slack import Slack

ALONE = 0.010
"""Seconds; a batch of two takes hardly longer."""


def notice(id: int, complete_at: float, *, at: float = 0.0, **fields: object) -> Notice:
    stated = {"deadline": at + 0.02, "client": "c", **fields}
    return Notice(id, "m", at, payload_bytes=1, complete_at=complete_at, **stated)


def one_class(lab, **options: object) -> Slack:
    times = lab.LogNormalTimes(lab.weight_bound, 0.01)
    return Slack(SlackOptions(**options), max_batch=8, times=times, view=lab.LaneView())


def two_classes(lab, **options: object) -> Slack:
    latency = BatchLatency(0.009, 0.001, (1, 2, 4, 8))
    classes = classes_of_samples({"": [0.9, 1.0, 1.1], "long": [3.0, 4.0]}, latency)
    return Slack(
        SlackOptions(**options), max_batch=8, times=FixedTimes(classes), view=lab.LaneView()
    )


@pytest.fixture(params=[one_class, two_classes])
def made(request, lab):
    """A scheduler with one request due soon, by options; with and without classes."""

    def make(**options: object) -> Slack:
        scheduler = request.param(lab, **options)
        scheduler.admit_moved(lab.request(0, 0.02), now=0.0)
        return scheduler

    return make


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def test_the_lane_is_held_for_one_that_makes_the_batch_better(lab, made) -> None:
    scheduler = made()
    assert scheduler.announce(notice(1, 0.001), now=0.0) is None
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)  # changes nothing
    assert scheduler.add(lab.request(1, 0.02, client="c"), now=0.001) is None
    assert sorted(ids(scheduler.propose(lab.REPLICA, now=0.001))) == [0, 1]


def test_it_is_never_held_beyond_the_time_that_was_named(lab, made) -> None:
    scheduler = made()
    scheduler.announce(notice(1, 0.001), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.001)) == [0]
    assert ids(scheduler.propose(lab.REPLICA, now=0.002)) == [0]


def test_it_is_not_held_for_what_is_far_away_or_not_worth_it(lab, made) -> None:
    far = made()
    far.announce(notice(1, 0.2 * ALONE + 0.001), now=0.0)
    assert ids(far.propose(lab.REPLICA, now=0.0)) == [0]
    off = made(lead=0.0)
    off.announce(notice(1, 0.001), now=0.0)
    assert ids(off.propose(lab.REPLICA, now=0.0)) == [0]
    nearly_late = made()
    nearly_late.announce(notice(1, 0.0105), now=0.0095)
    assert ids(nearly_late.propose(lab.REPLICA, now=0.0095)) == [0]


def test_several_are_weighed_together_but_the_first_is_awaited(lab, made) -> None:
    scheduler = made()
    for id in (1, 2, 3):
        scheduler.announce(notice(id, 0.0005 * id), now=0.0)
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.0005)


def test_a_deadline_that_is_only_likely_is_planned_on_and_refuses_nobody(lab, made) -> None:
    scheduler = made()
    unstated = notice(1, 0.001, deadline=1.0, best_effort=True, likely_due=0.02)
    assert scheduler.announce(unstated, now=0.0) is None
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)
    hopeless = notice(2, 0.0011, deadline=1.0, best_effort=True, likely_due=0.002)
    assert scheduler.announce(hopeless, now=0.0) is None
    assert scheduler.remove(1)
    assert scheduler.remove(2)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0]


def test_nobody_waits_for_best_effort_or_on_its_account(lab, made) -> None:
    scheduler = made()
    scheduler.announce(notice(1, 0.001, best_effort=True), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0]
    assert scheduler.remove(0)
    scheduler.announce(notice(2, 0.001), now=0.0)
    assert scheduler.propose(lab.REPLICA, now=0.0) == Idle()
    scheduler.add(lab.request(3, 1.0, best_effort=True), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [3]


def test_time_lost_in_waiting_in_vain_is_bounded(lab, made) -> None:
    """Whoever it was that did not come: many clients may break their word once each."""
    scheduler = made()
    scheduler.announce(notice(1, 0.001, client="x"), now=0.0)
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)
    first = scheduler.propose(lab.REPLICA, now=0.001)
    scheduler.take(Batch(0, lab.REPLICA, first.members, 1, 0.001, 1.0))
    lost, again = 0.001, 0.001 + 0.001 / WASTE
    for at, held in ((again - 0.001, False), (again + 0.001, True)):
        scheduler.admit_moved(lab.request(10 + held, at + 0.02), now=at)
        scheduler.announce(notice(20 + held, at + lost, at=at, client=f"y{held}"), now=at)
        proposal = scheduler.propose(lab.REPLICA, now=at)
        assert isinstance(proposal, WaitUntil) is held
        if not held:
            scheduler.take(Batch(1, lab.REPLICA, proposal.members, 1, at, at + 1.0))


def test_each_of_several_that_are_awaited_in_turn_and_do_not_come_counts(lab, made) -> None:
    scheduler = made()
    for number in (1, 2, 3):
        scheduler.announce(notice(number, 0.0005 * number, client=f"x{number}"), now=0.0)
    for now in (0.0, 0.0005, 0.001):
        assert scheduler.propose(lab.REPLICA, now=now) == WaitUntil(now + 0.0005)
    first = scheduler.propose(lab.REPLICA, now=0.0015)
    scheduler.take(Batch(0, lab.REPLICA, first.members, 1, 0.0015, 1.0))
    again = 0.0015 + 0.0015 / WASTE
    for id, at, held in ((10, again - 0.001, False), (11, again + 0.001, True)):
        scheduler.admit_moved(lab.request(id, at + 0.02), now=at)
        scheduler.announce(notice(id + 10, at + 0.001, at=at, client=f"y{id}"), now=at)
        proposal = scheduler.propose(lab.REPLICA, now=at)
        assert isinstance(proposal, WaitUntil) is held
        if not held:
            scheduler.take(Batch(1, lab.REPLICA, proposal.members, 1, at, at + 1.0))


def test_idleness_after_a_broken_word_is_no_time_lost(lab, made) -> None:
    """The request that the lane was held for left, and for an hour nobody came."""
    scheduler = made()
    scheduler.announce(notice(1, 0.001), now=0.0)
    assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)
    assert scheduler.remove(0)
    assert scheduler.remove(1)
    for id, at in ((2, 3600.0), (3, 3600.0 + 2 * 0.001 / WASTE)):
        scheduler.admit_moved(lab.request(id, at + 0.02), now=at)
        if id == 3:
            scheduler.announce(notice(4, at + 0.001, at=at, client="d"), now=at)
            assert scheduler.propose(lab.REPLICA, now=at) == WaitUntil(at + 0.001)
        else:
            proposal = scheduler.propose(lab.REPLICA, now=at)
            scheduler.take(Batch(0, lab.REPLICA, proposal.members, 1, at, at + 1.0))


def test_waiting_that_was_not_in_vain_costs_no_patience(lab, made) -> None:
    scheduler = made()
    for id in range(1, 40, 2):
        at = 0.05 * id
        scheduler.admit_moved(lab.request(100 + id, at + 0.02), now=at)
        scheduler.remove(0)
        scheduler.announce(notice(id, at + 0.001, at=at), now=at)
        assert scheduler.propose(lab.REPLICA, now=at) == WaitUntil(at + 0.001)
        scheduler.add(lab.request(id, at + 0.02, client="c"), now=at + 0.001)
        proposal = scheduler.propose(lab.REPLICA, now=at + 0.001)
        assert len(ids(proposal)) == 2
        scheduler.take(Batch(id, lab.REPLICA, proposal.members, 2, at + 0.001, at + 1.0))


class TestTrust:
    """Whom `Announcements` names."""

    def soon(self, announcements: Announcements, now: float) -> list[int]:
        return [notice.id for notice in announcements.soon(0.1, now=now)]

    def test_who_was_late_by_half_is_not_awaited_until_it_is_in_time(self) -> None:
        announcements = Announcements()
        announcements.add(notice(1, 0.01))
        announcements.arrived(1, now=0.0151)
        announcements.add(notice(2, 1.01, at=1.0))
        announcements.add(notice(3, 1.02, at=1.0, client="d"))
        assert self.soon(announcements, 1.0) == [3]
        announcements.arrived(2, now=1.0149)
        announcements.add(notice(4, 1.05, at=1.0))
        assert self.soon(announcements, 1.015) == [3, 4]

    def test_who_is_overdue_now_is_not_awaited_for_anything_else(self) -> None:
        announcements = Announcements()
        for id in range(8):
            announcements.add(notice(id, 0.01 * (id + 1)))
        assert self.soon(announcements, 0.0149) == [1, 2, 3, 4]
        assert self.soon(announcements, 0.0151) == []

    def test_who_withdraws_is_not_awaited(self) -> None:
        announcements = Announcements()
        announcements.add(notice(1, 0.01))
        assert announcements.withdraw(1)
        assert not announcements.withdraw(1)
        announcements.add(notice(2, 0.05))
        assert self.soon(announcements, 0.0) == []

    def test_a_body_of_one_packet_is_not_late_for_a_hiccup(self) -> None:
        announcements = Announcements()
        announcements.add(notice(1, 0.0))
        announcements.arrived(1, now=0.9 * GRACE)
        announcements.add(notice(2, 0.05))
        assert self.soon(announcements, 0.001) == [2]

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(announcements_module, "MOST_CLIENTS", 3)
        announcements = Announcements()
        for number in range(10):
            announcements.add(notice(number, 0.0, client=str(number)))
            announcements.withdraw(number)
        announcements.add(notice(20, 0.05, client="1"))
        announcements.add(notice(21, 0.05, client="9"))
        assert self.soon(announcements, 0.0) == [20]

    @given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 1.0), st.booleans()), max_size=40))
    def test_an_awaited_notice_is_ahead_and_known(self, steps) -> None:
        announcements = Announcements()
        noticed: dict[int, Notice] = {}
        now = 0.0
        for id, number, comes in steps:
            now += number / 10
            if id in noticed:
                del noticed[id]
                if comes:
                    announcements.arrived(id, now=now)
                else:
                    assert announcements.withdraw(id)
            else:
                noticed[id] = notice(
                    id, now + number, at=now, client=str(id % 3), best_effort=id == 9
                )
                announcements.add(noticed[id])
            soon = announcements.soon(0.5, now=now)
            assert announcements.by_id == noticed
            assert [notice.complete_at for notice in soon] == sorted(
                notice.complete_at for notice in soon
            )
            for awaited in soon:
                assert noticed[awaited.id] is awaited
                assert now < awaited.complete_at <= now + 0.5
                assert not awaited.best_effort
