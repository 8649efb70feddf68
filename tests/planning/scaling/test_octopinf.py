"""OctopInf's autoscaler: utilisation, two thresholds and two gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from tests.planning.harness import CertainTimes, model_view

from slacktide.domain.options import OptionError
from slacktide.planning.scaling import (
    ReplicaView,
    ScalingLimits,
    make_scaling_policy,
)

LIMITS = ScalingLimits(cores_max=4, replicas_max=8, batch_max=8)


TEN_ROWS_A_SECOND = CertainTimes(lambda rows, cores: 0.05 * rows, p99=2.0)


def _run(rate: Callable[[float], float], until: float) -> Iterator[tuple[float, int, str]]:
    """(when, replicas wished for, why) every second; the target is fulfilled at once."""
    planner = make_scaling_policy("octopinf", {})
    replicas, arrived, now = 1, 0.0, 0.0
    while now <= until:
        views = (ReplicaView(2, 0.0, 0.0),) * replicas
        view = model_view(TEN_ROWS_A_SECOND, LIMITS, replicas=views, batch=4, arrived=int(arrived))
        target = planner.decide(view, now=now)
        assert (target.cores, target.batch) == (2, 4)
        replicas = target.replicas
        yield now, replicas, target.reason
        arrived += rate(now)
        now += 1.0


def test_up_at_80_per_cent_and_down_at_70_after_their_gaps():
    def rate(now: float) -> float:
        return 5.0 if now < 100.0 else 30.0 if now < 200.0 else 20.0

    counts = [(now, count) for now, count, _ in _run(rate, 600.0)]
    changes = [(b, after) for (_, before), (b, after) in pairwise(counts) if before != after]
    # 30 > 0.8 · 30, so four: seen over 15 s at the look after 120 s. Then 20 ≤ 0.7 · 30, so three,
    # at the first look 240 s later.
    assert changes == [(120.0, 4), (360.0, 3)]


def test_the_second_step_up_waits_for_the_gap():
    def rate(now: float) -> float:
        return 10.0 if now < 40.0 else 40.0

    changes: list[tuple[float, int]] = []
    for now, count, _ in _run(rate, 400.0):
        if not changes or changes[-1][1] != count:
            changes.append((now, count))
    assert changes == [(0.0, 1), (30.0, 2), (180.0, 5)]


def test_the_most_replicas_is_the_limit_and_what_is_needed_is_said():
    *_, (_, count, _) = _run(lambda now: 500.0, 300.0)
    assert count == LIMITS.replicas_max


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"interval": 0.0}, "interval: expected more than 0s"),
        ({"windows": ()}, "windows: expected at least one time"),
        ({"windows": (15.0, -1.0)}, "windows: expected more than 0s"),
        ({"up_gap": -1.0}, "up_gap: expected at least 0"),
        ({"down_share": 0.9}, "down_share: expected at most up_share"),
    ],
)
def test_bad_options_are_named(options, sentence):
    with pytest.raises(OptionError, match=sentence):
        make_scaling_policy("octopinf", options)
