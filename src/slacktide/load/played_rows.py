"""Rows of a stream, each sent to a classifier when it is due, and what each answer said.

The load generator proper (`run.py`) measures a server under a workload; this follows single
answers: their class, how long they took, and at which ramp they left the model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from queue import SimpleQueue
from typing import Any, NamedTuple
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype
from slacktide.load.server_process import ProcessError
from slacktide.load.spec import Target

Row = Mapping[str, NDArray[Any]]

CONNECTIONS = 8
TIMEOUT_US = 20_000_000
"""Of a request: all are answered, since it is latency that is compared."""


class PlayedRow(NamedTuple):
    """One row."""

    seconds: float
    """From when it was due to leave its client."""
    answer: int
    """The class of the highest score."""
    exit: str
    """The tensor at which it left the network; empty: it ran to the end."""


def play_rows(
    target: Target, model: str, classes: int, rows: Sequence[Row], instants: Sequence[float]
) -> list[PlayedRow]:
    """Send each row when it is due (`instants`, seconds from now), whatever became of those before,
    up to `CONNECTIONS` at a time, over HTTP. `classes`: of the output that is asked for; others may
    come at the model's end alone. Raises ProcessError if one is not answered."""
    output = _scores(get_json(target, f"/v2/models/{model}"), classes)
    bodies = [_body(row, output) for row in rows]
    idle: SimpleQueue[HTTPConnection] = SimpleQueue()
    for _ in range(CONNECTIONS):
        idle.put(HTTPConnection(target.host, target.port, timeout=30.0))
    begin = time.monotonic() + 0.2

    def ask(number: int) -> PlayedRow:
        due = begin + instants[number]
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
        return PlayedRow(seconds, int(np.argmax(scores["data"])), exit)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        played = list(threads.map(ask, range(len(rows))))
    while not idle.empty():
        with closing(idle.get()):
            pass
    return played


def exit_stats(target: Target, model: str) -> dict[str, Any]:
    """What the server says of a model's early exits; nothing where it has none."""
    (stats,) = get_json(target, f"/v2/models/{model}/stats")["model_stats"]
    return dict(stats.get("exit_stats", {}))


def get_json(target: Target, path: str) -> Any:
    with urlopen(f"http://{target.host}:{target.port}{path}", timeout=10.0) as answer:
        return json.load(answer)


def _scores(metadata: Mapping[str, Any], classes: int) -> str:
    """The output with a score for each class."""
    (name, *_) = [each["name"] for each in metadata["outputs"] if each["shape"][-1] == classes]
    return str(name)


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
