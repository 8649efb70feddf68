"""Signals end a server whose threads wait for a disk that is away."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STUCK = """
import runpy, sys, time
from pathlib import Path
from slacktide.models.repository.profile_store import ProfileStore

def wait(*_, **named):
    Path(sys.argv.pop()).touch()
    time.sleep(1000)

ProfileStore.find = wait
runpy.run_module("slacktide", run_name="__main__", alter_sys=True)
"""


@pytest.mark.replaces_parts
@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 1)])
@pytest.mark.slow
def test_one_signal_leaves_threads_behind_and_two_do_not_wait(
    zoo: Any, tmp_path: Path, signals: int, code: int
) -> None:
    zoo.matmul()
    reached = tmp_path / "reached"
    script = STUCK.replace("sys.argv.pop()", repr(str(reached)))
    ports = ["--http-port", "0", "--grpc-port", "-1", "--metrics-port", "-1"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, "serve", str(zoo.root), *ports],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        give_up = time.monotonic() + 60
        while not reached.exists():
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.01)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two signals at once are one
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code
        assert ("a thread is still waiting for a file" in errors) is (signals == 1)
    finally:
        process.kill()
        process.wait()
