"""Workloads as short texts, for command lines and scenario files.

    arrivals   poisson:RATE   gamma:RATE:cv=CV   constant:RATE   trace:FILE
               onoff:RATE_ON:RATE_OFF:MEAN_ON:MEAN_OFF
    deadlines  fixed:50ms (or just 50ms)   mix:24ms,60ms@2,120ms   uniform:20ms:200ms   none

Fields come in order or by name (`gamma:100:cv=3` is `gamma:rate=100:cv=3`). Rates are plain
numbers, requests per second; durations always carry a unit (us, ms, s, m or h).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from slacktide.workloads.arrivals import Arrivals, Constant, Gamma, OnOff, Poisson
from slacktide.workloads.deadlines import Deadlines, Fixed, Mix, Uniform
from slacktide.workloads.errors import WorkloadError

_Reader = Callable[[str, str], float]

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-zµ]+)")


def parse_seconds(text: str, field: str = "duration") -> float:
    """`50ms` → 0.05. The unit is required. Raises WorkloadError naming `field`."""
    match = _DURATION.fullmatch(text.strip())
    unit = _UNITS.get(match["unit"]) if match else None
    if match is None or unit is None:
        raise WorkloadError(field, f"expected a duration such as 50ms, 1.5s or 2m, got {text!r}")
    return parse_number(match["number"], field) * unit


def parse_number(text: str, field: str) -> float:
    """A plain finite number. Raises WorkloadError naming `field`."""
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError(field, f"expected a number, got {text!r}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise WorkloadError(field, f"expected a finite number, got {text!r}")
    return value


_PROCESSES: Mapping[str, tuple[Callable[..., Arrivals], Mapping[str, _Reader]]] = {
    "poisson": (Poisson, {"rate": parse_number}),
    "gamma": (Gamma, {"rate": parse_number, "cv": parse_number}),
    "constant": (Constant, {"rate": parse_number}),
    "onoff": (
        OnOff,
        {
            "rate_on": parse_number,
            "rate_off": parse_number,
            "mean_on": parse_seconds,
            "mean_off": parse_seconds,
        },
    ),
}
_ARRIVALS = (*_PROCESSES, "trace")
_DEADLINES = ("fixed", "mix", "uniform", "none")


def parse_arrivals(text: str, read_trace: Callable[[str], Arrivals] | None = None) -> Arrivals:
    """The process that `text` describes.

    This room opens no file: `read_trace` (path → arrivals) is called for `trace:FILE`.
    Raises WorkloadError naming the field.
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "trace":
        if not rest:
            raise WorkloadError("trace", "expected trace:FILE")
        if read_trace is None:
            raise WorkloadError("trace", "trace files cannot be read here")
        return read_trace(rest)
    if kind not in _PROCESSES:
        raise WorkloadError("arrivals", _unknown("process", kind, _ARRIVALS))
    make, readers = _PROCESSES[kind]
    return make(**_fields(kind, rest, readers))


def parse_deadlines(text: str) -> Deadlines | None:
    """The deadlines that `text` describes; None for `none` (best effort).

    Raises WorkloadError naming the field.
    """
    kind, colon, rest = text.strip().partition(":")
    if not colon and kind[:1].isdigit():
        kind, rest = "fixed", kind
    if kind == "none" and not colon:
        return None
    if kind == "fixed":
        return Fixed(**_fields(kind, rest, {"seconds": parse_seconds}))
    if kind == "uniform":
        return Uniform(**_fields(kind, rest, {"low": parse_seconds, "high": parse_seconds}))
    if kind == "mix":
        return _mix(rest)
    raise WorkloadError("deadlines", _unknown("kind", kind, _DEADLINES))


def _mix(text: str) -> Mix:
    choices, weights = [], []
    for item in text.split(","):
        choice, at, weight = item.partition("@")
        choices.append(parse_seconds(choice, "mix"))
        weights.append(parse_number(weight, "mix") if at else 1.0)
    even = len(set(weights)) == 1
    return Mix(tuple(choices), () if even else tuple(weights))


def _fields(kind: str, text: str, readers: Mapping[str, _Reader]) -> dict[str, float]:
    """Read `text` (`a:b:name=c`) into the named fields; every one is required, once."""
    values: dict[str, float] = {}
    order = list(readers)
    for position, item in enumerate(text.split(":") if text else []):
        name, equals, value = item.partition("=")
        if not equals:
            if position >= len(order):
                raise WorkloadError(kind, f"too many fields; expected {_shape(kind, order)}")
            name, value = order[position], item
        if name not in readers:
            raise WorkloadError(kind, _unknown("field", name, order))
        if name in values:
            raise WorkloadError(f"{kind} {name}", "given twice")
        values[name] = readers[name](value, f"{kind} {name}")
    missing = [name for name in order if name not in values]
    if missing:
        raise WorkloadError(f"{kind} {missing[0]}", f"missing; expected {_shape(kind, order)}")
    return values


def _shape(kind: str, order: list[str]) -> str:
    return ":".join([kind, *(name.upper() for name in order)])


def _unknown(what: str, name: str, known: tuple[str, ...] | list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {name!r}{hint} (one of: {', '.join(known)})"
