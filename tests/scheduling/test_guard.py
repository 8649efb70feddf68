"""A scheduler that others wrote is held to its contract; at the first breach it is out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from slacktide.domain import Batch, Reason
from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registered
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.scheduling import POLICIES, FifoOptions, make_scheduler
from slacktide.scheduling.fifo import Fifo
from slacktide.scheduling.options import QueueOptions

Make = Callable[..., tuple[object, list[str]]]


class Raises(Fifo):
    def propose(self, replica, *, now):
        raise RuntimeError("no idea")


class RaisesAtTheDoor(Fifo):
    def add(self, request, *, now):
        raise KeyError(request.id)


class TakesTwice(Fifo):
    def propose(self, replica, *, now):
        first = self.pending()[0]
        return Proposal((first, first), 2 * first.rows)


class Invents(Fifo):
    made = None

    def propose(self, replica, *, now):
        return Proposal((self.made,), 1)


class Miscounts(Fifo):
    def propose(self, replica, *, now):
        return Proposal(self.pending(), 99)


class SaysNothing(Fifo):
    def propose(self, replica, *, now):
        return None


class WaitsForThePast(Fifo):
    def propose(self, replica, *, now):
        return WaitUntil(now)


class NamesOthers(Fifo):
    def next_expiry(self):
        return 0.0

    def expire(self, *, now):
        return [(99, Reason.EXPIRED)]


class AsksAgainAndAgain(Fifo):
    def next_expiry(self):
        return 0.0


class TakesAll(Fifo):
    def propose(self, replica, *, now):
        members = self.pending()
        return Proposal(members, sum(member.rows for member in members))


class Explains(Fifo):
    def outlook(self, arrival, *, now):
        return 0.5, 1.5


class ExplainsBadly(Fifo):
    def outlook(self, arrival, *, now):
        return "soon"


@pytest.fixture
def guarded(lab, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a guarded scheduler of a class, and the list of what it is found out in."""

    def make(kind: type[Fifo], **options: object) -> tuple[object, list[str]]:
        monkeypatch.setitem(POLICIES, "own", Registered("own", FifoOptions, kind, built_in=False))
        failures: list[str] = []
        times = lab.LogNormalTimes(lab.residual)
        guarded_scheduler = make_scheduler(
            "own", options, max_batch=8, times=times, view=lab.LaneView(), failed=failures.append
        )
        return guarded_scheduler, failures

    return make


def test_one_that_keeps_to_it_works_as_it_would_alone(lab, guarded: Make) -> None:
    scheduler, failures = guarded(Fifo)
    for id in range(3):
        assert scheduler.add(lab.request(id, 9.0), now=0.0) is None
    assert scheduler.remove(1)
    assert not scheduler.remove(1)
    proposal = scheduler.propose(lab.REPLICA, now=0.0)
    assert [member.id for member in proposal.members] == [0, 2]
    scheduler.take(Batch(0, lab.REPLICA, proposal.members, 2, 0.0, 1.0))
    assert (len(scheduler), scheduler.pending(), failures) == (0, (), [])


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Raises, "propose raised RuntimeError: no idea"),
        (TakesTwice, "propose: request 0 is proposed twice"),
        (Miscounts, "propose: expected 2 rows, at most"),
        (SaysNothing, "propose: expected a proposal with members, got None"),
        (WaitsForThePast, "propose: expected a proposal"),
    ],
)
def test_a_breach_ends_what_waits_and_refuses_what_comes(
    lab, guarded: Make, kind: type[Fifo], sentence: str
) -> None:
    scheduler, failures = guarded(kind)
    for id in range(2):
        assert scheduler.add(lab.request(id, 9.0), now=0.0) is None
    assert isinstance(scheduler.propose(lab.REPLICA, now=0.0), Idle)
    assert len(failures) == 1
    assert f"scheduler 'own' broke its contract: {sentence}" in failures[0]
    assert scheduler.next_expiry() == 0.0
    assert scheduler.expire(now=0.0) == ((0, Reason.UNAVAILABLE), (1, Reason.UNAVAILABLE))
    assert scheduler.add(lab.request(2, 9.0), now=0.0) is Reason.UNAVAILABLE
    assert (len(scheduler), scheduler.next_expiry(), len(failures)) == (0, None, 1)


def test_reasons_are_handed_on_where_there_are_any(lab, guarded: Make) -> None:
    scheduler, messages = guarded(Explains)
    assert scheduler.outlook(lab.request(0, 9.0), now=0.0) == (0.5, 1.5)
    scheduler, more = guarded(Fifo)
    assert (scheduler.outlook(lab.request(0, 9.0), now=0.0), messages, more) == (None, [], [])


def test_reasons_of_another_form_are_a_breach(lab, guarded: Make) -> None:
    scheduler, messages = guarded(ExplainsBadly)
    assert scheduler.outlook(lab.request(0, 9.0), now=0.0) == (math.inf, math.inf)
    assert "outlook: expected (seconds needed, seconds to wait), got 'soon'" in messages[0]


def test_a_request_with_more_rows_than_the_cap_runs_alone(lab, guarded: Make) -> None:
    cap = lab.REPLICA.max_batch
    scheduler, messages = guarded(TakesAll)
    scheduler.add(lab.request(0, 9.0, rows=cap + 1), now=0.0)
    proposal = scheduler.propose(lab.REPLICA, now=0.0)
    assert ([member.id for member in proposal.members], messages) == ([0], [])
    scheduler.add(lab.request(1, 9.0), now=0.0)
    assert isinstance(scheduler.propose(lab.REPLICA, now=0.0), Idle)
    assert f"at most {cap}" in messages[0]


def test_a_request_that_is_not_queued_is_not_run(lab, guarded: Make) -> None:
    Invents.made = lab.request(0, 9.0)
    scheduler, failures = guarded(Invents)
    scheduler.add(lab.request(0, 9.0), now=0.0)  # another object of the same id is not it
    assert isinstance(scheduler.propose(lab.REPLICA, now=0.0), Idle)
    assert "request 0 is not queued" in failures[0]


def test_one_that_raises_at_the_door_refuses(lab, guarded: Make) -> None:
    scheduler, failures = guarded(RaisesAtTheDoor)
    assert scheduler.add(lab.request(7, 9.0), now=0.0) is Reason.UNAVAILABLE
    assert "add raised KeyError: 7" in failures[0]
    assert len(scheduler) == 0


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(NamesOthers, "request 99 is not queued"), (AsksAgainAndAgain, "no request expired")],
)
def test_expired_requests_are_checked_too(
    lab, guarded: Make, kind: type[Fifo], sentence: str
) -> None:
    scheduler, failures = guarded(kind)
    scheduler.add(lab.request(0, 9.0), now=0.0)
    assert scheduler.expire(now=1.0) == ((0, Reason.UNAVAILABLE),)
    assert sentence in failures[0]


def test_one_that_cannot_be_made_fails_alone(lab, guarded: Make) -> None:
    class Broken(Fifo):
        def __init__(self, options, **arguments) -> None:
            raise ZeroDivisionError("early")

    scheduler, failures = guarded(Broken)
    assert "construction raised ZeroDivisionError: early" in failures[0]
    assert scheduler.add(lab.request(0, 9.0), now=0.0) is Reason.UNAVAILABLE


def test_the_queues_limit_holds_whatever_it_does(lab, guarded: Make) -> None:
    scheduler, _ = guarded(Fifo, max_queue=1)
    assert scheduler.add(lab.request(0, 9.0), now=0.0) is None
    assert scheduler.add(lab.request(1, 9.0), now=0.0) is Reason.QUEUE_FULL


def test_a_class_without_options_of_a_queue_is_refused() -> None:
    class Plain:
        Options = dict

    POLICIES.offer("plain", lambda: Plain)
    with pytest.raises(OptionError, match=QueueOptions.__name__):
        POLICIES.find("plain")
    del POLICIES._offers["plain"]
