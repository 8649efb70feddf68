"""Inference calls over HTTP, each sent when due, whether or not earlier calls are answered."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from urllib.request import urlopen

from numpy.typing import NDArray

from slacktide.domain import Datatype
from slacktide.lab.load.spec import Target

_SAMPLE = re.compile(r"([a-z_]+)(\{.*\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Row = Mapping[str, NDArray[Any]]
ReadT = TypeVar("ReadT")


class CallBody(NamedTuple):
    """The JSON head of a call, and the binary tensors that follow it."""

    head: bytes
    tensors: bytes


def call_body(row: Row, outputs: Sequence[str], **parameters: object) -> CallBody:
    """Return the body of a call with inputs `row`, `parameters` and the requested `outputs`."""
    types = {datatype.dtype: datatype.wire_name for datatype in Datatype}
    inputs = [
        {
            "name": name,
            "datatype": types[tensor.dtype],
            "shape": tensor.shape,
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        for name, tensor in row.items()
    ]
    requested = [{"name": name} for name in outputs]
    document = {"inputs": inputs, "outputs": requested, "parameters": parameters}
    return CallBody(json.dumps(document).encode(), b"".join(t.tobytes() for t in row.values()))


def play_calls(
    target: Target,
    model: str,
    bodies: Sequence[CallBody],
    instants: Sequence[float],
    read: Callable[[int, int, float, Any], ReadT],
    *,
    connections: int,
) -> list[ReadT]:
    """Send each call when it is due (`instants`, seconds from now), on up to `connections`
    connections. Return the results of `read`, called with each call's index, its HTTP status, the
    seconds from its due time to its answer, and the answer as parsed JSON."""
    idle: SimpleQueue[HTTPConnection] = SimpleQueue()
    for _ in range(connections):
        idle.put(HTTPConnection(target.host, target.port, timeout=30.0))
    begin = time.monotonic() + 0.2

    def ask(number: int) -> ReadT:
        due_at = begin + instants[number]
        time.sleep(max(0.0, due_at - time.monotonic()))
        connection = idle.get()
        try:
            head, tensors = bodies[number]
            connection.request("POST", f"/v2/models/{model}/infer", head + tensors, {
                "Inference-Header-Content-Length": str(len(head))
            })  # fmt: skip
            response = connection.getresponse()
            answer = json.loads(response.read())
            seconds = time.monotonic() - due_at
        finally:
            idle.put(connection)
        return read(number, response.status, seconds, answer)

    with ThreadPoolExecutor(connections) as threads:
        answered = list(threads.map(ask, range(len(bodies))))
    while not idle.empty():
        with closing(idle.get()):
            pass
    return answered


class MetricSample(NamedTuple):
    """One sample of a metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


def get_metrics(port: int) -> list[MetricSample]:
    """Return the samples of the metrics page of a server on this machine."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
        page = answer.read().decode()
    return [
        MetricSample(match[1], dict(_LABEL.findall(match[2] or "")), float(match[3]))
        for match in map(_SAMPLE.fullmatch, page.splitlines())
        if match is not None
    ]


def model_stats(target: Target, model: str) -> Any:
    """Return the statistics of the served version of a model or pipeline."""
    (stats,) = get_json(target, f"/v2/models/{model}/stats")["model_stats"]
    return stats


def get_json(target: Target, path: str) -> Any:
    """Return the JSON document at `path` of the server."""
    with urlopen(f"http://{target.host}:{target.port}{path}", timeout=10.0) as answer:
        return json.load(answer)
