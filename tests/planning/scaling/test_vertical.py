"""`vertical`: the cheapest cores at once when they are more, after a while when they are fewer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import ReplicaView, ScalingLimits
from slacktide.planning.scaling.search import Search
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions
from slacktide.planning.scaling.view import Waiting

LIMITS = ScalingLimits(cores_max=8, batch_max=8)


def divided(rows, cores):
    """What a second of work for every row takes."""
    return rows / cores


def view_of(*budgets, rate=0.0, budget=math.inf, replicas=None, limits=LIMITS, seconds=divided):
    return model_view(
        CertainTimes(seconds, p99=1.1),
        limits,
        waiting=tuple(Waiting(0.0, budget) for budget in sorted(budgets)),
        replicas=replicas or (ReplicaView(1, 0.0, 0.0),),
        rate=rate,
        budget=budget,
        batch=4,
    )


def decide(view, **options):
    return Vertical(VerticalOptions(p99=False, **options)).decide(view, now=0.0)


def test_each_request_counts_by_its_own_budget():
    target = decide(view_of(0.5, 10.0))
    assert (target.cores, target.batch, target.late) == (2, 1, 0)
    assert decide(view_of(10.0, 10.0)).cores == 1
    assert decide(view_of(0.5, 0.5)).cores == 4


def test_the_smallest_batch_of_the_fewest_cores():
    target = decide(view_of(2.5, 2.5, 2.5, 2.5, seconds=lambda rows, cores: 1.0 + 0.5 / cores))
    assert (target.cores, target.batch) == (1, 4)


def test_p99_counts_unless_told_otherwise():
    view = view_of(0.52)
    assert Vertical(VerticalOptions(p99=False)).decide(view, now=0.0).cores == 2
    assert Vertical(VerticalOptions()).decide(view, now=0.0).cores == 3


def test_batches_keep_up_with_the_rate_even_if_nobody_waits():
    target = decide(view_of(rate=3.5))
    assert (target.cores, target.reason) == (4, "deadlines")


def test_expected_arrivals_are_on_time_too():
    assert decide(view_of(rate=1.0, budget=0.4)).cores == 3


def test_hopeless_requests_get_no_cores():
    target = decide(view_of(0.01, 10.0))
    assert (target.cores, target.late) == (1, 1)


def test_where_not_all_can_be_saved_most_are():
    target = decide(view_of(*[0.5] * 6))
    assert (target.cores, target.late, target.reason) == (8, 2, "overload")


def test_no_more_cores_than_save_most():
    # One of two can be saved: three cores do that, eight no better.
    target = decide(view_of(0.4, 0.4, seconds=lambda rows, cores: rows * max(0.3, 1.0 / cores)))
    assert (target.cores, target.late) == (3, 1)


def test_a_rate_beyond_all_cores_takes_all():
    target = decide(view_of(rate=100.0))
    assert (target.cores, target.reason) == (8, "overload")


def test_several_replicas_share_the_work():
    two = (ReplicaView(1, 0.0, 0.0), ReplicaView(1, 0.0, 0.0))
    limits = ScalingLimits(cores_max=8, replicas_max=2, batch_max=8)
    target = decide(view_of(1.0, 1.0, replicas=two, limits=limits))
    assert (target.replicas, target.cores) == (2, 1)


def test_a_high_price_of_batches_buys_cores_instead():
    view = view_of(2.5, 2.5, 2.5, seconds=lambda rows, cores: 2.0 / cores)
    assert (decide(view).cores, decide(view).batch) == (1, 3)
    assert (decide(view, row_cost=2.0).cores, decide(view, row_cost=2.0).batch) == (3, 1)


class TestPatience:
    def cores(self, planner, now, budget):
        view = replace(view_of(), waiting=(Waiting(now, now + budget),))
        return planner.decide(view, now=now).cores

    def test_more_at_once_fewer_after_a_while(self):
        planner = Vertical(VerticalOptions(p99=False, scale_down_delay=2.0))
        assert self.cores(planner, 0.0, 2.0) == 1
        assert self.cores(planner, 0.1, 0.125) == 8
        assert self.cores(planner, 1.0, 0.5) == 8
        assert self.cores(planner, 2.0, 2.0) == 8
        assert self.cores(planner, 2.2, 2.0) == 2, "what was needed at 1.0 holds on"
        assert self.cores(planner, 3.2, 2.0) == 1

    def test_without_patience_at_once(self):
        planner = Vertical(VerticalOptions(p99=False, scale_down_delay=0.0))
        assert self.cores(planner, 0.0, 0.125) == 8
        assert self.cores(planner, 0.1, 2.0) == 1


class TestMisses:
    def planner(self):
        return Vertical(VerticalOptions(p99=False))

    def test_only_if_somebody_who_can_be_saved_would_be_late(self):
        assert not self.planner().is_urgent(view_of(1.5), now=0.0)
        assert self.planner().is_urgent(view_of(0.5), now=0.0)
        assert not self.planner().is_urgent(view_of(0.05), now=0.0)

    def test_the_limit_of_the_plan_in_force_counts(self):
        # Five at a time: 1 s. The plan in force has four at a time, so the fifth ends at 2 s.
        five = view_of(*[1.5] * 5, seconds=lambda rows, cores: 1.0)
        assert self.planner().is_urgent(five, now=0.0)

    def test_unequal_replicas_count_as_the_smallest_of_them(self):
        small, large = ReplicaView(1, 0.0, 0.0), ReplicaView(8, 0.0, 0.0)
        for replicas in ((small, large), (large, small)):
            assert self.planner().is_urgent(view_of(0.5, replicas=replicas), now=0.0)
        assert not self.planner().is_urgent(view_of(0.5, replicas=(large, large)), now=0.0)

    def test_without_a_replica_there_is_nothing_to_change(self):
        empty = replace(view_of(rate=1.0, budget=0.1), replicas=())
        assert not self.planner().is_urgent(empty, now=0.0)
        assert self.planner().decide(empty, now=0.0).replicas == 1


budgets = st.lists(st.integers(1, 60).map(lambda number: number + 0.5), max_size=12)
tables = st.lists(st.lists(st.integers(1, 15), min_size=4, max_size=4), min_size=5, max_size=5).map(
    # Longer by rows and shorter by cores, otherwise of any shape.
    lambda steps: [
        [sum(sum(step[cores:]) for step in steps[: rows + 1]) for cores in range(4)]
        for rows in range(5)
    ]
)


@given(budgets, tables, st.sampled_from([0.0, 0.1, 0.3]), st.sampled_from([0.0, 9.0]))
def test_no_short_cut_misses_a_cheaper_plan(budgets, table, rate, busy):
    limits = ScalingLimits(cores_max=4, batch_max=5)
    view = view_of(
        *budgets,
        rate=rate,
        budget=40.3,
        replicas=(ReplicaView(2, 0.0, busy),),
        limits=limits,
        seconds=lambda rows, cores: float(table[rows - 1][cores - 1]),
    )

    def search():
        return Search(view, now=0.0, horizon=30.0, p99=False, delta=0.01)

    pairs = [(cores, batch) for cores in range(1, 5) for batch in range(1, 6)]
    good = [
        (cores, batch)
        for cores, batch in pairs
        if search().late(cores, batch) == search().queue.hopeless
        and batch / table[batch - 1][cores - 1] >= rate
    ]
    assert search().first(cores=1) == (good[0] if good else None)
    saved = search().most_saved(cores=1)
    assert search().late(*saved) <= min(search().late(4, batch) for batch in range(1, 6))


@pytest.mark.parametrize("field", ["period", "scale_down_delay", "row_cost"])
def test_options_out_of_range_are_named(field):
    with pytest.raises(ValueError, match=field):
        VerticalOptions(**{field: -1.0})
