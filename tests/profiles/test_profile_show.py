"""What a terminal shows of a profile."""

from __future__ import annotations

import pytest

from slacktide.profiles import LatencyTable
from slacktide.profiles.show import duration, headings, lines, summary


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
