"""The server's end of the nursery: starts it, asks it for workers, hears how they end.

Nothing here blocks: the nursery takes a quarter of a second to start, and requests wait in its
socket meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from slacktide.executors.spawning import MESSAGE_LIMIT, SpawnRequest

_PATIENCE = 2.0  # seconds for a nursery to end by itself; it has nothing to save


class Parent(Protocol):
    """Who asked for a worker, and hears of it. Called on the loop."""

    def spawned(self, pid: int, pidfd: int) -> None:
        """The worker lives; `pidfd` belongs to the receiver now."""
        ...

    def not_spawned(self, detail: str) -> None:
        """There will be no worker."""
        ...

    def exited(self, status: int) -> None:
        """How the worker ended: its exit status, or minus the signal that killed it."""
        ...


class Spawner:
    """One nursery process. Make it with a running loop; `alive` is False once it has gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: dict[int, Parent] = {}
        self._parents: dict[int, Parent] = {}
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                # -P: the working directory may hold a model repository, never our modules.
                [sys.executable, "-P", "-m", "slacktide.executors.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._nursery_ended)
        loop.add_reader(self._socket, self._readable)

    @property
    def alive(self) -> bool:
        return not self._ended.done()

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, request: SpawnRequest, descriptors: Sequence[int], parent: Parent) -> None:
        """Ask for a worker. The descriptors are copied: the caller may close its own."""
        message = request.encode()
        if len(message) > MESSAGE_LIMIT:
            self._loop.call_soon(parent.not_spawned, "the model's configuration is too long")
            return
        self._asked[request.id] = parent
        self._waiting.append((message, [os.dup(fd) for fd in descriptors]))
        self._send()

    async def close(self) -> None:
        """End the nursery (and with it every worker it still has), and wait for it."""
        if self.alive:
            self._socket.shutdown(socket.SHUT_WR)
            try:
                await asyncio.wait_for(asyncio.shield(self._ended), _PATIENCE)
            except TimeoutError:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await self._ended

    def _send(self) -> None:
        while self._waiting:
            message, descriptors = self._waiting[0]
            try:
                socket.send_fds(self._socket, [message], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._send)
                return
            except OSError:  # it has just died: `_nursery_ended` tells everybody
                break
            self._waiting.popleft()
            _close_all(descriptors)
        self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(
                    self._socket, MESSAGE_LIMIT, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._loop.remove_reader(self._socket)
                return
            self._heard(json.loads(message), descriptors)

    def _heard(self, document: dict[str, object], descriptors: list[int]) -> None:
        if "exited" in document:
            gone = self._parents.pop(int(str(document["exited"])), None)
            if gone is not None:
                gone.exited(int(str(document["status"])))
            return
        parent = self._asked.pop(int(str(document["id"])))
        if "error" in document:
            parent.not_spawned(str(document["error"]))
            return
        if not descriptors:  # no room in our table; the worker ends when its socket closes
            parent.not_spawned("the server has no file descriptor left")
            return
        pid = int(str(document["pid"]))
        self._parents[pid] = parent
        parent.spawned(pid, descriptors[0])

    def _nursery_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._readable()  # what it still had to say
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        os.close(self._pidfd)
        self._process.wait()  # it is dead: returns at once
        for _, descriptors in self._waiting:
            _close_all(descriptors)
        self._waiting.clear()
        if not self._ended.done():
            self._ended.set_result(None)
        asked, self._asked = list(self._asked.values()), {}
        for parent in asked:
            parent.not_spawned("the process that starts workers has ended")


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


def _environment() -> dict[str, str]:
    """The server's, less the thread pools of NumPy's BLAS and ONNX Runtime's telemetry: a process
    that forks must have one thread, and workers compute in ONNX Runtime alone."""
    return {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
