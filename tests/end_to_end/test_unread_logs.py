"""A log that nobody reads holds up neither requests nor the end of the server."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def unread() -> Iterator[int]:
    """The writing end of a pipe that is full and that nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str) -> int:
    """The status of GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "json"])
def test_requests_are_answered_and_the_server_ends(zoo: Any, unread: int, format: str) -> None:
    zoo.matmul()
    port, metrics = free_port(), free_port()
    words = ["--http-port", str(port), "--metrics-port", str(metrics), "--grpc-port", "-1"]
    words += ["--access-log", "--log-format", format]
    process = subprocess.Popen(
        [sys.executable, "-m", "slacktide", "serve", str(zoo.root), *words],
        stdout=unread,
        stderr=unread,
    )
    try:
        give_up = time.monotonic() + 60
        while True:
            try:
                if ask(port, "/v2/health/ready") == 200:
                    break
            except OSError:
                assert time.monotonic() < give_up
                assert process.poll() is None
            time.sleep(0.01)
        for _ in range(600):  # more lines than the pipe holds
            assert ask(port, "/v2/models/matmul") == 200
        assert ask(metrics, "/metrics") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
