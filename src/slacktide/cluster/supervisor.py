"""`Supervisor`: keeps one server running on this machine.

It starts `slacktide serve` in a session of its own, or adopts the server that holds the lock of the
state folder; so a server outlives its supervisor, and the next supervisor adopts it. A server that
ends is started again, immediately if it had been ready, otherwise after a growing pause. A server
that no longer answers is killed first. A changed server takes over from the running one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slacktide.cluster.folder_lock import LockHolder, holder_of
from slacktide.cluster.processes import (
    LOCK,
    ask,
    is_stopped,
    last_error,
    opened_process,
    spawn,
    stop_server,
)

log = logging.getLogger("slacktide.cluster")

LOG = "log"
READY_S = 120.0
"""Time that a server gets to take over from another."""
_LOOK_S = 0.3
_STUCK_S = 10.0
"""Time without any answer after which a server that once answered is killed."""
_STOPPED_S = 1.0
"""Time after which a stopped server is killed: nothing but another signal wakes it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


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
    """Addresses of peers. It is enough if one of two peers connects to the other, so a change
    needs no restart."""
    processors: tuple[int, ...] = ()
    """Processors that it may use; empty: all."""

    @property
    def whole(self) -> list[str]:
        """The command line."""
        return [*self.arguments, *(("--peers", ",".join(self.peers)) if self.peers else ())]

    def holder(self) -> LockHolder | None:
        """Return the server that runs, whoever started it; None if no server runs."""
        return holder_of(self.folder / LOCK)

    def is_current(self, holder: LockHolder, release: str) -> bool:
        """Whether a running server has this command line and release."""
        try:
            words = Path(f"/proc/{holder.pid}/cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:
            return False
        running = tuple(map(os.fsdecode, words))[: len(self.arguments)]
        return running == self.arguments and holder.document.get("release") == release


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
        """The error with which the server last ended, if its log states one."""
        self.task: asyncio.Task[None]
        """Its work. A cancellation leaves the server running."""
        self._changed = changed
        self._stopping = asyncio.Event()
        self._starting = asyncio.Lock()
        """Held while another server starts that may take over."""

    def start(self) -> None:
        """Start or adopt the server, and keep it running."""
        self.task = asyncio.create_task(self._run())

    async def replace(self, command: ServerCommand) -> bool:
        """Let the server of `command` take over from the running server, and keep it running. If it
        cannot within `READY_S`, returns False with its error in `message`; the running server goes
        on."""
        restarts = self.restarts
        async with self._starting:
            pid = self._start(command)
            has_taken_over = await _takes_over(pid, command)
            if has_taken_over:
                self.command = command
        while has_taken_over and not self.task.done():
            if (self.pid, self.phase) == (pid, ServerPhase.READY):
                return True
            if self.restarts > restarts:
                break
            await asyncio.sleep(_LOOK_S / 10)
        self.message = last_error(command.folder / LOG) or "see its log"
        return False

    async def stop(self) -> None:
        """Let the server answer its requests and end, and return when it has ended."""
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
            pid = self._start(self.command) if holder is None else holder.pid
            if holder is not None:
                log.info("%s: adopted process %d", self.command.name, pid)
            was_ready = await self._watch(pid)
            if self._stopping.is_set():
                break
            async with self._starting:
                pass
            if self._holder_other_than(pid) is not None:  # another server has taken over
                continue
            self.restarts += 1
            self.message = last_error(self.command.folder / LOG)
            why = self.message or "see its log"
            log.warning("%s: process %d ended: %s", self.command.name, pid, why)
            failures = 0 if was_ready else failures + 1
            if failures and self.command.holder() is None:
                self._enter(ServerPhase.PAUSED)
                pause = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)
        self._enter(ServerPhase.STOPPED)

    def _start(self, command: ServerCommand) -> int:
        available = os.sched_getaffinity(0)
        if chosen := set(command.processors) & available:
            os.sched_setaffinity(0, chosen)
        try:
            pid = spawn(command.whole, command.folder / LOG)
        finally:
            os.sched_setaffinity(0, available)
        log.info("%s: started process %d", command.name, pid)
        return pid

    def _holder_other_than(self, pid: int) -> LockHolder | None:
        """The running server; None if it is process `pid`, or has not written its id yet."""
        holder = self.command.holder()
        return holder if holder is not None and holder.pid not in (0, pid) else None

    async def _watch(self, pid: int) -> bool:
        """Watch a server until it ends or another takes over. Returns whether it was ready once."""
        self._enter(ServerPhase.STARTING, pid)
        was_ready = False
        answered_at: float | None = None
        with contextlib.suppress(ProcessLookupError), opened_process(pid) as (pidfd, ended):
            while not ended.done():
                if answered_at is not None and self._holder_other_than(pid) is not None:
                    break
                holder, stopped = self.command.holder(), is_stopped(pid)
                answer = None
                if holder is not None and holder.pid == pid and not stopped:
                    answer = await ask(holder, "http", "/v2/health/ready")
                is_ready, now = answer is not None and answer[0] == 200, time.monotonic()
                if answer is not None:
                    answered_at, was_ready = now, was_ready or is_ready
                elif answered_at is not None and now > answered_at + (
                    _STOPPED_S if stopped else _STUCK_S
                ):
                    why = "was stopped by a signal" if stopped else "does not answer"
                    log.warning("%s: process %d %s: killing it", self.command.name, pid, why)
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


async def _takes_over(pid: int, command: ServerCommand) -> bool:
    """Wait until the new process `pid` holds the state folder. Kills it after `READY_S`, or if the
    wait is cancelled."""
    with contextlib.suppress(ProcessLookupError), opened_process(pid) as (pidfd, ended):
        try:
            async with asyncio.timeout(READY_S):
                while not ended.done():
                    holder = command.holder()
                    if holder is not None and holder.pid == pid:
                        return True
                    await asyncio.wait((ended,), timeout=_LOOK_S / 10)
        except TimeoutError:
            log.warning("%s: process %d does not become ready: killing it", command.name, pid)
        finally:
            holder = command.holder()
            if not ended.done() and (holder is None or holder.pid != pid):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return False
