"""Files that are wrong beyond what a parser expects cost their model, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

FREE = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--profile-budget", "10ms")
MATMUL = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 0, 0]}]}'


@pytest.mark.slow
def test_a_server_beside_hostile_models_serves_the_good_one(
    program: Any, zoo: Any, common: Any
) -> None:
    zoo.matmul("good")
    hostile = zoo.hostile()
    served = program(zoo.root, *FREE)
    port = served.port("http")
    assert common.ask(port, "POST", "/v2/models/good/infer", MATMUL).status == 200
    log = "".join(served.said)
    assert "Traceback" not in log
    for name, why in hostile.items():
        (line,) = [line for line in served.said if f"{name} could not be loaded: " in line]
        assert why in line
        assert common.ask(port, "GET", f"/v2/models/{name}/ready").status == 400


@pytest.mark.slow
def test_the_checker_refuses_what_loading_refuses(zoo: Any) -> None:
    zoo.matmul("good")
    hostile = zoo.hostile()
    done = _slacktide("models", "check", zoo.root)
    assert done.returncode == 1
    whole = "ONNX Runtime, in full: "  # of what is shortened in a finding
    assert all(line.startswith(whole) for line in done.stderr.splitlines())
    lines = {line.split(": ")[1]: line for line in done.stdout.splitlines()}
    assert lines.keys() == hostile.keys()
    for name, why in hostile.items():
        assert lines[name].startswith(f"error: {name}: ")
        assert why in lines[name]


def test_the_checker_can_be_kept_from_loading(zoo: Any) -> None:
    zoo.hostile()
    done = _slacktide("models", "check", "--files-only", zoo.root)
    models = {line.split(": ")[1] for line in done.stdout.splitlines()}
    assert models == {"far", "deep", "endless", "sixty", "wide", "outside", "vast", "empty"}


def test_a_server_with_too_few_descriptors_says_so_and_ends(zoo: Any) -> None:
    zoo.matmul()
    done = _slacktide("serve", zoo.root, *FREE, files=20)
    assert done.returncode == 2
    assert done.stderr == (
        "error: this process may open 20 files, and needs at least 64 to start: "
        "raise the limit (ulimit -n)\n"
    )


def _slacktide(*words: Any, files: int = 4096) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slacktide", *map(str, words)]
    return subprocess.run(
        ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(files), *command],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
        timeout=100,
    )
