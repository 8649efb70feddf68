"""`Sweep`: results of all cells of a grid over all seeds, with means and standard errors."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slacktide.lab.load.report import SCHEMA, Report, StreamReport

TOTAL = "total"
"""Name of the row for all streams together."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean of a figure over the seeds."""

    mean: float
    se: float | None
    """Standard error of the mean; None with a single seed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a stream of requests, or of a run as a whole."""

    name: str
    of: Callable[[StreamReport], float | None] = lambda stream: None
    of_run: Callable[[Report], float | None] = lambda report: None
    """Figure of the whole run; shown in the row of the total."""


FIGURES = (
    Figure("submitted", lambda stream: float(stream.submitted)),
    Figure("goodput", lambda stream: stream.goodput),
    Figure("violation_rate", lambda stream: stream.violation_rate),
    Figure("on_time_rps", lambda stream: stream.on_time_rps),
    Figure("refused", lambda stream: _share(stream, stream.refused)),
    Figure("late", lambda stream: _share(stream, stream.outcomes.get("late", 0))),
    Figure("p50_s", lambda stream: None if stream.latency is None else stream.latency.p50),
    Figure("p99_s", lambda stream: None if stream.latency is None else stream.latency.p99),
    Figure("mean_cores", of_run=lambda report: report.mean_cores),
    Figure("core_seconds", of_run=lambda report: report.core_seconds),
    Figure("forwarded", of_run=lambda report: report.forwarded_share),
)
"""Figures that a sweep reports for each stream. `violation_rate`, `refused` and `late` are shares
of submitted requests; percentiles are of the latencies of answers; cores are allocated cores of all
models together; `forwarded` is the share of submitted requests that went to another server."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Reports of one cell over its seeds."""

    labels: Mapping[str, str]
    """Dotted key of the grid → value."""
    reports: tuple[Report, ...]
    """One report per seed."""

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values()) or "all"

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of all streams, then `TOTAL`."""
        names = [stream.name for report in self.reports for stream in report.streams]
        return (*dict.fromkeys(names), TOTAL)

    def figure(self, figure: Figure, stream: str = TOTAL) -> Mean | None:
        """Return a figure of one stream over the seeds that have it; None if no seed has it."""
        figures = [figure.of(part) for report in self.reports if (part := _stream(report, stream))]
        if stream == TOTAL:
            figures += [figure.of_run(report) for report in self.reports]
        values = [value for value in figures if value is not None]
        return mean(values) if values else None

    @property
    def goodput(self) -> Mean:
        return mean([report.goodput for report in self.reports])


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of the cells that were run, in the order of the grid."""

    title: str
    rows: tuple[SweepRow, ...]
    interrupted: bool = False
    """Some cells, or some of their seeds, are missing."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the grid."""
        return tuple(self.rows[0].labels) if self.rows else ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: the figures, and every report in full."""
        return {
            "schema": SCHEMA,
            "kind": "sweep",
            "title": self.title,
            "interrupted": self.interrupted,
            "rows": [
                {
                    "labels": dict(row.labels),
                    "seeds": [report.seed for report in row.reports],
                    "streams": {stream: _figures(row, stream) for stream in row.streams},
                    "reports": [report.to_dict() for report in row.reports],
                }
                for row in self.rows
            ],
        }

    def to_csv(self) -> str:
        """Return CSV with a line for each cell and stream: labels, number of seeds, then mean and
        standard error of each figure; missing figures are empty."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        columns = [f"{figure.name}_{part}" for figure in FIGURES for part in ("mean", "se")]
        writer.writerow([*self.keys, "stream", "seeds", *columns])
        for row in self.rows:
            for stream in row.streams:
                estimates = [row.figure(figure, stream) for figure in FIGURES]
                cells = [
                    part
                    for estimate in estimates
                    for part in ((estimate.mean, estimate.se) if estimate else (None,) * 2)
                ]
                writer.writerow([*row.labels.values(), stream, len(row.reports), *cells])
        return out.getvalue()


def mean(values: Sequence[float]) -> Mean:
    """Return mean and standard error of `values`, which must not be empty."""
    count = len(values)
    middle = math.fsum(values) / count
    if count == 1:
        return Mean(middle, None)
    variance = math.fsum((value - middle) ** 2 for value in values) / (count - 1)
    return Mean(middle, math.sqrt(variance / count))


def collected(
    title: str, cells: Sequence[Mapping[str, str]], reports: Mapping[tuple[int, int], Report]
) -> Sweep:
    """Return the sweep over cells with these labels, from reports by (cell number, seed number).
    Cells without any report are left out."""
    rows = []
    for number, labels in enumerate(cells):
        seeds = sorted(seed for cell, seed in reports if cell == number)
        if seeds:
            rows.append(SweepRow(labels, tuple(reports[number, seed] for seed in seeds)))
    return Sweep(title, tuple(rows))


def _figures(row: SweepRow, stream: str) -> dict[str, dict[str, float | None] | None]:
    estimates = ((figure.name, row.figure(figure, stream)) for figure in FIGURES)
    return {name: None if estimate is None else asdict(estimate) for name, estimate in estimates}


def _stream(report: Report, name: str) -> StreamReport | None:
    if name == TOTAL:
        return report.total
    return next((stream for stream in report.streams if stream.name == name), None)


def _share(stream: StreamReport, count: int) -> float:
    return count / stream.submitted if stream.submitted else 0.0


def lines(sweep: Sweep) -> Iterator[tuple[SweepRow, str]]:
    """Yield (cell, stream) for every line of a table of this sweep. A cell with a single stream
    has only the line of its total."""
    for row in sweep.rows:
        streams = row.streams
        yield from ((row, stream) for stream in (streams[-1:] if len(streams) == 2 else streams))
