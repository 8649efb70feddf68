"""A model whose first run never ends keeps no other from serving."""

from __future__ import annotations

import asyncio
import http.client
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.executors.hand_over.protocol import FrameKind, FrameReader
from slacktide.executors.onnx_file import OnnxFile
from slacktide.models.model_manager import ModelManager
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.profiles import LatencyTable, ProfileRecord

value = helper.make_tensor_value_info
TOKENS = ("a-token-of-the-beginning", "a-token-that-came-later")


def endless(folder: Path) -> None:
    """A model that loops for ever."""
    state = [value(name, TensorProto.FLOAT, ["n", 4]) for name in ("s", "s_out")]
    go_on = [value(name, TensorProto.BOOL, []) for name in ("c", "c_out")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c_out"]), helper.make_node("Sin", ["s"], ["s_out"])],
        "body",
        [value("i", TensorProto.INT64, []), go_on[0], state[0]],
        [go_on[1], state[1]],
    )
    x, y = (value(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    loop = helper.make_node("Loop", ["", "true", "x"], ["y"], body=body)
    always = numpy_helper.from_array(np.array(True), "true")
    graph = helper.make_graph([loop], "g", [x], [y], [always])
    opsets = [helper.make_opsetid("", 17)]
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")


def status(port: int, path: str, token: str, method: str = "GET") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def until(process: subprocess.Popen[bytes], port: int, path: str, token: str) -> None:
    """Wait for a 200."""
    give_up = time.monotonic() + 60
    while True:
        try:
            if status(port, path, token) == 200:
                return
        except OSError:
            assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.slow
def test_models_with_a_profile_serve_and_calls_are_answered_while_others_load(
    zoo: Any, tmp_path: Path
) -> None:
    endless(zoo.root / "a" / "1")
    zoo.matmul(settings="cores: 1\n")
    (definition,) = Repository(zoo.root).read("matmul")
    interface = OnnxFile(definition.model_path, definition.data_root).interface(None)
    assert interface is not None
    record = ProfileRecord(LatencyTable.linear(0.01, 0.01, interface.max_batch), {"x": (4,)})
    document = {
        "record": record.to_dict(),
        "interface": interface.to_dict(),
        "dependence": "",
    }
    ProfileStore().save(definition, ProfileCache._key(definition), document)
    tokens = tmp_path / "token"
    tokens.write_text(TOKENS[0])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    words = ["--http-port", str(port), "--grpc-port", "-1", "--metrics-port", "-1"]
    words += ["--token-file", str(tokens), "--allow-control"]
    process = subprocess.Popen(
        [sys.executable, "-m", "slacktide", "serve", str(zoo.root), *words],
        stderr=subprocess.DEVNULL,
    )
    try:
        until(process, port, "/v2/models/matmul/ready", TOKENS[0])
        assert status(port, "/v2/health/ready", TOKENS[0]) == 503  # `a` has 60 s
        tokens.write_text(TOKENS[1])
        until(process, port, "/v2/models/matmul", TOKENS[1])
        assert status(port, "/v2/models/matmul", TOKENS[0]) == 401
        assert status(port, "/v2/repository/models/matmul/unload", TOKENS[1], "POST") == 200
        assert status(port, "/v2/health/ready", TOKENS[1]) == 503
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


FIRST_RUN = """
import socket, sys, time
from pathlib import Path
from slacktide.executors.ports import ModelSource
from slacktide.executors.spawning import SpawnRequest
from slacktide.executors.hand_over.worker import _first_run

source = ModelSource("m", "1", Path("m.onnx"), Path())
control = socket.socket(fileno=int(sys.argv[1]))
bound = _first_run(SpawnRequest(0, source, (0,), "cpu"), control, 0.01)
with bound:
    time.sleep(600)
"""


def test_a_first_run_that_does_not_end_ends_its_worker() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        command = [sys.executable, "-c", FIRST_RUN, str(fd)]
        assert subprocess.run(command, pass_fds=[fd], timeout=60, check=False).returncode == 0
        theirs.close()
        frames = [*FrameReader().feed(ours.recv(1 << 16))]
    (kind, body), *more = frames
    assert (kind, more) == (FrameKind.BROKEN, [])
    assert b"its first run, of one row, took more than 0.01 s" in bytes(body)


async def test_loads_that_are_overdue_do_not_hold_up_the_next() -> None:
    wait = ModelManager._wait_for_room
    stuck = asyncio.create_task(asyncio.Event().wait())
    done = asyncio.create_task(asyncio.sleep(0))
    later = asyncio.get_running_loop().time() + 600
    running: dict[Any, float] = {stuck: later, done: later}
    await asyncio.wait_for(wait(running, 2), 30)
    assert [*running] == [stuck]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait(running, 1), 0.05)
    running[stuck] = 0.0
    await asyncio.wait_for(wait(running, 1), 30)
    assert not running
    stuck.cancel()
