"""`slack` refuses at the door what would be on time only at the cost of others, and gives up at
once what has lost its place (docs/decisions/0030-refusing-early.md)."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.ports import Proposal
from slacktide.scheduling import make_scheduler
from slacktide.scheduling.promises import AT_ONCE

SECOND = 0.01
"""Seconds that a row takes, in every batch; `free_in` and deadlines below are multiples of it."""


def slack_on(lab: SimpleNamespace, **options: object) -> Any:
    """`slack` on a lane where every row takes 10 ms; its view is `scheduler.lane`."""
    times = lab.LogNormalTimes(lambda rows: SECOND * rows, 0.001)
    view = lab.LaneView()
    scheduler = make_scheduler("slack", options, max_batch=8, times=times, view=view)
    return SimpleNamespace(it=scheduler, lane=view)


def asked(bench: Any, request: Request, *, now: float | None = None) -> Reason | None:
    reason: Reason | None = bench.it.add(request, now=request.arrival if now is None else now)
    return reason


def came(id: int, due: float, arrival: float = 0.0, **fields: Any) -> Request:
    return Request(id, "m", arrival, due, **fields)


def crowded(lab: SimpleNamespace) -> Any:
    """A batch runs for 10 ms; 0 and 1 wait and just fit behind it, and one was refused."""
    bench = slack_on(lab)
    bench.lane.free_at = 0.010
    assert asked(bench, came(0, 0.025)) is None
    assert asked(bench, came(9, 0.024)) is Reason.BEHIND_WORK
    assert asked(bench, came(1, 0.031)) is None
    return bench


def test_none_that_waits_is_made_late_by_a_newcomer(lab) -> None:
    bench = slack_on(lab)
    for id in range(3):
        assert asked(bench, came(id, 0.031)) is None
    # Due first, and in time if it ran first: then one of the three would not be.
    assert asked(bench, came(3, 0.025)) is Reason.BEHIND_WORK
    assert asked(bench, came(4, 0.041)) is None
    assert list(bench.it.expire(now=0.0)) == []


def test_one_that_costs_more_comes_before_those_that_cost_less(lab) -> None:
    bench = slack_on(lab)
    for id in range(3):
        assert asked(bench, came(id, 0.031)) is None
    assert asked(bench, came(3, 0.025, penalty=2.0)) is None


def test_a_newcomer_takes_the_place_of_one_that_has_just_come_and_is_due_earlier(lab) -> None:
    bench = crowded(lab)
    # 10 ms of the batch that runs, 30 ms of work: one of the three is too many.
    assert asked(bench, came(2, 0.034, 0.002)) is None
    assert bench.it.next_expiry() <= 0.002
    assert bench.it.expire(now=0.002) == [(1, Reason.BEHIND_WORK)]
    assert [request.id for request in bench.it.pending()] == [0, 2]


def test_none_that_has_waited_longer_gives_its_place(lab) -> None:
    bench = crowded(lab)
    late = AT_ONCE + 0.001
    assert asked(bench, came(2, 0.038, late)) is Reason.BEHIND_WORK


def test_a_mere_notice_takes_the_place_of_none(lab) -> None:
    bench = crowded(lab)
    notice = Notice(2, "m", 0.002, 0.034, payload_bytes=9, complete_at=0.003)
    assert bench.it.announce(notice, now=0.002) is Reason.BEHIND_WORK
    assert list(bench.it.expire(now=0.002)) == []


def test_one_that_was_withdrawn_after_it_lost_its_place_is_not_named(lab) -> None:
    bench = crowded(lab)
    assert asked(bench, came(2, 0.034, 0.002)) is None
    assert bench.it.remove(1)
    assert list(bench.it.expire(now=0.002)) == []


def test_after_a_batch_that_took_longer_those_without_a_place_are_given_up(lab) -> None:
    bench = slack_on(lab)
    running = lab.batch(Proposal((came(9, 1.0),), 1))
    bench.lane.free_at = 0.010
    for id in range(4):
        assert asked(bench, came(id, 0.051)) is None
    assert asked(bench, came(4, 0.0509)) is Reason.BEHIND_WORK
    bench.lane.free_at = 0.025
    bench.it.ended(running, now=0.025)
    assert bench.it.next_expiry() <= 0.025
    # 26 ms are left until the deadline: two fit.
    assert bench.it.expire(now=0.025) == [(2, Reason.CROWDED_OUT), (3, Reason.CROWDED_OUT)]
    assert len(bench.it) == 2


def test_a_costly_one_is_not_given_up_for_cheaper_ones_ahead_of_it(lab) -> None:
    bench = slack_on(lab)
    running = lab.batch(Proposal((came(9, 1.0),), 1))
    bench.lane.free_at = 0.010
    for id in range(3):
        assert asked(bench, came(id, 0.050)) is None
    assert asked(bench, came(3, 0.051, penalty=5.0)) is None
    assert asked(bench, came(4, 0.0505), now=2 * AT_ONCE) is Reason.BEHIND_WORK
    bench.it.ended(running, now=0.025)
    bench.lane.free_at = 0.025
    assert 3 not in dict(bench.it.expire(now=0.025))


@given(
    dues=st.lists(st.floats(0.011, 0.3), max_size=40),
    free=st.floats(0.0, 0.05),
    leave=st.floats(0.2, 1.0),
    pair=st.tuples(st.floats(0.011, 0.3), st.floats(0.0, 0.2)),
    rows=st.sampled_from([1, 1, 2]),
)
def test_a_later_deadline_is_never_refused_where_an_earlier_one_is_let_in(
    lab, dues: Sequence[float], free: float, leave: float, pair: tuple[float, float], rows: int
) -> None:
    """Unless others are due between the two: these come before the later one alone."""
    answers = []
    dues = [due for due in dues if not pair[0] <= due <= pair[0] + pair[1]]
    for due in (pair[0], pair[0] + pair[1]):
        bench = slack_on(lab)
        bench.lane.free_at = free
        bench.lane.leave = lambda *, now: lambda within: leave * within
        for id, other in enumerate(dues):
            asked(bench, came(id, other), now=0.0)
        answers.append(asked(bench, came(100, due, 0.02, rows=rows), now=0.0))
    assert answers[0] is not None or answers[1] is None


@given(due=st.floats(0.0105, 10.0), leave=st.floats(0.0, 1.0))
def test_none_is_refused_that_fits_by_itself_where_a_lane_is_free(lab, due: float, leave: float):
    bench = slack_on(lab, late_refusals=0.0)
    bench.lane.leave = lambda *, now: lambda within: leave * within
    for _ in range(200):
        bench.it._promises.lost(1)
    assert asked(bench, came(0, due)) is None


@given(
    gaps=st.lists(st.floats(0.0, 0.03), min_size=1, max_size=120),
    budgets=st.lists(st.sampled_from([0.015, 0.03, 0.05, 0.2]), min_size=1, max_size=7),
    penalties=st.lists(st.sampled_from([1.0, 1.0, 3.0]), min_size=1, max_size=5),
    rows=st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=3),
    late=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_every_request_ends_once_whoever_takes_whose_place(
    lab,
    gaps: Sequence[float],
    budgets: Sequence[float],
    penalties: Sequence[float],
    rows: Sequence[int],
    late: float,
) -> None:
    times = lab.LogNormalTimes(lambda rows: 0.004 + 0.006 * rows, 0.3)
    view = lab.LaneView()
    scheduler = make_scheduler(
        "slack", {"late_refusals": late}, max_batch=8, times=times, view=view
    )
    now, arrivals = 0.0, []
    for id, gap in enumerate(gaps):
        now += gap
        fields = {"penalty": penalties[id % len(penalties)], "rows": rows[id % len(rows)]}
        arrivals.append(came(id, now + budgets[id % len(budgets)], now, **fields))
    run = lab.simulate(scheduler, view, arrivals, times)
    assert run.on_time + run.late + sum(run.refused.values()) == len(arrivals)
    assert len(scheduler) == 0


class Watched:
    """A scheduler that notes how long each refused request had waited."""

    def __init__(self, scheduler: Any, arrivals: Sequence[Request]) -> None:
        self._scheduler = scheduler
        self._arrival = {request.id: request.arrival for request in arrivals}
        self.waits: list[float] = []

    def add(self, request: Request, *, now: float) -> Reason | None:
        reason: Reason | None = self._scheduler.add(request, now=now)
        if reason is not None:
            self.waits.append(0.0)
        return reason

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        gone: Sequence[tuple[int, Reason]] = self._scheduler.expire(now=now)
        self.waits += [now - self._arrival[id] for id, _ in gone]
        return gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def __len__(self) -> int:
        return len(self._scheduler)

    @property
    def soon(self) -> float:
        """Share of the refusals that came at once."""
        return sum(wait <= AT_ONCE + 1e-9 for wait in self.waits) / len(self.waits)


def watched(
    lab: SimpleNamespace, law: Any, rate: float, slos: list[float], cv: float, **options: object
) -> tuple[float, float]:
    """(share of the refusals that came at once, goodput)."""
    times = lab.LogNormalTimes(law, 0.05)
    view = lab.LaneView()
    arrivals = lab.requests(rate, 3000, slos, cv=cv)
    scheduler = Watched(
        make_scheduler("slack", options, max_batch=16, times=times, view=view), arrivals
    )
    run = lab.simulate(scheduler, view, arrivals, times)
    return scheduler.soon, run.goodput


@pytest.mark.parametrize(
    ("load", "slos", "cv", "goodput"),
    [
        (2.0, [5], 1.0, 0.50),
        (1.3, [2, 5, 10], 1.0, 0.74),
        (1.3, [5], 3.0, 0.48),
        (1.3, [10], 1.0, 0.77),
    ],
)
def test_most_refusals_come_at_once_and_cost_no_goodput(
    lab, load: float, slos: list[float], cv: float, goodput: float
) -> None:
    alone = lab.residual(1)
    soon, share = watched(lab, lab.residual, load / alone, [slo * alone for slo in slos], cv)
    assert soon > 0.7
    assert share > goodput


def test_fewer_late_refusals_are_had_by_more_at_the_door(lab) -> None:
    def law(rows: int) -> float:
        return 0.005 + 0.003 * rows

    counts = [
        watched(lab, law, 300.0, [0.03, 0.06, 0.06, 0.25], 2.0, late_refusals=late)
        for late in (1.0, 0.5, 0.0)
    ]
    (often, most), (seldom, _), (hardly, least) = counts
    assert often < seldom < hardly
    assert most > least
