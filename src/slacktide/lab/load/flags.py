"""The flags of `slacktide load`, stated once: what each means, its unit and its default.

Imports little, since the command line reads this for `--help` and completion.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slacktide.domain import Options, Unit, format_seconds, option


def _seconds(value: object) -> float:
    """Parse a time in any spelling of workload specs, of which a settings file takes only some."""
    from slacktide.lab.workloads import WorkloadError, parse_seconds  # numpy: only to read a value

    try:
        return parse_seconds(str(value))
    except WorkloadError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


_TIME = Unit("TIME", _seconds, format_seconds)
_TRAFFIC = "Traffic"
_JUDGE = "Deadlines"
_WIRE = "Transport"
_REPORT = "Output"


@dataclass(frozen=True, slots=True)
class LoadFlags(Options):
    """A run as the command line states it. Values with a grammar of their own are still text."""

    model: str = option("", "Model to send requests for.", panel=_TRAFFIC, metavar="NAME")
    version: str = option("", "Model version; default: the latest.", panel=_TRAFFIC, metavar="N")
    arrivals: str = option(
        "poisson:10",
        "Arrival process: poisson:RATE, gamma:RATE:cv=CV, onoff:RATE_ON:RATE_OFF:MEAN_ON:MEAN_OFF, "
        "diurnal:LOW:HIGH:PERIOD, windows:RATE:WINDOW:cv=CV, constant:RATE, trace:FILE, "
        "or module:Class and its fields. Rates are per second.",
        panel=_TRAFFIC,
        metavar="PROCESS",
    )
    duration: float = option(10.0, "Length of the scored part.", panel=_TRAFFIC, unit=_TIME)
    warmup: float = option(
        0.0,
        "Length of the warm-up, which has the same load and is not scored.",
        panel=_TRAFFIC,
        unit=_TIME,
    )
    stream: tuple[str, ...] = option(
        (),
        "One of several streams: 'model=NAME arrivals=… deadline=…'. Keys are the flags of a "
        "single stream, which also give the values of missing keys. May be given several times.",
        panel=_TRAFFIC,
        metavar="WORDS",
        repeated=True,
    )
    rows: str = option(
        "1", "Rows of a request, or a list (1,2,4) to draw from.", panel=_TRAFFIC, metavar="N,…"
    )
    shape: tuple[str, ...] = option(
        (),
        "Shape of an input with free axes, such as ids=16 or image=3x224x224, or a list (16,64) or "
        "range (8..24) to draw from. May be given several times.",
        panel=_TRAFFIC,
        metavar="INPUT=DIMS",
        repeated=True,
    )
    payload: str = option(
        "random",
        "Input data: random, random:integers=N, or files (.npy, .npz, .json) separated by commas.",
        panel=_TRAFFIC,
        metavar="KIND",
    )
    seed: int = option(0, "Seed of arrivals, deadlines and payloads.", panel=_TRAFFIC)
    deadline: str = option(
        "none",
        "Time to the deadline: 50ms, mix:24ms,60ms@2,120ms, uniform:20ms:200ms or none.",
        panel=_JUDGE,
        metavar="SPEC",
    )
    send_deadlines: bool = option(True, "Whether requests state their deadline.", panel=_JUDGE)
    patience: float = option(
        10.0, "Time to wait for an answer after its deadline.", panel=_JUDGE, unit=_TIME
    )
    application: str = option(
        "", "Application that the requests belong to.", panel=_WIRE, metavar="NAME"
    )
    priority: int = option(
        0, "Priority of the requests, 1 (highest) to 5; 0: not stated.", panel=_WIRE
    )
    parameter: tuple[str, ...] = option(
        (),
        "Further request parameter. May be given several times.",
        panel=_WIRE,
        metavar="NAME=VALUE",
        repeated=True,
    )
    connections: int | None = option(
        None,
        "Maximum HTTP connections (default: 512), or number of gRPC channels (1).",
        panel=_WIRE,
    )
    upload: float = option(
        0.0,
        "Delay of each body after its headers, as on a slow uplink; HTTP only.",
        panel=_WIRE,
        unit=_TIME,
    )
    link: str = option(
        "",
        "Emulated link: a rate (5Mbit/s), a bandwidth trace (FILE.csv), 4g or 5g (generated).",
        panel=_WIRE,
        metavar="LINK",
    )
    rtt: float = option(0.0, "Round-trip time of the link.", panel=_WIRE, unit=_TIME)
    shared_link: bool = option(
        False, "Whether all connections share one link; otherwise each has its own.", panel=_WIRE
    )
    token_file: Path | None = option(None, "File with the bearer token.", panel=_WIRE)
    ca_file: Path | None = option(None, "Certificates (PEM) to trust over TLS.", panel=_WIRE)
    spin: bool = option(False, "Busy-wait between sends; uses a whole core.", panel=_WIRE)
    lateness_warning: float = option(
        0.005,
        "Lateness of the generator (p99) above which the report warns.",
        panel=_REPORT,
        unit=_TIME,
    )
    title: str = option("", "Title of the report.", panel=_REPORT, metavar="TEXT")
