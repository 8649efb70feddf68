"""The VPA's recommender and updater: percentiles of usage that decays, bounds, evictions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import (
    ModelView,
    ReplicaView,
    ScalingLimits,
    ScalingTarget,
    make_scaling_policy,
)
from slacktide_papers.policies.vpa import RATIO, UsageHistogram, Vpa, VpaOptions

LIMITS = ScalingLimits(cores_max=16, batch_max=8)
DAY = 86_400.0


PERFECT = CertainTimes(lambda rows, cores: 0.1 * rows / cores)
"""Twice the cores, half the time: a busy instance uses all that it has."""


def _view(now: float, cores: int, *, busy: bool, ready_at: float = 0.0) -> ModelView:
    replica = ReplicaView(cores, ready_at, now + 1.0 if busy else now)
    return model_view(PERFECT, LIMITS, replicas=(replica,), rate=10.0, budget=1.0, batch=4)


def _run(vpa: Vpa, cores: int, share: float, seconds: float, begin: float = 0.0) -> ScalingTarget:
    """Look as often as it asks to, busy `share` of the time, until it evicts or time is over."""
    looks = int(seconds / vpa.period)
    for look in range(looks + 1):
        now = begin + look * vpa.period
        target = vpa.decide(_view(now, cores, busy=look * share % 1.0 < share), now=now)
        if target.restart:
            return target
    return target


@given(
    st.lists(st.floats(0.02, 500.0), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
)
def test_a_percentile_is_at_most_a_bucket_above_the_exact_one(usages, share):
    histogram = UsageHistogram(half_life=1.0)
    for usage in usages:
        histogram.add(usage, 1.0, now=0.0)
    exact = sorted(usages)[max(0, math.ceil(share * len(usages) - 1e-9) - 1)]
    assert exact <= histogram.percentile(share) * (1 + 1e-6)
    assert histogram.percentile(share) <= exact * RATIO + 0.0101


def test_samples_count_half_after_a_half_life():
    histogram = UsageHistogram(half_life=10.0)
    histogram.add(1.0, 3.0, now=0.0)
    histogram.add(8.0, 1.0, now=0.0)
    assert histogram.percentile(0.7) < 1.1
    histogram.add(8.0, 1.0, now=10.0)  # 4 against 1.5 by now
    assert histogram.percentile(0.7) > 7.9
    histogram.add(2.0, 1.0, now=1e6)  # nothing else is left, and nothing has overflowed
    assert 2.0 <= histogram.percentile(0.01) <= histogram.percentile(1.0) <= 2.2


def test_nothing_seen_is_nothing_used():
    assert UsageHistogram(1.0).percentile(0.9) == 0.0


def test_it_keeps_what_it_has_until_the_history_is_long_enough():
    assert _run(Vpa(VpaOptions()), 16, 0.125, 3_600.0) == ScalingTarget(
        1, 16, 8, reason="within bounds"
    )


def test_an_idle_instance_is_evicted_once_the_upper_bound_is_trusted():
    # 2 of 16 cores busy: target 2 × 1.15, and an upper bound of twice that after a day.
    target = _run(Vpa(VpaOptions()), 16, 0.125, 1.05 * DAY)
    assert target == ScalingTarget(1, 3, 8, reason="evicted", restart=True)


def test_an_instance_that_is_always_busy_grows_by_the_margin():
    target = _run(Vpa(VpaOptions()), 4, 1.0, 3_600.0)
    assert target == ScalingTarget(1, 5, 8, reason="evicted", restart=True)


def test_bounds_lie_in_order_and_close_in():
    vpa = Vpa(VpaOptions())
    _run(vpa, 8, 0.5, 7_200.0)
    early = vpa.bounds(now=7_200.0)
    late = vpa.bounds(now=70 * DAY)
    assert early[0] <= early[1] <= early[2]
    assert early[0] <= late[0] <= late[1] <= late[2] <= early[2]


def test_idling_before_the_first_work_is_no_history():
    vpa = Vpa(VpaOptions(sample=1.0))
    for second in range(100):
        assert not vpa.decide(_view(second, 16, busy=False), now=float(second)).restart
    assert not _run(vpa, 16, 1.0, 20.0, begin=100.0).restart


def test_while_the_instance_starts_nothing_is_seen():
    vpa = Vpa(VpaOptions(sample=1.0))
    vpa.decide(_view(0.0, 2, busy=False), now=0.0)
    for second in range(1, 100):
        target = vpa.decide(_view(second, 2, busy=True, ready_at=1e9), now=float(second))
        assert not target.restart


@pytest.mark.parametrize("name", ["sample", "half_life", "confidence"])
def test_times_that_are_none_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: expected more than 0s"):
        make_scaling_policy("vpa", {name: 0.0})
