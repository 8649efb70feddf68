"""What early exits brought, as a document and as tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from slacktide.load.played_rows import PlayedRow
from slacktide.reports import TextTable, rich_table
from slacktide.reports.table import percent

if TYPE_CHECKING:
    from slacktide.cli.demo.exits import ExitsRun

LEVELS = {"p25": 25, "median": 50, "p99": 99}
WINDOW = 100
"""Rows after the change of which the demo tells."""


def exits_report(
    run: ExitsRun,
    answers: Mapping[str, Sequence[PlayedRow]],
    stats: Mapping[str, Any],
    learning_s: float,
) -> dict[str, Any]:
    """JSON values. `answers`: of both runs by name, the one without early exits first. Shares are
    0 to 1, seconds from due to answered. `stats`: `exit_stats` of the server at the end."""
    vanilla, early = answers.values()
    differs = [a.answer != b.answer for a, b in zip(vanilla, early, strict=True)]
    parts = []
    for place, stream in enumerate(run.streams):
        part = slice(place * run.rows, (place + 1) * run.rows)
        parts.append(
            {
                "stream": stream,
                "rows": run.rows,
                "seconds": {name: _levels(each[part]) for name, each in answers.items()},
                "saved": _saved(vanilla[part], early[part]),
                "left_early": _share([bool(each.exit) for each in early[part]]),
                "differ": _share(differs[part]),
                "differ_at_first": sum(differs[part][:WINDOW]),
            }
        )
    return {
        "kind": "exits",
        **asdict(run),
        "learning_s": learning_s,
        "parts": parts,
        "differ": _share(differs),
        "left_early": _share([bool(each.exit) for each in early]),
        "exits": Counter(each.exit for each in early if each.exit),
        "server": dict(stats),
    }


def _levels(answered: Sequence[PlayedRow]) -> dict[str, float]:
    seconds = [each.seconds for each in answered]
    return {name: float(np.percentile(seconds, level)) for name, level in LEVELS.items()}


def _saved(vanilla: Sequence[PlayedRow], early: Sequence[PlayedRow]) -> float:
    """Share of the median."""
    return 1.0 - _levels(early)["median"] / _levels(vanilla)["median"]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / max(1, len(flags))


def show_exits(report: Mapping[str, Any], out: Console) -> None:
    """A headline, two tables and what they rest on."""
    times = [
        f"{abs(part['saved']):.0%} {'less' if part['saved'] >= 0 else 'more'} ({part['stream']})"
        for part in report["parts"]
    ]
    headline = (
        f"With early exits the median answer took {', '.join(times)}; {report['differ']:.1%} of "
        f"the answers differed from the model's ({report['loss']} may)."
    )
    out.print(Text(headline, style="bold"))
    if not report["left_early"]:
        out.print("No answer came early, so the difference is noise; the last line says why.")
    lines = []
    for part in report["parts"]:
        for place, (name, levels) in enumerate(part["seconds"].items()):
            told = (percent(part["left_early"]), percent(part["differ"]), part["differ_at_first"])
            times = [f"{1e3 * levels[level]:.1f}" for level in LEVELS]
            lines.append((part["stream"], name, *times, *map(str, told if place else "–––")))
    title = (
        f"Milliseconds to the answer; answers that differ, also of the first {WINDOW} of a stream"
    )
    headings = ("stream", "", *LEVELS, "left early", "differ", f"first {WINDOW}")
    out.print(rich_table(TextTable(title, headings, lines, words=2)))
    rows = sum(part["rows"] for part in report["parts"])
    lines = [
        (
            f"{each['position']}: {each['tensor']}",
            percent(report["exits"].get(each["tensor"], 0) / rows),
            percent(each["agreeing_rows"] / max(1, each["judged_rows"])),
            "–" if each["threshold"] is None else f"{each['threshold']:.3f}",
        )
        for each in report["server"].get("ramps", ())
    ]
    title = "Where rows left, and how often the ramp there was right, sure or not"
    headings = ("position", "left here", "right", "threshold at the end")
    out.print(rich_table(TextTable(title, headings, lines, words=1)))
    out.print(
        Text(
            f"{report['model']}, {report['rate']:.3g} rows/s. Ramps were learnt in "
            f"{report['learning_s']:.0f} s from the {report['learn']} rows of "
            f"{report['streams'][0]} before those played; no weight of the model changed. When the "
            "stream changes, rows that run to the end although they have left tell how often ramps "
            f"are right, and thresholds follow. Last: {report['server'].get('reason') or '–'}."
        )
    )
