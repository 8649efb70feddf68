"""A network disk that stops answering: other models serve, the ports answer, and signals end the
server. The disk is a FUSE file system, which takes root and /dev/fuse."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end import stalling_disk

NO_FUSE = "no FUSE for root here: /dev/fuse cannot be opened, or mount(2) is refused"
PATIENCE = 60.0


def can_mount(place: Path) -> bool:
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        return False
    try:
        stalling_disk.mount(str(place), device)
    except OSError:
        return False
    finally:
        os.close(device)
    stalling_disk.unmount(str(place))
    return True


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[Path, int, str], Any]]:
    """Puts a folder on a disk that stalls once it has answered an operation of a file; returns its
    output."""
    (tmp_path / "try").mkdir()
    if not can_mount(tmp_path / "try"):
        pytest.skip(NO_FUSE)
    with contextlib.ExitStack() as stack:

        def stall(folder: Path, operation: int, name: str) -> Any:
            source = folder.rename(tmp_path / "source")
            folder.mkdir()
            command = [sys.executable, stalling_disk.__file__, source, folder, operation, name]
            process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
            stack.callback(process.stdout.close)  # type: ignore[union-attr]
            stack.callback(stalling_disk.unmount, str(folder))
            stack.callback(process.wait)
            stack.callback(process.kill)  # first: whoever waits gets an error
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            return process.stdout

        yield stall


@contextlib.contextmanager
def serving(repository: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[..., Any]]]:
    """A server, and what asks it."""
    command = [sys.executable, "-m", "slacktide", "serve", str(repository), "--http-port", "0"]
    command += ["--grpc-port", "-1", "--metrics-port", "-1", "--drain-timeout", "1s"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = port_of(process)

            def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
                with contextlib.closing(connection):
                    connection.request(method, path, None if body is None else json.dumps(body))
                    response = connection.getresponse()
                    content = response.read()
                    return response.status, json.loads(content) if content else None

            yield process, ask
        finally:
            process.kill()


def port_of(process: subprocess.Popen[str]) -> int:
    """The TCP port that it listens on, once it does."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        sockets = set()
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(entry))
        for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                return int(words[1].partition(":")[2], 16)
        time.sleep(0.02)
    raise AssertionError("it never listened")


def end(process: subprocess.Popen[str], signals: int) -> tuple[int, str]:
    """Its status and what it said, after so many signals."""
    for _ in range(signals):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)  # two signals at once are one
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 1)])
def test_a_model_file_that_cannot_be_read_keeps_no_other_model_from_serving(
    zoo: Any, disk: Any, signals: int, code: int
) -> None:
    zoo.matmul("good")
    zoo.matmul("stuck")
    output = disk(zoo.root / "stuck", stalling_disk.OPEN, "model.onnx")
    with serving(zoo.root) as (process, ask):
        assert output.readline() == "stalls\n"
        deadline = time.monotonic() + PATIENCE
        while ask("GET", "/v2/models/good/ready")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(2):
            status, index = ask("POST", "/v2/repository/index", {})
            assert status == 200
            assert {entry["name"] for entry in index} == {"good"}
        assert ask("GET", "/v2/health/live")[0] == 200
        returned, errors = end(process, signals)
    assert returned == code
    assert ("a thread is still waiting for a file" in errors) is (signals == 1)


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 1)])
def test_a_folder_that_cannot_be_listed_stops_neither_the_ports_nor_signals(
    zoo: Any, disk: Any, signals: int, code: int
) -> None:
    zoo.matmul("stuck")
    output = disk(zoo.root / "stuck", stalling_disk.LOOKUP, "1")
    with serving(zoo.root) as (process, ask):
        assert output.readline() == "stalls\n"
        assert ask("GET", "/v2/health/live")[0] == 200
        assert ask("GET", "/v2/health/ready")[0] != 200
        assert ask("POST", "/v2/repository/index", {}) == (200, [])
        assert end(process, signals)[0] == code
