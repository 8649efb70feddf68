"""`kill -9` of a worker in the middle of a batch: seconds until it is noticed, and made good.

The model takes a third of a second for a batch; halfway through one its worker is killed. From then
on the model's readiness is asked for every millisecond, as a load balancer would: *noticed* is the
first answer that is no 200, *ready again* the first 200 after it (the back-off before the first
restart, 0.1 s, is part of it). The request that was running must get its answer from the
replacement.

Each round has a server of its own: a second crash within a minute waits longer, the fifth 10 s.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from bench import models, servers
from bench.clients import latencies, read_answer, request_bytes
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.processes import running, tree
from bench.servers import Serving

MODEL = "long"
MATRIX = 256
TURNS = 1600
"""Products of two such matrices in a batch: some 0.3 s of one core."""
POLL = 0.001
PATIENCE = 30.0
"""Seconds that anything may take before a round is given up."""


@dataclass(frozen=True, slots=True)
class Round:
    """One kill."""

    noticed: float
    """Seconds from the kill until the model says that it is not ready."""
    ready: float
    """Seconds from the kill until it says that it is again."""
    answered: bool
    """Whether the request that was running got a 200."""


def run(options: Options) -> Result:
    """Median of five kills (three when quick)."""
    result = Result("faults")
    repository = models.variant_repository("faults", {MODEL: (_long_model(), "max_batch: 1\n")})
    pin(cores().client)
    with servers.slacktide(repository):
        pass  # measures the profile that is not stored yet
    rounds = []
    for _ in range(3 if options.quick else 5):
        with servers.slacktide(repository) as serving:
            rounds.append(_kill(serving))
    noticed = tuple(restart.noticed * 1e3 for restart in rounds)
    ready = tuple(restart.ready * 1e3 for restart in rounds)
    answered = sum(restart.answered for restart in rounds) / len(rounds)
    result.figures += [
        Figure("kill -9 to unready", median(noticed), "ms", at_most(100.0), samples=noticed),
        Figure("kill -9 to ready again", median(ready), "ms", samples=ready),
        Figure("killed batches answered after all", answered, "", at_least(1.0)),
    ]
    return result


def _kill(serving: Serving) -> Round:
    """Raises RuntimeError if the worker was not seen at work, or did not come back in time."""
    path = serving.path_of(MODEL)
    body = models.oip_body({"x": np.ones((1, MATRIX), np.float32)})
    alone = median(latencies(serving, path, body, count=3))
    probe = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=PATIENCE)
    with socket.create_connection(("127.0.0.1", serving.port), PATIENCE) as connection:
        connection.sendall(request_bytes(serving, path, body))
        time.sleep(alone / 2)
        # The only model's worker is the last process of the tree: server, fork server, worker.
        worker = tree(serving.pid)[-1]
        if worker == serving.pid or not running(worker):
            raise RuntimeError("no worker was seen at work in the middle of its batch")
        begin = time.perf_counter()
        os.kill(worker, signal.SIGKILL)
        noticed = _until(probe, ready=False) - begin
        ready = _until(probe, ready=True) - begin
        try:
            read_answer(connection, serving.name)
        except (OSError, RuntimeError):
            return Round(noticed, ready, answered=False)
    probe.close()
    return Round(noticed, ready, answered=True)


def _until(probe: http.client.HTTPConnection, *, ready: bool) -> float:
    """When the model first answers that it is, or is not, ready. Raises RuntimeError."""
    give_up = time.perf_counter() + PATIENCE
    while time.perf_counter() < give_up:
        probe.request("GET", f"/v2/models/{MODEL}/ready")
        answer = probe.getresponse()
        answer.read()
        if (answer.status == 200) is ready:
            return time.perf_counter()
        time.sleep(POLL)
    raise RuntimeError(f"the model was not {'ready' if ready else 'unready'} in {PATIENCE:g} s")


def _long_model() -> bytes:
    """y = x after TURNS products of two square matrices: [rows, MATRIX] → [rows, MATRIX]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    turn = helper.make_graph(
        [
            helper.make_node("MatMul", ["square", "square_in"], ["square_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            value("square_in", MATRIX, MATRIX),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            value("square_out", MATRIX, MATRIX),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["turns", "", "square"], ["power"], body=turn),
            helper.make_node("MatMul", ["x", "power"], ["y"]),
        ],
        "long",
        [value("x", "batch", MATRIX)],
        [value("y", "batch", MATRIX)],
        [
            numpy_helper.from_array(np.array(TURNS, np.int64), "turns"),
            numpy_helper.from_array(np.eye(MATRIX, dtype=np.float32), "square"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content
