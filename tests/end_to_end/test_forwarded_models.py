"""Requests of all kinds are answered by a peer as they are at home."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from math import inf
from typing import Any

import cv2
import numpy as np
import pytest

from slacktide.engine import NextStart

pytestmark = pytest.mark.slow

SIZES = "slo: 20s\nmax_batch: 4\nvariants: {sizes: [32, 64], planner: none}\n"
LATER_US = 20_000_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def picture(grey: int, *size: int) -> str:
    encoded = cv2.imencode(".jpg", np.full((*size, 3), grey, np.uint8))[1].tobytes()
    return base64.b64encode(encoded).decode()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server that sends all it can to its only peer, and that peer."""
    zoo = zoo_at(tmp_path_factory.mktemp("forwarded") / "repository")
    zoo.matmul()
    zoo.text()
    zoo.kept()
    zoo.total()
    zoo.pair()
    zoo.sight("sizes", settings=SIZES)
    zoo.sight("fixed", size=48, settings="max_batch: 4\n")
    port = free_port()
    with (
        serve(zoo, machine="b", grpc_port=port) as b,
        serve(zoo, machine="a", peers=(f"127.0.0.1:{port}",), grpc_port=free_port()) as a,
    ):

        def always_busy(app: Any) -> None:
            app._peers.host.in_flight = lambda: 1
            app._peers.host.next_start = lambda model, pin: NextStart(inf, 0.001, 0.001)

        a.until(lambda app: len(app._peers.host._usable) == 7, "the peer may answer for all")
        a.look(always_busy)
        yield a, b


def numbers(*shape: int) -> list[float]:
    return [float(n) for n in range(int(np.prod(shape)))]


KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "numbers": ("matmul", {"x": ("FP32", [2, 4], numbers(2, 4))}, {}),
    "many rows": ("matmul", {"x": ("FP32", [100, 4], numbers(100, 4))}, {}),
    "strings": ("text", {"x": ("BYTES", [2, 1], ["ä", ""])}, {}),
    "no batch axis": (
        "kept",
        {
            "word": ("BYTES", [3], ["a", "b", "c"]),
            "number": ("FP32", [3], [1.0, 2.0, 3.0]),
            "keep": ("BOOL", [3], [True, False, True]),
        },
        {},
    ),
    "nothing kept": (
        "kept",
        {
            "word": ("BYTES", [1], ["a"]),
            "number": ("FP32", [1], [1.0]),
            "keep": ("BOOL", [1], [False]),
        },
        {},
    ),
    "scalar": ("total", {"x": ("FP32", [3], [1.0, 2.0, 3.0])}, {}),
    "one of two outputs": (
        "pair",
        {"a": ("FP32", [1, 2], [1.0, 2.0]), "b": ("FP32", [1, 2], [3.0, 4.0])},
        {"outputs": [{"name": "difference"}]},
    ),
    "classes": (
        "matmul",
        {"x": ("FP32", [2, 4], numbers(2, 4))},
        {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
    ),
    "a picture": ("sizes", {"image": ("BYTES", [1], [picture(90, 70, 50)])}, {}),
    "pictures": ("sizes", {"image": ("BYTES", [2], [picture(9, 70, 50), picture(200, 9, 8)])}, {}),
    "a variant": (
        "sizes",
        {"image": ("BYTES", [1], [picture(90, 70, 50)])},
        {"parameters": {"variant": "32"}},
    ),
    "pixels": ("sizes", {"image": ("UINT8", [1, 7, 5, 3], [7] * 105)}, {}),
    "a picture of fixed size": ("fixed", {"image": ("BYTES", [1], [picture(90, 70, 50)])}, {}),
}


def peer_may_answer(app: Any, model: str) -> bool:
    plane, version = app._peers.plane, app.catalog.find(model, None)
    if version is None or not app._peers.host.serve(version):
        return False
    return bool(plane.loads.answer_in("b", model, 1, 0, now=app.driver.clock()) < 10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_answered_by_a_peer_as_at_home(both: Any, kind: str) -> None:
    a, b = both
    model, inputs, more = KINDS[kind]
    document = a.call_of(inputs) | more
    document["parameters"] = {"timeout": LATER_US} | document.get("parameters", {})
    at_home = b.infer(model, document)
    assert at_home.status == 200, at_home
    for _ in range(5):  # a version that is measured again is another load: peers learn of it soon
        a.until(lambda app: peer_may_answer(app, model), f"the peer may answer for {model}")
        before = a.look(lambda app: app._peers.host.forwarded.total())
        forwarded = a.infer(model, document)
        assert forwarded.status == 200, forwarded
        if a.look(lambda app: app._peers.host.forwarded.total()) == before + 1:
            break
    else:
        pytest.fail("it was answered at home")
    assert json.loads(forwarded.body) == json.loads(at_home.body)
    for house in both:
        house.settle()
