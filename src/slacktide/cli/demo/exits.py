"""A classifier on a stream that changes, live: as it is, and with early exits.

Both runs get the same rows at the same times. The first of the rows are for learning and are not
among them. What the model says without early exits is what its answers are held against.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from slacktide.cli.demo.exits_report import Answered, exits_report
from slacktide.cli.demo.server_process import ProcessError, serving, slacktide
from slacktide.domain.tensors import Datatype
from slacktide.examples import make_repository
from slacktide.examples.catalog import example, make_stream
from slacktide.load.spec import Target, Transport

Move = Callable[[float, str], None]
Row = Mapping[str, NDArray[Any]]

CONNECTIONS = 8
TIMEOUT_US = 20_000_000
"""Of a request: all are answered, since it is latency that is compared."""
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
    seconds: float = 18.0
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
            output = _scores(
                _get(target, f"/v2/models/{run.model}"), len(example(run.model).classes)
            )
            started = time.monotonic()
            _play(target, run.model, output, before[run.learn :], math.inf)
            if not place:
                rate = min(run.rate, BUSY * SETTLE / (time.monotonic() - started))
                run = replace(run, rate=rate, seconds=run.rows / rate)
            answers[name] = _play(target, run.model, output, played, run.rate)
            stats = _get(target, f"/v2/models/{run.model}/stats")["model_stats"][0]
    return exits_report(run, answers, stats.get("exit_stats", {}), learning_s)


def _rows(model: str, stream: str, start: int, stop: int) -> list[Row]:
    return [row for row, _ in make_stream(model, stream, start, stop)]


def _write(rows: Sequence[Row], path: Path) -> None:
    """An .npz as `slacktide exits add` takes it."""
    columns: dict[str, Any] = {
        name: np.concatenate([row[name] for row in rows]) for name in rows[0]
    }
    np.savez(path, **columns)


def _scores(metadata: Mapping[str, Any], classes: int) -> str:
    """The output with a score for each class: others may come at the model's end alone."""
    (name, *_) = [each["name"] for each in metadata["outputs"] if each["shape"][-1] == classes]
    return str(name)


def _play(
    target: Target, model: str, output: str, rows: Sequence[Row], rate: float
) -> list[Answered]:
    """Send each row when it is due, whatever became of those before, up to `CONNECTIONS` at a time.
    Raises ProcessError if one is not answered."""
    bodies = [_body(row, output) for row in rows]
    idle: SimpleQueue[HTTPConnection] = SimpleQueue()
    for _ in range(CONNECTIONS):
        idle.put(HTTPConnection(target.host, target.port, timeout=30.0))
    begin = time.monotonic() + 0.2

    def ask(number: int) -> Answered:
        due = begin + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        connection = idle.get()
        try:
            head, body = bodies[number]
            connection.request("POST", f"/v2/models/{model}/infer", head + body, {
                "Inference-Header-Content-Length": str(len(head))
            })  # fmt: skip
            response = connection.getresponse()
            answer = json.loads(response.read())
            seconds = time.monotonic() - due
        finally:
            idle.put(connection)
        if response.status != 200:
            raise ProcessError(f"a request was refused: {answer['error']}")
        (scores,) = answer["outputs"]
        exit = answer["parameters"].get("exit", "")
        return Answered(seconds, int(np.argmax(scores["data"])), exit)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        answered = list(threads.map(ask, range(len(rows))))
    while not idle.empty():
        with closing(idle.get()):
            pass
    return answered


def _body(row: Row, output: str) -> tuple[bytes, bytes]:
    """JSON that asks for this output and for timing, and the tensors behind it."""
    types = {each.dtype: each.wire_name for each in Datatype}
    inputs = [
        {
            "name": name,
            "datatype": types[tensor.dtype],
            "shape": tensor.shape,
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        for name, tensor in row.items()
    ]
    parameters = {"report_timing": True, "timeout": TIMEOUT_US}
    document = {"inputs": inputs, "outputs": [{"name": output}], "parameters": parameters}
    return json.dumps(document).encode(), b"".join(each.tobytes() for each in row.values())


def _get(target: Target, path: str) -> Any:
    with urlopen(f"http://{target.host}:{target.port}{path}", timeout=10.0) as answer:
        return json.load(answer)
