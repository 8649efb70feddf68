"""Workloads as short texts, for command lines and scenario files.

    arrivals   poisson:RATE   gamma:RATE:cv=CV   constant:RATE   trace:FILE
               onoff:RATE_ON:RATE_OFF:MEAN_ON:MEAN_OFF   diurnal:LOW:HIGH:PERIOD
               windows:RATE:WINDOW:cv=CV
    lengths    constant:LENGTH   exponential:MEAN   trace:FILE   sample:FILE
               modes:[APPLICATION=]MEAN[~SIGMA][@WEIGHT],…
    deadlines  fixed:50ms (or just 50ms)   mix:24ms,60ms@2,120ms   uniform:20ms:200ms   none

Fields come in order or by name (`gamma:100:cv=3` is `gamma:rate=100:cv=3`). Rates are plain
numbers, requests per second; durations always carry a unit (us, ms, s, m or h).

    links      5Mbit/s, 800kbit/s, 2MB/s (constant)
               4g, 5g, 4g:seed=3:length=10m (random)
               FILE, irish.csv:only=4:column=uplink_mbps (recorded)

Add `:offset=30s` to a random or recorded link to begin that far into the trace.

Arrival processes of other packages (`ARRIVALS`) are named like those above, or as
`module:Class:…`; the fields are their options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from slacktide.domain import OptionError, Registry, did_you_mean, options_of
from slacktide.lab.workloads.arrivals import Arrivals, Constant, Gamma, Poisson
from slacktide.lab.workloads.bandwidth import BandwidthTrace, draw_4g, draw_5g
from slacktide.lab.workloads.deadlines import Deadlines, Fixed, Mix, Uniform
from slacktide.lab.workloads.lengths import Empirical, Exponential, Lengths, Mode, Modes, constant
from slacktide.lab.workloads.links import ConstantLink, TraceLink
from slacktide.lab.workloads.values import WorkloadError, parse_number, parse_seconds, split_fields
from slacktide.lab.workloads.varying import Diurnal, GammaWindows, OnOff

_Reader = Callable[[str, str], float]

_PROCESSES: Mapping[str, Callable[..., Arrivals]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "constant": Constant,
    "onoff": OnOff,
    "diurnal": Diurnal,
    "windows": GammaWindows,
}
_DURATIONS = ("mean_on", "mean_off", "period", "window")
"""Fields of these processes that are durations; all other fields are numbers."""
_BARE_RATE = re.compile(r"(?P<rate>[0-9]+(\.[0-9]+)?) *((req(uests)?)?/s|[rq]ps)?")
_ARRIVALS = (*_PROCESSES, "trace")
_DEADLINES = ("fixed", "mix", "uniform", "none")
_LENGTHS = ("constant", "modes", "exponential", "trace", "sample")
_Read = TypeVar("_Read")

ARRIVALS: Registry[Arrivals] = Registry("arrival process", {}, group="arrivals")
"""Arrival processes of other packages, by name; each is made from its options."""

Admit = Callable[[Registry[Arrivals], str], None]
"""Makes a name known to a registry, if that is allowed. Raises OptionError."""
_PLACE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(?=:|$)")
"""`module:Class` before the fields, each of which is a number or NAME=VALUE."""


def parse_arrivals(
    text: str,
    read_trace: Callable[[str], Arrivals] | None = None,
    admit: Admit = lambda registry, name: None,
) -> Arrivals:
    """Return the process that `text` describes. This package opens no file and imports nothing by
    name: `read_trace` (path → arrivals) is called for `trace:FILE`, `admit` for names that are not
    built in. Raises WorkloadError naming the field."""
    kind, _, arguments = text.strip().partition(":")
    if kind == "trace":
        return _from_file(kind, arguments, read_trace)
    if bare := _BARE_RATE.fullmatch(text.strip()):
        expected = f"expected a process such as poisson:{bare['rate']}"
        raise WorkloadError("arrivals", f"{expected}, got {text!r}")
    if kind in _PROCESSES:
        make = _PROCESSES[kind]
        readers = {
            name: parse_seconds if name in _DURATIONS else parse_number
            for name in signature(make).parameters
        }
        return make(**_fields(kind, arguments, readers))
    place = _PLACE.match(text.strip())
    return _registered_arrivals(kind if place is None else place.group(), text.strip(), admit)


def _registered_arrivals(name: str, text: str, admit: Admit) -> Arrivals:
    """Make an arrival process that a package has registered. Raises WorkloadError."""
    try:
        admit(ARRIVALS, name)
        if name not in (names := ARRIVALS.names()):
            kind = text.partition(":")[0]
            raise WorkloadError("arrivals", _unknown("process", kind, (*_ARRIVALS, *names)))
        order = list(options_of(ARRIVALS.find(name).options))
        texts = _split(name, text[len(name) + 1 :], order)
        values = {field: _number_or_text(value) for field, value in texts.items()}
        return ARRIVALS.make(name, ARRIVALS.read(name, values, bare=False))
    except OptionError as error:
        raise WorkloadError("arrivals", str(error).removeprefix("name: ")) from None


def _number_or_text(text: str) -> Any:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def parse_deadlines(text: str) -> Deadlines | None:
    """Return the deadlines that `text` describes; None for `none` (best effort). Raises
    WorkloadError naming the field."""
    kind, colon, arguments = text.strip().partition(":")
    if not colon and kind.lstrip("+-.")[:1].isdigit():
        return Fixed(parse_seconds(kind, "deadlines"))
    if kind == "none" and not colon:
        return None
    if kind == "fixed":
        return Fixed(**_fields(kind, arguments, {"seconds": parse_seconds}))
    if kind == "uniform":
        return Uniform(**_fields(kind, arguments, {"low": parse_seconds, "high": parse_seconds}))
    if kind == "mix":
        return _mix(arguments)
    raise WorkloadError("deadlines", _unknown("kind", kind, _DEADLINES))


def parse_lengths(text: str, read_lengths: Callable[[str], Empirical] | None = None) -> Lengths:
    """Return the lengths that `text` describes. This package opens no file: `read_lengths` (path →
    recorded lengths) is called for `trace:FILE`, which uses them in order, and for `sample:FILE`,
    which draws from them at random. Raises WorkloadError naming the field."""
    kind, _, arguments = text.strip().partition(":")
    if _BARE_RATE.fullmatch(text.strip()):
        expected = f"expected lengths such as constant:{text.strip()}"
        raise WorkloadError("lengths", f"{expected}, got {text!r}")
    if kind in ("trace", "sample"):
        return replace(_from_file(kind, arguments, read_lengths), in_order=kind == "trace")
    if kind == "constant":
        return constant(**_fields(kind, arguments, {"length": parse_number}))
    if kind == "exponential":
        return Exponential(**_fields(kind, arguments, {"mean": parse_number}))
    if kind == "modes":
        return Modes(tuple(map(_mode, arguments.split(","))))
    raise WorkloadError("lengths", _unknown("source", kind, _LENGTHS))


def _from_file(kind: str, path: str, read: Callable[[str], _Read] | None) -> _Read:
    if not path:
        raise WorkloadError(kind, f"expected {kind}:FILE")
    if read is None:
        raise WorkloadError(kind, "expected no trace file here")
    return read(path)


def _mode(text: str) -> Mode:
    """Parse `short=3~1@9`: application, mean, σ and weight. Only the mean is required."""
    application, equals, numbers = text.rpartition("=")
    if equals and not application.strip():
        raise WorkloadError("modes", f"expected [APPLICATION=]MEAN[~SIGMA][@WEIGHT], got {text!r}")
    numbers, at, weight = numbers.partition("@")
    mean, wave, sigma = numbers.partition("~")
    return Mode(
        parse_number(mean, "modes"),
        parse_number(sigma, "modes") if wave else 0.0,
        parse_number(weight, "modes") if at else 1.0,
        application.strip(),
    )


def _mix(text: str) -> Mix:
    choices, weights = [], []
    for item in text.split(","):
        choice, at, weight = item.partition("@")
        choices.append(parse_seconds(choice, "mix"))
        weights.append(parse_number(weight, "mix") if at else 1.0)
    even = len(set(weights)) == 1
    return Mix(tuple(choices), () if even else tuple(weights))


def _fields(kind: str, text: str, readers: Mapping[str, _Reader]) -> dict[str, float]:
    """Read `text` (`a:b:name=c`) into the fields of `readers`, each of which is required once."""
    order = list(readers)
    texts = _split(kind, text, order)
    values = {name: readers[name](value, f"{kind} {name}") for name, value in texts.items()}
    missing = [name for name in order if name not in values]
    if missing:
        raise WorkloadError(f"{kind} {missing[0]}", f"missing; expected {_shape(kind, order)}")
    return values


def _split(kind: str, text: str, order: list[str]) -> dict[str, str]:
    """Return the texts of the fields that `text` states, in order or by name."""
    values: dict[str, str] = {}
    for position, item in enumerate(text.split(":") if text else []):
        name, equals, value = item.partition("=")
        if not equals:
            if position >= len(order):
                raise WorkloadError(kind, f"too many fields; expected {_shape(kind, order)}")
            name, value = order[position], item
        if name not in order:
            raise WorkloadError(kind, _unknown("field", name, order))
        if name in values:
            raise WorkloadError(f"{kind} {name}", "given twice")
        values[name] = value
    return values


def _shape(kind: str, order: list[str]) -> str:
    return ":".join([kind, *(name.upper() for name in order)])


def _unknown(kind: str, name: str, choices: tuple[str, ...] | list[str]) -> str:
    return f"unknown {kind} {name!r}{did_you_mean(name, choices)} (one of: {', '.join(choices)})"


ReadBandwidths = Callable[[str, str | None, str | None], BandwidthTrace]
"""(path, only, column) → trace."""

_DRAWN: Mapping[str, Callable[[float, np.random.Generator], BandwidthTrace]] = {
    "4g": draw_4g,
    "5g": draw_5g,
}
_LENGTH = "10m"
_OF_DRAWN = ("seed", "length", "offset")
_OF_FILES = ("only", "column", "offset")

_RATE = re.compile(r"(?P<number>[0-9.]+(?:e[+-]?[0-9]+)?)\s*(?P<scale>[kMG]?)(?P<unit>bit|B)/s")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_UNITS = {"bit": 1 / 8, "B": 1.0}
_LOOKS_LIKE_A_RATE = re.compile(r"[-+]?[0-9.]+\s*[a-zA-Z/]*")


def parse_link(
    text: str, *, rtt: float = 0.0, read_bandwidths: ReadBandwidths | None = None
) -> ConstantLink | TraceLink:
    """Return the link that `text` describes, with round trip `rtt` (seconds). This package opens no
    file: `read_bandwidths` is called for a FILE. Raises WorkloadError."""
    rate = _RATE.fullmatch(text.strip())
    if rate is not None:
        scale = _SCALES[rate["scale"]] * _UNITS[rate["unit"]]
        return ConstantLink(parse_number(rate["number"], "link") * scale, rtt)
    trace, offset = parse_bandwidth_trace(text, read_bandwidths)
    return TraceLink(trace, rtt, offset)


def parse_bandwidth_trace(
    text: str, read_bandwidths: ReadBandwidths | None = None
) -> tuple[BandwidthTrace, float]:
    """Return the trace that `text` names, and the offset (seconds). Raises WorkloadError."""
    kind = text.partition(":")[0].strip()
    if kind in _DRAWN:
        head, fields = split_fields(text, _OF_DRAWN, "link")
        if head != kind:
            expected = f"{kind}, {kind}:seed=N:length=TIME:offset=TIME"
            raise WorkloadError("link", f"expected {expected}, got {text!r}")
        seed = parse_number(fields.get("seed", "0"), "link seed")
        if seed < 0 or not seed.is_integer():
            raise WorkloadError("link seed", f"expected a whole number ≥ 0, got {fields['seed']!r}")
        length = parse_seconds(fields.get("length", _LENGTH), "link length")
        trace = _DRAWN[kind](length, np.random.default_rng(int(seed)))
    else:
        path, fields = split_fields(text, _OF_FILES, "link")
        # Otherwise `5Mbps` would be reported as a missing file.
        if not path or _LOOKS_LIKE_A_RATE.fullmatch(path):
            expected = "a rate such as 5Mbit/s or 2MB/s, 4g, 5g or a file"
            raise WorkloadError("link", f"expected {expected}, got {text!r}")
        if read_bandwidths is None:
            raise WorkloadError("link", "expected no trace file here")
        trace = read_bandwidths(path, fields.get("only"), fields.get("column"))
    return trace, parse_seconds(fields.get("offset", "0s"), "link offset")
