"""Sponge's optimiser, held to what its published code answers."""

from __future__ import annotations

import pytest
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import ReplicaView, ScalingLimits
from slacktide.planning.scaling.baselines import Sponge, SpongeOptions

LIMITS = ScalingLimits(cores_max=16, batch_max=16)


PUBLISHED = CertainTimes(
    lambda rows, cores: (18.290 * rows / cores + 4.488 * rows + 45.469 / cores + 1.046) / 1e3
)
"""The fit of the published latencies, ordinary least squares; ms in the code, s here."""


def wish_of(expected, on_the_way_ms, present=(7, 3), **options):
    cores, batch = present
    view = model_view(
        PUBLISHED,
        LIMITS,
        replicas=(ReplicaView(cores, 0.0, 0.0),),
        rate=expected,
        budget=1.0 - on_the_way_ms / 1e3,
        batch=batch,
    )
    target = Sponge(SpongeOptions(**options)).decide(view, now=0.0)
    return target.cores, target.batch


@pytest.mark.parametrize(
    ("rate", "on_the_way_ms", "answer"),
    [
        (20, 25, (1, 3)),
        (20, 200, (1, 4)),
        (20, 400, (2, 3)),
        (20, 600, (3, 4)),
        (50, 25, (2, 10)),
        (50, 200, (3, 5)),
        (50, 400, (5, 5)),
        (50, 600, (16, 10)),
        (100, 25, (6, 10)),
        (100, 100, (7, 10)),
        (100, 200, (10, 10)),
    ],
)
def test_it_answers_as_the_published_code(rate, on_the_way_ms, answer):
    assert wish_of(rate, on_the_way_ms) == answer


def test_it_answers_as_the_published_code_without_the_factor():
    assert wish_of(100, 50, factor=1.0) == (5, 10)


def test_a_rate_that_is_configured_counts_instead_of_the_expected_one():
    assert wish_of(1, 25, rate=50) == (2, 10)


def test_where_nothing_is_found_all_stays_as_it_is():
    assert wish_of(100, 400) == (7, 3)
    assert wish_of(100, 400, present=(9, 12)) == (9, 12)


@pytest.mark.parametrize("field", ["slo", "rate", "factor", "period"])
def test_options_out_of_range_are_named(field):
    with pytest.raises(ValueError, match=field):
        SpongeOptions(**{field: 0.0})
