"""Links as short texts, for command lines and scenario files.

    RATE                          5Mbit/s, 800kbit/s, 2MB/s: the same for ever
    4g, 5g                        drawn: 4g:seed=3:length=10m
    FILE                          recorded: ghent.csv, irish.csv:only=4:column=uplink_mbps

Behind drawn and recorded ones `:offset=30s` begins that far into the trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from slacktide.workloads.bandwidth import BandwidthTrace
from slacktide.workloads.bandwidth_draws import draw_4g, draw_5g
from slacktide.workloads.errors import WorkloadError
from slacktide.workloads.links import ConstantLink, TraceLink
from slacktide.workloads.values import parse_number, parse_seconds

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
    """The link that `text` describes, with this round trip (seconds).

    This room opens no file: `read_bandwidths` is called for a FILE. Raises WorkloadError.
    """
    rate = _RATE.fullmatch(text.strip())
    if rate is not None:
        scale = _SCALES[rate["scale"]] * _UNITS[rate["unit"]]
        return ConstantLink(parse_number(rate["number"], "link") * scale, rtt)
    trace, offset = parse_bandwidth_trace(text, read_bandwidths)
    return TraceLink(trace, rtt, offset)


def parse_bandwidth_trace(
    text: str, read_bandwidths: ReadBandwidths | None = None
) -> tuple[BandwidthTrace, float]:
    """The trace that `text` names, and the offset (seconds). Raises WorkloadError."""
    kind = text.partition(":")[0].strip()
    if kind in _DRAWN:
        rest, fields = _split(text, _OF_DRAWN)
        if rest != kind:
            expected = f"{kind}, {kind}:seed=N:length=TIME:offset=TIME"
            raise WorkloadError("link", f"expected {expected}, got {text!r}")
        seed = parse_number(fields.get("seed", "0"), "link seed")
        if seed < 0 or not seed.is_integer():
            raise WorkloadError("link seed", f"expected a whole number ≥ 0, got {fields['seed']!r}")
        length = parse_seconds(fields.get("length", _LENGTH), "link length")
        trace = _DRAWN[kind](length, np.random.default_rng(int(seed)))
    else:
        path, fields = _split(text, _OF_FILES)
        # Otherwise `5Mbps` would be a file that is not there.
        if not path or _LOOKS_LIKE_A_RATE.fullmatch(path):
            expected = "a rate such as 5Mbit/s or 2MB/s, 4g, 5g or a file"
            raise WorkloadError("link", f"expected {expected}, got {text!r}")
        if read_bandwidths is None:
            raise WorkloadError("link", "trace files cannot be read here")
        trace = read_bandwidths(path, fields.get("only"), fields.get("column"))
    return trace, parse_seconds(fields.get("offset", "0s"), "link offset")


def _split(text: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """What stands before the fields (a path may hold colons), and the fields."""
    rest = text.strip()
    fields: dict[str, str] = {}
    while True:
        before, colon, last = rest.rpartition(":")
        name, equals, value = last.partition("=")
        if not colon or not equals or name not in names:
            return rest, fields
        if name in fields:
            raise WorkloadError(f"link {name}", "given twice")
        fields[name] = value
        rest = before
