"""What early exits brought, as a document and as tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.text import Text

from slacktide.domain.units import percent
from slacktide.executors.core_probe import busy_warning
from slacktide.lab.load.played_rows import PlayedRow
from slacktide.lab.reports import TextTable, rich_table

if TYPE_CHECKING:
    from slacktide.lab.cli.demo.exits import ExitsRun

Pairs: TypeAlias = "list[tuple[PlayedRow, ...]]"
"""Each row as the model answered it as it is, and with early exits."""

LEVELS = {"p25": 25, "median": 50, "p99": 99}
WINDOW = 100
"""Rows after the change of which the demo tells."""
BUSY = 0.7
"""Most that is asked for of what the server can answer: beyond it, queues would be compared."""
LEAST_ANSWERED = 0.9
"""Share of the rows that both must have answered before their medians are a headline."""


def exits_report(
    run: ExitsRun,
    answers: Mapping[str, Sequence[PlayedRow]],
    stats: Mapping[str, Any],
    learning_s: float,
) -> dict[str, Any]:
    """JSON values. `answers`: of both runs by name, the one without early exits first. Shares are
    0 to 1, seconds from due to answered; all but `missed` are of the rows that both answered.
    `stats`: `exit_stats` of the server at the end."""
    pairs: Pairs = list(zip(*answers.values(), strict=True))
    both = _answered(pairs)
    return {
        "kind": "exits",
        **asdict(run),
        "learning_s": learning_s,
        "parts": [
            _part(stream, pairs[place * run.rows : (place + 1) * run.rows], tuple(answers))
            for place, stream in enumerate(run.streams)
        ],
        "answered": len(both) / max(1, len(pairs)),
        "differ": _share(_differ(both)),
        "left_early": _share([bool(early.exit) for _, early in both]),
        "exits": Counter(early.exit for _, early in both if early.exit),
        "server": dict(stats),
    }


def _part(stream: str, pairs: Pairs, names: tuple[str, ...]) -> dict[str, Any]:
    """The rows of one stream."""
    both = _answered(pairs)
    levels = [_levels([pair[side].seconds for pair in both]) for side in range(len(names))]
    missed = [_share([pair[side].answer is None for pair in pairs]) for side in range(len(names))]
    plain, early = levels
    return {
        "stream": stream,
        "rows": len(pairs),
        "seconds": dict(zip(names, levels, strict=True)),
        "missed": dict(zip(names, missed, strict=True)),
        "saved": 1.0 - early["median"] / plain["median"] if both else 0.0,
        "left_early": _share([bool(early.exit) for _, early in both]),
        "differ": _share(_differ(both)),
        "differ_at_first": sum(_differ(_answered(pairs[:WINDOW]))),
    }


def _answered(pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if all(row.answer is not None for row in pair)]


def _differ(pairs: Pairs) -> list[bool]:
    return [plain.answer != early.answer for plain, early in pairs]


def _levels(seconds: Sequence[float]) -> dict[str, float]:
    """Nothing of no rows."""
    if not seconds:
        return {}
    return {name: float(np.percentile(seconds, level)) for name, level in LEVELS.items()}


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / max(1, len(flags))


def show_exits(report: Mapping[str, Any], out: Console) -> None:
    """A headline or why there is none, two tables and what they rest on."""
    times = [
        f"{abs(part['saved']):.0%} {'less' if part['saved'] >= 0 else 'more'} ({part['stream']})"
        for part in report["parts"]
    ]
    headline = (
        f"With early exits the median answer took {', '.join(times)}; {report['differ']:.1%} of "
        f"the answers differed from the model's ({report['loss']} may)."
    )
    if report["answered"] < LEAST_ANSWERED:
        headline = (
            f"No headline: both answered only {report['answered']:.0%} of the rows within "
            f"{report['deadline_s']:g} s."
        )
    out.print(Text(busy_warning(report["cpu_share"]) or headline, style="bold"))
    if not report["left_early"]:
        out.print("No answer came early, so the difference is noise; the last line says why.")
    lines = []
    for part in report["parts"]:
        for place, (name, levels) in enumerate(part["seconds"].items()):
            told = (percent(part["left_early"]), percent(part["differ"]), part["differ_at_first"])
            times = [f"{1e3 * levels[level]:.1f}" if levels else "–" for level in LEVELS]
            times.append(percent(part["missed"][name]))
            lines.append((part["stream"], name, *times, *map(str, told if place else "–––")))
    title = (
        f"Milliseconds to the answer; answers that differ, also of the first {WINDOW} of a stream"
    )
    headings = ("stream", "", *LEVELS, "missed", "left early", "differ", f"first {WINDOW}")
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
            f"{report['model']}, {report['rate']:.3g} rows/s on average: at most {BUSY:.0%} of "
            f"what the model answers in these seconds, each due within {report['deadline_s']:g} s. "
            f"Ramps were learnt in {report['learning_s']:.0f} s from the {report['learn']} rows of "
            f"{report['streams'][0]} before those played; no weight of the model changed. When the "
            "stream changes, rows that run to the end although they have left tell how often ramps "
            f"are right, and thresholds follow. Last: {report['server'].get('reason') or '–'}."
        )
    )
