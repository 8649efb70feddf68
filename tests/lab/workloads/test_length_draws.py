"""Sources of lengths: what is drawn has the shares, means and quantiles that are promised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.lab.workloads import Empirical, Exponential, Lengths, Mode, Modes, WorkloadError
from slacktide.lab.workloads.lengths import constant

SOURCES: list[Lengths] = [
    constant(4.0),
    Exponential(10.0),
    Modes((Mode(3.0, 2.0, 9.0), Mode(17.0, 0.5))),
    Modes((Mode(3.0, 0.5), Mode(17.0, 2.0, 9.0))),
    Modes(tuple(Mode(3.0 + 2.0 * number, 1.0) for number in range(8))),
    Modes((Mode(10.0, 1.0),)),
    Modes((Mode(1.0, 3.0),)),
    Empirical([1.0, 1.0, 2.0, 8.0]),
]
IN_ORDER = Empirical([1.0, 2.0, 8.0], ("a", "b", "a"), in_order=True)


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_draws_have_the_mean_and_the_quantiles_of_their_source(source: Lengths) -> None:
    drawn = source.draw(40_000, np.random.default_rng(1)).lengths
    error = drawn.std() / np.sqrt(drawn.size)
    assert abs(drawn.mean() - source.mean) <= 4.5 * error + 1e-12
    for level in (0.2, 0.5, 0.99):
        within = float(np.mean(drawn <= source.quantile(level) * (1.0 + 1e-9)))
        below = float(np.mean(drawn < source.quantile(level) * (1.0 - 1e-9)))
        assert below - 0.015 <= level <= within + 0.015


@given(st.sampled_from(SOURCES), st.integers(0, 50), st.integers(0, 50), st.integers(0, 2**31))
def test_a_longer_draw_begins_with_the_shorter_one(
    source: Lengths, count: int, more: int, seed: int
) -> None:
    short = source.draw(count, np.random.default_rng(seed))
    long = source.draw(count + more, np.random.default_rng(seed))
    assert long.lengths[:count].tolist() == short.lengths.tolist()
    assert long.modes[:count].tolist() == short.modes.tolist()
    assert np.all(long.lengths > 0.0)


@given(
    st.sampled_from([*SOURCES, IN_ORDER]),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(0, 2**31),
)
def test_draws_one_after_another_are_those_of_one_draw(
    source: Lengths, counts: list[int], seed: int
) -> None:
    draw = source.drawer(np.random.default_rng(seed))
    parts = [draw(count) for count in counts]
    whole = source.draw(sum(counts), np.random.default_rng(seed))
    assert [number for part in parts for number in part.lengths] == whole.lengths.tolist()
    assert [number for part in parts for number in part.modes] == whole.modes.tolist()


def test_a_mode_names_its_application_and_keeps_its_share() -> None:
    source = Modes((Mode(3.0, 0.1, 9.0, "short"), Mode(17.0, 0.1, 1.0, "long")))
    drawn = source.draw(20_000, np.random.default_rng(0))
    assert source.names == ("short", "long")
    assert np.mean(drawn.modes == 1) == pytest.approx(0.1, abs=0.01)
    assert drawn.lengths[drawn.modes == 0].max() < 5.0
    assert drawn.lengths[drawn.modes == 1].min() > 15.0


def test_no_length_falls_below_a_small_share_of_its_mode() -> None:
    drawn = Modes((Mode(3.0, 2.0),)).draw(5000, np.random.default_rng(0)).lengths
    assert drawn.min() == pytest.approx(0.03)


def test_recorded_lengths_keep_their_applications() -> None:
    source = Empirical([1.0, 5.0, 2.0], ["a", "b", "a"], in_order=True)
    drawn = source.draw(4, np.random.default_rng(0))
    assert drawn.lengths.tolist() == [1.0, 5.0, 2.0, 1.0]
    assert [source.names[mode] for mode in drawn.modes] == ["a", "b", "a", "a"]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Modes(()), "modes"),
        (lambda: Mode(-1.0), "mean"),
        (lambda: Mode(1.0, float("nan")), "sigma"),
        (lambda: Exponential(0.0), "mean"),
        (lambda: Empirical([]), "length"),
        (lambda: Empirical([1.0, -1.0]), "length"),
        (lambda: Empirical([1.0], ["a", "b"]), "application"),
        (lambda: Exponential(1.0).quantile(1.0), "level"),
    ],
)
def test_invalid_fields_are_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        make()
    assert caught.value.field == field
