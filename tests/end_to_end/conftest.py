"""A zoo of tiny ONNX models, a server that serves them, and clients that know no library.

The servers here are whole ones: real sockets, real worker processes. Fixtures hand out a `House`,
which at the end of every test checks that nothing of it is left behind: no request in flight, no
byte of shared memory, no client counted, and an engine that does not contradict itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import slacktide
from slacktide.engine.invariants import check_invariants
from slacktide.models.repository.profile_store import hash_file
from slacktide.server.app import App

PATIENCE = 30.0
"""Seconds that anything may take before a test gives up on it."""
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 7

value = helper.make_tensor_value_info


# ── models ───────────────────────────────────────────────────────────────────────────────────────


class Zoo:
    """Writes model folders of a repository; each method is one model."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def save(
        self,
        name: str,
        nodes: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        weights: Sequence[Any] = (),
        *,
        version: str = "1",
        settings: str = "",
        file: str = "model.onnx",
    ) -> Path:
        graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        path = self.root / name / version / file
        path.parent.mkdir(parents=True, exist_ok=True)
        # In one step: a replica that starts now opens the model that was, or this one.
        written = path.with_suffix(".tmp")
        onnx.save(model, str(written))
        written.replace(path)
        if settings:
            (self.root / name / "slacktide.yaml").write_text(settings)
        return path

    def matmul(
        self, name: str = "matmul", *, scale: float = 1.0, version: str = "1", settings: str = ""
    ) -> Path:
        """y = scale · x W; [rows, 4] → [rows, 3]."""
        return self.save(
            name,
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [value("x", TensorProto.FLOAT, ["n", 4])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT * np.float32(scale), "w")],
            version=version,
            settings=settings,
        )

    def double(self, name: str = "double", *, settings: str = "") -> Path:
        """y = 2 x; [rows, 3]."""
        return self.save(
            name,
            [helper.make_node("Add", ["x", "x"], ["y"])],
            [value("x", TensorProto.FLOAT, ["n", 3])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            settings=settings,
        )

    def heavy(self) -> Path:
        """`matmul` with two megabytes of weights on top."""
        return self.save(
            "heavy",
            [
                helper.make_node("MatMul", ["x", "w"], ["p"]),
                helper.make_node("ReduceMin", ["ballast"], ["zero"], keepdims=0),
                helper.make_node("Add", ["p", "zero"], ["y"]),
            ],
            [value("x", TensorProto.FLOAT, ["n", 4])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [
                numpy_helper.from_array(WEIGHT, "w"),
                numpy_helper.from_array(np.zeros(1 << 19, np.float32), "ballast"),
            ],
        )

    def text(self) -> Path:
        """y = x, strings; [rows, 1]."""
        return self.save(
            "text",
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", TensorProto.STRING, ["n", 1])],
            [value("y", TensorProto.STRING, ["n", 1])],
        )

    def kept(self) -> Path:
        """Words and numbers that `keep` names, of any number."""
        words, numbers = TensorProto.STRING, TensorProto.FLOAT
        return self.save(
            "kept",
            [
                helper.make_node("Compress", ["word", "keep"], ["words"], axis=0),
                helper.make_node("Compress", ["number", "keep"], ["numbers"], axis=0),
            ],
            [
                value("word", words, ["n"]),
                value("number", numbers, ["n"]),
                value("keep", TensorProto.BOOL, ["n"]),
            ],
            [value("words", words, ["k"]), value("numbers", numbers, ["k"])],
            settings="max_batch: 0\n",
        )

    def total(self) -> Path:
        """A scalar from a vector of any length: no batch axis."""
        return self.save(
            "total",
            [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
            [value("x", TensorProto.FLOAT, ["length"])],
            [value("y", TensorProto.FLOAT, [])],
        )

    def pair(self) -> Path:
        """Two inputs, two outputs: sum and difference; [rows, 2]."""
        return self.save(
            "pair",
            [
                helper.make_node("Add", ["a", "b"], ["sum"]),
                helper.make_node("Sub", ["a", "b"], ["difference"]),
            ],
            [value("a", TensorProto.FLOAT, ["n", 2]), value("b", TensorProto.FLOAT, ["n", 2])],
            [
                value("sum", TensorProto.FLOAT, ["n", 2]),
                value("difference", TensorProto.FLOAT, ["n", 2]),
            ],
        )

    def gather(self) -> Path:
        """Rows of a table of four; an index out of range raises."""
        return self.save(
            "gather",
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            [value("i", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT, "w")],
        )

    def spin(self, name: str = "spin", *, settings: str = "") -> Path:
        """y = max(x, 0) after max(times) turns of a loop that does nothing more: takes as long as
        its request says, and what a row gets does not depend on the turns of another."""
        return self.save(
            name,
            [
                helper.make_node("ReduceMax", ["times"], ["turns"], keepdims=0),
                helper.make_node("Relu", ["x"], ["positive"]),
                helper.make_node("Loop", ["turns", "", "positive"], ["y"], body=_turn()),
            ],
            [value("x", TensorProto.FLOAT, ["n", 2]), value("times", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
            settings=settings,
        )

    def slow(
        self, name: str = "slow", *, turns: int = 6000, settings: str = "", file: str = "model.onnx"
    ) -> Path:
        """y = x after so many turns: always as slow, so that its profile knows it."""
        return self.save(
            name,
            [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=_turn())],
            [value("x", TensorProto.FLOAT, ["n", 2])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
            [numpy_helper.from_array(np.int64(turns), "turns")],
            settings=settings,
            file=file,
        )

    def filter(self, name: str = "filter", *, settings: str = "") -> Path:
        """Two convolutions along a free axis: takes the longer, the longer its request is. A row of
        a length that is 3 more than a multiple of 4 does not fit."""
        generator = np.random.default_rng(0)
        first, second = (
            generator.normal(size=shape).astype(np.float32) for shape in ((32, 1, 9), (1, 32, 9))
        )
        return self.save(
            name,
            [
                helper.make_node("Conv", ["x", "first"], ["a"], pads=[4, 4]),
                helper.make_node("Conv", ["a", "second"], ["b"], pads=[4, 4]),
                helper.make_node("Shape", ["x"], ["length"], start=2),
                helper.make_node("Mod", ["length", "four"], ["rest"]),
                helper.make_node("Gather", ["three", "rest"], ["zero"]),
                helper.make_node("Add", ["b", "zero"], ["y"]),
            ],
            [value("x", TensorProto.FLOAT, ["n", 1, "length"])],
            [value("y", TensorProto.FLOAT, ["n", 1, "length"])],
            [
                numpy_helper.from_array(first, "first"),
                numpy_helper.from_array(second, "second"),
                numpy_helper.from_array(np.array([4]), "four"),
                numpy_helper.from_array(np.zeros(3, np.float32), "three"),
            ],
            settings=settings,
        )

    def sight(
        self,
        name: str = "sight",
        *,
        file: str = "model.onnx",
        size: int | str = "size",
        shift: float = 0.0,
        settings: str = "",
    ) -> Path:
        """Of an image, its mean colour plus `shift` and the height at which it was run: two
        outputs [rows]. Its size is free unless `size` is a number."""
        return self.save(
            name,
            [
                helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
                helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2, 3], keepdims=0),
                helper.make_node("Add", ["m", "shift"], ["mean"]),
                helper.make_node("Shape", ["image"], ["h"], start=1, end=2),
                helper.make_node("Cast", ["h"], ["high"], to=TensorProto.FLOAT),
                helper.make_node("Mul", ["m", "zero"], ["z"]),
                helper.make_node("Add", ["z", "high"], ["side"]),
            ],
            [value("image", TensorProto.UINT8, ["n", size, size, 3])],
            [value("mean", TensorProto.FLOAT, ["n"]), value("side", TensorProto.FLOAT, ["n"])],
            [
                numpy_helper.from_array(np.float32(shift), "shift"),
                numpy_helper.from_array(np.float32(0.0), "zero"),
            ],
            file=file,
            settings=settings,
        )

    def greedy(self, name: str = "greedy", *, settings: str = "") -> Path:
        """A tensor as long as its request says: asks for more memory than there is."""
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
        return self.save(
            name,
            [
                helper.make_node("Add", ["size", "one"], ["more"]),  # warm-up may ask for nothing
                helper.make_node("ConstantOfShape", ["more"], ["much"], value=fill),
                helper.make_node("ReduceMax", ["much"], ["y"], keepdims=0),
            ],
            [value("size", TensorProto.INT64, [1])],
            [value("y", TensorProto.FLOAT, [])],
            [numpy_helper.from_array(np.ones(1, np.int64), "one")],
            settings=settings,
        )

    def hostile(self) -> dict[str, str]:
        """Models that cannot be served, each in its way; by name, a word of why."""
        row = [value("x", TensorProto.FLOAT, ["n", 4])]
        self.matmul("far", settings='slo: "\\UFFFFFFFF"\n')
        self.matmul("deep", settings="a: " + "[" * 20_000)
        self.matmul("endless", settings="share: " + "9" * 5000 + "\n")
        self.matmul("sixty", settings="share: " + "1:" * 2000 + "1.5\n")
        self.matmul("crowd", settings="cores: 100000\n")
        self.matmul("elsewhere", settings="device: cuda:999\n")
        self.matmul("wide", settings="inputs: {x: {shape: [2147483648]}}\n")
        for name, axis in (("vast", 2**40), ("empty", 0)):
            ends = [value(end, TensorProto.FLOAT, ["n", axis]) for end in ("x", "y")]
            self.save(name, [helper.make_node("Identity", ["x"], ["y"])], ends[:1], ends[1:])
        sizes = numpy_helper.from_array(np.array([25_000_000_000]), "s")
        filled = [
            helper.make_node("ConstantOfShape", ["s"], ["all"]),
            helper.make_node("ReduceMax", ["all"], ["most"], keepdims=0),
            helper.make_node("Add", ["x", "most"], ["y"]),
        ]
        self.save("heap", filled, row, [value("y", TensorProto.FLOAT, ["n", 4])], [sizes])
        outside = self.matmul("outside")
        model = onnx.load(outside)
        (weight,) = model.graph.initializer
        (outside.parent / "w.bin").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, said in {"location": "w.bin", "offset": "-64", "length": "48"}.items():
            weight.external_data.add(key=key, value=said)
        outside.write_bytes(model.SerializeToString())
        ahead = self.matmul("ahead")
        model = onnx.load(ahead)
        model.opset_import[0].version = 999
        ahead.write_bytes(model.SerializeToString())
        return {
            "ahead": "pset",
            "far": "far/slacktide.yaml: line 1: expected a character that exists",
            "deep": "deep/slacktide.yaml: nested too deeply",
            "endless": "endless/slacktide.yaml: ",
            "sixty": "sixty/slacktide.yaml: ",
            "crowd": "needs 100000 cores",
            "elsewhere": "is requested, but",
            "wide": "[2147483648]",
            "vast": "input 'x': a row of shape [1099511627776] takes 4398046511104 bytes",
            "empty": "input 'x': a row of shape [0] is empty",
            "heap": "out of memory",
            "outside": "external data",
        }

    def divide(self, name: str = "divide", *, settings: str = "") -> Path:
        """y = −2^63 ÷ (d + 1), whole numbers. The quotient by −1 is none, and the processor ends
        a process that asks for it (ONNX Runtime only looks out for 0)."""
        return self.save(
            name,
            [
                helper.make_node("Add", ["d", "one"], ["by"]),  # warm-up divides by 1
                helper.make_node("Div", ["least", "by"], ["y"]),
            ],
            [value("d", TensorProto.INT64, ["n", 2])],
            [value("y", TensorProto.INT64, ["n", 2])],
            [
                numpy_helper.from_array(np.ones(1, np.int64), "one"),
                numpy_helper.from_array(np.array([-(2**63)], np.int64), "least"),
            ],
            settings=settings,
        )

    def broken(self, name: str = "broken", *, version: str = "1") -> Path:
        """A file that is no model."""
        path = self.root / name / version / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"this is no model")
        return path


def _turn() -> Any:
    """One turn of a loop that carries s along."""
    return helper.make_graph(
        [
            *[
                helper.make_node("Relu", [f"s{i}" if i else "s_in"], [f"s{i + 1}"])
                for i in range(12)
            ],
            helper.make_node("Identity", ["s12"], ["s_out"]),
            helper.make_node("Identity", ["c_in"], ["c_out"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("c_in", TensorProto.BOOL, []),
            value("s_in", TensorProto.FLOAT, ["n", 2]),
        ],
        [value("c_out", TensorProto.BOOL, []), value("s_out", TensorProto.FLOAT, ["n", 2])],
    )


# ── clients ──────────────────────────────────────────────────────────────────────────────────────


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


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


class House:
    """A running server, and what tests ask of it."""

    FOREVER = FOREVER
    PATIENCE = PATIENCE
    WEIGHT = WEIGHT
    ask = staticmethod(ask)
    call_of = staticmethod(call_of)
    spin_call = staticmethod(spin_call)
    slow_call = staticmethod(slow_call)
    filter_call = staticmethod(filter_call)
    matmul_call = staticmethod(matmul_call)

    def __init__(self, server: slacktide.Server, zoo: Zoo) -> None:
        self.server = server
        self.zoo = zoo
        self._pool: ThreadPoolExecutor | None = None

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.server.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    @property
    def control(self) -> str:
        """Where models may be loaded and unloaded."""
        return f"127.0.0.1:{self.server.control_port}"

    def get(self, path: str) -> Answer:
        return ask(self.server.http_port, "GET", path)

    def post(self, path: str, document: Any = None) -> Answer:
        body = None if document is None else json.dumps(document)
        port = self.server.control_port if "/repository/models/" in path else 0
        return ask(port or self.server.http_port, "POST", path, body)

    def infer(
        self, model: str, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Answer:
        return infer(self.server.http_port, model, document, headers)

    def spawn(self, work: Callable[..., Any], *args: Any, **named: Any) -> Future[Any]:
        """Do this in the background."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(64)
        return self._pool.submit(work, *args, **named)

    def later(
        self, model: str, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Future[Answer]:
        """`infer` in the background."""
        return self.spawn(self.infer, model, document, headers)

    def good(self) -> None:
        """A plain request is served, whatever happened before."""
        answer = self.infer("matmul", matmul_call())
        assert answer.status == 200, answer
        assert answer.json["outputs"][0]["data"] == pytest.approx(WEIGHT[0].tolist())

    def until(self, condition: Callable[[App], bool], what: str) -> None:
        """Wait until something is so, as seen on the server's own loop."""

        async def wait(app: App) -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition(app):
                    await asyncio.sleep(0.002)

        try:
            self.server.call(wait)
        except TimeoutError:
            pytest.fail(f"it never came to pass that {what}")

    def look(self, read: Callable[[App], Any]) -> Any:
        """What `read` says, on the server's loop."""

        async def looked(app: App) -> Any:
            return read(app)

        return self.server.call(looked)

    def running(self, model: str, *, rows: int = 1) -> None:
        """Wait until a batch of so many rows of `model` is running."""
        self.until(
            lambda app: any(
                running.batch.replica.pool.model == model and running.batch.rows >= rows
                for running in app.engine.state.running.values()
            ),
            f"a batch of {rows} of {model!r} runs",
        )

    def queued(self, model: str, count: int) -> None:
        """Wait until so many requests of `model` wait."""
        self.until(
            lambda app: (
                sum(
                    len(pool.scheduler) + len(pool.quarantine)
                    for id, pool in app.engine.state.pools.items()
                    if id.model == model
                )
                >= count
            ),
            f"{count} requests of {model!r} wait",
        )

    def counts(self, model: str) -> dict[str, int]:
        """Outcomes of `model` so far, by the label of their reason."""

        def read(app: App) -> dict[str, int]:
            counts = app.engine.state.ledger.counts.get(model)
            return {} if counts is None else {r.label: n for r, n in counts.by_reason.items() if n}

        return dict(self.look(read))

    @contextlib.contextmanager
    def taken_to_hang_after(self, seconds: float) -> Iterator[None]:
        """Lower the hang limit for a while."""
        self.look(lambda app: _be_patient(app, seconds))
        yield
        self.look(lambda app: _be_patient(app, PATIENCE))

    def alone(self, model: str) -> float:
        """Seconds that the server expects one row of `model` to take."""

        def read(app: App) -> float:
            version = app.catalog.find(model, None)
            assert version is not None
            return version.expected_alone

        return float(self.look(read))

    def worker(self, model: str, variant: str = "") -> int:
        """The process that serves `model`, or one of its variants."""

        def read(app: App) -> int:
            replicas = app.driver.replicas
            for replica in replicas._replicas.values():
                if replica.pool.model == model and variant in ("", replica.pool.variant):
                    pid = replicas._handles[replica.id].pid
                    assert pid is not None
                    return pid
            raise AssertionError(f"{model} has no replica")

        return int(self.look(read))

    def index(self) -> dict[str, dict[str, str]]:
        """The repository's index by name (the last version of each)."""
        return {entry["name"]: entry for entry in self.post("/v2/repository/index").json}

    @contextlib.contextmanager
    def hold(self, model: str = "spin") -> Iterator[None]:
        """Keep the lane busy with a batch of `model` that only ends because its client leaves."""
        with self.open_call(model, spin_call(FOREVER)) as connection:
            self.running(model)
            yield
            connection.close()
            self.until(
                lambda app: (
                    not any(
                        running.batch.replica.pool.model == model
                        for running in app.engine.state.running.values()
                    )
                ),
                "the batch that held the lane ends",
            )

    def open_call(self, model: str, document: dict[str, Any]) -> socket.socket:
        """Send an inference request; whoever gets the socket may read the answer, or leave."""
        body = json.dumps(document).encode()
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(body)}"
        connection = socket.create_connection(("127.0.0.1", self.server.http_port), PATIENCE)
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        return connection

    def settle(self) -> None:
        """Wait until nothing is in flight; then nothing may be left behind."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.look(lambda app: app.driver.reclaim())
        self.until(lambda app: app.driver.in_flight == 0, "all requests have ended")
        self.look(_nothing_left)


def _nothing_left(app: App) -> None:
    check_invariants(app.engine)
    assert app.driver.replicas._batches == {}
    assert app.data.limits.clients == frozenset()
    for version in app.catalog.all():
        assert version.arena.bytes_in_use == 0, version.name
        assert version.in_flight == 0, version.name
        version.arena.check_invariants()
    assert app.models._budget.bytes_in_use == 0


@contextlib.contextmanager
def housed(
    zoo: Zoo, *, hang_floor: float = PATIENCE, measure: bool = False, **settings: Any
) -> Iterator[House]:
    """Serve `zoo`, and see that nothing is left behind.

    `hang_floor`: no batch is taken to hang before (seconds). The product says 1; machines that
    run tests may stand still for longer, and tests make models work for longer than they said.
    `measure`: measure every model, even if a server of this session has measured its like.
    """
    if not measure:
        _fetch_profiles(zoo.root)
    with slacktide.Server(zoo.root, **{"profile_budget_s": 0.2, **settings}) as server:
        _store_profiles(zoo.root)
        house = House(server, zoo)
        house.look(lambda app: _be_patient(app, hang_floor))
        yield house
        house.settle()


_PROFILES: dict[bytes, dict[str, bytes]] = {}
"""Profiles that servers of this session have measured: by model folder, file by file."""


def _fetch_profiles(root: Path) -> None:
    """Put the profiles of models that were served before into the repository."""
    for folder in root.iterdir():
        key, profiles = _identity(folder)
        for name, content in ({} if profiles else _PROFILES.get(key, {})).items():
            (folder / name).write_bytes(content)


def _store_profiles(root: Path) -> None:
    for folder in root.iterdir():
        key, profiles = _identity(folder)
        if profiles:
            _PROFILES.setdefault(key, profiles)


TINY_BYTES = 8192
"""A model of fewer bytes takes hardly longer for several rows than for one."""


def _smooth(profile: bytes) -> bytes:
    """The profile of a tiny model without the noise of a busy machine, which may say that two rows
    take five times as long as one: the scheduler would then not batch them."""
    document = json.loads(profile)
    table = document.get("profile", {}).get("record", {}).get("table", {})
    for quantile in ("p50_s", "p99_s"):
        rows = table.get(quantile, [])
        for batch, times in zip(table.get("batches", []), rows, strict=False):
            most = 1.0 + 0.05 * (batch - 1)
            times[:] = [min(own, most * single) for own, single in zip(times, rows[0], strict=True)]
    return json.dumps(document).encode()


def _identity(folder: Path) -> tuple[bytes, dict[str, bytes]]:
    """A digest of the files of a model folder, and the profiles in it."""
    digest, profiles = hashlib.sha256(), {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name.startswith("profile."):
            if not path.name.endswith(".learnt.json"):
                tiny = sum(file.stat().st_size for file in path.parent.glob("*.onnx")) < TINY_BYTES
                profiles[name] = _smooth(path.read_bytes()) if tiny else path.read_bytes()
        elif path.is_file():
            digest.update(f"{name} {hash_file(path)}\n".encode("utf-8", "surrogateescape"))
    return digest.digest(), profiles


class Program:
    """`slacktide serve`, and what it says."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "slacktide", "serve", *words]
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.said: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "ready: " in line or "not ready (" in line:
                self._ready.set()
        self._ready.set()

    def port(self, name: str) -> int:
        """A port it listens on; waits until it is ready."""
        assert self._ready.wait(60)
        found = re.search(rf"(?:ready: |listening on ).*\b{name} [^ ]*:(\d+)", "".join(self.said))
        assert found is not None, "".join(self.said)
        return int(found[1])

    def end(self) -> int:
        """Its exit code."""
        code = self.process.wait(60)
        self._reader.join(60)
        return code

    def family(self) -> list[int]:
        """Its children and grandchildren."""
        children = [self.process.pid]
        for pid in children:
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            children += map(int, listed.split())
        return children[1:]


@pytest.fixture
def program() -> Iterator[Any]:
    started: list[Program] = []

    def start(*words: Any) -> Program:
        started.append(Program(*map(str, words)))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        one.process.wait(60)
        for pipe in (one.process.stderr, one.process.stdout):
            one._reader.join(60)
            if pipe is not None:
                pipe.close()


def _be_patient(app: App, hang_floor: float) -> None:
    state = app.engine.state
    state.settings = dataclasses.replace(state.settings, hang_floor=hang_floor)


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The server that most tests share. Nothing may be loaded, unloaded or broken in it."""
    zoo = Zoo(tmp_path_factory.mktemp("common") / "repository")
    zoo.matmul()
    zoo.matmul("picky", settings="inputs: {x: {finite: true}}\nlimits: {rows: 2}\nmax_batch: 8\n")
    zoo.text()
    zoo.kept()
    zoo.total()
    zoo.pair()
    zoo.gather()
    zoo.spin(settings="max_batch: 8\n")
    zoo.slow(settings="max_batch: 1\n")
    # A deadline that it cannot meet is far from over when a busy machine gets to the request.
    zoo.slow("slower", turns=120_000, settings="max_batch: 1\n")
    with housed(zoo) as house:
        yield house


@pytest.fixture
def house(common: House) -> Iterator[House]:
    """The common server; nothing of a test's may be left in it."""
    yield common
    common.settle()


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    """An empty repository of the test's own."""
    return Zoo(tmp_path / "repository")


@dataclass(frozen=True)
class Token:
    """A bearer token in a file, and as clients send it."""

    file: Path
    header: dict[str, str]
    grpc: dict[str, str]


@pytest.fixture
def token(tmp_path: Path) -> Token:
    """A token of the test's own; its file is for its owner alone."""
    value, file = "correct-horse-battery-staple", tmp_path / "secret"
    file.write_text(value + "\n")
    file.chmod(0o600)
    return Token(file, {"Authorization": f"Bearer {value}"}, {"authorization": f"Bearer {value}"})


@pytest.fixture(scope="session")
def zoo_at() -> type[Zoo]:
    """`zoo_at(folder)`: an empty repository there."""
    return Zoo


@pytest.fixture(scope="session")
def serve() -> Callable[..., contextlib.AbstractContextManager[House]]:
    """`serve(zoo, **settings)`: a server of the test's own, for a `with` statement."""
    return housed
