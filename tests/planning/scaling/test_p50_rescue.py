"""Requests that the 99th percentile gives up, and the typical time does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planning.harness import model_view

from slacktide.planning.scaling import ReplicaView, ScalingLimits
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions, p50_rescue
from slacktide.planning.scaling.view import Waiting
from slacktide.profiles.time_distribution import SplitLogLogistic


class Jittery:
    """0.8 s of one core a row; now and then half as long again."""

    def of(self, rows: int, cores: int) -> SplitLogLogistic:
        return SplitLogLogistic(0.8 * rows / cores, 1.2 * rows / cores, lower=0.1, tail=0.1)


def view(*budgets: float, free_at: float = 0.0, **fields: float):
    return model_view(
        Jittery(),
        ScalingLimits(cores_max=8, batch_max=4),
        waiting=tuple(Waiting(0.0, budget) for budget in budgets),
        replicas=(ReplicaView(1, 0.0, free_at),),
        batch=4,
        **fields,
    )


@pytest.mark.parametrize(
    ("view", "cores"),
    [
        (view(), 1),
        (view(0.09), 1),  # nothing saves it: 0.1 s on eight cores
        (view(0.1), 8),
        (view(0.12), 7),
        (view(0.149), 6),
        (view(0.15), 1),  # eight cores save it for certain: the search's business
        (view(0.12, 0.149), 7),
        (view(0.62, free_at=0.5), 7),
        (view(rate=1.0, budget=0.12), 7),
        (view(rate=1.0), 1),
    ],
)
def test_the_fewest_cores_with_which_it_would_typically_be_on_time(view, cores):
    assert p50_rescue(view, now=0.0) == cores


def test_vertical_grows_for_a_chance_and_says_so():
    planner = Vertical(VerticalOptions())
    assert planner.is_urgent(view(0.12), now=0.0)
    target = planner.decide(view(0.12), now=0.0)
    assert (target.cores, target.late, target.reason) == (7, 1, "chance")
    grown = replace(view(0.12), replicas=(ReplicaView(7, 0.0, 0.0),))
    assert not planner.is_urgent(grown, now=0.0)
    assert planner.decide(view(), now=1.0).cores == 1


def test_whoever_plans_with_typical_times_needs_no_chance():
    planner = Vertical(VerticalOptions(p99=False))
    target = planner.decide(view(0.12), now=0.0)
    assert (target.cores, target.late, target.reason) == (7, 0, "deadlines")
