"""`slack` with classes against a brute-force evaluation of its rule, written from the formulas."""

from __future__ import annotations

from dataclasses import replace
from math import exp, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses, classes_of_samples
from slacktide.scheduling import Slack, SlackOptions
from slacktide.scheduling.class_tables import Compositions
from slacktide.scheduling.tables import size_grid

POINTS = 96
LIMIT = 8
NOW = 5.0
NAMES = "abcd"


def run_classes(
    shapes: list[list[float]], latency: BatchLatency, *, step: float = 0.0005
) -> RunClasses:
    """A class for each list of weights, which lie evenly on the grid; sorted by mean."""
    cdfs = []
    for weights in shapes:
        mass = np.interp(np.arange(POINTS), np.linspace(0, POINTS - 1, len(weights)), weights)
        mass[0] = 0.0
        cdf = np.cumsum(mass) / mass.sum()
        cdf[-1] = 1.0
        cdfs.append(cdf)
    cdfs.sort(key=lambda cdf: -cdf.sum())
    count = len(cdfs)
    return RunClasses(
        latency=latency,
        step=step,
        cdfs=np.stack(cdfs),
        means=tuple(step * float((1.0 - cdf).sum() - 0.5) for cdf in cdfs),
        shares=(1.0 / count,) * count,
        by_key={(NAMES[g], -1): g for g in range(count)},
        fallback=count - 1,
    )


class Rule:
    """The rule, literally: every candidate and its score."""

    def __init__(self, classes: RunClasses, options: SlackOptions, limit: int = LIMIT) -> None:
        self.classes, self.options, self.limit = classes, options, limit
        self.latency = classes.latency
        mean = sum(s * m for s, m in zip(classes.shares, classes.means, strict=True))
        self.mean = mean
        self.a = self.latency.c0 + self.latency.c1 * self.latency.paid(1) * mean
        given = self.latency.sizes
        self.sizes = (
            sorted({limit, *(size for size in given if size <= limit)})
            if given
            else list(size_grid(limit))
        )

    def paying(self, m: int) -> list[tuple[int, int]]:
        """(place, size) of those that save a hundredth per row, all members being of class m."""
        found: list[tuple[int, int]] = []
        least = float("inf")
        for i, k in enumerate(self.sizes):
            longest = self.classes.step * float((1 - self.classes.cdfs[m] ** k).sum() - 0.5)
            per_row = self.latency.seconds(k, longest) / k
            if per_row <= 0.99 * least:
                found.append((i, k))
                least = per_row
        return found

    def full_enough(self, members: list[Request], i: int) -> bool:
        rows, size = sum(r.rows for r in members), self.sizes[i]
        c = self.longest(members)
        longest = self.classes.step * next(j for j in range(POINTS) if c[j] >= 0.9)
        sparse = self.latency.sizes and self.latency.c0 < 2.3 * self.latency.c1 * longest
        return rows >= (size if sparse else [0, *self.sizes][i] + 1)

    def need(self, m: int, k: int, v: int) -> float:
        cdfs, levels = self.classes.cdfs[m], self.options.levels
        level = (v + 0.5) / levels
        if self.options.guarantee == "p99":
            cdfs, level = self.classes.cdfs[: m + 1].min(axis=0), 0.99
        j = next(j for j in range(POINTS) if cdfs[j] >= level ** (1 / k) or j == POINTS - 1)
        return self.latency.seconds(k, j * self.classes.step)

    def longest(self, members: list[Request]) -> np.ndarray:
        floor = [np.maximum(self.classes.cdfs[self.classes.class_of(r)], 1e-9) for r in members]
        return prod(floor[1:], start=floor[0])

    def seconds(self, members: list[Request]) -> float:
        rows = sum(r.rows for r in members)
        c = self.longest(members)
        return self.latency.seconds(rows, self.classes.step * float((1 - c).sum() - 0.5))

    def score(self, members: list[Request], pending: int, *, now: float, held: float = 0.0):
        rows = sum(r.rows for r in members)
        c, took = self.longest(members), self.seconds(members)
        tau = pending * self.a + self.a
        value = 0.0
        for r in members:
            g = self.classes.class_of(r)
            left = r.deadline - now
            length = self.latency.length_alone(left, rows)
            p = float(np.interp(length / self.classes.step, np.arange(POINTS), c))
            spare = max(0.0, left - self.latency.seconds(r.rows, self.classes.means[g]) - took)
            share = 1 - self.options.kappa * (1 - exp(-spare / tau))
            worth = (self.classes.alone(g) / self.a) ** self.options.theta * r.penalty
            value += worth * p * share
        return value / (took + held)

    def candidates(self, pending: list[Request], *, now: float) -> list[list[Request]]:
        levels = 1 if self.options.guarantee == "p99" else self.options.levels
        ordered = sorted(pending, key=lambda r: (r.deadline, r.id))
        costs = {r.penalty for r in pending}
        groups = []
        for signature in dict.fromkeys(r.signature for r in ordered):
            group = [r for r in ordered if r.signature == signature]
            groups.append(group)
            if len(costs) > 1:
                near = [r for r in group if r.deadline >= now + self.need(0, 1, 0)]
                groups.append([r for r in near[: 8 * self.limit] if r.penalty == max(costs)])
        found = []
        for group in groups:
            for m in range(len(self.classes)):
                for i, k in self.paying(m):
                    for v in range(levels):
                        able = [
                            r
                            for r in group
                            if self.classes.class_of(r) <= m
                            and r.deadline >= now + self.need(m, k, v)
                        ]
                        members: list[Request] = []
                        room = k
                        for r in able[: 4 * k]:
                            if r.rows <= room:
                                members.append(r)
                                room -= r.rows
                        highest = any(self.classes.class_of(r) == m for r in members)
                        if highest and self.full_enough(members, i):
                            found.append(members)
        return found

    def lead(self, of: int, rows: int) -> float:
        level = 0.99 if self.options.guarantee == "p99" else self.options.drop
        cdf = self.classes.cdfs[of]
        at = next(j for j in range(POINTS) if cdf[j] > level or j == POINTS - 1)
        part = (level - cdf[at - 1]) / (cdf[at] - cdf[at - 1]) if cdf[at] > cdf[at - 1] else 1.0
        return self.latency.seconds(rows, (at - 1 + part) * self.classes.step)


def scheduler_of(lab, classes: RunClasses, options: SlackOptions) -> Slack:
    return Slack(options, max_batch=LIMIT, times=FixedTimes(classes), view=lab.LaneView())


shapes = st.lists(
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=5).filter(lambda w: sum(w) > 0.1),
    min_size=1,
    max_size=4,
)
latencies = st.builds(
    BatchLatency,
    c0=st.sampled_from([0.0, 0.004, 0.03]),
    c1=st.sampled_from([0.3, 1.0]),
    sizes=st.sampled_from([(), (1, 2, 4, 8), (2, 6)]),
)
drawn = st.lists(
    st.tuples(
        st.floats(0.0, 0.3),
        st.sampled_from([1.0, 1.0, 4.0]),
        st.sampled_from([(), (), ((3,),)]),
        st.sampled_from([1, 2, 3]),
        st.sampled_from(NAMES),
    ),
    min_size=1,
    max_size=30,
)


@given(
    shapes,
    latencies,
    drawn,
    st.booleans(),
    st.booleans(),
    st.sampled_from(
        [
            {},
            {"kappa": 0.5, "levels": 2, "theta": 2.0},
            {"theta": 0.0, "drop": 0.4},
            {"guarantee": "p99"},
        ]
    ),
)
@settings(max_examples=150)
def test_the_chosen_batch_is_the_first_of_the_best(
    lab, shapes, latency, drawn, single: bool, plain: bool, setting
) -> None:
    options = SlackOptions(admission=False, **setting)
    classes = run_classes(shapes, latency)
    rule, scheduler = Rule(classes, options), scheduler_of(lab, classes, options)
    for id, (left, penalty, signature, rows, application) in enumerate(drawn):
        request = lab.request(
            id,
            NOW + left,
            penalty=1.0 if plain else penalty,
            signature=() if plain else signature,
            rows=1 if single else rows,
            application=application,
        )
        scheduler.admit_moved(request, now=NOW)
    everybody = scheduler.pending()
    kept = [r for r in everybody if r.deadline - rule.lead(classes.class_of(r), r.rows) > NOW]
    dropped = [id for id, reason in scheduler.expire(now=NOW) if reason is not None]
    requests = list(scheduler.pending())
    assert requests == kept
    assert sorted(dropped) == sorted(r.id for r in everybody if r not in kept)

    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    assert scheduler.propose(lab.REPLICA, now=NOW) == proposal
    if not requests:
        assert proposal == Idle()
        return
    assert isinstance(proposal, Proposal)
    candidates = rule.candidates(requests, now=NOW)
    if len(requests) == 1 or not candidates:
        assert proposal.members == (requests[0],)
        return
    scores = [rule.score(members, len(requests), now=NOW) for members in candidates]
    best = max(scores)
    chosen = rule.score(list(proposal.members), len(requests), now=NOW)
    assert chosen == pytest.approx(best, rel=1e-9, abs=1e-12)
    # What rounding cannot tell apart may be either.
    tied = [m for m, score in zip(candidates, scores, strict=True) if score >= best - 1e-9 * best]
    assert list(proposal.members) in tied
    if options.guarantee == "p99":
        budget = min(member.deadline for member in proposal.members) - NOW
        rows = sum(member.rows for member in proposal.members)
        c = rule.longest(list(proposal.members))
        fitting = classes.latency.length_alone(budget, rows) / classes.step
        assert np.interp(fitting, np.arange(POINTS), c) >= 0.99 - 1e-9


class Learning(FixedTimes):
    """Predictions that can be told something else."""

    def __init__(self, classes: RunClasses) -> None:
        super().__init__(classes)
        self.revision = 0
        self.now_known: RunClasses | None = classes

    def classes(self, cores: int) -> RunClasses | None:
        return self.now_known

    def learn(self, classes: RunClasses | None) -> None:
        self.now_known = classes
        self.revision += 1


def certain(lengths: dict[str, float], *, c0: float = 0.004, sizes=()) -> RunClasses:
    """Applications whose requests are all as long as one another."""
    latency = BatchLatency(c0, 1.0, sizes)
    samples = {name: [0.99 * length, 1.01 * length] for name, length in lengths.items()}
    return classes_of_samples(samples, latency)


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return sorted(member.id for member in proposal.members)


class TestClasses:
    """Two applications: a takes 1 ms beyond the fixed 4, b takes 20."""

    known = certain({"a": 0.001, "b": 0.020})

    def make(self, lab, **options: object) -> tuple[Slack, Learning]:
        times = Learning(self.known)
        view = lab.LaneView()
        return Slack(SlackOptions(**options), max_batch=LIMIT, times=times, view=view), times

    def test_the_short_do_not_wait_for_the_long(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_the_long_come_first_where_they_are_worth_enough(self, lab) -> None:
        scheduler, _ = self.make(lab, theta=5.0)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert {1, 3} <= set(ids(scheduler.propose(lab.REPLICA, now=0.0)))

    def test_each_is_given_up_when_its_own_time_has_come(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate("ab"):
            scheduler.admit_moved(lab.request(id, 0.1, application=name), now=0.0)
        at = scheduler.next_expiry()
        assert at == pytest.approx(0.1 - 0.024, abs=0.0005)
        assert scheduler.expire(now=at) == [(1, Reason.HOPELESS)]
        assert scheduler.next_expiry() == pytest.approx(0.1 - 0.005, abs=0.0005)
        assert scheduler.expire(now=0.2) == [(0, Reason.EXPIRED)]
        assert scheduler.next_expiry() is None

    def test_strangers_count_as_long(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate(["a", "nobody", "a", ""]):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_what_is_learnt_later_sorts_those_who_wait_already(self, lab) -> None:
        scheduler, times = self.make(lab)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        times.learn(certain({"a": 0.020, "b": 0.001}))
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [1, 3]
        times.learn(None)
        assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) >= 1
        times.learn(self.known)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_best_effort_joins_no_batch_that_it_would_make_longer(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in ((8, "b"), (9, "a")):
            scheduler.add(lab.request(id, 60.0, best_effort=True, application=name), now=0.0)
        for id in range(2):
            scheduler.admit_moved(lab.request(id, 30.2, application="a"), now=30.0)
        assert ids(scheduler.propose(lab.REPLICA, now=30.0)) == [0, 1, 9]

    def test_a_replica_that_takes_fewer_rows_gets_fewer(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id in range(6):
            scheduler.add(lab.request(id, 0.2, application="a"), now=0.0)
        small = replace(lab.REPLICA, max_batch=2)
        assert len(ids(scheduler.propose(small, now=0.0))) == 2
        assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) == 6

    def test_the_door_asks_for_the_time_of_the_class(self, lab) -> None:
        scheduler, _ = self.make(lab)
        short = lab.request(0, 0.010, application="a")
        assert scheduler.add(short, now=0.0) is None
        long = lab.request(1, 0.010, application="b")
        assert scheduler.add(long, now=0.0) is Reason.SHORTER_THAN_ALONE
        notice = Notice(2, "m", 0.0, 0.010, 1, complete_at=0.001, application="b")
        assert scheduler.announce(notice, now=0.0) is Reason.SHORTER_THAN_ALONE

    def test_long_ones_ahead_keep_no_short_one_out(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id in range(20):
            scheduler.admit_moved(lab.request(id, 0.1, application="b"), now=0.0)
        behind = lab.request(20, 0.1, application="b")
        assert scheduler.add(behind, now=0.0) is Reason.BEHIND_WORK
        assert scheduler.add(lab.request(21, 0.1, application="a"), now=0.0) is None

    def test_short_ones_ahead_do_keep_a_long_one_out(self, lab) -> None:
        scheduler, _ = self.make(lab)
        admitted = [
            scheduler.add(lab.request(id, 0.1, application="a"), now=0.0) is None
            for id in range(200)
        ]
        # At the very best 1.5 ms each: 0.5 of the fixed part, and 1 of its own.
        assert sum(admitted) in range(66, 75)
        long = [
            scheduler.add(lab.request(id, 0.1, application="b"), now=0.0) is None
            for id in range(200, 250)
        ]
        assert sum(long) <= 6  # spares


def test_too_many_classes_for_one_number_are_refused() -> None:
    classes = run_classes([[0.5, float(g)] for g in range(1, 5)], BatchLatency(1.0, 1.0))
    with pytest.raises(ValueError, match="too many"):
        Compositions(classes, 100_000)


@given(
    shapes,
    latencies,
    st.lists(st.tuples(st.floats(0.02, 0.3), st.sampled_from(NAMES)), min_size=1, max_size=12),
    st.lists(
        st.tuples(st.floats(1e-4, 0.02), st.floats(0.02, 0.3), st.sampled_from(NAMES)),
        min_size=1,
        max_size=6,
    ),
)
@settings(max_examples=100)
def test_the_lane_is_held_when_the_rule_says_so(lab, shapes, latency, waiting, coming) -> None:
    options = SlackOptions(admission=False, lead=0.5)
    classes = run_classes(shapes, latency)
    rule, scheduler = Rule(classes, options), scheduler_of(lab, classes, options)
    for id, (left, application) in enumerate(waiting):
        request = lab.request(id, NOW + left, application=application)
        scheduler.admit_moved(request, now=NOW)
    for id, (after, left, application) in enumerate(coming, start=100):
        told = Notice(id, "m", NOW, NOW + left, 1, NOW + after, application=application)
        scheduler.announce(told, now=NOW)
    scheduler.expire(now=NOW)
    requests = list(scheduler.pending())
    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    assert scheduler.propose(lab.REPLICA, now=NOW) == proposal
    if not requests:
        assert proposal == Idle()
        return

    def best(pending: list[Request], *, now: float) -> float:
        found = rule.candidates(pending, now=now)
        scores = [rule.score(m, len(pending), now=now, held=now - NOW) for m in found]
        return max(scores, default=0.0)

    ahead = sorted((NOW + after, id) for id, (after, _, _) in enumerate(coming, start=100))
    soon = [(at, id) for at, id in ahead if at <= NOW + 0.5 * rule.a][:4]
    present = best(requests, now=NOW)
    later = 0.0
    for at, id in soon:
        _, left, application = coming[id - 100]
        requests.append(lab.request(id, NOW + left, application=application))
        later = max(later, best(requests, now=at))
    if later > 1.05 * present * (1 + 1e-9):
        assert proposal == WaitUntil(soon[0][0])
    elif later < 1.05 * present * (1 - 1e-9):
        assert isinstance(proposal, Proposal)
