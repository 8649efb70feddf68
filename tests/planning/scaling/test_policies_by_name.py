"""A planner and its options are chosen by name, and a slip gets the sentence that mends it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.planning.harness import CertainTimes, model_view

from slacktide.domain.options import OptionError, plain
from slacktide.domain.registry import Registered
from slacktide.planning.planner import PlannerError
from slacktide.planning.scaling import (
    ModelView,
    ReplicaView,
    ScalingLimits,
    ScalingPolicy,
    ScalingTarget,
    make_scaling_policy,
)
from slacktide.planning.scaling.baselines import StaticOptions
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.planning.scaling.view import Waiting


def _view(limits: ScalingLimits) -> ModelView:
    """Every batch takes a second."""
    return model_view(CertainTimes(lambda rows, cores: 1.0), limits)


@pytest.mark.parametrize("name", sorted(SCALING_POLICIES))
def test_every_planner_is_made_from_its_defaults(name: str) -> None:
    assert make_scaling_policy(name, plain(SCALING_POLICIES.read(name, {}))).period > 0.0


@pytest.mark.parametrize("name", sorted(SCALING_POLICIES))
@pytest.mark.parametrize("cores", [(), (1,), (9, 9, 9)])
def test_wishes_keep_to_the_limits_whatever_there_is(name: str, cores: tuple[int, ...]) -> None:
    """As after a load of settings that allow other sizes, and before the first lane is open."""
    limits = ScalingLimits(2, 4, 1, 2, 3)
    waiting = (Waiting(0.0, 2.5), Waiting(0.0, math.inf, 2))
    replicas = tuple(ReplicaView(count, 0.0, 0.0) for count in cores)
    view = replace(_view(limits), waiting=waiting, replicas=replicas)
    target = make_scaling_policy(name, {}).decide(view, now=0.0)
    assert 2 <= target.cores <= 4
    assert 1 <= target.replicas <= 2
    assert 1 <= target.batch <= 3


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("statik", {}, "expected a scaling policy, got 'statik'; did you mean 'static'"),
        ("static", {"core": 2}, "scaling policy 'static': core: unknown key; did you mean 'cores'"),
        ("static", {"cores": 2.5}, "scaling policy 'static': cores: expected a whole number"),
        ("static", {"cores": 0}, "scaling policy 'static': cores: expected at least 1, got 0"),
    ],
)
def test_slips_are_named(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        make_scaling_policy(name, options)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, ScalingTarget(3, 8, 16, reason="static")),
        ({"cores": 4, "replicas": 2, "batch": 5}, ScalingTarget(2, 4, 5, reason="static")),
        ({"cores": 1, "replicas": 9, "batch": 99}, ScalingTarget(3, 2, 16, reason="static")),
    ],
)
def test_static_keeps_to_the_limits(options: dict[str, object], target: ScalingTarget) -> None:
    limits = ScalingLimits(cores_min=2, cores_max=8, replicas_max=3, batch_max=16)
    planner = make_scaling_policy("static", options)
    assert planner.decide(_view(limits), now=0.0) == target
    assert planner.period == math.inf


class Own(ScalingPolicy):
    """Wants what it is told to."""

    Options = StaticOptions

    def __init__(self, options: StaticOptions) -> None:
        self._cores = options.cores or 1

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        return ScalingTarget(replicas=1, cores=self._cores, batch=1)


class Asleep(Own):
    period = 0.0


class Unmade(Own):
    def __init__(self, options: StaticOptions) -> None:
        raise KeyError("nothing")


class Undecided(ScalingPolicy):
    """Lacks the one method that a planner must have."""

    Options = StaticOptions

    def __init__(self, options: StaticOptions) -> None:
        pass


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ScalingPolicy]:
    """Makes a planner as if a package of others had registered its class."""

    def make(kind: type[ScalingPolicy], **options: object) -> ScalingPolicy:
        entry = Registered("own", StaticOptions, kind, built_in=False)
        monkeypatch.setitem(SCALING_POLICIES, "own", entry)
        return make_scaling_policy("own", options)

    return make


def test_a_policy_of_others_is_held_to_the_limits(own: Callable[..., ScalingPolicy]) -> None:
    limits = ScalingLimits(1, 4, 1, 2, batch_max=3)
    view = _view(limits)
    assert own(Own, cores=4).decide(view, now=0.0).cores == 4
    with pytest.raises(
        ValueError, match="scaling policy 'own' broke its contract: expected a target"
    ):
        own(Own, cores=5).decide(view, now=0.0)
    assert not own(Own).is_urgent(view, now=0.0)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Asleep, "a period above 0"), (Unmade, "KeyError"), (Undecided, "abstract method '?decide")],
)
def test_a_policy_of_others_that_cannot_be_made(
    own: Callable[..., ScalingPolicy], kind: type[ScalingPolicy], why: str
) -> None:
    with pytest.raises(PlannerError, match=f"scaling policy 'own' cannot be made: .*{why}"):
        own(kind)
