"""A classifier on a stream that changes, live: as it is, and with early exits.

One server has the model twice, and both get the same rows, a few seconds of them at a time: first
one, then the other. So a machine that changes its speed changes both alike. The first of the rows
are for learning and are not among them. What the model says without early exits is what its answers
are held against.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from slacktide.domain import percent
from slacktide.lab.cli.demo.shared import (
    DemoContext,
    Document,
    Part,
    headline,
    levels,
    milliseconds,
    share,
)
from slacktide.lab.examples import Samples, example, make_repository, make_stream
from slacktide.lab.load.played_calls import Row
from slacktide.lab.load.played_rows import PlayedRow, exit_stats, play_rows
from slacktide.lab.load.spec import Transport
from slacktide.lab.reports import TextTable

SETTLE = 600
"""Rows before those that count, as fast as they are answered: thresholds are found by then."""
TURN_S = 4.0
"""Seconds of rows that one of the two gets before the other gets them."""
PROBES = 24
"""Rows at once before each turn, which say what the server can answer now."""
BUSY = 0.7
"""Most that is asked for of what the server can answer: beyond it, queues would be compared."""
LEAST_ANSWERED = 0.9
"""Share of the rows that both must have answered before their medians are a headline."""
WINDOW = 100
"""Rows after the change of which the demo tells."""
AS_IT_IS, EARLY = "as it is", "early exits"
LEVELS = {"p25": 25, "median": 50, "p99": 99}

Pairs: TypeAlias = "list[tuple[PlayedRow, ...]]"
"""Each row as the model answered it as it is, and with early exits."""


@dataclass(frozen=True, slots=True)
class ExitsRun:
    """A model and the streams that it gets."""

    model: str
    """An example model that has streams."""
    streams: tuple[str, ...]
    """Played one after the other; ramps are learnt from the first alone."""
    seconds: float = 24.0
    """Length of each stream."""
    rate: float = 30.0
    """Rows per second."""
    learn: int = 1500
    """Rows from which ramps are learnt."""
    loss: str = "1%"
    """Accuracy loss, as `early_exit` states it."""
    deadline_s: float = 1.0
    """Seconds in which a row must be answered: a limit on queues that grow all the same."""

    @property
    def rows(self) -> int:
        """Number of rows of each stream."""
        return max(1, round(self.seconds * self.rate))


def play_exits(run: ExitsRun, context: DemoContext) -> Document:
    """The report, see `exits_report`. Raises ExamplesError, ProcessError, OSError."""
    context.move(0.0, f"drawing {run.learn} rows to learn from, and what is played")
    make_repository(context.models, models=[run.model])
    first, begin = run.streams[0], run.learn + SETTLE
    before = _rows(run.model, first, 0, begin)
    played = _rows(run.model, first, begin, begin + run.rows)
    for stream in run.streams[1:]:
        played += _rows(run.model, stream, 0, run.rows)
    samples = context.folder / "learn.npz"
    columns: dict[str, Any] = Samples(tuple(before[: run.learn]), None).batch()
    np.savez(samples, **columns)
    context.move(0.15, "learning ramps")
    started = time.monotonic()
    early = context.models / run.model
    context.run("exits", "add", str(early), "--data", str(samples), "--json")
    learning_s = time.monotonic() - started
    names = {AS_IT_IS: f"{run.model}_as_it_is", EARLY: run.model}
    shutil.copytree(early, context.models / names[AS_IT_IS])
    with (early / "slacktide.yaml").open("a") as settings:
        settings.write(f"\nearly_exit: {run.loss}\n")
    answers: dict[str, list[PlayedRow]] = {name: [] for name in names}
    playing_s = 0.0
    context.move(0.25, "measuring and loading the model, twice")
    with context.serve() as targets:
        play = partial(play_rows, targets[Transport.HTTP], classes=len(example(run.model).classes))
        for name in names.values():
            play(name, rows=before[run.learn :], instants=[0.0] * SETTLE)
        step = max(1, round(TURN_S * run.rate))
        for begin in range(0, len(played), step):
            done = 0.35 + 0.65 * begin / len(played)
            length = len(played) / run.rate
            context.show(done, f"{length:g} s of frames, as it is and with early exits")
            probes = before[run.learn : run.learn + PROBES]
            probed = play(names[AS_IT_IS], rows=probes, instants=[0.0] * PROBES)
            rate = min(run.rate, BUSY * PROBES / max(row.seconds for row in probed))
            turn = played[begin : begin + step]
            instants = [number / rate for number in range(len(turn))]
            for name, model in names.items():
                answers[name] += play(
                    model, rows=turn, instants=instants, deadline_s=run.deadline_s
                )
            playing_s += len(turn) / rate
        stats = exit_stats(targets[Transport.HTTP], run.model)
    rate = len(played) / playing_s
    report = exits_report(
        replace(run, rate=rate, seconds=run.rows / rate), answers, stats, learning_s
    )
    return report | {"cores": context.cores}


def _rows(model: str, stream: str, start: int, stop: int) -> list[Row]:
    return [row for row, _ in make_stream(model, stream, start, stop)]


def exits_report(
    run: ExitsRun,
    answers: Mapping[str, Sequence[PlayedRow]],
    stats: Mapping[str, Any],
    learning_s: float,
) -> Document:
    """`answers`: of both runs by name, the one without early exits first. Seconds are from due to
    answered; all but `missed` are of the rows that both answered. `stats`: `exit_stats` of the
    server at the end."""
    pairs: Pairs = list(zip(*answers.values(), strict=True))
    both = _answered(pairs)
    parts = []
    for place, stream in enumerate(run.streams):
        part = pairs[place * run.rows : (place + 1) * run.rows]
        parts.append({"stream": stream, **_part(part, tuple(answers))})
    return {
        "kind": "exits",
        **asdict(run),
        "learning_s": learning_s,
        "parts": parts,
        "answered": len(both) / max(1, len(pairs)),
        **_left_and_differ(both),
        "exits": Counter(early.exit for _, early in both if early.exit),
        "server": dict(stats),
    }


def _part(pairs: Pairs, names: tuple[str, ...]) -> Document:
    """The rows of one stream."""
    both = _answered(pairs)
    seconds, missed = {}, {}
    for side, name in enumerate(names):
        seconds[name] = levels([pair[side].seconds for pair in both], **LEVELS)
        missed[name] = share([pair[side].answer is None for pair in pairs])
    plain, early = seconds.values()
    return {
        "rows": len(pairs),
        "seconds": seconds,
        "missed": missed,
        "saved": 1.0 - early["median"] / plain["median"] if both else 0.0,
        **_left_and_differ(both),
        "differ_at_first": sum(_differ(_answered(pairs[:WINDOW]))),
    }


def _answered(pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if all(row.answer is not None for row in pair)]


def _differ(pairs: Pairs) -> list[bool]:
    return [plain.answer != early.answer for plain, early in pairs]


def _left_and_differ(pairs: Pairs) -> dict[str, float]:
    exited = [bool(early.exit) for _, early in pairs]
    return {"left_early": share(exited), "differ": share(_differ(pairs))}


def show_exits(report: Document) -> Iterator[Part]:
    """A headline or why there is none, two tables and what they rest on."""
    times = [
        f"{abs(part['saved']):.0%} {'less' if part['saved'] >= 0 else 'more'} ({part['stream']})"
        for part in report["parts"]
    ]
    sentence = (
        f"With early exits the median answer took {', '.join(times)}; {report['differ']:.1%} of "
        f"the answers differed from the model's ({report['loss']} may)."
    )
    if report["answered"] < LEAST_ANSWERED:
        sentence = (
            f"No headline: both answered only {report['answered']:.0%} of the rows within "
            f"{report['deadline_s']:g} s."
        )
    yield headline(report, sentence)
    if not report["left_early"]:
        yield "No answer came early, so the difference is noise; the last line says why."
    lines = []
    for part in report["parts"]:
        for name, seconds in part["seconds"].items():
            cells = [milliseconds(seconds, level, digits=1) for level in LEVELS]
            cells.append(percent(part["missed"][name]))
            if name == EARLY:
                cells += percent(part["left_early"]), percent(part["differ"])
                cells.append(str(part["differ_at_first"]))
            else:
                cells += ["–"] * 3
            lines.append((part["stream"], name, *cells))
    title = (
        f"Milliseconds to the answer; answers that differ, also of the first {WINDOW} of a stream"
    )
    headings = ("stream", "", *LEVELS, "missed", "left early", "differ", f"first {WINDOW}")
    yield TextTable(title, headings, lines, words=2)
    rows = sum(part["rows"] for part in report["parts"])
    ramps = [
        (
            f"{ramp['position']}: {ramp['tensor']}",
            percent(report["exits"].get(ramp["tensor"], 0) / rows),
            percent(ramp["agreeing_rows"] / max(1, ramp["judged_rows"])),
            "–" if ramp["threshold"] is None else f"{ramp['threshold']:.3f}",
        )
        for ramp in report["server"].get("ramps", ())
    ]
    title = "Where rows left, and how often the ramp there was right, sure or not"
    yield TextTable(title, ("position", "left here", "right", "threshold at the end"), ramps)
    yield (
        f"{report['model']}, {report['rate']:.3g} rows/s on average: at most {BUSY:.0%} of "
        f"what the model answers in these seconds, each due within {report['deadline_s']:g} s. "
        f"Ramps were learnt in {report['learning_s']:.0f} s from the {report['learn']} rows of "
        f"{report['streams'][0]} before those played; no weight of the model changed. When the "
        "stream changes, rows that run to the end although they have left tell how often ramps "
        f"are right, and thresholds follow. Last: {report['server'].get('reason') or '–'}."
    )
