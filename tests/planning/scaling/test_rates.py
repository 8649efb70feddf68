"""What is expected of arrivals, from those seen so far."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slacktide.planning.scaling.rates import ExpectedArrivals, RateOptions

PLAIN = RateOptions(margin=0.0, burst_deviations=1.0)


def seen_at(times, options=PLAIN, budget=1.0, rows=1):
    arrivals = ExpectedArrivals(options)
    for at in times:
        arrivals.count(rows, budget, now=at)
    return arrivals


def poisson(rate, seconds, seed=1):
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=int(2 * rate * seconds))
    times = np.cumsum(gaps)
    return times[times < seconds].tolist()


def test_before_the_first_request_nothing_is_expected():
    arrivals = ExpectedArrivals()
    assert arrivals.rate(now=5.0) == 0.0
    assert arrivals.burst(now=5.0) == 0.0
    assert arrivals.budget(now=5.0) == math.inf


def test_the_first_request_alone_counts_as_one_row_a_second():
    """Not as one within no time at all, and not as one within the whole window."""
    assert seen_at([5.0]).rate(now=5.0) == pytest.approx(1.0, rel=0.1)
    assert seen_at([5.0]).rate(now=6.0) == pytest.approx(1.0, rel=0.1)
    assert seen_at([5.0]).rate(now=7.0) == pytest.approx(0.5, rel=0.1)


def test_even_arrivals_are_expected_at_their_rate_and_without_bursts():
    arrivals = seen_at([k / 20 for k in range(1, 2401)])
    assert arrivals.rate(now=120.0) == pytest.approx(20.0, rel=0.05)
    assert arrivals.burst(now=120.0) < 0.2 * math.sqrt(20.0)


def test_poisson_arrivals_vary_by_the_root_of_their_rate():
    bursts = [seen_at(poisson(20.0, 120.0, seed)).burst(now=120.0) for seed in range(8)]
    assert np.mean(bursts) == pytest.approx(math.sqrt(20.0), rel=0.2)


def test_arrivals_in_bunches_vary_more():
    bunches = [k + j * 1e-3 for k in range(1, 121) for j in range(20)]
    assert seen_at(bunches).burst(now=121.0) > 1.5 * math.sqrt(20.0)


def test_rows_count_not_requests():
    times = [k / 20 for k in range(1, 601)]
    single, three = seen_at(times), seen_at(times, rows=3)
    assert three.rate(now=30.0) == pytest.approx(3.0 * single.rate(now=30.0))


def test_a_step_is_seen_before_the_window_has_passed():
    arrivals = seen_at([k / 20 for k in range(1, 1201)] + [60.0 + k / 80 for k in range(1, 161)])
    assert arrivals.rate(now=62.0) > 50.0


def test_chance_alone_hardly_moves_the_rate():
    # A rate of the last second alone would vary by 22 %.
    rates = [seen_at(poisson(20.0, 60.0, seed)).rate(now=60.0) for seed in range(40)]
    assert np.std(rates) < 0.1 * 20.0


def test_the_rate_fades_once_nothing_comes():
    arrivals = seen_at([k / 20 for k in range(1, 601)])
    assert arrivals.rate(now=60.0) < 2.0


def test_the_margin_is_added():
    times = [k / 20 for k in range(1, 601)]
    raised = seen_at(times, RateOptions(margin=0.5)).rate(now=30.0)
    assert raised == pytest.approx(1.5 * seen_at(times).rate(now=30.0))


class TestBudget:
    def filled(self, **options):
        arrivals = ExpectedArrivals(RateOptions(**options))
        for k in range(1, 21):
            arrivals.count(1, float(k), now=0.05 * k)
        return arrivals

    def test_it_leans_on_the_short_ones(self):
        assert self.filled(budget_quantile=0.0).budget(now=1.0) == 1.0
        assert self.filled(budget_quantile=0.25).budget(now=1.0) == 5.0
        assert self.filled(budget_quantile=1.0).budget(now=1.0) == 20.0

    def test_old_ones_are_forgotten_but_for_the_last(self):
        arrivals = self.filled(budget_quantile=0.0, budget_window=0.5)
        assert arrivals.budget(now=1.0) == 10.0
        assert arrivals.budget(now=100.0) == 20.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0.0),
        ("burst_window", -1.0),
        ("budget_window", math.inf),
        ("margin", -0.1),
        ("burst_deviations", math.nan),
        ("doubt", -1.0),
        ("budget_quantile", 1.5),
    ],
)
def test_options_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        RateOptions(**{field: value})
