"""The page of a profile: latency against cores and against batch size, measured and modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from slacktide.executors import busy_warning
from slacktide.lab.reports.html import html_document, html_list, html_table
from slacktide.lab.reports.plots import Curve, curves
from slacktide.profiles import AmdahlFit, LatencyTable, ProfileRecord, show
from slacktide.profiles.amdahl import REACH, fit_grid
from slacktide.profiles.known_shape import WorkScale
from slacktide.profiles.size_law import REACH as SIZE_REACH

_STEPS = 40
_NOTES = (
    "Marks: measured p99; dashed lines: fitted times, within their range.",
    show.FIT_FOOTNOTE,
    show.FOOTNOTE,
)


def profile_page(model: str, records: Mapping[str, ProfileRecord]) -> str:
    """Return the page of a model; `records` by version. Raises ReportError without matplotlib."""
    parts: list[str] = []
    for version, record in records.items():
        table = record.table
        fit = fit_grid(table.batches, table.cores, table.p99_s)
        summary = busy_warning(record.cpu_share)
        summary = summary or f"{show.formula(fit.model)}: {show.fit_summary(fit)}"
        parts += (
            f"<h2>Version {escape(version)}</h2>",
            f"<p>{escape(summary)}</p>",
            _by_cores(table, fit),
            _by_batch(table, fit),
            *_by_size(record),
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


def _by_size(record: ProfileRecord) -> Iterator[str]:
    """Yield plot and table of one row's time by size, with the fitted law; nothing for one size."""
    lines = show.size_lines(record)
    if not lines:
        return
    law, table, scale = show.size_law(record), record.table, WorkScale(record.table)
    drawn = []
    for colour, cores in enumerate(table.cores):
        alone = table.expected(1, cores)
        points = {o.size: o.seconds for o in record.sizes if (o.rows, o.cores) == (1, cores)}
        sizes, seconds = zip(*sorted({**points, 1.0: alone}.items()), strict=True)
        drawn.append(Curve(f"cores {cores}", sizes, tuple(1e3 * s for s in seconds), colour))
        if law is not None:
            ends = law.sizes[0] / SIZE_REACH, law.sizes[-1] * SIZE_REACH
            xs = tuple(np.geomspace(*ends, _STEPS).tolist())
            modelled = tuple(1e3 * scale.seconds(law.work(x), 1, cores) for x in xs)
            drawn.append(Curve("", xs, modelled, colour, dashed=True))
    yield curves(drawn, x_label="size of a row, as profiled = 1", y_label="p50 (ms)", log="xy")
    if law is not None:
        yield f"<p>{escape(show.law_formula(law))}</p>"
    yield html_table(show.size_headings(record), lines)


def _lines(
    word: str,
    numbers: Sequence[int],
    places: Sequence[int],
    measured: Iterable[Sequence[float]],
    steps: NDArray[np.float64],
    modelled: Callable[[float, float], float],
) -> Iterator[Curve]:
    """Yield two lines of one colour for each number: measured (in the legend), and modelled."""
    xs = tuple(steps.tolist())
    for colour, (number, seconds) in enumerate(zip(numbers, measured, strict=True)):
        yield Curve(f"{word} {number}", tuple(places), tuple(1e3 * s for s in seconds), colour)
        yield Curve("", xs, tuple(1e3 * modelled(number, x) for x in xs), colour, dashed=True)
