"""The planners of replicas: limits, load, starts, variants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.domain.options import OptionError, plain
from slacktide.planning.scaling import (
    ModelView,
    ReplicaView,
    ScalingLimits,
    ScalingPlanner,
    ScalingTarget,
    make_scaling_policy,
)
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.planning.scaling.view import VariantView, Waiting

LIMITS = ScalingLimits(cores_max=4, replicas_max=8, batch_max=8)
START = 3.0


def fit(factor: float = 1.0) -> CertainTimes:
    """Sponge's fit, times a factor; seconds."""
    return CertainTimes(
        lambda rows, cores: factor / 1e3 * ((18.29 * rows + 45.469) / cores + 4.488 * rows + 1.046)
    )


def _view(rate: float, limits: ScalingLimits = LIMITS, **others: object) -> ModelView:
    replicas = (ReplicaView(limits.cores_min, 0.0, 0.0),) * limits.replicas_min
    usual = {"times": fit(), "replicas": replicas, "budget": 1.0, "start_time": START}
    return model_view(limits=limits, rate=rate, **usual | others)


def _run(
    planner: ScalingPlanner, rates: Iterator[float] | list[float], view: ModelView
) -> list[tuple[ModelView, ScalingTarget]]:
    """A view a second, whose wishes come true: resizes at once, starts after `START`."""
    targets, arrived = [], 0.0
    replicas = list(view.replicas)
    for second, rate in enumerate(rates):
        now = float(second)
        replicas = [replace(replica, free_at=now) for replica in replicas]
        view = replace(view, rate=rate, arrived=int(arrived), replicas=tuple(replicas))
        target = planner.decide(view, now=now)
        targets.append((view, target))
        replicas = sorted(replicas, key=lambda replica: replica.ready_at)[: target.replicas]
        replicas = [
            replace(
                replica,
                cores=target.cores
                if replica.ready_at <= now
                else target.start_cores or target.cores,
            )
            for replica in replicas
        ]
        new = ReplicaView(target.start_cores or target.cores, now + START, now)
        replicas += [new] * (target.replicas - len(replicas))
        arrived += rate
    return targets


@st.composite
def limits_of(draw: st.DrawFn) -> ScalingLimits:
    cores, replicas = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return ScalingLimits(
        cores,
        cores + draw(st.integers(0, 3)),
        replicas,
        replicas + draw(st.integers(0, 3)),
        draw(st.integers(1, 8)),
    )


@pytest.mark.parametrize("name", ["horizontal", "joint", "octopinf"])
@given(
    limits=limits_of(),
    rates=st.lists(st.floats(0.0, 300.0), min_size=1, max_size=8),
    budgets=st.lists(st.floats(-0.1, 2.0), min_size=8, max_size=8),
    lefts=st.lists(st.floats(-0.1, 1.0), max_size=5),
)
def test_no_wish_leaves_the_limits(name, limits, rates, budgets, lefts):
    planner = make_scaling_policy(name, {})
    replicas = (ReplicaView(limits.cores_min, 0.0, 0.0),) * limits.replicas_min
    for second, (rate, budget) in enumerate(zip(rates, budgets, strict=False)):
        waiting = tuple(Waiting(second, second + left) for left in sorted(lefts))
        view = _view(
            rate, limits, budget=budget, waiting=waiting, replicas=replicas, arrived=30 * second
        )
        target = planner.decide(view, now=float(second))
        assert limits.replicas_min <= target.replicas <= limits.replicas_max
        assert limits.cores_min <= target.cores <= limits.cores_max
        assert target.start_cores == 0 or limits.cores_min <= target.start_cores <= limits.cores_max
        assert 1 <= target.batch <= limits.batch_max
        assert 0 <= target.late <= len(lefts) + 600
        replicas = tuple(
            ReplicaView(target.cores, second + (0.0 if i < len(replicas) else START), float(second))
            for i in range(target.replicas)
        )


@pytest.mark.parametrize("name", ["horizontal", "joint"])
@given(rate=st.floats(1.0, 200.0), more=st.floats(1.0, 4.0))
def test_more_load_needs_no_fewer_replicas(name, rate, more):
    def needed(rate: float) -> int:
        *_, (_, target) = _run(make_scaling_policy(name, {}), [rate] * 6, _view(rate))
        return target.needed

    assert 1 <= needed(rate) <= needed(rate * more)


@pytest.mark.parametrize("name", ["horizontal", "joint"])
def test_up_at_once_and_down_after_the_cool_down(name):
    options = {"cool_down": 20.0, "window": 20.0}
    targets = _run(
        make_scaling_policy(name, options), [20.0] * 5 + [150.0] * 30 + [5.0] * 60, _view(20.0)
    )
    counts = [target.replicas for _, target in targets]
    grown = next(i for i, count in enumerate(counts) if count > counts[4])
    assert grown <= 9  # within the five seconds of a piece
    needed = targets[34][1].needed
    assert needed > 1
    assert min(counts[15:55]) >= needed  # for 20 s more
    assert counts[-1] <= 1 + (name == "horizontal")


@pytest.mark.parametrize("name", ["horizontal", "joint"])
def test_at_four_times_what_a_node_can_take_nobody_is_late_once_replicas_are_up(name):
    # 4 cores at batch 8 take 116 rows a second, and 100 within the budget.
    options = {"cores": 4} if name == "horizontal" else {}
    targets = _run(make_scaling_policy(name, options), [400.0] * 40, _view(400.0))
    up = next(
        second
        for second, (view, _) in enumerate(targets)
        if len(view.replicas) >= 4 and all(replica.ready_at <= second for replica in view.replicas)
    )
    assert up <= 12
    assert targets[0][1].late > 0
    for _, target in targets[up:]:
        assert target.late == 0
        assert 4 <= target.needed <= target.replicas


def test_the_need_is_told_beyond_the_limits():
    limits = replace(LIMITS, replicas_max=2)
    for name in ("horizontal", "joint"):
        *_, (_, target) = _run(make_scaling_policy(name, {}), [400.0] * 10, _view(400.0, limits))
        assert target.replicas == 2
        assert target.needed >= 4
        assert target.late > 0


def test_while_replicas_start_those_that_serve_grow():
    targets = _run(make_scaling_policy("joint", {}), [20.0] * 3 + [150.0] * 40, _view(20.0))
    starting = [
        (view, target)
        for second, (view, target) in enumerate(targets)
        if any(replica.ready_at > second for replica in view.replicas)
    ]
    assert starting
    assert max(target.cores for _, target in starting) > targets[0][1].cores
    assert all(0 < target.start_cores <= target.cores for _, target in starting)
    _, last = targets[-1]
    assert last.late == 0
    assert last.cores < max(target.cores for _, target in starting)


def test_where_more_replicas_do_not_pay_joint_is_vertical():
    limits = replace(LIMITS, cores_max=16)
    view = _view(0.0, limits, budget=0.1)  # too short to wait for another's batch
    rates = [4.0 + 3.0 * math.sin(i / 7.0) for i in range(150)]
    joint = _run(make_scaling_policy("joint", {}), rates, view)
    vertical = _run(make_scaling_policy("vertical", {}), rates, view)
    assert [(target.replicas, target.cores, target.batch) for _, target in joint] == [
        (target.replicas, target.cores, target.batch) for _, target in vertical
    ]


def test_joint_gives_cores_back_as_soon_as_vertical():
    joint, vertical = (plain(SCALING_POLICIES.read(name, {})) for name in ("joint", "vertical"))
    assert {name: joint[name] for name in vertical} == vertical


def test_economy_takes_the_cheaper_number_after_a_minute_of_evidence():
    limits = replace(LIMITS, cores_max=16)
    view = _view(0.0, limits, times=fit(6.0))
    targets = _run(make_scaling_policy("joint", {"headroom": 0.0}), [15.0] * 120, view)
    counts = [target.replicas for _, target in targets]
    before, after = targets[59][1], targets[-1][1]
    assert set(counts[:60]) == {1}
    assert after.replicas > 1
    assert after.replicas * after.cores < before.cores
    assert any(target.reason == "economy" for _, target in targets)


def test_economy_may_take_as_many_replicas_as_there_may_be():
    """Nine cores' worth in replicas of one core, at most: the last one allowed is the best."""
    limits = replace(LIMITS, cores_max=16, replicas_max=3)
    view = _view(0.0, limits, times=fit(6.0))
    targets = _run(make_scaling_policy("joint", {"headroom": 0.0}), [15.0] * 120, view)
    free = replace(limits, replicas_max=8)
    more = _run(
        make_scaling_policy("joint", {"headroom": 0.0}), [15.0] * 120, replace(view, limits=free)
    )
    assert more[-1][1].replicas >= 3, "it would take three or more if it might"
    assert targets[-1][1].replicas == 3


def test_fewer_variants_than_before_are_chosen_from_at_once():
    variants = tuple(
        VariantView(name, accuracy, fit(factor))
        for name, accuracy, factor in [("s", 0.5, 1.0), ("l", 0.8, 12.0), ("m", 0.7, 4.0)]
    )
    planner = make_scaling_policy("joint", {})
    view = _view(0.0, variants=variants, times=variants[0].times)
    *_, (_, target) = _run(planner, [5000.0] * 3, view)
    assert target.variant == "s", "the third by accuracy"
    left = replace(view, variants=(variants[1],), rate=5000.0)
    assert planner.decide(left, now=3.0).variant == "l"


def test_the_most_accurate_variant_that_fits_and_replicas_for_it():
    variants = tuple(
        VariantView(name, accuracy, fit(factor))
        for name, accuracy, factor in [("s", 0.5, 1.0), ("l", 0.8, 12.0), ("m", 0.7, 4.0)]
    )
    view = _view(0.0, variants=variants, times=variants[0].times)
    targets = _run(make_scaling_policy("joint", {}), [12.0] * 40, view)
    (_, first), (_, last) = targets[0], targets[-1]
    assert first.variant == "m"
    assert last.variant == "l"
    assert last.replicas > 1
    assert last.late == 0
    *_, (_, target) = _run(make_scaling_policy("joint", {}), [5000.0] * 3, view)
    assert target.variant == "s"  # none fits: the fastest


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("horizontal", {"cores": 0}, "cores: expected at least 1"),
        ("horizontal", {"window": 0.0}, "window: expected more than 0s"),
        ("horizontal", {"cool_down": -1.0}, "cool_down: expected at least 0"),
        ("joint", {"period": math.inf}, "period: expected more than 0s"),
        ("joint", {"headroom": -1.0}, "headroom: expected at least 0"),
        ("joint", {"gain": 1.0}, "gain: expected at least 0 and less than 1"),
    ],
)
def test_bad_options_are_named(name, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        make_scaling_policy(name, options)


def test_joint_asks_to_be_asked_when_somebody_would_be_late():
    planner = make_scaling_policy("joint", {})
    view = _view(2.0)
    target = planner.decide(view, now=0.0)
    assert not planner.is_urgent(replace(view, batch=target.batch), now=0.0)
    alone = view.times.of(1, target.cores).expected
    urgent = tuple(Waiting(0.0, 1.2 * alone) for _ in range(2))
    assert planner.is_urgent(replace(view, batch=target.batch, waiting=urgent), now=0.0)


def test_a_replica_that_starts_small_is_no_reason_to_be_asked():
    planner = make_scaling_policy("joint", {})
    limits = replace(LIMITS, replicas_min=2)
    alone = fit().of(1, 4).expected
    replicas = (ReplicaView(4, 0.0, 0.0), ReplicaView(1, 0.5 * alone, 0.0))
    waiting = (Waiting(0.0, 1.1 * alone), Waiting(0.0, 1.6 * alone))
    view = _view(0.0, limits, replicas=replicas, waiting=waiting)
    assert planner.decide(view, now=0.0).late == 0
    # It will have the four cores of the other by the time it serves.
    assert not planner.is_urgent(view, now=0.0)
