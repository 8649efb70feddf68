"""Text for terminals: the cells of a `LatencyTable` and of the model fitted to it.

Data only; the CLI draws it.
"""

from __future__ import annotations

import math
import statistics

from slacktide.domain import Signature
from slacktide.profiles.amdahl import REACH, AmdahlFit, AmdahlModel
from slacktide.profiles.known_shape import WorkScale
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.record import ProfileRecord
from slacktide.profiles.size_law import REACH as SIZE_REACH
from slacktide.profiles.size_law import SizeLaw, SizeWork

FOOTNOTE = "~ estimated: p50 × the pooled p99/p50 ratio (fewer than 200 samples)"


def headings(table: LatencyTable) -> tuple[str, ...]:
    """Column titles: `batch`, then three columns for each core count."""
    titles = ["batch"]
    for cores in table.cores:
        where = _on(cores)
        titles += [f"p50, {where}", "p99", "rows/s"]
    return tuple(titles)


def lines(table: LatencyTable) -> list[tuple[str, ...]]:
    """One row of cells for each batch size, as wide as `headings`. `~` before a p99 marks it as
    estimated, `*` after a rate as the peak on those cores."""
    peaks = [table.peak(cores).batch for cores in table.cores]
    rows = []
    for index, batch in enumerate(table.batches):
        cells = [str(batch)]
        for column, peak in enumerate(peaks):
            p50, p99 = table.p50_s[index][column], table.p99_s[index][column]
            mark = "~" if table.estimated[index][column] else ""
            best = "*" if batch == peak else ""
            cells += [duration(p50), mark + duration(p99), f"{batch / p50:,.0f}{best}"]
        rows.append(tuple(cells))
    return rows


def summary(table: LatencyTable) -> list[str]:
    """One sentence for each core count: capacity and peak."""
    sentences = []
    for cores in table.cores:
        peak, capacity = table.peak(cores), table.capacity(cores)
        where = _on(cores)
        sentences.append(
            f"{where}: capacity {capacity:,.0f} rows/s, peak {peak.rows_per_s:,.0f} rows/s "
            f"at batch {peak.batch} ({peak.rows_per_s / capacity:.1f} ×)"
        )
    return sentences


def size_headings(record: ProfileRecord) -> tuple[str, ...]:
    """Column titles of `size_lines`."""
    most = record.table.max_batch
    titles = ["a row", "size"]
    for cores in record.table.cores:
        titles += [f"p50 of 1, {_on(cores)}", *([f"of {most}"] if most > 1 else [])]
    return (*titles, "law")


def size_lines(record: ProfileRecord) -> list[tuple[str, ...]]:
    """One row of cells for each row size, as wide as `size_headings`; none if there is only one
    size. The last cell is the relative error of the fitted `SizeLaw` at this size; empty without a
    law."""
    table, law = record.table, size_law(record)
    errors = {} if law is None else dict(zip(law.sizes, law.errors, strict=True))
    times: dict[tuple[float, Signature], dict[tuple[int, int], float]] = {}
    for timed in record.sizes:
        times.setdefault((timed.size, timed.signature), {})[timed.rows, timed.cores] = timed.seconds
    if times:
        profiled = {(n, c): table.expected(n, c) for n in (1, table.max_batch) for c in table.cores}
        times[1.0, tuple(record.shapes.values())] = profiled
    lines = []
    for (size, signature), seconds_by_batch in sorted(times.items()):
        shapes = ", ".join("×".join(map(str, shape)) or "scalar" for shape in signature)
        cells = [shapes or "another length", f"{size:.3g}"]
        for cores in table.cores:
            for rows in dict.fromkeys((1, table.max_batch)):
                seconds = seconds_by_batch.get((rows, cores))
                cells.append("–" if seconds is None else duration(seconds))
        error = errors.get(size)
        lines.append((*cells, "" if error is None else f"{error:+.1%}"))
    return lines


def size_law(record: ProfileRecord) -> SizeLaw | None:
    """The law over the sizes of the profile, which is used until requests teach more; None with
    fewer than three sizes."""
    works = WorkScale(record.table).works_of(record.sizes)
    return SizeLaw.fit([SizeWork(1.0, 1.0), *(SizeWork(row[0], works[row]) for row in works)])


def law_formula(law: SizeLaw) -> str:
    """A text such as `L(s) = 0.04 + 0.91 s + 0.05 s²`, with its error."""
    powers = zip(law.coefficients, ("", " s", " s²"), strict=True)
    terms = [f"{value:.3g}{power}" for value, power in powers if value > 0.0]
    error = statistics.median(map(abs, law.errors))
    return (
        f"work of a row of size s: L(s) = {' + '.join(terms)}; median error {error:.1%} over "
        f"{len(law.sizes)} sizes, predicted from size {law.sizes[0] / SIZE_REACH:.3g} to "
        f"{law.sizes[-1] * SIZE_REACH:.3g}"
    )


FIT_HEADINGS = ("batch", "cores", "measured", "model", "error")
FIT_FOOTNOTE = "! outlier, ignored"


def fit_lines(fit: AmdahlFit) -> list[tuple[str, ...]]:
    """One row of cells for each point, as wide as `FIT_HEADINGS`."""
    return [
        (
            str(point.batch),
            str(point.cores),
            duration(point.measured),
            duration(point.predicted),
            f"{point.error:+.1%}{'' if point.weight > 0.0 else '!'}",
        )
        for point in fit.points
    ]


def bar_lengths(fit: AmdahlFit) -> list[tuple[float, float]]:
    """Lengths of two bars for each point, measured and predicted, up to 1; logarithmic."""
    times = [(point.measured, point.predicted) for point in fit.points]
    least = min(map(min, times)) / 1.5
    span = math.log(max(map(max, times)) / least)
    return [(math.log(a / least) / span, math.log(b / least) / span) for a, b in times]


def formula(model: AmdahlModel) -> str:
    """The model with its coefficients, such as `l(b, c) = 18.0 ms · b/c + 4.00 ms · b`."""
    terms = (
        (model.gamma, " · b/c"),
        (model.epsilon, " / c"),
        (model.delta, " · b"),
        (model.eta, ""),
    )
    return "l(b, c) = " + " + ".join(duration(value) + text for value, text in terms if value > 0.0)


def fit_summary(fit: AmdahlFit) -> str:
    """A sentence about the quality and the reach of the fit."""
    worst = max(fit.points, key=lambda point: abs(point.error))
    most = math.floor(REACH * fit.batch_most)
    if fit.cores_least == fit.cores_most:
        reach = "measured on one core count only, so others are unknown"
    else:
        least = math.ceil(fit.cores_least / REACH)
        reach = f"predicted from {least} to {math.floor(REACH * fit.cores_most)} cores"
    return (
        f"median error {fit.median_error:.1%}, worst {fit.worst_error:.1%} "
        f"(batch {worst.batch} on {_on(worst.cores)}); {reach}, up to batch {most}"
    )


def _on(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def duration(seconds: float) -> str:
    """Three significant digits with a suitable unit: `23.4 µs`, `12.0 ms`, `1.50 s`."""
    for scale, unit in ((1e-3, "µs"), (1.0, "ms")):
        value = seconds * 1e3 / scale
        if value < 999.5:
            return f"{_three(value)} {unit}"
    return f"{_three(seconds)} s"


def _three(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"
