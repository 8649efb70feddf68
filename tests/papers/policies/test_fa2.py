"""FA2: the fewest one-core instances that carry the rate within the budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import ModelView, ScalingLimits, ScalingTarget, make_scaling_policy

LIMITS = ScalingLimits(cores_max=16, replicas_max=16, batch_max=16)


def table1(rows: int, cores: int) -> float:
    """Sponge Table 1: l(1, 1) = 55 ms, l(2, 1) = 97 ms; linear beyond."""
    assert cores == 1
    return 0.013 + 0.042 * rows


TABLE1 = CertainTimes(table1)


def _view(rate: float, budget: float, limits: ScalingLimits = LIMITS) -> ModelView:
    return model_view(TABLE1, limits, rate=rate, budget=budget)


@pytest.mark.parametrize(
    ("rate", "budget", "target"),
    [
        (
            100.0,
            1.0,
            ScalingTarget(5, 1, 2, reason="fewest"),
        ),  # the paper's example: five at batch 2
        (100.0, 0.12, ScalingTarget(6, 1, 1, reason="fewest")),  # a batch of 2 would be too late
        (
            100.0,
            0.1,
            ScalingTarget(16, 1, 1, reason="none suffices"),
        ),  # 2 × 55 ms is more than is left
        (1000.0, math.inf, ScalingTarget(16, 1, 1, reason="none suffices")),
        (0.0, 1.0, ScalingTarget(1, 1, 1, reason="fewest")),
    ],
)
def test_the_fewest_instances_with_the_smallest_batch(rate, budget, target):
    assert make_scaling_policy("fa2", {}).decide(_view(rate, budget), now=0.0) == target


@given(rate=st.floats(0.0, 400.0), budget=st.floats(0.0, 3.0))
def test_an_accepted_size_carries_the_rate_within_the_budget(rate, budget):
    target = make_scaling_policy("fa2", {}).decide(_view(rate, budget), now=0.0)
    batch_s = TABLE1.of(target.batch, 1).expected
    holds = 2.0 * batch_s <= budget and target.replicas * target.batch >= rate * batch_s
    assert holds == (target.reason == "fewest")


def test_it_keeps_to_the_limits():
    limits = ScalingLimits(replicas_min=3, replicas_max=4, batch_max=1)
    planner = make_scaling_policy("fa2", {})
    assert planner.decide(_view(1.0, 1.0, limits), now=0.0).replicas == 3
    assert planner.decide(_view(100.0, 1.0, limits), now=0.0) == ScalingTarget(
        4, 1, 1, 0, "none suffices"
    )


@pytest.mark.parametrize("period", [0.0, -1.0, math.inf, math.nan])
def test_a_period_that_is_none_is_refused(period):
    with pytest.raises(ValueError, match="period: expected more than 0s"):
        make_scaling_policy("fa2", {"period": period})
