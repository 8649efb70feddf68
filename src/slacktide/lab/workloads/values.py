"""Numbers and durations as people write them, their bounds, and the one error of this package."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray


class WorkloadError(ValueError):
    """An invalid workload. `field` is the field at fault; the text says what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def positive(**values: float) -> None:
    """Raise WorkloadError unless 0 < value < ∞ for each field."""
    for field, value in values.items():
        if not 0.0 < value < float("inf"):
            raise WorkloadError(field, f"must be positive and finite, got {value!r}")


def not_negative(**values: float) -> None:
    """Raise WorkloadError unless 0 ≤ value < ∞ for each field."""
    for field, value in values.items():
        if not 0.0 <= value < float("inf"):
            raise WorkloadError(field, f"must be finite and not negative, got {value!r}")


Times: TypeAlias = NDArray[np.float64]
"""Sorted seconds from the start of the run, shape (n,)."""


def column(field: str, values: ArrayLike) -> Times:
    """Return a read-only float64 copy, checked: one axis, not empty, finite, not negative."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise WorkloadError(field, f"must be a non-empty list of numbers, got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0.0):
        raise WorkloadError(field, "must be finite and not negative")
    array.setflags(write=False)
    return array


def rising(starts: ArrayLike, values: ArrayLike, field: str) -> tuple[Times, Times]:
    """Return both as columns, after checking that they are equally long and that `starts` rise
    strictly."""
    times, levels = column("time_s", starts), column(field, values)
    if times.size != levels.size:
        raise WorkloadError(field, f"{levels.size} values for {times.size} times")
    if np.any(np.diff(times) <= 0.0):
        raise WorkloadError("time_s", "must rise from row to row")
    return times, levels


def set_fields(instance: object, **values: Any) -> None:
    """Set the fields of a frozen dataclass that defines `__init__` itself."""
    for field, value in values.items():
        object.__setattr__(instance, field, value)


_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-zµ]+)")


def parse_seconds(text: str, field: str = "duration") -> float:
    """Parse `50ms` to 0.05. The unit is required. Raises WorkloadError naming `field`."""
    match = _DURATION.fullmatch(text.strip())
    unit = _UNITS.get(match["unit"]) if match else None
    if match is None or unit is None:
        raise WorkloadError(field, f"expected a duration such as 50ms, 1.5s or 2m, got {text!r}")
    return parse_number(match["number"], field) * unit


def parse_number(text: str, field: str) -> float:
    """Parse a finite number without unit. Raises WorkloadError naming `field`."""
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError(field, f"expected a number, got {text!r}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise WorkloadError(field, f"expected a finite number, got {text!r}")
    return value


def split_fields(text: str, names: tuple[str, ...], subject: str) -> tuple[str, dict[str, str]]:
    """Return the text before any fields `:name=value` (it may contain colons), and the fields.
    Raises WorkloadError for a repeated name; the message calls it a field of `subject`."""
    head = text.strip()
    fields: dict[str, str] = {}
    while True:
        before, colon, last = head.rpartition(":")
        name, equals, value = last.partition("=")
        if not colon or not equals or name not in names:
            return head, fields
        if name in fields:
            raise WorkloadError(f"{subject} {name}", "given twice")
        fields[name] = value
        head = before
