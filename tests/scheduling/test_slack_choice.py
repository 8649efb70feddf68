"""`slack` against a brute-force evaluation of its rule, written from the formulas alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slacktide.domain import Batch, Notice, PoolId, Reason, Replica, Request
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.scheduling import SlackOptions
from slacktide.scheduling.slack import Slack

MAX_BATCH = 12
GRID = [1, 2, 3, 4, 6, 8, 12]
NOW = 5.0
WINDOW = 2.0
"""Seconds in which a best-effort request comes to be worth its penalty."""


def slack(
    lab: SimpleNamespace, latency: str = "weight_bound", sigma: float = 0.1, **options: object
) -> Slack:
    times = lab.LogNormalTimes(getattr(lab, latency), sigma)
    return Slack(SlackOptions(**options), max_batch=MAX_BATCH, times=times, view=lab.LaneView())


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def on_time(left: float, rows: int, times) -> float:
    """P(on time) as the policy has it: 32 straight pieces, and a cut of 0.1 % at either end."""
    low, high = (times.of(rows, 1).quantile(level) for level in (0.001, 1.0 - 0.001))
    edges = [low + (high - low) / 32 * i for i in range(32)]
    cdf = [times.of(rows, 1).on_time(edge) for edge in edges]
    return float(np.interp(left, [*edges, high], [*cdf, 1.0], left=0.0))


def score(
    members: list[Request],
    pending: int,
    times,
    *,
    kappa: float,
    now: float = NOW,
    held: float = 0.0,
    extra: Sequence[Request] = (),
) -> float:
    """Σ penalty · P(on time) · (1 − κ(1 − e^(−spare/τ))) / T, literally.

    `extra` are best-effort members, worth their penalty times the share of their window that is
    over.
    """
    rows = sum(member.rows for member in (*members, *extra))
    took = times.of(rows, 1).expected
    tau = (pending + 1) * times.of(1, 1).expected
    value = 0.0
    for member in members:
        left = member.deadline - now
        spare = max(0.0, left - times.of(member.rows, 1).expected - took)
        share = 1 - kappa * (1 - exp(-spare / tau))
        value += member.penalty * on_time(left, rows, times) * share
    for member in extra:
        window = member.deadline - member.arrival
        value += member.penalty * min(1.0, (now - member.arrival) / window)
    return value / (took + held)


def first_fit(requests: Sequence[Request], rows: int) -> list[Request]:
    """Those that fill at most `rows`; it looks no further than `within_rows` says."""
    members: list[Request] = []
    for request in requests[: 4 * rows]:
        if sum(member.rows for member in members) + request.rows <= rows:
            members.append(request)
    return members


def brute_force(
    requests: list[Request],
    times,
    *,
    kappa: float,
    levels: int,
    penalties: set[float],
    now: float = NOW,
) -> float:
    """The best score of all candidates of all signatures, if the lane is held until `now`.

    `penalties` are those of the requests that are here.
    """
    single = all(request.rows == 1 for request in requests)
    first_need = times.of(1, 1).quantile(0.5 / levels)
    best = 0.0
    lists = {(request.signature, least) for request in requests for least in penalties}
    for signature, least in lists:
        if least not in (min(penalties), max(penalties)):
            continue
        group = sorted(
            (
                request
                for request in requests
                if request.signature == signature
                and (least == min(penalties) or request.penalty == least)
                and (least == min(penalties) or request.deadline >= now + first_need)
            ),
            key=lambda request: (request.deadline, request.id),
        )
        sizes = list(GRID)
        if single:
            kept = [1]
            for size in GRID[1:]:
                if (
                    times.of(size, 1).expected / size
                    <= 0.98 * times.of(kept[-1], 1).expected / kept[-1]
                ):
                    kept.append(size)
            sizes = kept
            if len(group) <= kept[-1]:
                sizes = [size for size in kept if size < len(group)] + [len(group)]
        for smaller, size in zip([0, *sizes], sizes, strict=False):
            for level in range(levels):
                need = times.of(size, 1).quantile((level + 0.5) / levels)
                able = [request for request in group if request.deadline >= now + need]
                members = first_fit(able, size)
                if sum(member.rows for member in members) > smaller:
                    worth = score(
                        members, len(requests), times, kappa=kappa, now=now, held=now - NOW
                    )
                    best = max(best, worth)
    return best


@given(
    st.lists(
        st.tuples(
            st.floats(0.0105, 0.12),
            st.sampled_from([1.0, 1.0, 4.0]),
            st.sampled_from([(), (), ((3,),)]),
            st.sampled_from([1, 2, 5]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.booleans(),
    st.sampled_from(["weight_bound", "residual"]),
    st.sampled_from([0.02, 0.3]),
    st.sampled_from([(0.9, 4), (0.0, 1), (0.5, 2)]),
    st.lists(
        st.tuples(
            st.floats(0.0, 2.0 * WINDOW),
            st.sampled_from([1, 1, 2, 5]),
            st.sampled_from([(), (), ((3,),)]),
        ),
        max_size=5,
    ),
)
@example(  # The last one is worth most, but lies behind four that do not fit in a batch of one.
    drawn=[(0.0625, 1.0, (), 1)] * 2
    + [(0.0625, 4.0, (), 5), (0.078125, 4.0, (), 2)]
    + [(0.09375, 4.0, (), 2)] * 2
    + [(0.09375, 4.0, (), 1)],
    single=False,
    latency="residual",
    sigma=0.02,
    setting=(0.9, 4),
    best_effort=[],
)
def test_the_chosen_batch_is_the_best_of_all(
    lab, drawn, single: bool, latency: str, sigma: float, setting: tuple[float, int], best_effort
) -> None:
    kappa, levels = setting
    options = {
        "deferral_discount": kappa,
        "levels": levels,
        "admission": False,
        "best_effort_share": 0.0,
    }
    scheduler = slack(lab, latency, sigma, **options)
    times = lab.LogNormalTimes(getattr(lab, latency), sigma)
    for id, (left, penalty, signature, rows) in enumerate(drawn):
        request = lab.request(
            id,
            NOW + left,
            penalty=penalty,
            signature=signature,
            rows=1 if single else rows,
        )
        scheduler.admit_moved(request, now=NOW)
    scheduler.expire(now=NOW)
    waiting = []
    for id, (age, rows, signature) in enumerate(best_effort, start=100):
        request = lab.request(
            id,
            NOW + WINDOW - age,
            arrival=NOW - age,
            rows=rows,
            signature=signature,
            best_effort=True,
        )
        scheduler.admit_moved(request, now=NOW)
        waiting.append(request)
    requests = [request for request in scheduler.pending() if not request.best_effort]
    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    assert scheduler.propose(lab.REPLICA, now=NOW) == proposal
    if not requests:
        assert proposal == Idle() or all(member.best_effort for member in proposal.members)
        return
    assert isinstance(proposal, Proposal)
    assert proposal.rows == sum(member.rows for member in proposal.members) <= MAX_BATCH
    members = [member for member in proposal.members if not member.best_effort]
    penalties = {request.penalty for request in requests}
    best = brute_force(requests, times, kappa=kappa, levels=levels, penalties=penalties)
    if best == 0.0:
        assert len(members) == 1
        return
    pending = len(requests)
    assert score(members, pending, times, kappa=kappa) == pytest.approx(best, rel=1e-9)

    # Best-effort requests join, the oldest first, where that raises the score.
    waiting.sort(key=lambda request: (request.deadline, request.id))
    fitting = [request for request in waiting if request.signature == members[0].signature]
    room = MAX_BATCH - sum(member.rows for member in members)
    options: list[list[Request]] = [[]]
    for size in range(1, room + 1):
        if MAX_BATCH - room + size in GRID:
            extra = first_fit(fitting, size)
            rows = MAX_BATCH - room + sum(request.rows for request in extra)
            if members[0].deadline >= NOW + times.of(rows, 1).quantile(0.5 / levels):
                options.append(extra)
    scores = [score(members, pending, times, kappa=kappa, extra=extra) for extra in options]
    joined = [member for member in proposal.members if member.best_effort]
    assert joined in [
        extra
        for extra, score in zip(options, scores, strict=True)
        if score >= max(scores) * (1.0 - 1e-9)
    ]


@given(
    st.lists(
        st.tuples(
            st.floats(0.0105, 0.12),
            st.sampled_from([1.0, 1.0, 4.0]),
            st.sampled_from([(), (), ((3,),)]),
            st.sampled_from([1, 1, 2, 5]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.lists(
        st.tuples(st.floats(1e-4, 0.006), st.floats(0.011, 0.12), st.sampled_from([1.0, 4.0])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["weight_bound", "residual"]),
    st.sampled_from([0.02, 0.3]),
    st.sampled_from([(0.9, 4), (0.0, 1)]),
)
def test_the_lane_is_held_when_the_rule_says_so(
    lab, drawn, coming, latency: str, sigma: float, setting: tuple[float, int]
) -> None:
    kappa, levels = setting
    options = {"deferral_discount": kappa, "levels": levels, "admission": False, "lead": 0.5}
    scheduler = slack(lab, latency, sigma, **options)
    times = lab.LogNormalTimes(getattr(lab, latency), sigma)
    for id, (left, penalty, signature, rows) in enumerate(drawn):
        request = lab.request(id, NOW + left, penalty=penalty, signature=signature, rows=rows)
        scheduler.admit_moved(request, now=NOW)
    for id, (after, left, penalty) in enumerate(coming, start=100):
        notice = Notice(id, "m", NOW, NOW + left, 1, penalty=penalty, complete_at=NOW + after)
        assert scheduler.announce(notice, now=NOW) is None
    scheduler.expire(now=NOW)
    requests = list(scheduler.pending())
    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    if not requests:
        assert proposal == Idle()
        return

    def best(pending: list[Request], now: float) -> float:
        return brute_force(pending, times, kappa=kappa, levels=levels, penalties=penalties, now=now)

    penalties = {request.penalty for request in requests}
    shape = requests[0].signature
    ahead = sorted((NOW + after, id) for id, (after, _, _) in enumerate(coming, start=100))
    soon = [(at, id) for at, id in ahead if at <= NOW + 0.5 * times.of(1, 1).expected][:4]
    present = best(requests, NOW)
    later = 0.0
    for at, id in soon:
        _, left, penalty = coming[id - 100]
        requests.append(lab.request(id, NOW + left, penalty=penalty, signature=shape))
        later = max(later, best(requests, at))
    if later > 1.05 * present * (1 + 1e-9):
        assert proposal == WaitUntil(soon[0][0])
    elif later < 1.05 * present * (1 - 1e-9):
        assert isinstance(proposal, Proposal)


def test_a_nearly_late_head_is_passed_over_for_a_full_batch(lab) -> None:
    """Where `edf` would run the head alone and lose the others' time."""
    scheduler = slack(lab, sigma=0.02)
    scheduler.add(lab.request(0, 0.0105), now=0.0)
    for id in range(1, 13):
        scheduler.add(lab.request(id, 0.028), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == list(range(1, 13))


def test_of_batches_worth_the_same_the_first_in_order_runs(lab) -> None:
    scheduler = slack(lab)
    for id, signature in enumerate([((2,),), ((1,),), ((3,),)]):
        scheduler.admit_moved(lab.request(id, NOW + 1.0, signature=signature), now=NOW)
    assert ids(scheduler.propose(lab.REPLICA, now=NOW)) == [0]


def test_a_best_effort_request_that_is_worth_nothing_yet_does_not_join(lab) -> None:
    """Not even where a batch of two takes no longer than one: it would only be late for it."""
    times = lab.LogNormalTimes(lab.steps([0.010] + [0.0] * 11), 0.1)
    scheduler = Slack(SlackOptions(), max_batch=MAX_BATCH, times=times, view=lab.LaneView())
    scheduler.admit_moved(lab.request(0, NOW + 1.0), now=NOW)
    scheduler.admit_moved(lab.request(1, NOW + WINDOW, arrival=NOW, best_effort=True), now=NOW)
    assert ids(scheduler.propose(lab.REPLICA, now=NOW)) == [0]
    assert ids(scheduler.propose(lab.REPLICA, now=NOW + 0.1)) == [0, 1]


def test_a_costlier_deadline_is_worth_more(lab) -> None:
    scheduler = slack(lab, "residual", sigma=0.02)
    scheduler.add(lab.request(0, 0.0145), now=0.0)
    scheduler.add(lab.request(1, 0.0150, penalty=4.0), now=0.0)
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [1]


@pytest.mark.parametrize(("options", "level"), [({"drop": 0.2}, 0.2), ({"guarantee": "p99"}, 0.99)])
def test_hopeless_requests_are_dropped_at_the_drop_level_or_what_is_guaranteed(
    lab, options: dict[str, object], level: float
) -> None:
    scheduler = slack(lab, sigma=0.1, **options)
    times = lab.LogNormalTimes(lab.weight_bound, 0.1)
    latest = 1.0 - times.of(1, 1).quantile(level)
    scheduler.add(lab.request(0, 1.0), now=0.0)
    assert scheduler.next_expiry() == pytest.approx(latest)
    assert scheduler.expire(now=latest - 1e-6) == []
    assert scheduler.expire(now=latest + 1e-6) == [(0, Reason.HOPELESS)]


def test_guarantee_p99_admits_no_member_that_a_slow_batch_would_miss(lab) -> None:
    scheduler = slack(lab, sigma=0.1, guarantee="p99")
    times = lab.LogNormalTimes(lab.weight_bound, 0.1)
    for id in range(8):
        scheduler.add(lab.request(id, 0.014 + id * 0.003), now=0.0)
    proposal = scheduler.propose(lab.REPLICA, now=0.0)
    assert isinstance(proposal, Proposal)
    earliest = min(member.deadline for member in proposal.members)
    assert len(proposal.members) > 1
    assert times.of(proposal.rows, 1).p99 <= earliest


def test_tables_follow_changed_predictions(lab) -> None:
    times = lab.LogNormalTimes(lab.weight_bound, 0.02)
    scheduler = Slack(SlackOptions(), max_batch=MAX_BATCH, times=times, view=lab.LaneView())
    for id in range(12):
        scheduler.add(lab.request(id, 0.030), now=0.0)
    assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) == 12
    times.latency = lambda rows: 2.0 * lab.weight_bound(rows)
    times.revision += 1
    assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) < 8


def test_a_replica_that_takes_fewer_rows_gets_fewer(lab) -> None:
    scheduler = slack(lab, sigma=0.02)
    for id in range(12):
        scheduler.add(lab.request(id, 1.0), now=0.0)
    small = Replica(id=1, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=3)
    assert len(ids(scheduler.propose(small, now=0.0))) == 3


@pytest.mark.parametrize(("ahead", "chosen"), [(3, [3]), (4, [0])])
def test_behind_four_that_do_not_fit_in_a_row_it_looks_no_further(
    lab, ahead: int, chosen: list[int]
) -> None:
    scheduler = slack(lab)
    for id in range(ahead + 1):
        request = lab.request(id, 1.0, rows=2 if id < ahead else 1)
        scheduler.admit_moved(request, now=0.0)
    single = Replica(id=1, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=1)
    assert ids(scheduler.propose(single, now=0.0)) == chosen


def test_the_costliest_are_looked_for_beyond_those_that_are_late(lab) -> None:
    scheduler = slack(lab)
    for id in range(9):  # One more than are looked at for a batch of one.
        scheduler.admit_moved(lab.request(id, 0.001, penalty=4.0), now=0.0)
    scheduler.admit_moved(lab.request(9, 0.1), now=0.0)
    scheduler.admit_moved(lab.request(10, 0.2, penalty=4.0), now=0.0)
    single = Replica(id=1, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=1)
    assert ids(scheduler.propose(single, now=0.0)) == [10]


class TestBestEffort:
    """Spare room, idle lane, floor."""

    def test_an_idle_lane_runs_it_in_batches_no_larger_than_pays(self, lab) -> None:
        for latency, expected in (("residual", [0]), ("weight_bound", list(range(12)))):
            scheduler = slack(lab, latency)
            for id in range(12):
                scheduler.add(lab.request(id, 1.0 + id, best_effort=True), now=0.0)
            assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == expected

    def test_it_fills_spare_room_once_it_has_aged(self, lab) -> None:
        scheduler = slack(lab, sigma=0.02)
        scheduler.add(lab.request(0, 1.0, best_effort=True), now=0.0)
        scheduler.add(lab.request(1, 0.09), now=0.0)
        scheduler.add(lab.request(2, 0.53), now=0.0)
        assert 0 not in ids(scheduler.propose(lab.REPLICA, now=0.0))
        assert scheduler.remove(1)
        assert ids(scheduler.propose(lab.REPLICA, now=0.5)) == [2, 0]

    def test_it_displaces_nobody(self, lab) -> None:
        scheduler = slack(lab, sigma=0.02, best_effort_share=0.0)
        scheduler.add(lab.request(99, 1.0, best_effort=True), now=0.0)
        for id in range(12):
            scheduler.admit_moved(lab.request(id, 50.03), now=50.0)
        assert sorted(ids(scheduler.propose(lab.REPLICA, now=50.0))) == list(range(12))

    def test_it_makes_no_batch_too_long_for_its_first_deadline(self, lab) -> None:
        scheduler = slack(lab, sigma=0.02, best_effort_share=0.0)
        for id in range(1, 12):
            scheduler.add(lab.request(id, 10.0, best_effort=True), now=0.0)
        scheduler.admit_moved(lab.request(0, 30.0105), now=30.0)
        assert ids(scheduler.propose(lab.REPLICA, now=30.0)) == [0]

    def test_overdue_it_leads_but_only_for_its_share_of_the_lane(self, lab) -> None:
        scheduler = slack(lab, sigma=0.02, best_effort_share=0.1)
        for id in (98, 99):
            scheduler.add(lab.request(id, 1.0 + id, best_effort=True), now=0.0)
        for id in range(12):
            scheduler.admit_moved(lab.request(id, 200.2), now=200.0)
        first = scheduler.propose(lab.REPLICA, now=200.0)
        assert ids(first) == [98, 99]
        scheduler.take(Batch(0, lab.REPLICA, first.members[:1], 1, 200.0, 201.0))
        assert 99 not in ids(scheduler.propose(lab.REPLICA, now=200.01))[:1]
        assert ids(scheduler.propose(lab.REPLICA, now=200.11)) == [99]

    def test_it_is_never_refused_and_never_expires(self, lab) -> None:
        scheduler = slack(lab)
        for id in range(100):
            assert scheduler.add(lab.request(id, 1e-9, best_effort=True), now=0.0) is None
        assert scheduler.expire(now=1e9) == ()
        assert scheduler.next_expiry() is None
        assert len(scheduler) == 100


@pytest.mark.parametrize(
    "bad", [{"levels": 0}, {"deferral_discount": 1.1}, {"drop": 0.0}, {"best_effort_share": 2.0}]
)
def test_options_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SlackOptions(**bad)
