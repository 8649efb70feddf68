"""`Supervisor`: keeps one server running on this machine.

It starts `slacktide serve` in a session of its own, or adopts the server that holds the lock of the
state folder; so a server outlives its supervisor, and the next one continues with it. A server that
ends is started again: at once if it had been ready, otherwise after a growing pause. One that has
stopped answering is killed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slacktide.cluster.folder_lock import LockHolder, holder_of

log = logging.getLogger("slacktide.cluster")

LOCK = "lock"
LOG = "log"
LOG_BYTES = 1 << 20
"""Size from which on the next start begins a new log. One earlier log is kept."""

# Forked twice: Ray ends the children of its processes with them, and only those.
_DETACHED = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'

_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d|\{")
_LOOK_S = 0.3
_STUCK_S = 10.0
"""Time without any answer after which a server that once answered is killed."""
_ANSWER_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_CLOSE_S = 20.0
"""Time that a server gets to end, besides its own limits of draining."""


class ServerPhase(StrEnum):
    """The phases of a supervised server."""

    STARTING = "starting"
    READY = "ready"
    UNREADY = "not ready"
    PAUSED = "failed, waiting to start again"
    STOPPING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A server to run."""

    name: str
    arguments: tuple[str, ...]
    """Its command line without peers."""
    folder: Path
    """Its state folder, with its lock and log."""
    peers: tuple[str, ...] = ()
    """Addresses of peers. Peers find each other if one of two dials, so a change needs no
    restart."""
    processors: tuple[int, ...] = ()
    """Processors that it may use; empty: all."""

    @property
    def whole(self) -> list[str]:
        """The command line."""
        return [*self.arguments, *(("--peers", ",".join(self.peers)) if self.peers else ())]

    def holder(self) -> LockHolder | None:
        """Return the server that runs, whoever started it; None if none does."""
        return holder_of(self.folder / LOCK)

    def is_current(self, holder: LockHolder, release: str) -> bool:
        """Whether a running server has this command line and release."""
        try:
            words = Path(f"/proc/{holder.pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            return False
        running = tuple(map(os.fsdecode, words))[: len(self.arguments)]
        return running == self.arguments and holder.document.get("release") == release


def spawn(arguments: list[str], log_file: Path) -> int:
    """Start a program in a session of its own, with its output appended to a log. Returns its
    process id. `SLACKTIDE_` variables are left out, which would override its command line."""
    with contextlib.suppress(FileNotFoundError):
        if log_file.stat().st_size >= LOG_BYTES:
            log_file.replace(log_file.with_name(f"{log_file.name}.1"))
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("SLACKTIDE_")
    }
    command = ["sh", "-c", _DETACHED, "sh", str(log_file), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, start_new_session=True, env=environment
    )
    return int(done.stdout)


class Supervisor:
    """Keeps the server of `command` running from `start` to `stop`, on one event loop."""

    def __init__(self, command: ServerCommand, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of `phase`."""
        self.command = command
        self.phase = ServerPhase.STOPPED
        self.pid = 0
        """Process id of the server; 0 if none runs."""
        self.restarts = 0
        """Number of times that the server ended by itself."""
        self.message = ""
        """The error with which the server last ended, if it said."""
        self.task: asyncio.Task[None]
        """Its work. A cancellation leaves the server running."""
        self._changed = changed
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start or adopt the server, and keep it running."""
        self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let the server answer its requests and end, and return when it has."""
        self._stopping.set()
        await stop_server(self.command.folder, self.pid)
        await self.task

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            holder = self.command.holder()
            if holder is not None and holder.pid == 0:
                await asyncio.sleep(_LOOK_S / 10)
                continue
            pid = self._start() if holder is None else holder.pid
            if holder is not None:
                log.info("%s: adopted process %d", self.command.name, pid)
            was_ready = await self._watch(pid)
            if self._stopping.is_set():
                break
            self.restarts += 1
            self.message = _last_error(self.command.folder / LOG)
            why = self.message or "see its log"
            log.warning("%s: process %d ended: %s", self.command.name, pid, why)
            failures = 0 if was_ready else failures + 1
            if failures and self.command.holder() is None:
                self._enter(ServerPhase.PAUSED)
                pause = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)
        self._enter(ServerPhase.STOPPED)

    def _start(self) -> int:
        available = os.sched_getaffinity(0)
        if chosen := set(self.command.processors) & available:
            os.sched_setaffinity(0, chosen)
        try:
            pid = spawn(self.command.whole, self.command.folder / LOG)
        finally:
            os.sched_setaffinity(0, available)
        log.info("%s: started process %d", self.command.name, pid)
        return pid

    async def _watch(self, pid: int) -> bool:
        """Watch a server until it ends. Returns whether it was ready once."""
        self._enter(ServerPhase.STARTING, pid)
        was_ready = False
        answered_at: float | None = None
        with contextlib.suppress(ProcessLookupError), opened_process(pid) as (pidfd, ended):
            while not ended.done():
                holder = self.command.holder()
                answer = None
                if holder is not None and holder.pid == pid:
                    answer = await ask(holder, "http", "/v2/health/ready")
                is_ready, now = answer is not None and answer[0] == 200, time.monotonic()
                if answer is not None:
                    answered_at, was_ready = now, was_ready or is_ready
                elif answered_at is not None and now > answered_at + _STUCK_S:
                    log.warning(
                        "%s: process %d does not answer: killing it", self.command.name, pid
                    )
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                if was_ready:
                    self._enter(ServerPhase.READY if is_ready else ServerPhase.UNREADY, pid)
                await asyncio.wait((ended,), timeout=_LOOK_S if was_ready else _LOOK_S / 3)
        self.pid = 0
        return was_ready

    def _enter(self, phase: ServerPhase, pid: int = 0) -> None:
        if self._stopping.is_set() and phase is not ServerPhase.STOPPED:
            phase = ServerPhase.STOPPING
        self.pid = pid or self.pid
        if phase is not self.phase:
            self.phase = phase
            self._changed()


@contextmanager
def opened_process(pid: int) -> Iterator[tuple[int, asyncio.Future[None]]]:
    """Open a process: a descriptor for signals, and a future that is done when it has ended. Raises
    ProcessLookupError."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(pid)

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(pidfd, end)
    try:
        yield pidfd, ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


async def stop_server(folder: Path, pid: int = 0) -> None:
    """Let the server of a state folder answer its requests and end, and return when it has. `pid`:
    its process, if known."""
    holder = holder_of(folder / LOCK)
    drain_s = 0.0 if holder is None else float(holder.document.get("drain_s", 0.0))
    if pid := pid or (0 if holder is None else holder.pid):
        await end_process(pid, drain_s)


async def end_process(pid: int, drain_s: float) -> None:
    """Let a server or supervisor end, and return when it has. It is killed if it takes longer than
    `drain_s` and a margin, unless that is infinite."""
    with contextlib.suppress(ProcessLookupError), opened_process(pid) as (pidfd, ended):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)  # it may be stopped
        patience = None if drain_s == math.inf else drain_s + _CLOSE_S
        await asyncio.wait((ended,), timeout=patience)
        if not ended.done():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await ended


async def ask(holder: LockHolder, port: str, path: str, token: str = "") -> tuple[int, str] | None:
    """Send a GET to the `http` or `metrics` port of a running server. Returns status and text; None
    if it does not answer."""
    document = holder.document
    number = document.get("ports", {}).get(port)
    if not number:
        return None
    context = None
    if document.get("tls"):  # on this machine, to a process whose id is known
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    request += f"Authorization: Bearer {token}\r\n\r\n" if token else "\r\n"
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(document["host"], number, ssl=context)
            try:
                writer.write(request.encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return int(head.split()[1]), body.decode(errors="replace")
            finally:
                writer.close()
    except ssl.SSLError:
        return 200, ""  # it listens, and wants a client certificate
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


def _last_error(path: Path) -> str:
    """Return the last line of a log if it is an error that ended the program; else nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines() or [""]
    except OSError:
        return ""
    return "" if _LOG_LINE.match(lines[-1]) else lines[-1]
