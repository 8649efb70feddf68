"""`slack` with classes against a brute-force evaluation of its rule, written from the formulas."""

from __future__ import annotations

from math import exp, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.domain import Request
from slacktide.engine.ports import Idle, Proposal
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses
from slacktide.scheduling import Slack, SlackOptions
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
@settings(max_examples=150, deadline=None)
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
