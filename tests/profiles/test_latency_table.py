"""LatencyTable and Surface: monotone by construction, never optimistic, strict about files."""

from __future__ import annotations

import copy
import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import LatencyTable, ProfileError, batch_sizes
from slacktide.profiles.amdahl import AmdahlModel
from slacktide.profiles.latency_table import Peak
from slacktide.profiles.surface import Surface, monotone

TOLERANCE = 1 + 1e-12
ROWS = st.integers(1, 200)
CORES = st.integers(1, 40)


def test_batch_sizes_double_and_end_at_the_maximum() -> None:
    assert batch_sizes(1) == (1,)
    assert batch_sizes(8) == (1, 2, 4, 8)
    assert batch_sizes(12) == (1, 2, 4, 8, 12)
    with pytest.raises(ProfileError, match="max_batch"):
        batch_sizes(0)


def test_projection_raises_to_the_smallest_monotone_table() -> None:
    measured = [[4.0, 2.0, 3.0], [3.0, 5.0, 1.0]]
    assert monotone(measured) == ((4.0, 3.0, 3.0), (5.0, 5.0, 3.0))


@given(
    st.lists(st.lists(st.floats(0.1, 9.0), min_size=3, max_size=3), min_size=1, max_size=5),
)
def test_projection_is_monotone_never_below_and_idempotent(values: list[list[float]]) -> None:
    grid = monotone(values)
    for index, row in enumerate(grid):
        assert all(a >= b for a, b in pairwise(row))
        assert all(a >= b for a, b in zip(row, values[index], strict=True))
        if index:
            assert all(a >= b for a, b in zip(row, grid[index - 1], strict=True))
    assert monotone(grid) == grid
    # The smallest such table: every value is one of the measured ones.
    assert {value for row in grid for value in row} <= {v for row in values for v in row}


@given(st.from_type(LatencyTable), ROWS, ROWS, CORES, CORES)
def test_predictions_rise_with_rows_and_fall_with_cores(
    table: LatencyTable, rows: int, more_rows: int, cores: int, more_cores: int
) -> None:
    rows, more_rows = sorted((rows, more_rows))
    cores, more_cores = sorted((cores, more_cores))
    for ask in (table.expected, table.p99):
        assert ask(rows, cores) <= ask(more_rows, cores) * TOLERANCE
        assert ask(rows, cores) * TOLERANCE >= ask(rows, more_cores)
    assert table.p99(rows, cores) >= table.expected(rows, cores)


def test_between_sizes_linear_beyond_by_the_last_marginal_cost() -> None:
    table = LatencyTable.from_grid(
        (2, 4, 8), (1,), [[10.0], [20.0], [30.0]], [[11.0], [22.0], [39.0]]
    )
    assert table.expected(1, 1) == 10.0
    assert table.expected(3, 1) == 15.0
    assert table.expected(6, 1) == 25.0
    assert table.expected(10, 1) > 35.0  # the model: 3.6 a row, not 2.5 as between 4 and 8
    assert table.p99(10, 1) > 39.0 + 2 * 17.0 / 4


def test_far_beyond_the_largest_size_rows_come_in_batches_of_twice_that() -> None:
    table = LatencyTable.from_grid((1, 4), (1,), [[4.0], [7.0]], [[4.0], [7.0]])
    assert table.expected(8, 1) == pytest.approx(11.0)
    assert table.expected(16, 1) == pytest.approx(22.0)


def test_one_size_only_extrapolates_as_batches_in_a_row() -> None:
    table = LatencyTable.from_grid((4,), (1,), [[8.0]], [[8.0]])
    assert table.expected(1, 1) == 8.0
    assert table.expected(6, 1) == 12.0


def test_cores_between_measured_counts_straight_in_their_inverse() -> None:
    grid = [[8.0, 5.0], [9.0, 6.0]]
    table = LatencyTable.from_grid((1, 2), (2, 8), grid, grid)
    assert table.expected(1, 4) == pytest.approx(6.0)  # 4 + 8 / c
    assert table.expected(2, 4) == pytest.approx(7.0)
    assert table.expected(1, 8) == 5.0


def test_a_column_that_is_left_out_comes_back() -> None:
    model = AmdahlModel(0.018, 0.045, 0.004, 0.002)
    sizes = (1, 2, 4, 8, 16)

    def table(*cores: int) -> LatencyTable:
        grid = [[model.seconds(size, count) for count in cores] for size in sizes]
        return LatencyTable.from_grid(sizes, cores, grid, grid)

    for batches, cores in (((1, 2, 8, 16), 4), ((1, 2, 4, 8), 16), ((2, 4, 8), 1), ((1, 2), 3)):
        for rows in (1, 3, 16):
            expected = table(*batches).expected(rows, cores)
            assert expected == pytest.approx(model.seconds(rows, cores), rel=1e-6)


def test_beyond_twice_the_most_cores_no_more_is_gained() -> None:
    table = LatencyTable.from_grid((1,), (2, 4), [[8.0, 5.0]], [[8.0, 5.0]])  # 2 + 12 / c
    assert table.expected(1, 6) == pytest.approx(4.0)
    assert table.expected(1, 8) == pytest.approx(3.5)
    assert table.expected(1, 64) == table.expected(1, 8)


def test_below_half_the_fewest_cores_they_are_taken_to_have_been_used_perfectly() -> None:
    table = LatencyTable.from_grid((1,), (4, 8), [[5.0, 3.5]], [[5.0, 3.5]])
    assert table.expected(1, 2) == pytest.approx(8.0)
    assert table.expected(1, 1) == pytest.approx(16.0)


def test_one_core_count_says_nothing_of_others() -> None:
    table = LatencyTable.from_grid((1, 2), (2,), [[5.0], [6.0]], [[5.0], [6.0]])
    assert table.expected(2, 64) == table.expected(2, 3) == 6.0
    assert table.expected(2, 1) == 12.0


def test_steeper_columns_never_cross_further_out() -> None:
    surface = Surface.over((1, 2), (1, 2), [[10.0, 1.0], [10.0, 9.0]])
    assert surface.at(5, 1) >= surface.at(5, 2)


def test_p99_never_crosses_the_median_further_out() -> None:
    table = LatencyTable.from_grid((1, 2), (1,), [[1.0], [5.0]], [[6.0], [6.0]])
    assert table.p99(50, 1) >= table.expected(50, 1)


@pytest.mark.parametrize(("rows", "cores"), [(0, 1), (1, 0), (-3, 1)])
def test_nonsense_questions_are_errors(rows: int, cores: int) -> None:
    with pytest.raises(ProfileError, match="at least 1"):
        LatencyTable.flat(0.01, 4).expected(rows, cores)


def test_capacity_and_peak() -> None:
    table = LatencyTable.from_grid(
        (1, 2, 4), (1, 2), [[0.010, 0.008], [0.016, 0.010], [0.040, 0.020]], [[1.0] * 2] * 3
    )
    assert table.capacity(1) == pytest.approx(100.0)
    assert table.peak(1) == Peak(pytest.approx(125.0), 2)
    # Batches of 2 and of 4 both reach 200 rows/s: the smaller is named.
    assert table.peak(2) == Peak(pytest.approx(200.0), 2)


def test_flat_is_flat() -> None:
    table = LatencyTable.flat(0.25, 8)
    assert {table.expected(rows, cores) for rows in (1, 3, 8, 16) for cores in (1, 7)} == {0.25}
    assert table.max_batch == 8
    assert all(all(row) for row in table.estimated)


# From samples


def test_few_samples_take_the_pooled_ratio() -> None:
    rng = np.random.default_rng(5)
    samples = {
        (1, 1): 0.010 * np.exp(0.1 * rng.standard_normal(150)),
        (4, 1): 0.030 * np.exp(0.1 * rng.standard_normal(3)),
    }
    table = LatencyTable.from_samples(samples)
    pooled = np.concatenate([times / np.median(times) for times in samples.values()])
    ratio = float(np.percentile(pooled, 99))
    assert table.p99_s[1][0] == pytest.approx(table.p50_s[1][0] * ratio)
    assert table.p99_s[0][0] == pytest.approx(table.p50_s[0][0] * ratio)
    assert table.estimated == ((True,), (True,))
    assert table.samples == ((150,), (3,))


def test_enough_samples_speak_for_themselves() -> None:
    quiet = np.full(200, 0.010)
    loud = np.concatenate([np.full(190, 0.020), np.full(10, 0.100)])
    table = LatencyTable.from_samples({(1, 1): quiet, (2, 1): loud})
    assert table.p99_s[0][0] == pytest.approx(0.010)
    assert table.p99_s[1][0] == pytest.approx(0.100)
    assert table.estimated == ((False,), (False,))


def test_a_gap_in_the_samples_is_named() -> None:
    with pytest.raises(ProfileError, match="batch 2 on 1 cores"):
        LatencyTable.from_samples({(1, 1): [0.1], (1, 2): [0.1], (2, 2): [0.2]})
    with pytest.raises(ProfileError, match="no samples"):
        LatencyTable.from_samples({})
    for bad in (float("nan"), float("inf"), 0.0, -0.1):
        with pytest.raises(ProfileError, match="positive"):
            LatencyTable.from_samples({(1, 1): [0.1, bad]})


# Files


@given(st.from_type(LatencyTable))
def test_a_table_survives_a_file(table: LatencyTable) -> None:
    assert LatencyTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema: this version reads 1, got 2"),
        ({"batches": [1, 1]}, "batches: expected ascending"),
        ({"batches": [1, "2"]}, "batches[1]: expected a whole number"),
        ({"batches": []}, "batches: expected ascending"),
        ({"cores": [0]}, "cores: expected ascending"),
        ({"p50_s": [[0.2], [0.1]]}, "p50_s: expected times that rise"),
        ({"p50_s": [[0.1]]}, "p50_s: expected 2 rows of 1"),
        ({"p50_s": [[0.1], [None]]}, "p50_s[1][0]: expected a finite number"),
        ({"p50_s": [[0.1], [float("nan")]]}, "p50_s[1][0]: expected a finite number"),
        ({"p50_s": [[0.0], [0.1]]}, "p50_s: expected positive"),
        ({"p50_s": 3}, "p50_s: expected a list"),
        ({"p99_s": [[0.05], [0.3]]}, "p99_s: expected at least p50_s"),
        ({"samples": [[-1], [2]]}, "samples: expected 0 or more"),
        ({"samples": [[True], [2]]}, "samples[0][0]: expected a whole number"),
        ({"samples": [[500], [2]]}, "p99_estimated"),
        ({"notes": ""}, "table: unknown notes"),
        ({"cores": None}, "cores: expected a list"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    data = LatencyTable.from_grid((1, 2), (1,), [[0.1], [0.2]], [[0.1], [0.3]]).to_dict()
    broken = copy.deepcopy(data) | change
    with pytest.raises(ProfileError, match=re.escape(message)):
        LatencyTable.from_dict(broken)


def test_a_missing_field_and_no_object_are_named() -> None:
    data = LatencyTable.flat(0.1, 2).to_dict()
    del data["p99_s"]
    with pytest.raises(ProfileError, match="missing p99_s"):
        LatencyTable.from_dict(data)
    with pytest.raises(ProfileError, match="expected an object"):
        LatencyTable.from_dict([1])
