"""Reports as one self-contained HTML page: inline style and SVG, no scripts, no requests.

All text from reports is escaped, and the page's Content-Security-Policy blocks anything that
escaping missed. Needs the extra `[report]`; without it, a ReportError says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import orjson

from slacktide.domain import percent
from slacktide.lab.load.report.document import Report
from slacktide.lab.reports import plots
from slacktide.lab.reports.comparison import Comparison
from slacktide.lab.reports.table import TextTable, latency_table, outcome_table, rounding, summary

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_CSS = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2rem }
p.sub { color: #5c6b73; margin-top: .2rem }
div.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e3e7ec }
th:first-child, td:first-child { text-align: left }
td.best { font-weight: 600; color: #2a7f62 }
span.track { display: inline-block; width: 6rem; height: .6rem; background: #eef1f4;
             margin-right: .5rem }
span.fill { display: block; height: 100%; background: #2a7f62 }
svg { max-width: 100%; height: auto }
ul.warnings { color: #8a5a00 } ul.errors { color: #b5403c }
pre { background: #f5f7f9; padding: .8rem; overflow-x: auto; font-size: 13px }
details { margin: 1rem 0 } summary { cursor: pointer; font-weight: 600 }
"""


def page(report: Report) -> str:
    """Return the page of one report. Raises ReportError if matplotlib is missing."""
    return html_document(report.title, origin(report), _body(report))


def comparison_page(comparison: Comparison, notes: Sequence[str] = (), headline: str = "") -> str:
    """Return the page of a comparison. `headline` sums it up in a sentence; `notes` state its
    conditions. Raises ReportError if matplotlib is missing."""
    parts = [
        f"<p><strong>{escape(headline)}</strong></p>" if headline else "",
        "<h2>Goodput: answered on time ÷ submitted</h2>",
        _comparison_table(comparison),
        html_list("notes", notes),
        "<h2>Every run</h2>",
    ]
    for entry in comparison:
        heading = escape(f"{entry.policy} at {entry.load}: {percent(entry.report.goodput)}")
        parts.append(f"<details><summary>{heading}</summary>{_body(entry.report)}</details>")
    first = origin(comparison.entries[0].report) if comparison.entries else ""
    return html_document(comparison.title, first, "\n".join(parts))


def _body(report: Report) -> str:
    configuration = orjson.dumps(dict(report.configuration), option=orjson.OPT_INDENT_2).decode()
    return "\n".join(
        (
            f"<p>{escape(summary(report))}</p>",
            html_list("warnings", report.warnings),
            *_section(outcome_table(report)),
            plots.outcomes_over_time(report),
            *_section(latency_table(report)),
            html_list("notes", rounding(report)),
            plots.latency_curves(report),
            *_section(TextTable("Reasons", ("stream", "reason", "requests"), _reasons(report))),
            html_list("errors", (f"{count} × {text}" for text, count in report.errors.items())),
            "<details><summary>Configuration</summary>",
            f"<pre>{escape(configuration)}</pre></details>",
        )
    )


def _section(table: TextTable) -> tuple[str, str]:
    return f"<h2>{escape(table.title)}</h2>", html_table(table.headings, table.lines)


def html_document(title: str, sub: str, body: str) -> str:
    """Return a whole page around `body`, which is HTML; title and subtitle are plain text."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="sub">{escape(sub)}</p>\n{body}\n</body>\n</html>\n'
    )


def origin(report: Report) -> str:
    """Return a report's provenance in one line: time, machine, seed, commit and versions."""
    provenance = report.provenance
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    commit = f", commit {provenance.commit}" if provenance.commit else ""
    return f"{provenance.started} on {provenance.machine}; seed {report.seed}{commit}; {versions}"


def _reasons(report: Report) -> list[tuple[str, str, str]]:
    return [
        (stream.name, reason, str(count))
        for stream in report.streams
        for reason, count in sorted(stream.reasons.items(), key=lambda item: -item[1])
    ]


def _comparison_table(comparison: Comparison) -> str:
    best = {load: comparison.best(load) for load in comparison.loads}
    rows = []
    for policy in comparison.policies:
        cells = [f"<td>{escape(policy)}</td>"]
        for load in comparison.loads:
            goodput = comparison.goodput(policy, load)
            if goodput is None:
                cells.append("<td>–</td>")
                continue
            mark = ' class="best"' if best[load] == policy else ""
            fill = f'<span class="fill" style="width:{goodput * 100:.1f}%"></span>'
            cells.append(
                f'<td{mark}><span class="track">{fill}</span>{escape(percent(goodput))}</td>'
            )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return _frame(("policy", *comparison.loads), rows)


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of plain texts."""
    drawn = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    return _frame(headings, drawn)


def _frame(headings: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def html_list(kind: str, items: Iterable[str]) -> str:
    """Return a list of texts in the style of `kind`: notes, warnings or errors; "" if empty."""
    drawn = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<ul class="{kind}">{drawn}</ul>' if drawn else ""
