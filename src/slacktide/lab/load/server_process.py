"""Runs Slacktide as a user would: each command in a separate process, on some of the cores."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from slacktide.executors import allowed_processors, pinned
from slacktide.lab.load.spec import Target, Transport

_START_LIMIT = 180.0
"""Seconds until a server must be ready; it takes about two."""
_STOP_LIMIT = 10.0
_POLL = 0.02
_PORT = re.compile(r"(http|grpc|metrics) [^ ,]*:(\d+)")


class ProcessError(Exception):
    """A process that failed; the text ends with the last line that the process logged."""


def split_cores(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (server's, client's) cores: the first `count` allowed cores, and the rest.

    If the server takes all cores, the client shares them.
    """
    allowed = allowed_processors()
    server = allowed[:count]
    return server, allowed[count:] or server


def slacktide(arguments: Sequence[str], cores: Sequence[int], log: Path) -> str:
    """Run a `slacktide` command on `cores`; return its standard output. Raises ProcessError."""
    with log.open("ab") as errors, _started(arguments, cores, errors, subprocess.PIPE) as process:
        output, _ = process.communicate()
    if process.returncode:
        raise ProcessError(
            f"slacktide {arguments[0]} ended with {process.returncode}: {_last(log)}"
        )
    return output.decode()


class Listening(dict[Transport, Target]):
    """Addresses of a server, by protocol."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        super().__init__({kind: Target(kind, "127.0.0.1", ports[kind.value]) for kind in Transport})
        self.metrics_port = ports["metrics"]


@contextmanager
def serving(
    repository: Path, cores: Sequence[int], log: Path, flags: Sequence[str] = ()
) -> Iterator[Listening]:
    """Run `slacktide serve REPOSITORY` on free ports, with further `flags`; yield its addresses.

    The block starts when the server is ready. Raises ProcessError if it does not become ready.
    """
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    arguments = ["serve", str(repository), *ports, "--log-format=json", *flags]
    with log.open("wb") as errors, _started(arguments, cores, errors) as process:
        bound_ports = _wait(process, log)
        yield Listening(bound_ports)


@contextmanager
def _started(
    arguments: Sequence[str],
    cores: Sequence[int],
    errors: IO[bytes],
    output: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process during the block; then terminate it, and kill it if it does not end."""
    with pinned(cores):
        process = subprocess.Popen(
            # -P: do not import modules from the folder in which the demo runs.
            [sys.executable, "-P", "-m", "slacktide", *arguments],
            stdout=output,
            stderr=errors,
            # This process's environment without settings: the demo shows the defaults.
            env={key: value for key, value in os.environ.items() if key[:10] != "SLACKTIDE_"},
            start_new_session=True,  # Ctrl-C reaches only the demo, which stops the process
        )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_STOP_LIMIT)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait(process: subprocess.Popen[bytes], log: Path) -> dict[str, int]:
    """Return the ports once the log says that the server is ready."""
    limit = time.monotonic() + _START_LIMIT
    while time.monotonic() < limit:
        ended = process.poll() is not None
        for line in log.read_text().splitlines():
            message = _message(line)
            if message.startswith(("ready: ", "listening on http ")):
                addresses = message.partition(", not ready")[0]
                return {name: int(port) for name, port in _PORT.findall(addresses)}
        if ended:
            raise ProcessError(f"the server ended: {_last(log)}")
        time.sleep(_POLL)
    raise ProcessError(f"the server was not ready after {_START_LIMIT:g} s: {_last(log)}")


def _message(line: str) -> str:
    """Return the message of a line of JSON log; empty if the line is incomplete or not JSON."""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    return str(entry.get("message", "")) if isinstance(entry, dict) else ""


def _last(log: Path) -> str:
    """Return the last line of a log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return (_message(lines[-1]) or lines[-1]) if lines else "no output"
