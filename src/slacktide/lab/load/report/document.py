"""`Report`: the settings of a run and its results, as one JSON document.

Live runs, simulated runs and benchmarks all end in this one format, so that any two can be set
side by side. Times are seconds, rates are per second; a field that ends in `_s` or `_rps` says so.

Words. *Submitted*: requests that were due and sent inside the scored window (the warm-up is
left out). *On time*: answered before their deadline, by the client's clock, counted from the
moment they should have been sent; best-effort answers are always on time. *Goodput*: on time ÷
submitted. *Violation rate*: the rest ÷ submitted. *Refused*: outcome `rejected` or `dropped`.
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
"""Version of the document. It rises when a reader of the old one would go wrong."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of `count` samples in seconds. Each is a sample, not an interpolation, or lies
    above it by the share `error` at most."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    error: float = 0.0
    """0: samples. More: of samples that were too many to keep and were counted in a histogram."""


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
    """Finer: reason → requests; the values add up to `submitted` too."""
    rows_submitted: int
    rows_on_time: int
    offered_rps: float
    """Submitted per second of the window."""
    on_time_rps: float
    latency: Percentiles | None
    """Latency of the answers, on time or late, from `Report.latency_from` on; None without
    answers."""
    refusal_latency: Percentiles | None
    """Latency of the refusals, from the same instant on."""
    latency_curve: tuple[float, ...] = ()
    """Latency of the answers at 0, 1, …, 100 percent (seconds)."""

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
        """Not on time ÷ submitted, 0 to 1, refused or not; 0 if nothing was submitted."""
        return 1.0 - self.on_time / self.submitted if self.submitted else 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Requests by the bin of the window in which they were due; all lists are as long."""

    arrivals: tuple[int, ...] = ()
    on_time: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    """Late, failed or cancelled."""
    bin_s: float = 1.0
    """Length of a bin; the last may be cut short by the end of the window."""
    cores: tuple[float, ...] = ()
    """Mean cores allocated; empty where the run could not measure it."""


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
    """One run."""

    kind: str
    """Command that made it: `load`, `simulate`, …"""
    title: str
    seed: int
    configuration: Mapping[str, Any]
    """Settings of the run, as plain JSON values."""
    provenance: Provenance
    warmup_s: float
    duration_s: float
    """Length of the scored window: shorter than asked for if the run was interrupted."""
    total: StreamReport
    streams: tuple[StreamReport, ...]
    lateness: Percentiles | None
    """Lateness of the generator itself: actual minus intended send; None where sends are
    virtual."""
    timeline: Timeline = Timeline()
    interrupted: bool = False
    warnings: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    """The commonest complaints of the server or the transport, and how often they came; those of
    the warm-up too."""
    accuracy: float | None = None
    """Share of right answers, where labels are known."""
    network: Percentiles | None = None
    """Seconds that requests were on their link, there and back; None without a link."""
    cores: float | None = None
    """Mean cores busy, where the run could measure it."""
    mean_cores: float | None = None
    """Mean cores allocated to models in the window, busy or not; likewise."""
    core_seconds: float | None = None
    """`mean_cores` times the length of the window."""
    latency_from: str = "intended send"
    """Instant that latencies count from: that, or the `first byte` that the server sees."""
    schema: int = SCHEMA

    @property
    def goodput(self) -> float:
        return self.total.goodput

    def to_json(self) -> bytes:
        """The document, indented, with derived goodput and violation rate written out."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def to_dict(self) -> dict[str, Any]:
        """The document as plain JSON values."""
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
        """Read a document back. Raises ReportError naming the first wrong field."""
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ReportError(f"not JSON: {error}") from None
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: object) -> Report:
        """Like `from_json`, from plain values."""
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
