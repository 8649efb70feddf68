"""Whether a figure got worse by more than noise."""

from __future__ import annotations

from dataclasses import replace

from bench.compare import Measured, Verdict

COST = Measured("decision", "µs", -1, (100.0, 101.0, 99.0), (110.0, 111.0, 109.0))


def test_a_cost_that_rose_beyond_both_ranges_and_five_percent_is_worse() -> None:
    assert COST.verdict is Verdict.WORSE
    assert COST.ratio == 1.1


def test_ranges_that_overlap_are_noise_whatever_the_medians_say() -> None:
    assert replace(COST, after=(98.5, 130.0, 140.0)).verdict is Verdict.NOISE


def test_a_ratio_within_five_percent_is_noise_even_if_the_ranges_are_apart() -> None:
    assert replace(COST, after=(104.0, 104.5, 105.0)).verdict is Verdict.NOISE


def test_direction_decides_between_better_and_worse() -> None:
    assert replace(COST, good=1).verdict is Verdict.BETTER
    assert replace(COST, before=COST.after, after=COST.before).verdict is Verdict.BETTER
    assert replace(COST, good=0).verdict is Verdict.DIFFERS


def test_a_count_that_leaves_zero_is_worse() -> None:
    assert replace(COST, before=(0.0, 0.0), after=(1.0, 2.0)).verdict is Verdict.WORSE
