"""The page of a profile: latency against cores and against the batch, measured and as modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

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
    steps = np.geomspace(max(1.0, fit.cores_least / reach), fit.cores_most * reach, _STEPS)
    lines = _lines("batch", table.batches, table.cores, table.p99_s, steps, fit.model.seconds)
    return curves([*lines], x_label="cores", y_label="p99 (ms)", log="xy")


def _by_batch(table: LatencyTable, fit: AmdahlFit) -> str:
    columns = zip(*table.p99_s, strict=True)
    steps = np.geomspace(1.0, fit.batch_most * REACH, _STEPS)

    def modelled(cores: float, batch: float) -> float:
        return fit.model.seconds(batch, cores)

    lines = _lines("cores", table.cores, table.batches, columns, steps, modelled)
    return curves([*lines], x_label="rows in a batch", y_label="p99 (ms)", log="xy")


def _lines(
    word: str,
    numbers: Sequence[int],
    places: Sequence[int],
    measured: Iterable[Sequence[float]],
    steps: NDArray[np.float64],
    modelled: Callable[[float, float], float],
) -> Iterator[Curve]:
    """For each number two lines of one colour; the legend names that at the places measured."""
    xs = tuple(steps.tolist())
    for colour, (number, seconds) in enumerate(zip(numbers, measured, strict=True)):
        yield Curve(f"{word} {number}", tuple(places), tuple(1e3 * s for s in seconds), colour)
        yield Curve("", xs, tuple(1e3 * modelled(number, x) for x in xs), colour, dashed=True)
