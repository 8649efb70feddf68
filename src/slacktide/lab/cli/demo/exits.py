"""A classifier on a stream that changes, live: as it is, and with early exits.

One server has the model twice, and both get the same rows, a few seconds of them at a time: first
one, then the other. So a machine that changes its speed changes both alike. The first of the rows
are for learning and are not among them. What the model says without early exits is what its answers
are held against.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slacktide.lab.cli.demo.exits_report import BUSY, exits_report
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.catalog import example, make_stream
from slacktide.lab.load.played_calls import Row
from slacktide.lab.load.played_rows import PlayedRow, exit_stats, play_rows
from slacktide.lab.load.server_process import serving, slacktide
from slacktide.lab.load.spec import Transport

Move = Callable[[float, str], None]

SETTLE = 600
"""Rows before those that count, as fast as they are answered: thresholds are found by then."""
TURN_S = 4.0
"""Seconds of rows that one of the two gets before the other gets them."""
PROBES = 24
"""Rows at once before each turn, which say what the server can answer now."""
AS_IT_IS, EARLY = "as it is", "early exits"


@dataclass(frozen=True, slots=True)
class ExitsRun:
    """What is run."""

    model: str
    """An example model that has streams."""
    streams: tuple[str, ...]
    """Played one after the other; ramps are learnt from the first alone."""
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    """The server's, and the client's."""
    seconds: float = 24.0
    """Length of each stream."""
    rate: float = 30.0
    """Rows per second."""
    learn: int = 1500
    """Rows from which ramps are learnt."""
    loss: str = "1%"
    """As `early_exit` states it."""
    deadline_s: float = 1.0
    """Seconds in which a row must be answered: a limit on queues that grow all the same."""

    @property
    def rows(self) -> int:
        """Of each stream."""
        return max(1, round(self.seconds * self.rate))


def run_exits(run: ExitsRun, folder: Path, move: Move = lambda share, what: None) -> dict[str, Any]:
    """The report, as JSON values (exits_report.py). Raises ExamplesError, ProcessError, OSError."""
    log, repository = folder / "server.log", folder / "models"
    move(0.0, f"drawing {run.learn} rows to learn from, and what is played")
    make_repository(repository, models=[run.model])
    first, begin = run.streams[0], run.learn + SETTLE
    before = _rows(run.model, first, 0, begin)
    played = _rows(run.model, first, begin, begin + run.rows)
    for stream in run.streams[1:]:
        played += _rows(run.model, stream, 0, run.rows)
    _write(before[: run.learn], folder / "learn.npz")
    move(0.15, "learning ramps")
    started = time.monotonic()
    data = ("--data", str(folder / "learn.npz"), "--json")
    slacktide(["exits", "add", str(repository / run.model), *data], run.cores[0], log)
    learning_s = time.monotonic() - started
    names = {AS_IT_IS: f"{run.model}_as_it_is", EARLY: run.model}
    shutil.copytree(repository / run.model, repository / names[AS_IT_IS])
    with (repository / run.model / "slacktide.yaml").open("a") as settings:
        settings.write(f"\nearly_exit: {run.loss}\n")
    answers: dict[str, list[PlayedRow]] = {name: [] for name in names}
    playing_s = 0.0
    move(0.25, "measuring and loading the model, twice")
    with serving(repository, run.cores[0], log) as targets:
        play = partial(play_rows, targets[Transport.HTTP], classes=len(example(run.model).classes))
        for name in names.values():
            play(name, rows=before[run.learn :], instants=[0.0] * SETTLE)
        step = max(1, round(TURN_S * run.rate))
        for begin in range(0, len(played), step):
            share = 0.35 + 0.65 * begin / len(played)
            move(share, f"{len(played) / run.rate:g} s of frames, as it is and with early exits")
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
    return exits_report(
        replace(run, rate=rate, seconds=run.rows / rate), answers, stats, learning_s
    )


def _rows(model: str, stream: str, start: int, stop: int) -> list[Row]:
    return [row for row, _ in make_stream(model, stream, start, stop)]


def _write(rows: Sequence[Row], path: Path) -> None:
    """An .npz as `slacktide exits add` takes it."""
    columns: dict[str, Any] = {
        name: np.concatenate([row[name] for row in rows]) for name in rows[0]
    }
    np.savez(path, **columns)
