"""Requests to the models of the zoo, sent by a client that knows no library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE = 30.0
"""Seconds that anything may take before a test gives up on it."""


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of the protocol's own error form."""
        document = self.json
        assert set(document) <= {"error", "reason", "budget_us", "needed_us", "queue_us"}, document
        assert document.get("reason") == self.headers.get("slacktide-reason")
        assert isinstance(document["error"], str)
        return document["error"]


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | str | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One HTTP request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        names = {name.lower(): text for name, text in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()


def call_of(
    inputs: dict[str, tuple[str, Sequence[int], Sequence[Any]]], **parameters: Any
) -> dict[str, Any]:
    """An inference request in JSON; inputs are name → (datatype, shape, flat data)."""
    document: dict[str, Any] = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}
            for name, (datatype, shape, data) in inputs.items()
        ]
    }
    if parameters:
        document["parameters"] = parameters
    return document


def infer(
    port: int,
    model: str,
    document: dict[str, Any],
    headers: dict[str, str] | None = None,
) -> Answer:
    """POST an inference request in JSON."""
    return ask(port, "POST", f"/v2/models/{model}/infer", json.dumps(document), headers)


def spin_call(turns: int, **parameters: Any) -> dict[str, Any]:
    """A request of one row that keeps `spin` busy for so many turns."""
    return call_of({"x": ("FP32", [1, 2], [1, 2]), "times": ("INT64", [1], [turns])}, **parameters)


def slow_call(**parameters: Any) -> dict[str, Any]:
    """A request of one row for `slow`."""
    return call_of({"x": ("FP32", [1, 2], [1, 2])}, **parameters)


def filter_call(length: int, *, rows: int = 1, **parameters: Any) -> dict[str, Any]:
    """A request of `rows` rows of this length for `filter`."""
    return call_of({"x": ("FP32", [rows, 1, length], [1] * (rows * length))}, **parameters)


def matmul_call(**parameters: Any) -> dict[str, Any]:
    """A request of one row for `matmul`."""
    return call_of({"x": ("FP32", [1, 4], [1, 0, 0, 0])}, **parameters)


FOREVER = 10**12
"""Turns of `spin` that no test lives to see the end of."""
