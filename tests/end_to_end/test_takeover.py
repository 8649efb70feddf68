"""A server that takes over from another, as processes, with clients that know one address."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tests.end_to_end.calls import matmul_call

FREE = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--profile-budget", "200ms")


class OneAddress:
    """Sends requests until it is stopped: some on a connection that is kept, others on new ones."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: list[int] = []
        self.closed = 0
        """Number of answers that closed the kept connection."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        body, path = json.dumps(matmul_call()), "/v2/models/matmul/infer"
        kept = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self._stopping.is_set():
            for is_kept in (True, False):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                used = kept if is_kept else connection
                used.request("POST", path, body)
                answer = used.getresponse()
                answer.read()
                self.statuses.append(answer.status)
                self.closed += is_kept and answer.getheader("Connection") == "close"
                connection.close()
        kept.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@pytest.mark.slow
def test_no_request_is_lost_while_a_server_takes_over(program: Any, zoo: Any, tmp_path: Path):
    zoo.matmul()
    command = (zoo.root, *FREE, "--state-dir", tmp_path, "--take-over")
    first = program(*command)
    client = OneAddress(first.port("http"))
    try:
        grpc_port = first.port("grpc")
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as channel:
            x = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            channel.infer("matmul", [x])
            second = program(*command, "--max-sessions", "7")
            assert second.port("http") == first.port("http")
            assert second.port("grpc") == grpc_port
            assert first.end() == 0
            channel.infer("matmul", [x])
    finally:
        client.stop()
    assert set(client.statuses) == {200}
    assert client.closed == 1  # of the first server, which answered once more
    assert "another server has taken over" in "".join(first.said)
    assert json.loads((tmp_path / "lock").read_text())["pid"] == second.process.pid
    second.process.terminate()
    assert second.end() == 0


@pytest.mark.slow
def test_a_server_without_working_models_does_not_take_over(
    program: Any, zoo: Any, tmp_path: Path, common: Any
):
    zoo.matmul()
    first = program(zoo.root, *FREE, "--state-dir", tmp_path, "--take-over")
    port = first.port("http")
    broken = tmp_path / "broken" / "matmul" / "1"
    broken.mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    second = program(broken.parent.parent, *FREE, "--state-dir", tmp_path, "--take-over")
    assert second.end() == 2
    assert "error: --take-over: not ready, so the running server goes on" in "".join(second.said)
    assert common.ask(port, "GET", "/v2/health/ready").status == 200
    assert json.loads((tmp_path / "lock").read_text())["pid"] == first.process.pid


def test_taking_over_needs_a_state_folder(program: Any, zoo: Any):
    zoo.matmul()
    refused = program(zoo.root, *FREE, "--take-over")
    assert refused.end() == 2
    assert "error: --take-over: needs --state-dir" in "".join(refused.said)
