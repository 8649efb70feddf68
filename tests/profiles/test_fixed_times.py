"""Predictions that follow from run classes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from slacktide.domain import Request
from slacktide.profiles import (
    BatchLatency,
    BatchTimes,
    FixedTimes,
    ProfileError,
    classes_of_samples,
)

LATENCY = BatchLatency(5.0, 1.0, (1, 2, 4, 8, 16))


def request(application: str) -> Request:
    return Request(1, "m", 0.0, 1.0, application=application)


@pytest.fixture
def times() -> FixedTimes:
    rng = np.random.default_rng(5)
    lengths = {"short": rng.normal(3.0, 0.5, 4_000), "long": rng.normal(17.0, 2.0, 4_000)}
    return FixedTimes(classes_of_samples(lengths, LATENCY))


def test_is_what_the_engine_asks_for(times: FixedTimes) -> None:
    answers: BatchTimes = times
    assert answers.revision == 0
    assert answers.classes(2) is answers.classes(1)
    assert not answers.learns


def test_one_request_alone(times: FixedTimes) -> None:
    short = times.of(1, 1, [request("short")])
    assert short.expected == pytest.approx(8.0, rel=0.01)
    assert short.p99 == pytest.approx(5.0 + 3.0 + 2.33 * 0.5, rel=0.02)
    assert short.on_time(7.0) == pytest.approx(0.023, abs=0.01)
    assert short.on_time(8.0) == pytest.approx(0.5, abs=0.03)
    assert times.of(1, 1, [request("long")]).expected == pytest.approx(22.0, rel=0.01)
    assert times.of(1, 1).expected == pytest.approx(15.0, rel=0.01)


def test_a_batch_waits_for_its_longest_and_pays_for_its_padding(times: FixedTimes) -> None:
    mixed = [request("short"), request("short"), request("long")]
    assert times.of(3, 1, mixed).expected == pytest.approx(5.0 + 4 * 17.0, rel=0.01)
    assert times.of(3, 1, mixed) is times.of(3, 1, mixed[::-1])
    short = times.of(4, 1, [request("short")] * 4)
    assert short.expected == pytest.approx(5.0 + 4 * (3.0 + 1.03 * 0.5), rel=0.01)


def test_strangers_in_a_batch_of_no_names(times: FixedTimes) -> None:
    """Drawn from all arrivals: two requests have a long one among them three times in four."""
    pair = times.of(2, 1)
    assert pair.on_time(5.0 + 2 * 8.0) == pytest.approx(0.25, abs=0.01)
    assert times.of(2, 1).on_time(5.0 + 2 * 8.0) == pair.on_time(5.0 + 2 * 8.0)


def test_monotone_in_rows(times: FixedTimes) -> None:
    for fewer, more in pairwise((1, 2, 3, 5, 8, 16, 40)):
        assert times.of(fewer, 1).expected <= times.of(more, 1).expected
        assert times.of(fewer, 1).p99 <= times.of(more, 1).p99
        assert times.of(fewer, 1).quantile(0.3) <= times.of(more, 1).quantile(0.3)
        assert times.of(fewer, 1).on_time(60.0) >= times.of(more, 1).on_time(60.0)


def test_levels_and_budgets_are_inverses(times: FixedTimes) -> None:
    for level in (0.05, 0.3, 0.5, 0.9, 0.99):
        budget = times.of(4, 1).quantile(level)
        assert times.of(4, 1).on_time(budget) == pytest.approx(level, abs=1e-6)
    assert times.of(1, 1).on_time(0.0) == 0.0
    assert times.of(1, 1).on_time(math.inf) == 1.0


def test_bad_questions_are_refused(times: FixedTimes) -> None:
    with pytest.raises(ProfileError, match="rows must be at least 1, got 0"):
        times.of(0, 1)
    with pytest.raises(ProfileError, match="level must be within 0 and 1"):
        times.of(1, 1).quantile(2.0)
