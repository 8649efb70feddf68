"""The server under test as a user would run it: `slacktide serve` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from slacktide.load import Target, Transport

_START_LIMIT = 60.0
"""Seconds until a server must be ready; it takes about two."""
_STOP_LIMIT = 10.0
_POLL = 0.02
_PORT = re.compile(r"(http|grpc|metrics) [^ ,]*:(\d+)")


class ChildError(Exception):
    """A child process that did not do what it was started for; the text ends in what it said."""


def split_cores(wanted: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(server's, client's) cores: the first `wanted` of those allowed, and the rest.

    If the server takes all of them, the client shares them.
    """
    allowed = sorted(os.sched_getaffinity(0))
    server = tuple(allowed[:wanted])
    return server, tuple(allowed[wanted:]) or server


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Run on `cores` meanwhile; whatever is started inside stays there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def slacktide(arguments: Sequence[str], cores: Sequence[int], log: Path) -> str:
    """Run `slacktide` to its end on `cores`; its standard output. Raises ChildError."""
    with on_cores(cores), log.open("ab") as errors:
        child = subprocess.Popen(
            _command(arguments), stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
    try:
        output, _ = child.communicate()
    except BaseException:
        _stop(child)
        raise
    if child.returncode:
        raise ChildError(f"slacktide {arguments[0]} ended with {child.returncode}: {_last(log)}")
    return output.decode()


class Server:
    """`slacktide serve REPOSITORY` on some cores and free ports, from entry to exit."""

    def __init__(self, repository: Path, cores: Sequence[int], log: Path) -> None:
        self._repository = repository
        self._cores = cores
        self._log = log
        self._ports: dict[str, int] = {}

    def target(self, transport: Transport = Transport.HTTP) -> Target:
        return Target(transport, "127.0.0.1", self._ports[transport.value])

    def __enter__(self) -> Server:
        """Returns when the models serve. Raises ChildError if that does not happen."""
        ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
        arguments = ["serve", str(self._repository), *ports, "--log-format=json"]
        with on_cores(self._cores), self._log.open("wb") as log:
            # A session of its own: Ctrl-C is for the demo, which then stops the server.
            self._child = subprocess.Popen(
                _command(arguments), stderr=log, env=_environment(), start_new_session=True
            )
        try:
            self._ports = self._wait()
        except BaseException:
            _stop(self._child)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _stop(self._child)

    def _wait(self) -> dict[str, int]:
        """The ports, once the log says that the server is ready."""
        limit = time.monotonic() + _START_LIMIT
        while time.monotonic() < limit:
            ended = self._child.poll() is not None
            for line in self._log.read_text().splitlines():
                message = _message(line)
                if message.startswith("ready:"):
                    return {name: int(port) for name, port in _PORT.findall(message)}
            if ended:
                raise ChildError(f"the server ended: {_last(self._log)}")
            time.sleep(_POLL)
        raise ChildError(f"the server was not ready after {_START_LIMIT:g} s: {_last(self._log)}")


def _command(arguments: Sequence[str]) -> list[str]:
    # -P: modules of the folder the demo is run in are nobody's business.
    return [sys.executable, "-P", "-m", "slacktide", *arguments]


def _environment() -> dict[str, str]:
    """Ours without settings for `slacktide`: the demo shows the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLACKTIDE_")}


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then make it."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(_STOP_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _message(line: str) -> str:
    """Of a line of JSON log; empty for a line that is not (or not yet) whole."""
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    return str(entry.get("message", "")) if isinstance(entry, dict) else ""


def _last(log: Path) -> str:
    """The last line a child wrote."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return (_message(lines[-1]) or lines[-1]) if lines else "it said nothing"
