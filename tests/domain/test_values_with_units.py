"""Durations and sizes: read, printed, and read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.units import (
    format_bytes,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_percent,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("150ms", 0.15),
        ("250us", 0.00025),
        ("2s", 2.0),
        ("1m", 60.0),
        ("1.5 m", 90.0),
        ("1h", 3600.0),
        ("0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("value", [150, 1.5, "150", "ms", "-1s", "1e3s", " 1s", "1s\n", None, True])
def test_a_duration_without_unit_or_sense_is_refused_with_the_forms(value: object) -> None:
    with pytest.raises(ValueError, match="a duration with its unit, such as '150ms', '2s' or '1m'"):
        parse_seconds(value)


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(ValueError, match="'sec' is not one of the units us, ms, s, m, h"):
        parse_seconds("3sec")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64MiB", 64 * 2**20),
        ("2GiB", 2**31),
        ("10MB", 10_000_000),
        ("1.5KiB", 1536),
        (512, 512),
        ("7B", 7),
    ],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize("value", ["64", "64mb", -1, 1.5, True, "", "1.0001B", "9" * 5000 + "B"])
def test_a_size_without_sense_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_bytes(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.15, "150ms"), (90.0, "90s"), (120.0, "2m"), (7200.0, "2h"), (0.0, "0s"), (5e-07, "0.5us")],
)
def test_durations_print_in_the_unit_that_suits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(1e-6, 1e9))
def test_a_printed_duration_reads_back_exactly(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == seconds


@given(st.integers(0, 2**60))
def test_a_printed_size_reads_back_exactly(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@given(st.text(max_size=30))
def test_no_text_is_worse_than_a_value_error(text: str) -> None:
    for parse in (parse_seconds, parse_bytes):
        message = "expected"
        try:
            parse(text)
        except ValueError as error:
            message = str(error)
        assert message.startswith("expected")


@pytest.mark.parametrize(
    ("value", "share"), [("2%", 0.02), ("0%", 0.0), ("100%", 1.0), ("0.5 %", 0.005), (0, 0.0)]
)
def test_percentages(value: object, share: float) -> None:
    assert parse_percent(value) == share


@pytest.mark.parametrize("value", [2, 0.02, "2", "101%", "-1%", "%", True, False, None, "2%\n"])
def test_a_percentage_without_its_sign_or_sense_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected a percentage, such as '2%'"):
        parse_percent(value)


@given(st.integers(0, 10**6))
def test_percentages_are_printed_as_they_are_read(millionths: int) -> None:
    share = parse_percent(f"{millionths / 10**4:.4f}%")
    assert parse_percent(format_percent(share)) == share
