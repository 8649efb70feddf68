"""Reports as `rich` tables, for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from slacktide.domain import OutcomeKind, percent
from slacktide.lab.load.report.document import Percentiles, Report, StreamReport
from slacktide.lab.reports.comparison import Comparison

_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"

OUTCOME_COLUMNS = tuple(kind.value for kind in OutcomeKind)
PERCENTILE_COLUMNS = ("p50", "p90", "p99", "p99.9", "max")


class TextTable(NamedTuple):
    """A table for a terminal (`rich_table`) and for a page (`html_table`)."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: int = 1
    """Number of leading columns that contain words; the other columns contain numbers."""


def rich_table(table: TextTable, *, gap: int = 1, styles: Mapping[str, str] = {}) -> Table:
    """Return a terminal's table, with `gap` spaces between columns; `styles`: by cell text."""
    grid = Table(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        box=SIMPLE,
        padding=(0, gap, 0, 0),
        show_edge=gap > 0,
    )
    for number, name in enumerate(table.headings):
        justify: JustifyMethod = "left" if number < table.words else "right"
        one_line = number == 0 or (gap == 0 and table.words == 1)
        grid.add_column(Text(name), justify=justify, no_wrap=one_line)
    for line in table.lines:
        grid.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in line))
    return grid


def render(report: Report) -> Group:
    """Return the whole report: outcomes, latencies, warnings and errors."""
    lines = [Text(summary(report), style="bold")]
    notes = [Text(note, style="dim") for note in rounding(report)]
    notes += [Text(f"warning: {warning}", style="yellow") for warning in report.warnings]
    notes += [Text(f"{count:>6} × {text}", style="red") for text, count in report.errors.items()]
    tables = (outcome_table(report), latency_table(report))
    return Group(*lines, *map(rich_table, tables), *notes)


def summary(report: Report) -> str:
    """Return a one-line summary of a report."""
    total = report.total
    cut = ", interrupted" if report.interrupted else ""
    cores = "" if report.mean_cores is None else f" on {report.mean_cores:.2f} cores"
    share = report.forwarded_share
    forwarded = "" if share is None else f", {percent(share)} forwarded"
    return (
        f"{report.title}: goodput {percent(total.goodput)}, {total.on_time_rps:.1f} of "
        f"{total.offered_rps:.1f} requests/s on time over {report.duration_s:.1f} s"
        f"{cores}{forwarded}{cut}"
    )


def outcome_table(report: Report) -> TextTable:
    """Return the table of outcomes, with a line per stream."""
    lines = [
        (
            stream.name,
            str(stream.submitted),
            percent(stream.goodput),
            *(str(stream.outcomes.get(kind, 0)) for kind in OUTCOME_COLUMNS),
        )
        for stream in listed(report)
    ]
    return TextTable("Outcomes", ("stream", "submitted", "goodput", *OUTCOME_COLUMNS), lines)


def latency_table(report: Report) -> TextTable:
    """Return the table of latencies in milliseconds."""
    lines = [
        (label, str(samples.count), *milliseconds(samples))
        for label, samples in latency_rows(report)
    ]
    title = f"Latency from the {report.latency_from} (ms)"
    return TextTable(title, ("of", "count", *PERCENTILE_COLUMNS), lines)


def render_comparison(comparison: Comparison) -> Table:
    """Return a table of policies × loads: goodput with a bar, the best of each load in bold."""
    table = Table(title=Text(comparison.title), title_justify="left", box=SIMPLE)
    table.add_column("policy")
    for load in comparison.loads:
        table.add_column(Text(load))
    for policy in comparison.policies:
        cells = (_goodput_cell(comparison, policy, load) for load in comparison.loads)
        table.add_row(Text(policy), *cells)
    return table


def listed(report: Report) -> tuple[StreamReport, ...]:
    """Return the streams, followed by the total unless there is only one stream."""
    return report.streams if len(report.streams) == 1 else (*report.streams, report.total)


def latency_rows(report: Report) -> list[tuple[str, Percentiles]]:
    """Return (label, percentiles) of all latencies that the report contains."""
    rows = []
    for stream in listed(report):
        if stream.latency is not None:
            rows.append((f"{stream.name}: answers", stream.latency))
        if stream.refusal_latency is not None:
            rows.append((f"{stream.name}: refusals", stream.refusal_latency))
    if report.network is not None:
        rows.append(("on the link", report.network))
    if report.lateness is not None:
        rows.append(("lateness of the generator", report.lateness))
    return rows


def rounding(report: Report) -> Iterator[str]:
    """Yield a note on the error of percentiles if samples were counted in bins."""
    error = max((samples.error for _, samples in latency_rows(report)), default=0.0)
    if error > 0.0:
        most = percent(error)
        yield f"percentiles of many samples: from a histogram, up to {most} too high, never too low"


def milliseconds(samples: Percentiles) -> tuple[str, ...]:
    """Return the percentiles of `PERCENTILE_COLUMNS` in milliseconds."""
    values = (samples.p50, samples.p90, samples.p99, samples.p999, samples.max)
    return tuple(f"{value * 1e3:.2f}" for value in values)


def bar(share: float, width: int = _BAR) -> str:
    """Draw `share` (0 to 1) as a bar of at most `width` characters, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, remainder = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[remainder] if remainder else "")).ljust(width)


def _goodput_cell(comparison: Comparison, policy: str, load: str) -> Text:
    goodput = comparison.goodput(policy, load)
    if goodput is None:
        return Text("–", style="dim")
    best = comparison.best(load) == policy
    return Text(f"{bar(goodput)} {percent(goodput):>7}", style="bold green" if best else "")
