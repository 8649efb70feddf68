"""`orloj` and `orloj_text`: exact batches, and Algorithm 1 done the slow way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Reason, Request
from slacktide.engine.ports import Idle, Proposal
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses, classes_of_samples
from slacktide.scheduling.orloj import Orloj, OrlojOptions, OrlojText

LATENCY = BatchLatency(c0=0.005, c1=0.001, sizes=(1, 2, 4, 8))
LENGTHS = {
    "short": np.random.default_rng(1).normal(3.0, 1.0, 500).clip(0.1),
    "mixed": np.random.default_rng(2).choice([2.0, 18.0], 500),
    "long": np.random.default_rng(3).normal(17.0, 2.0, 500).clip(0.1),
}
SHARES = {"short": 0.5, "mixed": 0.2, "long": 0.3}


def classes() -> RunClasses:
    return classes_of_samples(LENGTHS, LATENCY, shares=SHARES, most=3)


CLASSES = classes()


def scheduler(
    lab: SimpleNamespace, kind: type[Orloj] = Orloj, *, max_batch: int = 8, **options: object
) -> Orloj:
    all_options = OrlojOptions(**{"admission": False, **options})
    return kind(all_options, max_batch=max_batch, times=FixedTimes(CLASSES), view=lab.LaneView())


def like(lab: SimpleNamespace, latency: object, **options: object) -> Orloj:
    """One whose pool knows no classes."""
    all_options = OrlojOptions(**{"admission": False, **options})
    times = lab.LogNormalTimes(latency)
    return Orloj(all_options, max_batch=8, times=times, view=lab.LaneView())


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


# Algorithm 1, literally


MIXTURE = sum(share * cdf for share, cdf in zip(CLASSES.shares, CLASSES.cdfs, strict=True))


def cdf_of_batch(of: int, size: int) -> np.ndarray:
    """Of the longest of a batch with somebody of class `of` in it."""
    return CLASSES.cdfs[of] * MIXTURE ** (size - 1)


def mean_of_batch(size: int) -> float:
    """Of a batch of anybody."""
    tail = 1.0 - MIXTURE**size
    return LATENCY.c0 + LATENCY.c1 * size * CLASSES.step * float(np.sum(tail[:-1] + tail[1:]) / 2)


def mean_by_class(of: int, size: int) -> float:
    """Of a batch with somebody of class `of` in it."""
    tail = 1.0 - cdf_of_batch(of, size)
    tail[0] = 1.0
    return LATENCY.c0 + LATENCY.c1 * size * CLASSES.step * float(np.sum(tail[:-1] + tail[1:]) / 2)


def line_11(request: Request, size: int, reading: str) -> float:
    """EstimateBatchLatency(r, bs), by the three readings."""
    own = reading in ("own_class", "by_class")
    return mean_by_class(CLASSES.class_of(request), size) if own else mean_of_batch(size)


def score_of(request: Request, size: int, *, now: float, b: float, reading: str = "batch") -> float:
    """Eq. 2 for `request` in a batch of `size`, bin by bin, in slack."""
    of = CLASSES.class_of(request)
    cdf = cdf_of_batch(of, size)
    mean = mean_by_class(of, size) if reading == "by_class" else mean_of_batch(size)
    slack = request.deadline - now
    edges = LATENCY.c0 + LATENCY.c1 * size * CLASSES.step * np.arange(len(cdf))
    l1, l2 = edges[:-1], edges[1:]
    h = np.diff(cdf) / (l2 - l1)
    past = np.exp(-b * np.maximum(slack - l2, 0.0)) - np.exp(-b * np.maximum(slack - l1, 0.0))
    inside = 1.0 - np.exp(-b * np.maximum(slack - l1, 0.0))
    p = np.where(slack > l2, past, np.where(slack > l1, inside, 0.0)) * h
    return request.penalty * float(p.sum()) / (b * mean)


def algorithm_1(
    pending: list[Request], *, now: float, text: bool, reading: str
) -> tuple[int, list[Request]]:
    """(size, everyone that can make it); lines 10 to 19."""
    makers = {
        size: [
            request
            for request in pending
            if now + line_11(request, size, reading) <= request.deadline
        ]
        for size in (1, 2, 4, 8)
    }
    sizes = [size for size, able in makers.items() if len(able) >= size]
    first = {size: min(request.deadline for request in makers[size]) for size in sizes}
    if text:
        chosen = min(sizes, key=lambda size: (first[size], -size))
    else:
        chosen = sorted(sizes, key=lambda size: (first[size], size), reverse=True)[0]
    return chosen, makers[chosen]


requests = st.lists(
    st.tuples(
        st.integers(20, 400).map(lambda i: i / 1600 + 1 / 12345),
        st.sampled_from(["short", "mixed", "long", "stranger"]),
        st.sampled_from([1.0, 1.0, 4.0]),
    ),
    min_size=1,
    max_size=40,
)


READINGS = ("batch", "own_class", "by_class")


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("kind", [Orloj, OrlojText])
@given(requests, st.sampled_from([0.001, 0.1, 30.0]))
def test_the_batch_is_that_of_algorithm_1(
    lab, kind: type[Orloj], reading: str, some, b: float
) -> None:
    policy = scheduler(lab, kind, delay_rate=b, times=reading)
    now = 1.0
    for id, (slack, application, penalty) in enumerate(some):
        request = lab.request(id, now + slack, application=application, penalty=penalty)
        assert policy.add(request, now=now) is None
    policy.expire(now=now)
    pending = list(policy.pending())
    if not pending:
        return
    size, able = algorithm_1(pending, now=now, text=kind is OrlojText, reading=reading)
    members = policy.propose(lab.REPLICA, now=now).members
    assert len(members) == size
    scores = {
        request.id: score_of(request, size, now=now, b=b, reading=reading) for request in able
    }
    best = sorted(scores.values(), reverse=True)[:size]
    chosen = sorted((scores[member.id] for member in members), reverse=True)
    assert chosen == pytest.approx(best, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("reading", READINGS)
@given(requests)
def test_whoever_cannot_make_a_batch_of_its_own_is_given_up(lab, reading: str, some) -> None:
    policy = scheduler(lab, times=reading)
    now = 1.0
    hopeless = set()
    for id, (slack, application, _) in enumerate(some):
        request = lab.request(id, now + slack, application=application)
        policy.add(request, now=now)
        if slack < line_11(request, 1, reading):
            hopeless.add(id)
    assert (policy.next_expiry() <= now) == bool(hopeless)
    assert {id for id, _ in policy.expire(now=now)} == hopeless
    assert policy.next_expiry() is None or policy.next_expiry() > now
    assert {reason for _, reason in policy.expire(now=9.0)} <= {Reason.EXPIRED}
    assert len(policy) == 0


# Examples


def test_the_two_readings_of_line_16(lab) -> None:
    for kind, expected in ((Orloj, [1, 2]), (OrlojText, [0])):
        times = lab.LogNormalTimes(lambda rows: 0.01 * rows)
        policy = kind(OrlojOptions(admission=False), max_batch=8, times=times, view=lab.LaneView())
        for id, deadline in enumerate([0.015, 0.5, 0.6]):
            policy.add(lab.request(id, deadline), now=0.0)
        assert sorted(ids(policy.propose(lab.REPLICA, now=0.0))) == expected


def test_a_batch_is_full_or_alone_even_where_rows_are_many(lab) -> None:
    policy = like(lab, lambda rows: 0.01 * rows)
    assert policy.propose(lab.REPLICA, now=0.0) == Idle()
    policy.add(lab.request(0, 1.0, rows=3), now=0.0)
    assert ids(policy.propose(lab.REPLICA, now=0.0)) == [0]  # no size is filled: it runs alone
    policy.add(lab.request(1, 2.0, rows=3), now=0.0)
    proposal = policy.propose(lab.REPLICA, now=0.0)
    assert len(proposal.members) == 1  # two would be six rows, and a batch of four takes three
    policy.add(lab.request(2, 3.0, rows=2), now=0.0)
    proposal = policy.propose(lab.REPLICA, now=0.0)
    assert (sorted(ids(proposal)), proposal.rows) == ([0, 1, 2], 8)


def test_the_costly_go_first_and_shapes_do_not_mix(lab) -> None:
    policy = like(lab, lambda rows: 0.01 * rows)
    for id in range(6):
        penalty = 5.0 if id in (3, 5) else 1.0
        policy.add(lab.request(id, 0.025, penalty=penalty, signature=((id % 2,),)), now=0.0)
    assert sorted(ids(policy.propose(lab.REPLICA, now=0.0))) == [3, 5]


def test_only_the_shapes_of_the_earliest_deadlines_are_looked_at(lab) -> None:
    policy = like(lab, lambda rows: 0.01 * rows)
    for id in range(20):
        policy.add(lab.request(id, 2.0 - id / 100, signature=((id,),)), now=0.0)
    policy.add(lab.request(20, 2.5, penalty=99.0, signature=((20,),)), now=0.0)
    assert ids(policy.propose(lab.REPLICA, now=0.0))[0] in range(12, 20)


def test_the_replica_limits_the_size(lab) -> None:
    policy = scheduler(lab, max_batch=64)
    for id in range(80):
        policy.add(lab.request(id, 9.0), now=0.0)
    assert len(ids(policy.propose(lab.REPLICA, now=0.0))) == 32


def test_best_effort_runs_when_nobody_waits_and_overdue_in_its_share(lab) -> None:
    policy = like(lab, lambda rows: 0.01 * rows, best_effort_share=0.5)
    for id in (0, 1):
        policy.add(lab.request(id, 1.0, best_effort=True), now=0.0)
    assert ids(policy.propose(lab.REPLICA, now=0.0)) == [0, 1]
    policy.add(lab.request(2, 0.5), now=0.0)
    assert ids(policy.propose(lab.REPLICA, now=0.0)) == [2]
    policy.add(lab.request(3, 9.0), now=1.0)
    policy.expire(now=1.0)
    overdue = lab.batch(policy.propose(lab.REPLICA, now=1.0), now=1.0)
    assert [member.id for member in overdue.members] == [0, 1]
    policy.take(overdue)
    policy.add(lab.request(4, 1.0, best_effort=True), now=1.0)
    assert ids(policy.propose(lab.REPLICA, now=1.02)) == [3]
    assert ids(policy.propose(lab.REPLICA, now=1.05)) == [4]
    assert policy.expire(now=1.05) == []


def test_with_later_steps_a_late_answer_still_counts(lab) -> None:
    plain = like(lab, lambda rows: 0.01 * rows)
    two = like(lab, lambda rows: 0.01 * rows, steps=((0.1, 2.0),))
    for policy in (plain, two):
        policy.add(lab.request(0, 0.005), now=0.0)
    assert plain.expire(now=0.0) == [(0, Reason.HOPELESS)]
    assert two.expire(now=0.0) == []
    assert ids(two.propose(lab.REPLICA, now=0.05)) == [0]
    assert two.next_expiry() == pytest.approx(0.095)
    assert two.expire(now=0.0951) == [(0, Reason.HOPELESS)]


def test_whenever_it_asks_to_be_asked_somebody_is_given_up(lab) -> None:
    """Also where a sum of two times, less one of them, is a bit less than the other."""
    two = like(lab, lambda rows: 0.01 * rows, steps=((0.1, 2.0),))
    for id in range(1, 2_000):
        two.admit_moved(lab.request(id, 0.01 + id * 1e-4 / 7.0), now=0.0)
        at = two.next_expiry()
        assert at is not None
        assert [gone for gone, _ in two.expire(now=at)] == [id]


def test_classes_that_change_sort_everybody_anew(lab) -> None:
    class Replaceable(FixedTimes):
        revision = 0

    times = Replaceable(CLASSES)
    policy = Orloj(OrlojOptions(admission=False), max_batch=8, times=times, view=lab.LaneView())
    slack = mean_of_batch(1) * 1.1
    policy.admit_moved(lab.request(0, slack, application="short"), now=0.0)
    policy.admit_moved(lab.request(1, slack, application="long"), now=0.0)
    assert ids(policy.propose(lab.REPLICA, now=0.0)) == [0]  # the long one will hardly make it
    swapped = {"short": LENGTHS["long"], "mixed": LENGTHS["mixed"], "long": LENGTHS["short"]}
    shares = {"short": 0.3, "mixed": 0.2, "long": 0.5}
    times._classes = classes_of_samples(swapped, LATENCY, shares=shares, most=3)
    times.revision = 1
    assert ids(policy.propose(lab.REPLICA, now=0.0)) == [1]


def test_it_refuses_at_the_door_what_is_given_up_anyway(lab) -> None:
    policy = scheduler(lab, admission=True)
    alone = mean_of_batch(1)
    assert policy.add(lab.request(0, 0.99 * alone), now=0.0) is Reason.SHORTER_THAN_ALONE
    assert policy.add(lab.request(1, 1.01 * alone, application="long"), now=0.0) is None
    assert policy.expire(now=0.0) == []


def test_by_class_a_short_request_is_not_refused_for_what_others_take(lab) -> None:
    slack = 0.99 * mean_of_batch(1)  # enough for a short one, too little for one of anybody
    for reading, refused in (("own_class", None), ("batch", Reason.SHORTER_THAN_ALONE)):
        policy = scheduler(lab, admission=True, times=reading)
        assert policy.add(lab.request(0, slack, application="short"), now=0.0) is refused
        assert policy.add(lab.request(1, slack, application="long"), now=0.0) is not None
        assert len(policy) == (refused is None)
        assert policy.expire(now=0.0) == ([] if len(policy) else ())
