"""Live demo of a classifier on a changing stream, without and with early exits.

One server has the model twice. Both copies get the same rows, alternating every few seconds, so a
change of the machine's speed affects both equally. Separate rows at the beginning serve only for
learning. Answers with early exits are compared with the model's answers without them.
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
    levels,
    milliseconds,
    share,
)
from slacktide.lab.examples import Samples, example, make_repository, make_stream
from slacktide.lab.load.played_rows import PlayedRow, exit_stats, play_rows
from slacktide.lab.load.spec import Transport
from slacktide.lab.reports import TextTable

STREAMS = "day", "night"
"""Streams, played one after another; ramps are learnt only from the first."""
LEARN, SETTLE = 1500, 600
"""Number of rows from which ramps are learnt, and number of rows, sent afterwards without pauses,
from which thresholds are found."""
TURN_S = 4.0
"""Seconds of rows that one copy of the model gets before the other copy gets the same rows."""
PROBES = 24
"""Number of simultaneous rows before each turn, which measure the server's present capacity."""
BUSY = 0.7
"""Largest load as a share of capacity; under more load, the demo would compare queues."""
DEADLINE_S = 1.0
"""Seconds in which a row must be answered, in case queues grow nevertheless."""
LEAST_ANSWERED = 0.9
"""Share of rows that both copies must answer for their medians to be a headline."""
AS_IT_IS, EARLY = "as it is", "early exits"
LEVELS = {"median": 50, "p99": 99}

Pairs: TypeAlias = "Sequence[tuple[PlayedRow, ...]]"
"""Pairs of answers to each row: without, and with early exits."""


@dataclass(frozen=True, slots=True)
class ExitsRun:
    """An example model that has streams, and how its rows are sent."""

    model: str
    seconds: float = 24.0
    """Length of each stream."""
    rate: float = 30.0
    """Rows per second."""
    loss: str = "1%"
    """Accuracy loss, as `early_exit` states it."""

    @property
    def rows(self) -> int:
        """Number of rows of each stream."""
        return max(1, round(self.seconds * self.rate))


def play_exits(run: ExitsRun, context: DemoContext) -> Document:
    """Play the streams and return the report. Raises ExamplesError, ProcessError, OSError."""
    context.move(0.0, f"drawing {LEARN} rows for training, and the rows to play")
    make_repository(context.models, models=[run.model])
    day, night = (
        [row for row, _ in make_stream(run.model, stream, 0, start + run.rows)]
        for stream, start in zip(STREAMS, (LEARN + SETTLE, 0), strict=True)
    )
    before, played = day[LEARN : LEARN + SETTLE], day[LEARN + SETTLE :] + night
    samples, early = context.folder / "learn.npz", context.models / run.model
    columns: dict[str, Any] = Samples(tuple(day[:LEARN]), None).batch()
    np.savez(samples, **columns)
    context.move(0.15, "training ramps")
    started = time.monotonic()
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
            play(name, rows=before, instants=[0.0] * len(before))
        step = max(1, round(TURN_S * run.rate))
        for begin in range(0, len(played), step):
            text = f"{len(played) / run.rate:g} s of frames, without and with early exits"
            context.show(0.35 + 0.65 * begin / len(played), text)
            probed = play(names[AS_IT_IS], rows=before[:PROBES], instants=[0.0] * PROBES)
            rate = min(run.rate, BUSY * PROBES / max(row.seconds for row in probed))
            turn = played[begin : begin + step]
            instants = [number / rate for number in range(len(turn))]
            for name, model in names.items():
                answers[name] += play(model, rows=turn, instants=instants, deadline_s=DEADLINE_S)
            playing_s += len(turn) / rate
        stats = exit_stats(targets[Transport.HTTP], run.model)
    rate = len(played) / playing_s
    return exits_report(
        replace(run, rate=rate, seconds=run.rows / rate), answers, stats, learning_s
    )


def exits_report(
    run: ExitsRun,
    answers: Mapping[str, Sequence[PlayedRow]],
    stats: Mapping[str, Any],
    learning_s: float,
) -> Document:
    """Return the report. `answers`: by copy of the model, without early exits first. Seconds count
    from due time to answer; all figures of a stream except `rows` and `missed` are for rows that
    both copies answered. `stats`: `exit_stats` of the server at the end."""
    pairs = list(zip(*answers.values(), strict=True))
    parts = [
        {"stream": stream, **_part(pairs[place * run.rows : (place + 1) * run.rows])}
        for place, stream in enumerate(STREAMS)
    ]
    paired = _answered(pairs)
    times = [
        f"{abs(part['saved']):.0%} {'less' if part['saved'] >= 0 else 'more'} ({part['stream']})"
        for part in parts
    ]
    headline = (
        f"With early exits the median answer took {', '.join(times)}; {_differ(paired):.1%} "
        f"of the answers differed from the model's (permitted: {run.loss})."
    )
    answered = len(paired) / max(1, len(pairs))
    if answered < LEAST_ANSWERED:
        rows = f"{answered:.0%} of the rows within {DEADLINE_S:g} s"
        headline = f"No headline: both copies answered only {rows}."
    elif not any(early.exit for _, early in paired):
        headline += " No answer came early, so the difference is noise; the last line says why."
    return {
        "kind": "exits",
        "headline": headline,
        **asdict(run),
        "learning_s": learning_s,
        "parts": parts,
        "answered": answered,
        "differ": _differ(paired),
        "exits": Counter(early.exit for _, early in paired if early.exit),
        "server": dict(stats),
    }


def _part(pairs: Pairs) -> Document:
    """Return the figures of one stream's rows."""
    paired = _answered(pairs)
    plain, early = (levels([pair[side].seconds for pair in paired], **LEVELS) for side in range(2))
    missed = [share([pair[side].answer is None for pair in pairs]) for side in range(2)]
    return {
        "rows": len(pairs),
        "seconds": {AS_IT_IS: plain, EARLY: early},
        "missed": dict(zip((AS_IT_IS, EARLY), missed, strict=True)),
        "saved": 1.0 - early["median"] / plain["median"] if paired else 0.0,
        "left_early": share([bool(early.exit) for _, early in paired]),
        "differ": _differ(paired),
    }


def _answered(pairs: Pairs) -> Pairs:
    return [pair for pair in pairs if all(row.answer is not None for row in pair)]


def _differ(pairs: Pairs) -> float:
    return share([plain.answer != early.answer for plain, early in pairs])


def show_exits(report: Document) -> Iterator[Part]:
    """Yield two tables, and the conditions of the run."""
    lines = []
    for part in report["parts"]:
        for name, seconds in part["seconds"].items():
            times = [milliseconds(seconds, level, digits=1) for level in LEVELS]
            early = ["left_early", "differ"] if name == EARLY else []
            shares = [percent(part[key]) for key in early] or ["–", "–"]
            lines.append((part["stream"], name, *times, percent(part["missed"][name]), *shares))
    title = "Milliseconds to the answer, and share of answers that differ"
    headings = ("stream", "", *LEVELS, "missed", "left early", "differ")
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
    title = "Rows that left at each ramp, and how often the ramp agreed with the model"
    yield TextTable(title, ("position", "left here", "agreed", "final threshold"), ramps)
    yield (
        f"{report['model']} received {report['rate']:.3g} rows/s on average, at most {BUSY:.0%} of "
        f"its capacity, each due within {DEADLINE_S:g} s. Ramps were trained in "
        f"{report['learning_s']:.0f} s on {LEARN} earlier rows of {STREAMS[0]}; the model's "
        "weights did not change. Some answered rows still run to the end of the model, to show how "
        "often ramps are right; thresholds are adjusted when the stream changes. Last change: "
        f"{report['server'].get('reason') or '–'}."
    )
