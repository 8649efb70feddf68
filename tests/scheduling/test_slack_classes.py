"""`slack` with classes against a brute-force evaluation of its rule, written from the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, prod

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slacktide.domain import Notice, Request
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses
from slacktide.scheduling import SlackOptions
from slacktide.scheduling.class_tables import Compositions
from slacktide.scheduling.slack import Slack
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


def first_fit(requests: Sequence[Request], rows: int) -> list[Request]:
    """Those that fill at most `rows`, as `within_rows` looks for them."""
    members: list[Request] = []
    for request in requests[: 4 * rows]:
        if sum(r.rows for r in members) + request.rows <= rows:
            members.append(request)
    return members


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
        pairs: list[tuple[int, int]] = []
        least = float("inf")
        for i, k in enumerate(self.sizes):
            longest = self.classes.step * float((1 - self.classes.cdfs[m] ** k).sum() - 0.5)
            per_row = self.latency.seconds(k, longest) / k
            if per_row <= 0.99 * least:
                pairs.append((i, k))
                least = per_row
        return pairs

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

    def score(
        self,
        members: list[Request],
        pending: int,
        *,
        now: float,
        held: float = 0.0,
        extra: Sequence[Request] = (),
    ) -> float:
        """`extra` are best-effort members, worth more the older they are."""
        everybody = [*members, *extra]
        rows = sum(r.rows for r in everybody)
        c = self.longest(everybody)
        took = self.latency.seconds(rows, self.classes.step * float((1 - c).sum() - 0.5))
        tau = pending * self.a + self.a
        value = sum(min(1.0, (now - r.arrival) / (r.deadline - r.arrival)) for r in extra)
        for r in members:
            g = self.classes.class_of(r)
            left = r.deadline - now
            length = length_within(self.latency, left, rows)
            p = float(np.interp(length / self.classes.step, np.arange(POINTS), c))
            spare = max(0.0, left - self.latency.seconds(r.rows, self.classes.means[g]) - took)
            share = 1 - self.options.deferral_discount * (1 - exp(-spare / tau))
            worth = (self.classes.alone(g) / self.a) ** self.options.length_exponent * r.penalty
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
        batches = []
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
                        members = first_fit(able, k)
                        highest = any(self.classes.class_of(r) == m for r in members)
                        if highest and self.full_enough(members, i):
                            batches.append(members)
        return batches

    def fillings(
        self, members: list[Request], waiting: list[Request], *, now: float
    ) -> list[list[Request]]:
        """Best-effort requests that may join: none of them of a longer class than all members."""
        class_of = self.classes.class_of
        of, rows = max(map(class_of, members)), sum(r.rows for r in members)
        able = [r for r in waiting if class_of(r) <= of and r.signature == members[0].signature]
        return [[]] + [
            first_fit(able, k - rows)
            for k in self.sizes
            if k > rows and members[0].deadline >= now + self.need(of, k, 0)
        ]

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
            {"deferral_discount": 0.5, "levels": 2, "length_exponent": 2.0},
            {"length_exponent": 0.0, "drop": 0.4},
            {"guarantee": "p99"},
        ]
    ),
    st.lists(
        st.tuples(
            st.floats(0.0, 4.0),
            st.sampled_from([(), (), ((3,),)]),
            st.sampled_from([1, 1, 2, 3]),
            st.sampled_from(NAMES),
        ),
        max_size=5,
    ),
)
@example(  # A batch of two saves next to nothing per row, larger ones do.
    shapes=[[0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8]],
    latency=BatchLatency(c0=0.015, c1=1.0),
    drawn=[(0.3, 1.0, (), 2, "a")] * 3,
    single=False,
    plain=True,
    setting={},
    best_effort=[],
)
def test_the_chosen_batch_is_the_first_of_the_best(
    lab, shapes, latency, drawn, single: bool, plain: bool, setting, best_effort
) -> None:
    options = SlackOptions(admission=False, best_effort_share=0.0, **setting)
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
    waiting = []
    for id, (age, signature, rows, application) in enumerate(best_effort, start=100):
        fields = {"signature": signature, "rows": rows, "application": application}
        request = lab.request(id, NOW + 2.0 - age, arrival=NOW - age, best_effort=True, **fields)
        scheduler.admit_moved(request, now=NOW)
        waiting.append(request)
    waiting.sort(key=lambda r: (r.deadline, r.id))

    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    assert scheduler.propose(lab.REPLICA, now=NOW) == proposal
    if not requests:
        assert proposal == Idle() or all(member.best_effort for member in proposal.members)
        return
    assert isinstance(proposal, Proposal)
    candidates = rule.candidates(requests, now=NOW)
    members = [member for member in proposal.members if not member.best_effort]
    joined = [member for member in proposal.members if member.best_effort]
    if not candidates:
        assert members == requests[:1]
        return
    # What rounding cannot tell apart may be either.
    scores = [rule.score(candidate, len(requests), now=NOW) for candidate in candidates]
    assert members in best_of(candidates, scores)
    fillings = rule.fillings(members, waiting, now=NOW)
    scores = [rule.score(members, len(requests), now=NOW, extra=extra) for extra in fillings]
    assert joined in best_of(fillings, scores)
    if options.guarantee == "p99":
        budget = min(member.deadline for member in members) - NOW
        rows = sum(member.rows for member in members)
        c = rule.longest(members)
        fitting = length_within(classes.latency, budget, rows) / classes.step
        assert np.interp(fitting, np.arange(POINTS), c) >= 0.99 - 1e-9


def length_within(latency: BatchLatency, seconds: float, rows: int) -> float:
    """The longest length of `rows` rows that take `seconds`; at least 0."""
    return max(0.0, (seconds - latency.c0) / (latency.c1 * latency.paid(rows)))


def best_of(batches: list[list[Request]], scores: list[float]) -> list[list[Request]]:
    """Those with the highest score."""
    least = max(scores) * (1.0 - 1e-9)
    return [batch for batch, score in zip(batches, scores, strict=True) if score >= least]


def test_too_many_classes_for_one_number_are_refused() -> None:
    classes = run_classes([[0.5, float(g)] for g in range(1, 5)], BatchLatency(1.0, 1.0))
    with pytest.raises(ValueError, match="too many"):
        Compositions(classes, 100_000)


@given(
    shapes,
    latencies,
    st.lists(
        st.tuples(st.floats(0.02, 0.3), st.sampled_from(NAMES), st.sampled_from([1, 1, 1, 2, 3])),
        min_size=1,
        max_size=12,
    ),
    st.lists(
        st.tuples(st.floats(1e-4, 0.02), st.floats(0.02, 0.3), st.sampled_from(NAMES)),
        min_size=1,
        max_size=6,
    ),
)
def test_the_lane_is_held_when_the_rule_says_so(lab, shapes, latency, waiting, coming) -> None:
    options = SlackOptions(admission=False, lead=0.5)
    classes = run_classes(shapes, latency)
    rule, scheduler = Rule(classes, options), scheduler_of(lab, classes, options)
    for id, (left, application, rows) in enumerate(waiting):
        request = lab.request(id, NOW + left, application=application, rows=rows)
        scheduler.admit_moved(request, now=NOW)
    for id, (after, left, application) in enumerate(coming, start=100):
        notice = Notice(id, "m", NOW, NOW + left, 1, NOW + after, application=application)
        scheduler.announce(notice, now=NOW)
    scheduler.expire(now=NOW)
    requests = list(scheduler.pending())
    proposal = scheduler.propose(lab.REPLICA, now=NOW)
    assert scheduler.propose(lab.REPLICA, now=NOW) == proposal
    if not requests:
        assert proposal == Idle()
        return

    def best(pending: list[Request], *, now: float) -> float:
        batches = rule.candidates(pending, now=now)
        scores = [rule.score(m, len(pending), now=now, held=now - NOW) for m in batches]
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
