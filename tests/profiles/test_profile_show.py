"""What a terminal shows of a profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import Request
from slacktide.profiles import LatencyTable, ProfileRecord, ShapedTimes
from slacktide.profiles.amdahl import AmdahlModel, Timed, fit_amdahl
from slacktide.profiles.known_shape import WorkScale
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.show import (
    bar_lengths,
    duration,
    fit_lines,
    fit_summary,
    formula,
    headings,
    law_formula,
    lines,
    size_headings,
    size_law,
    size_lines,
    summary,
)


def test_cells_marks_and_units() -> None:
    table = LatencyTable.from_grid(
        (1, 2), (1, 2), [[0.010, 0.006], [0.016, 0.012]], [[0.012, 0.007], [0.02, 0.012]],
        [[200, 5], [300, 3]],
    )  # fmt: skip
    assert headings(table) == (
        "batch",
        *("p50, 1 core", "p99", "rows/s"),
        *("p50, 2 cores", "p99", "rows/s"),
    )
    assert lines(table) == [
        ("1", "10.0 ms", "12.0 ms", "100", "6.00 ms", "~7.00 ms", "167*"),
        ("2", "16.0 ms", "20.0 ms", "125*", "12.0 ms", "~12.0 ms", "167"),
    ]
    assert summary(table)[0] == "1 core: capacity 100 rows/s, peak 125 rows/s at batch 2 (1.2 ×)"


def detector(*sides: int) -> ProfileRecord:
    """One row of 64 × 64 takes 8 ms; a larger one in proportion to its area, plus 1 ms less."""
    table = LatencyTable.from_grid((1, 4), (1,), [[8e-3], [30e-3]], [[9e-3], [31e-3]])
    sizes = [
        SizeTime(1, 1, (side / 64) ** 2, 1e-3 + 7e-3 * (side / 64) ** 2, ((3, side, side),))
        for side in sides
    ]
    return ProfileRecord(table, {"x": (3, 64, 64)}, sizes=tuple(sizes))


def test_sizes_of_rows_stand_beside_what_the_law_makes_of_them() -> None:
    record = detector(32, 128)
    assert size_headings(record) == ("a row", "size", "p50 of 1, 1 core", "of 4", "law")
    small, own, large = size_lines(record)
    assert small[:4] == ("3×32×32", "0.25", "2.75 ms", "–")
    assert own[:4] == ("3×64×64", "1", "8.00 ms", "30.0 ms")
    assert large[:4] == ("3×128×128", "4", "29.0 ms", "–")
    assert all(abs(float(line[4].rstrip("%"))) < 1.0 for line in (small, own, large))
    law = size_law(record)
    assert law is not None
    assert law_formula(law).startswith("work of a row of size s: L(s) = 0.0976 + 0.901 s")
    assert law_formula(law).endswith("over 3 sizes, predicted from size 0.0625 to 16")


def test_the_law_shown_is_the_one_served_by() -> None:
    """Of batches of several rows too, whose fixed part does not grow as fast as the rows."""
    record = detector(32, 128)
    batches = [size._replace(rows=4, seconds=3.5 * size.seconds) for size in record.sizes]
    record = replace(record, sizes=(*record.sizes, *batches))
    law, times = size_law(record), ShapedTimes(record.table, ((3, 64, 64),), record.sizes)
    assert law is not None
    for side in (24, 32, 90, 128, 200):
        members = (Request(0, "", 0.0, 0.0, signature=((3, side, side),)),)
        shown = WorkScale(record.table).seconds(law.work((side / 64) ** 2), 4, 1)
        assert times.of(4, 1, members).expected == pytest.approx(shown, rel=0.03)  # steps of 5 %


def test_two_sizes_are_no_law_and_one_is_no_table() -> None:
    assert size_law(detector(32)) is None
    assert [line[4] for line in size_lines(detector(32))] == ["", ""]
    assert size_lines(detector()) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (23.4e-6, "23.4 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (0.012, "12.0 ms"),
        (0.9996, "1.00 s"),
        (75.0, "75.0 s"),
        (1234.0, "1234 s"),
    ],
)
def test_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_fit_says_what_it_is_how_good_and_how_far() -> None:
    model = AmdahlModel(0.020, 0.0, 0.004, 0.002)
    points = [Timed(b, c, model.seconds(b, c)) for b in (1, 2, 4) for c in (2, 4, 8)]
    points[4] = points[4]._replace(seconds=2 * points[4].seconds)
    fit = fit_amdahl(points)
    assert formula(fit.model) == "l(b, c) = 20.0 ms · b/c + 4.00 ms · b + 2.00 ms"
    assert fit_lines(fit)[0] == ("1", "2", "16.0 ms", "16.0 ms", "+0.0%")
    assert fit_lines(fit)[4] == ("2", "4", "40.0 ms", "20.0 ms", "-50.0%!")
    assert fit_summary(fit) == (
        "median error 0.0%, worst 50.0% (batch 2 on 4 cores); "
        "predicted from 1 to 16 cores, up to batch 8"
    )
    lengths = bar_lengths(fit)
    assert max(max(pair) for pair in lengths) == pytest.approx(1.0)
    assert min(min(pair) for pair in lengths) > 0.0
    assert lengths[4][0] > lengths[4][1]


def test_a_fit_to_one_core_count_says_so() -> None:
    fit = fit_amdahl([Timed(1, 2, 0.3), Timed(2, 2, 0.5)])
    assert "measured on one core count only, so others are unknown, up to batch 4" in fit_summary(
        fit
    )
