"""The fewest cores by number of replicas, against all plans tried one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import ModelView, ReplicaView, ScalingLimits
from slacktide.planning.scaling.queue_projection import QueueProjection, SecondsByCores, free_times
from slacktide.planning.scaling.search import fewest_cores
from slacktide.planning.scaling.vertical import VerticalOptions
from slacktide.planning.scaling.view import Waiting

NOW = 100.0
SEARCH = partial(VerticalOptions().search, now=NOW)


def amdahl(gamma: float, epsilon: float, delta: float, eta: float) -> CertainTimes:
    """l(b, c) = γb/c + ε/c + δb + η, in seconds."""
    return CertainTimes(lambda rows, cores: (gamma * rows + epsilon) / cores + delta * rows + eta)


@st.composite
def views(draw: st.DrawFn) -> ModelView:
    """Some wait, some are announced, some replicas are busy or start; few plans are possible."""
    least = draw(st.integers(1, 2))
    limits = ScalingLimits(
        cores_min=1,
        cores_max=draw(st.integers(1, 5)),
        replicas_min=least,
        replicas_max=draw(st.integers(least, 4)),
        batch_max=draw(st.integers(1, 4)),
    )
    times = amdahl(*(draw(st.floats(0.001, 0.05)) for _ in range(4)))
    offsets = st.floats(-0.2, 0.4)
    waiting = draw(
        st.lists(st.tuples(offsets, st.floats(0.0, 0.8), st.integers(1, 2)), max_size=10)
    )
    replicas = draw(
        st.lists(st.tuples(st.integers(1, limits.cores_max), offsets, offsets), max_size=4)
    )
    return ModelView(
        "m",
        tuple(
            sorted(
                (
                    Waiting(NOW + ready, NOW + max(ready, 0.0) + left, rows)
                    for ready, left, rows in waiting
                ),
                key=lambda waiting: waiting.deadline,
            )
        ),
        tuple(
            ReplicaView(cores, NOW + ready, NOW + (0.0 if ready > 0.0 else free))
            for cores, ready, free in replicas
        ),
        draw(st.sampled_from([0.0, 10.0, 40.0])),
        draw(st.sampled_from([0.1, 0.3, math.inf])),
        limits.batch_max,
        times,
        limits,
        start_time=draw(st.sampled_from([0.0, 0.2, 10.0])),
    )


def _tried_one_by_one(view: ModelView) -> dict[int, int | None]:
    limits = view.limits
    present = sorted(view.replicas, key=lambda replica: replica.ready_at)
    new = ReplicaView(1, NOW + view.start_time, NOW)
    replicas = tuple([*present, *[new] * limits.replicas_max][: limits.replicas_max])
    seconds = SecondsByCores(view.times, most_rows=max(2, limits.batch_max), p99=True)

    def work(kept: tuple[ReplicaView, ...]) -> QueueProjection:
        free = free_times(replace(view, replicas=kept), limits.cores_max, seconds, now=NOW)
        return QueueProjection(
            view, now=NOW, horizon=1.0, earliest=min(free), alone=seconds[limits.cores_max]
        )

    def enough(kept: tuple[ReplicaView, ...], cores: int) -> bool:
        free = free_times(replace(view, replicas=kept), cores, seconds, now=NOW)
        return any(
            len(kept) * batch / seconds[cores][batch] >= view.rate
            and work(kept).late(free, seconds[cores], batch) == work(replicas).hopeless
            for batch in range(1, limits.batch_max + 1)
        )

    return {
        count: next(
            (c for c in range(1, limits.cores_max + 1) if enough(replicas[:count], c)), None
        )
        for count in range(limits.replicas_min, limits.replicas_max + 1)
    }


@given(view=views())
def test_the_fewest_cores_are_those_of_all_plans_tried_one_by_one(view):
    target = fewest_cores(view, SEARCH, now=NOW)
    assert target == _tried_one_by_one(view)


def test_more_and_smaller_replicas_can_be_cheaper():
    # The part that does not shrink with cores, δb + η, is what several replicas share.
    times = amdahl(0.11, 0.27, 0.027, 0.006)  # Sponge's fit × 6
    limits = ScalingLimits(cores_max=16, replicas_max=4, batch_max=16)
    view = model_view(times, limits, rate=20.0, budget=1.0)
    cores = fewest_cores(view, SEARCH, now=NOW)
    assert cores[1] is not None
    assert cores[2] is not None
    assert 2 * cores[2] < cores[1]


def test_replicas_that_start_do_not_serve_yet():
    times = amdahl(0.1, 0.0, 0.0, 0.0)
    limits = ScalingLimits(cores_max=4, replicas_max=2)
    waiting = (Waiting(NOW, NOW + 0.11), Waiting(NOW, NOW + 0.11))
    view = model_view(
        times, limits, waiting=waiting, replicas=(ReplicaView(1, NOW, NOW),), budget=1.0
    )
    assert fewest_cores(view, SEARCH, now=NOW) == {1: 2, 2: 1}
    slow = replace(view, start_time=1.0)
    assert fewest_cores(slow, SEARCH, now=NOW) == {1: 2, 2: 2}
