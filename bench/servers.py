"""Servers as processes on the servers' core, up for the time of a `with` block."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bench import peers
from bench.machine import CACHE, ROOT, cores, pinned, spread

_START_LIMIT = 120.0
"""Seconds; loading without a stored profile measures first."""
_STOP_LIMIT = 15.0


class ServerFailedError(Exception):
    """A server that did not come up; the text ends with the last lines of its output."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that answers."""

    name: str
    port: int
    path: str
    """Where inference is asked for; `{model}` stands for the model."""
    grpc_port: int = 0
    seconds_to_ready: float = 0.0
    pid: int = 0
    """Of the process that was started; the others are its children."""
    metrics_port: int = 0

    def url(self, model: str) -> str:
        return f"http://127.0.0.1:{self.port}{self.path_of(model)}"

    def path_of(self, model: str) -> str:
        return self.path.format(model=model)

    def fetch(self, path: str) -> Any:
        """The JSON document at `path`. Patient: an overrun server may have a long queue left."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=120.0) as answer:
            return orjson.loads(answer.read())


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; somebody might by the time they are used."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


@contextlib.contextmanager
def slacktide(
    repository: Path,
    *flags: str,
    module: str = "slacktide.cli.main",
    everywhere: bool = False,
    source: str = "",
) -> Iterator[Serving]:
    """`slacktide serve` as users start it; `module` is what runs it. On the servers' core, or
    `everywhere`. `source`: the folder that has the package, if not the one that is installed."""
    http, grpc, metrics = free_ports(3)
    code = f"from {module} import main; main()"
    command = [sys.executable, "-c", code, "serve", str(repository)]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    command += flags
    if everywhere:
        command = spread(command)
    if source:
        command = ["env", f"PYTHONPATH={source}", *command]
    with process("slacktide", command, http, "/v2/health/ready") as up:
        yield Serving(
            "slacktide", http, "/v2/models/{model}/infer", grpc, up.seconds, up.pid, metrics
        )


@contextlib.contextmanager
def mosec(model: str, file: Path) -> Iterator[Serving]:
    """mosec with one model. Raises PeerMissingError."""
    (port,) = free_ports(1)
    command = peers.mosec_command(port, file)
    with process("mosec", command, port, "/") as up:
        yield Serving("mosec", port, "/inference", 0, up.seconds, up.pid)


@contextlib.contextmanager
def plain(models: Mapping[str, Path], cap: int | None = None) -> Iterator[Serving]:
    """The plain server, or the capped one. Raises PeerMissingError."""
    (port,) = free_ports(1)
    name = "plain" if cap is None else "capped"
    with process(name, peers.plain_command(port, models, cap), port, "/health") as up:
        yield Serving(name, port, "/{model}", 0, up.seconds, up.pid)


@contextlib.contextmanager
def mlserver(model: str, file: Path) -> Iterator[Serving]:
    """MLServer with one model. Raises PeerMissingError."""
    port, grpc = free_ports(2)
    command = peers.mlserver_command(port, grpc, model, file, CACHE / "mlserver")
    with process("mlserver", command, port, "/v2/health/ready") as up:
        yield Serving("mlserver", port, "/v2/models/{model}/infer", grpc, up.seconds, up.pid)


@contextlib.contextmanager
def empty_grpc() -> Iterator[Serving]:
    """grpc.aio with a handler that does nothing (bench/grpc_front_end.py)."""
    core = cores().server
    command = [sys.executable, "-m", "bench.grpc_front_end", "--serve", "aio empty"]
    running = subprocess.Popen(
        pinned(core, [*command, "--core", str(core)]), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        yield Serving("empty aio handler", 0, "", int(running.stdout.readline()))
    finally:
        running.kill()
        running.wait()
        if running.stdout is not None:
            running.stdout.close()


@dataclass(frozen=True, slots=True)
class Up:
    """A process that is ready."""

    pid: int
    seconds: float
    """Until then."""


@contextlib.contextmanager
def process(
    name: str, command: list[str], port: int, ready: str, host: str = "127.0.0.1"
) -> Iterator[Up]:
    """Run `command` on the servers' core until the block ends, which begins when `ready` (a path)
    has answered 200. Raises ServerFailedError."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        # A group of its own, so that whatever it starts can be ended with it; a session would have
        # another part of the machine than the benchmark (sched(7), autogroup).
        running = subprocess.Popen(
            pinned(cores().server, command),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            while not _answers(host, port, ready):
                if running.poll() is not None or time.monotonic() - begin > _START_LIMIT:
                    output.seek(0)
                    tail = output.read().decode(errors="replace").splitlines()[-12:]
                    raise ServerFailedError(f"{name} did not come up:\n" + "\n".join(tail))
                time.sleep(0.005)
            yield Up(running.pid, time.monotonic() - begin)
        finally:
            _end(running)


def _answers(host: str, port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end(running: subprocess.Popen[bytes]) -> None:
    """Ask, then insist; with everything it has started."""
    with contextlib.suppress(ProcessLookupError):
        running.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(_STOP_LIMIT)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()
