"""A table for people: what a terminal shows of a `LatencyTable`. Data only; the CLI draws it."""

from __future__ import annotations

from slacktide.profiles.latency_table import LatencyTable

FOOTNOTE = "~ estimated: p50 × the pooled p99/p50 ratio (fewer than 200 samples)"


def headings(table: LatencyTable) -> tuple[str, ...]:
    """Column titles: `batch`, then three columns for each core count."""
    titles = ["batch"]
    for cores in table.cores:
        where = f"{cores} core" if cores == 1 else f"{cores} cores"
        titles += [f"p50, {where}", "p99", "rows/s"]
    return tuple(titles)


def lines(table: LatencyTable) -> list[tuple[str, ...]]:
    """One row of cells for each batch size, as wide as `headings`.

    `~` before a p99 marks it as estimated, `*` after a rate as the peak on those cores.
    """
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
        where = f"{cores} core" if cores == 1 else f"{cores} cores"
        sentences.append(
            f"{where}: capacity {capacity:,.0f} rows/s, peak {peak.rows_per_s:,.0f} rows/s "
            f"at batch {peak.batch} ({peak.rows_per_s / capacity:.1f} ×)"
        )
    return sentences


def duration(seconds: float) -> str:
    """Three significant digits with the unit that suits: `23.4 µs`, `12.0 ms`, `1.50 s`."""
    for scale, unit in ((1e-3, "µs"), (1.0, "ms")):
        value = seconds * 1e3 / scale
        if value < 999.5:
            return f"{_three(value)} {unit}"
    return f"{_three(seconds)} s"


def _three(value: float) -> str:
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"
