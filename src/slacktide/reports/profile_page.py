"""The page of a profile: latency against cores and against the batch, measured and as modelled."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from slacktide.profiles import LatencyTable, show
from slacktide.profiles.amdahl import REACH, AmdahlFit, fit_grid
from slacktide.reports.html import html_document, html_list, html_table
from slacktide.reports.plots import Curve, curves

_STEPS = 40
_NOTES = (
    "Marks: p99 as measured; dashed: the model, as far as it is believed.",
    show.FIT_FOOTNOTE,
    show.FOOTNOTE,
)


def profile_page(model: str, tables: Mapping[str, LatencyTable]) -> str:
    """The page of one model, tables by version. Raises ReportError if matplotlib is missing."""
    parts: list[str] = []
    for version, table in tables.items():
        fit = fit_grid(table.batches, table.cores, table.p99_s)
        parts += (
            f"<h2>Version {escape(version)}</h2>",
            f"<p>{escape(show.formula(fit.model))}: {escape(show.fit_summary(fit))}</p>",
            _by_cores(table, fit),
            _by_batch(table, fit),
            html_table(show.FIT_HEADINGS, show.fit_lines(fit)),
            html_table(show.headings(table), show.lines(table)),
        )
    return html_document(model, "Latency profile", "\n".join((*parts, html_list("notes", _NOTES))))


def _by_cores(table: LatencyTable, fit: AmdahlFit) -> str:
    reach = REACH if len(table.cores) > 1 else 1.0
    counts = _steps(max(1.0, fit.cores_least / reach), fit.cores_most * reach)
    lines: list[Curve] = []
    for colour, (batch, row) in enumerate(zip(table.batches, table.p99_s, strict=True)):
        lines += _pair(
            f"batch {batch}",
            colour,
            [*zip(table.cores, row, strict=True)],
            [(count, fit.model.seconds(batch, count)) for count in counts],
        )
    return curves(lines, x_label="cores", y_label="p99 (ms)", log="xy")


def _by_batch(table: LatencyTable, fit: AmdahlFit) -> str:
    sizes = _steps(1.0, fit.batch_most * REACH)
    lines: list[Curve] = []
    for colour, (count, column) in enumerate(
        zip(table.cores, zip(*table.p99_s, strict=True), strict=True)
    ):
        lines += _pair(
            f"cores {count}",
            colour,
            [*zip(table.batches, column, strict=True)],
            [(batch, fit.model.seconds(batch, count)) for batch in sizes],
        )
    return curves(lines, x_label="rows in a batch", y_label="p99 (ms)", log="xy")


def _pair(
    label: str,
    colour: int,
    measured: list[tuple[int, float]],
    modelled: list[tuple[float, float]],
) -> tuple[Curve, Curve]:
    """Two lines of one colour; the legend names one of them."""
    (x, y), (xs, ys) = zip(*measured, strict=True), zip(*modelled, strict=True)
    return (
        Curve(label, x, tuple(1e3 * seconds for seconds in y), colour),
        Curve("", xs, tuple(1e3 * seconds for seconds in ys), colour, dashed=True),
    )


def _steps(least: float, most: float) -> list[float]:
    return [float(place) for place in np.geomspace(least, most, _STEPS)]
