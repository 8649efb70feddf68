"""`Report`: the settings of a run and its results, as one JSON document.

Live runs, simulated runs and benchmarks all use this format, so any two can be compared. Times are
in seconds and rates per second; the suffixes `_s` and `_rps` mark some of these fields.

Terms. *Submitted*: requests that were due and sent within the scored window (after the warm-up).
*On time*: answered before the deadline by the client's clock, counting from the intended send;
best-effort answers are always on time. *Goodput*: on time ÷ submitted. *Violation rate*: not on
time ÷ submitted. *Refused*: outcome `rejected` or `dropped`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from slacktide.domain import OutcomeKind


class ReportError(ValueError):
    """A report that cannot be read or drawn; the text says what was expected."""


SCHEMA = 1
"""Version of the format. It rises when a reader of the old format would misread a report."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of `count` samples, in seconds, without interpolation. Each exceeds the exact
    percentile by at most the fraction `error`."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    error: float = 0.0
    """0: exact. Positive: there were too many samples to keep, and a histogram counted them."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream of requests, or the total of all."""

    name: str
    model: str
    application: str
    submitted: int
    outcomes: Mapping[str, int]
    """`OutcomeKind` value → requests; the values add up to `submitted`."""
    reasons: Mapping[str, int]
    """Reason → requests, finer than `outcomes`; these values also add up to `submitted`."""
    rows_submitted: int
    rows_on_time: int
    offered_rps: float
    """Submitted per second of the window."""
    on_time_rps: float
    latency: Percentiles | None
    """Latency of answers, on time or late, counted from `Report.latency_from`; None without
    answers."""
    refusal_latency: Percentiles | None
    """Latency of refusals, counted from the same instant."""
    latency_curve: tuple[float, ...] = ()
    """Latency of answers at 0, 1, …, 100 percent (seconds)."""

    @property
    def on_time(self) -> int:
        return self.outcomes.get(OutcomeKind.SERVED.value, 0)

    @property
    def refused(self) -> int:
        kinds = (OutcomeKind.REJECTED, OutcomeKind.DROPPED)
        return sum(self.outcomes.get(kind.value, 0) for kind in kinds)

    @property
    def goodput(self) -> float:
        """On time ÷ submitted, 0 to 1; 0 if nothing was submitted."""
        return self.on_time / self.submitted if self.submitted else 0.0

    @property
    def violation_rate(self) -> float:
        """Not on time (refusals included) ÷ submitted, 0 to 1; 0 if nothing was submitted."""
        return 1.0 - self.on_time / self.submitted if self.submitted else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Requests by the bin of the window in which they were due; all lists have equal lengths."""

    arrivals: tuple[int, ...] = ()
    on_time: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    """Late, failed or cancelled."""
    bin_s: float = 1.0
    """Length of a bin; the last may be cut short by the end of the window."""
    cores: tuple[float, ...] = ()
    """Mean cores allocated; empty if the run could not measure them."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a report."""

    started: str
    """ISO 8601, UTC."""
    versions: Mapping[str, str]
    machine: str
    commit: str | None = None
    """Commit of the source, if it runs from a git checkout; `+` marks uncommitted changes."""


@dataclass(frozen=True, slots=True)
class Report:
    """Settings and results of one run."""

    kind: str
    """Command that made it: `load`, `simulate`, …"""
    title: str
    seed: int
    configuration: Mapping[str, Any]
    """Settings of the run, as plain JSON values."""
    provenance: Provenance
    warmup_s: float
    duration_s: float
    """Length of the scored window; shorter than requested if the run was interrupted."""
    total: StreamReport
    streams: tuple[StreamReport, ...]
    lateness: Percentiles | None
    """Lateness of the generator itself: actual minus intended send; None in a simulation, where
    sends are virtual."""
    timeline: Timeline = Timeline()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    """Counts of the most frequent errors from the server or the transport, including the
    warm-up."""
    accuracy: float | None = None
    """Share of right answers; None if labels are unknown."""
    network: Percentiles | None = None
    """Seconds that requests spent on their link in both directions; None without a link."""
    cores: float | None = None
    """Mean busy cores; None if the run could not measure them."""
    mean_cores: float | None = None
    """Mean cores allocated to models in the window, busy or not; None if not measured."""
    core_seconds: float | None = None
    """`mean_cores` times the length of the window."""
    forwarded: int | None = None
    """Submitted requests that a server forwarded to another; None without several servers."""
    latency_from: str = "intended send"
    """Instant from which latencies count: `intended send`, or `first byte` at the server."""
    schema: int = SCHEMA

    @property
    def goodput(self) -> float:
        return self.total.goodput

    @property
    def forwarded_share(self) -> float | None:
        """Forwarded ÷ submitted, 0 to 1; None without several servers."""
        return None if self.forwarded is None else self.forwarded / max(1, self.total.submitted)

    def to_json(self) -> bytes:
        """Return indented JSON that also contains goodput and violation rate."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values that also contain goodput and violation rate."""
        document: dict[str, Any] = orjson.loads(
            orjson.dumps(self, option=orjson.OPT_SERIALIZE_NUMPY)
        )
        for stream, plain in zip(
            (self.total, *self.streams), (document["total"], *document["streams"]), strict=True
        ):
            plain["goodput"] = stream.goodput
            plain["violation_rate"] = stream.violation_rate
        return document

    @classmethod
    def from_json(cls, data: bytes | str) -> Report:
        """Read a report from JSON. Raises ReportError, which names the first field at fault."""
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ReportError(f"not JSON: {error}") from None
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: object) -> Report:
        """Read a report from plain values, like `from_json`."""
        from pydantic import TypeAdapter, ValidationError

        if not isinstance(document, dict) or "schema" not in document:
            raise ReportError("not a report: it has no field 'schema'")
        if document["schema"] != SCHEMA:
            raise ReportError(f"schema: expected {SCHEMA}, got {document['schema']!r}")
        try:
            return TypeAdapter(cls).validate_python(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ReportError(f"{where}: {first['msg']}") from None
