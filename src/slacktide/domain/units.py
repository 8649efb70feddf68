"""Values with units: durations (`150ms`, `2s`), byte sizes (`64MiB`, `2GiB`), percentages (`2%`).

A duration always states its unit, so nobody has to guess it. A bare whole number is a number of
bytes. Formatting and parsing are exact inverses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from slacktide.domain.suggestions import shown

_SECONDS: Mapping[str, Fraction] = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
"""Units of a duration, in seconds. `m` is minutes; `ms` milliseconds."""

_BYTES: Mapping[str, int] = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Units of a byte size."""

_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%", re.ASCII)

_SHARE = re.compile(r"\d{1,3}(?:\.\d{1,6})?", re.ASCII)

_DURATION_FORMS = "a duration with its unit, such as '150ms', '2s' or '1m'"
_SIZE_FORMS = "a size in bytes, such as '64MiB', '2GiB' or a whole number"
# The digits are bounded so that no text takes long to parse.
_NUMBER = re.compile(r"(\d{1,24}(?:\.\d{1,24})?) ?([A-Za-z]{1,8})", re.ASCII)


def parse_seconds(value: object) -> float:
    """Seconds of a duration with a unit. Raises ValueError that says what is expected."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"expected {_DURATION_FORMS}, got {shown(value)}{_hint(match, _SECONDS)}")
    return float(Fraction(match[1]) * _SECONDS[match[2]])


def format_seconds(seconds: float) -> str:
    """The shortest exact text of a duration ≥ 0: `0.15` is `150ms`."""
    digits = repr(float(seconds))
    for unit in ("h", "m", "s", "ms"):
        amount = Fraction(digits) / _SECONDS[unit]
        if amount.denominator == 1 and (amount >= 1 or unit == "s"):
            return f"{amount.numerator}{unit}"
    return f"{(Decimal(digits) * 10**6).normalize():f}us"


def parse_bytes(value: object) -> int:
    """Bytes of a size. Raises ValueError that says what is expected."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"expected {_SIZE_FORMS}, got {shown(value)}{_hint(match, _BYTES)}")
    size = Fraction(match[1]) * _BYTES[match[2]]
    if size.denominator != 1:
        raise ValueError(f"expected a whole number of bytes, got {shown(value)}")
    return size.numerator


def parse_percent(value: object) -> float:
    """The share, 0 to 1, of a percentage; 0 needs no unit. Raises ValueError."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or Fraction(match[1]) > 100:
        expected = f"expected a percentage, such as '2%', got {shown(value)}"
        raise ValueError(f"{expected}{_percent_hint(value)}")
    return float(Fraction(match[1]) / 100)


def _percent_hint(value: object) -> str:
    """Suggest a percentage for a bare number: below 1 it may be a share, above it a percentage."""
    text = str(value)
    if _SHARE.fullmatch(text) is None or not 0 < Fraction(text) <= 100:
        return ""
    percent = f"{text}%" if Fraction(text) >= 1 else format_percent(float(text))
    return f"; did you mean {percent!r}?"


def parse_port(value: object) -> int | None:
    """A port number; None for -1, which means no port. Raises ValueError."""
    try:
        port = int(str(value))
    except ValueError:
        raise ValueError(f"expected a port number, or -1, got {shown(value)}") from None
    return None if port == -1 else port


def format_percent(share: float) -> str:
    """The exact percentage: `0.02` is `2%`."""
    return f"{(Decimal(repr(float(share))) * 100).normalize():f}%"


def percent(share: float) -> str:
    """`share` rounded for people: `0.9512` is `95.1 %`."""
    return f"{share * 100:.1f} %"


def format_bytes(size: int) -> str:
    """The largest binary unit that divides `size` ≥ 0: 67108864 is `64MiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def _hint(match: re.Match[str] | None, units: Mapping[str, object]) -> str:
    if match is None:
        return ""
    return f"; {match[2]!r} is not one of the units {', '.join(units)}"


@dataclass(frozen=True, slots=True)
class Unit:
    """The written form of an option's values, and their placeholder in the help."""

    metavar: str
    parse: Callable[[object], Any]
    """Converts a text, or a number that needs no unit. Raises ValueError."""
    format: Callable[[Any], str]


SECONDS = Unit("TIME", parse_seconds, format_seconds)
BYTES = Unit("SIZE", parse_bytes, format_bytes)
SHARE = Unit("PERCENT", parse_percent, format_percent)
PORT = Unit("PORT", parse_port, str)
