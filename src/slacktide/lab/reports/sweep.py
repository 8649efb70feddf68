"""Shows a `Sweep` (the cells of a scenario's grid over its seeds) as a table and as a page."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from slacktide.domain import percent
from slacktide.lab.reports import plots
from slacktide.lab.reports.html import html_document, html_list, html_table, origin
from slacktide.lab.simulation.scenario.sweep import FIGURES, TOTAL, Mean, Sweep, SweepRow, lines

_FORMS: Mapping[str, tuple[str, float, int, str]] = {
    "submitted": ("submitted", 1.0, 0, ""),
    "goodput": ("goodput", 100.0, 1, " %"),
    "violation_rate": ("violations", 100.0, 1, " %"),
    "on_time_rps": ("on time/s", 1.0, 1, ""),
    "refused": ("refused", 100.0, 1, " %"),
    "late": ("late", 100.0, 1, " %"),
    "p50_s": ("p50 ms", 1e3, 2, ""),
    "p99_s": ("p99 ms", 1e3, 2, ""),
    "mean_cores": ("cores", 1.0, 2, ""),
    "core_seconds": ("core s", 1.0, 1, ""),
    "forwarded": ("forwarded", 100.0, 1, " %"),
}
"""By figure: heading, factor, digits and unit."""
_AT_A_GLANCE = ("refused", "late", "p99_s")
"""Figures that a terminal shows beside goodput; page, CSV and JSON have all figures. If runs differ
in cores, or have several servers, the terminal shows that too."""
_STREAMS_MOST = 4
"""Maximum number of streams for which a terminal shows a column each."""
_GOODPUT = next(figure for figure in FIGURES if figure.name == "goodput")
_CORES = next(figure for figure in FIGURES if figure.name == "mean_cores")


def render_sweep(sweep: Sweep) -> Table:
    """Return a table with a line per cell: goodput in total and by stream, and further figures."""
    cut = ", interrupted" if sweep.interrupted else ""
    title = Text(f"{sweep.title}: mean ± standard error over {_seeds(sweep)}{cut}")
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    streams = _streams(sweep)
    for key in _short(sweep.keys, "."):
        table.add_column(Text(key), overflow="fold")
    names = _AT_A_GLANCE + (("mean_cores",) if _cores_differ(sweep) else ())
    if any(report.forwarded is not None for row in sweep.rows for report in row.reports):
        names += ("forwarded",)
    for heading in ("goodput", *_short(streams, "/"), *(_FORMS[name][0] for name in names)):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    best = max((row.goodput.mean for row in sweep.rows), default=0.0)
    for row in sweep.rows:
        figures = dict(zip(_FORMS, _figures(row, TOTAL), strict=True))
        cells = [*row.labels.values(), figures["goodput"]]
        for stream in streams:
            goodput = row.figure(_GOODPUT, stream)
            cells.append("–" if goodput is None else percent(goodput.mean))
        cells += [figures[name].partition(" ±")[0] for name in names]
        leads = len(sweep.rows) > 1 and row.goodput.mean == best
        table.add_row(*map(Text, cells), style="bold" if leads else "")
    table.caption = Text(no_bound(sweep), justify="left")
    return table


def no_bound(sweep: Sweep) -> str:
    """Name cells that answer more in time than their twins with `oracle_slack`; "" if none do."""
    oracles = [row for row in sweep.rows if "oracle_slack" in row.name]
    better = [
        row.name
        for row in sweep.rows
        for oracle in oracles
        if len(row.labels.items() ^ oracle.labels.items()) == 2 and row not in oracles
        if row.goodput.mean > oracle.goodput.mean
    ]
    return f"oracle_slack is not a bound here: {'; '.join(better)} did better" if better else ""


def sweep_page(sweep: Sweep) -> str:
    """Return the page of a sweep. Raises ReportError if matplotlib is missing."""
    headings = (*sweep.keys, "stream", *(_FORMS[figure.name][0] for figure in FIGURES))
    rows = [(*row.labels.values(), stream, *_figures(row, stream)) for row, stream in lines(sweep)]
    first = sweep.rows[0].reports[0] if sweep.rows else None
    notes = [f"Means over {_seeds(sweep)}; ± is one standard error."]
    notes += [no_bound(sweep)] if no_bound(sweep) else []
    if sweep.interrupted:
        notes.append("Interrupted: cells or seeds are missing.")
    body = "\n".join(
        (
            "<h2>Goodput: answered on time ÷ submitted</h2>",
            *_plots(sweep),
            html_table(headings, rows),
            html_list("notes", notes),
        )
    )
    return html_document(sweep.title, origin(first) if first is not None else "", body)


def _cores_differ(sweep: Sweep) -> bool:
    """Return whether allocated cores differ between cells, or changed during a run."""
    means = {cores.mean for row in sweep.rows if (cores := row.figure(_CORES)) is not None}
    return len(means) > 1 or any(mean != int(mean) for mean in means)


def _streams(sweep: Sweep) -> tuple[str, ...]:
    """Return the streams that get separate columns; none if there is only one, or too many."""
    names = [name for row in sweep.rows for name in row.streams if name != TOTAL]
    distinct = tuple(dict.fromkeys(names))
    return distinct if 1 < len(distinct) <= _STREAMS_MOST else ()


def _short(names: tuple[str, ...], mark: str) -> tuple[str, ...]:
    """Return the last part of each name if these parts are all different, else the names."""
    ends = tuple(name.rpartition(mark)[2] for name in names)
    return ends if len(set(ends)) == len(ends) else names


def _plots(sweep: Sweep) -> list[str]:
    """Plot curves along every key of the grid with numeric values; bars if there is no such key."""
    along = [key for key in sweep.keys if _numbers(sweep, key)]
    if not along:
        ordered = [
            plots.Bar(row.name, row.goodput.mean * 100, (row.goodput.se or 0.0) * 100)
            for row in sweep.rows
        ]
        return [plots.bars(ordered, x_label="goodput (%)", x_most=118)]
    return [_curves(sweep, key) for key in along]


def _curves(sweep: Sweep, key: str) -> str:
    """Plot goodput along `key`, with a line for each combination of the other keys."""
    groups: dict[str, list[SweepRow]] = {}
    for row in sweep.rows:
        labels = [label for name, label in row.labels.items() if name != key]
        groups.setdefault(", ".join(labels) or TOTAL, []).append(row)
    lines = []
    for number, (label, rows) in enumerate(groups.items()):
        rows = sorted(rows, key=lambda row: float(row.labels[key]))
        lines.append(
            plots.Curve(
                label,
                tuple(float(row.labels[key]) for row in rows),
                tuple(row.goodput.mean * 100 for row in rows),
                number,
                error=tuple((row.goodput.se or 0.0) * 100 for row in rows),
            )
        )
    return plots.curves(lines, x_label=key, y_label="goodput (%)", y_most=102)


def _numbers(sweep: Sweep, key: str) -> bool:
    """Return whether `key` has several values that are all numbers."""
    values = {row.labels[key] for row in sweep.rows}
    try:
        return len({float(value) for value in values}) > 1
    except ValueError:
        return False


def _figures(row: SweepRow, stream: str) -> list[str]:
    return [_shown(figure.name, row.figure(figure, stream)) for figure in FIGURES]


def _shown(name: str, value: Mean | None) -> str:
    """Format a figure, such as `94.8 % ± 0.1`."""
    if value is None:
        return "–"
    _, factor, digits, unit = _FORMS[name]
    text = f"{value.mean * factor:.{digits}f}{unit}"
    if value.se is not None and name != "submitted":
        text += f" ± {value.se * factor:.{digits}f}"
    return text


def _seeds(sweep: Sweep) -> str:
    count = max((len(row.reports) for row in sweep.rows), default=0)
    return f"{count} seed{'' if count == 1 else 's'}"
