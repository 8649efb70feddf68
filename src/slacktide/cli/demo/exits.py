"""A classifier on a stream that changes, live: as it is, and with early exits.

Both runs get the same rows at the same times. The first of the rows are for learning and are not
among them. What the model says without early exits is what its answers are held against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slacktide.cli.demo.exits_report import exits_report
from slacktide.examples import make_repository
from slacktide.examples.catalog import example, make_stream
from slacktide.load.played_calls import Row
from slacktide.load.played_rows import exit_stats, play_rows
from slacktide.load.server_process import serving, slacktide
from slacktide.load.spec import Transport

Move = Callable[[float, str], None]

SETTLE = 600
"""Rows before those that count, as fast as they are answered: thresholds are found by then."""
BUSY = 0.7
"""Most that is asked for of what the server can answer: beyond it, queues would be compared."""


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
    answers = {}
    for place, name in enumerate(("as it is", "early exits")):
        move(0.25 + 0.37 * place, f"{len(played) / run.rate:g} s of frames: {name}")
        if place:
            with (repository / run.model / "slacktide.yaml").open("a") as settings:
                settings.write(f"\nearly_exit: {run.loss}\n")
        with serving(repository, run.cores[0], log) as targets:
            target = targets[Transport.HTTP]
            classes = len(example(run.model).classes)
            started = time.monotonic()
            play_rows(target, run.model, classes, before[run.learn :], [0.0] * SETTLE)
            if not place:
                rate = min(run.rate, BUSY * SETTLE / (time.monotonic() - started))
                run = replace(run, rate=rate, seconds=run.rows / rate)
            instants = [number / run.rate for number in range(len(played))]
            answers[name] = play_rows(target, run.model, classes, played, instants)
            stats = exit_stats(target, run.model)
    return exits_report(run, answers, stats, learning_s)


def _rows(model: str, stream: str, start: int, stop: int) -> list[Row]:
    return [row for row, _ in make_stream(model, stream, start, stop)]


def _write(rows: Sequence[Row], path: Path) -> None:
    """An .npz as `slacktide exits add` takes it."""
    columns: dict[str, Any] = {
        name: np.concatenate([row[name] for row in rows]) for name in rows[0]
    }
    np.savez(path, **columns)
