"""A whole server whose pod is resized; only the cluster is not real."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import onnx
import pytest
import tritonclient.http
from onnx import TensorProto, helper

PATIENCE_S = 30.0


def save_model(root):
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    path = root / "neg" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))
    (root / "neg" / "slacktide.yaml").write_text(
        "cores: {min: 1, max: 2}\nscaling: {name: static, cores: 2}\n"
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def serve(repository, *flags, **environment):
    command = [sys.executable, "-m", "slacktide", "serve", str(repository), "--grpc-port=-1"]
    return subprocess.Popen(
        [*command, "--cpu-allocator=kubernetes", "--profile-budget=200ms", *flags],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def fetch(url):
    """The page; None if it cannot be had."""
    try:
        return urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError:
        return None


def until(condition, server):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert server.poll() is None, server.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to grow to")
def test_the_pod_grows_before_the_model_does(kubernetes, tmp_path):
    api = kubernetes()
    save_model(tmp_path / "models")
    http, metrics = free_port(), free_port()
    server = serve(
        tmp_path / "models",
        f"--http-port={http}",
        f"--metrics-port={metrics}",
        POD_NAME="slacktide-0",
        POD_NAMESPACE="vision",
        CONTAINER_NAME="server",
    )
    try:
        until(lambda: fetch(f"http://127.0.0.1:{http}/v2/health/ready") is not None, server)
        grown = 'slacktide_lane_cores{lane="neg"} 2'
        metrics_page = f"http://127.0.0.1:{metrics}/metrics"
        until(lambda: grown in (fetch(metrics_page) or ""), server)
        page = fetch(metrics_page)
        (_, patch) = api.patches[-1]
        assert patch["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2500m"}
        assert re.search(r"^slacktide_pod_cpu_limit_cores 2\.5$", page, re.M)
        assert 'slacktide_pod_condition{condition="infeasible"} 0' in page
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}") as client:
            tensor = tritonclient.http.InferInput("x", [1, 2], "FP32")
            tensor.set_data_from_numpy(np.ones((1, 2), np.float32))
            assert client.infer("neg", [tensor]).as_numpy("y").tolist() == [[-1.0, -1.0]]
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()
        server.communicate()


def test_outside_a_cluster_it_says_what_is_missing(tmp_path):
    save_model(tmp_path / "models")
    environment = {"POD_NAME": "", "KUBECONFIG": ""}
    server = serve(tmp_path / "models", "--http-port=0", "--metrics-port=-1", **environment)
    _, errors = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 2
    assert "missing environment variables: POD_NAME" in errors
    assert "Traceback" not in errors
