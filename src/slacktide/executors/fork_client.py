"""The server's end of the fork server: starts it, requests workers, reports how they end.

Nothing here blocks. The fork server takes a quarter of a second to start; requests wait in its
socket meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Sequence

from slacktide.executors.hand_over.loop_watch import call_later
from slacktide.executors.hand_over.worker_handle import WorkerHandle
from slacktide.executors.inherited import open_standard_streams
from slacktide.executors.spawning import MESSAGE_LIMIT, SpawnRequest
from slacktide.executors.worker_output import WorkerOutput

log = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds for a fork server to end without being killed
# Seconds to wait for an answer. The fork server is abandoned only after a second wait of the same
# length, because the whole machine may have stood still.
_FIRST_ANSWER = 30.0  # the fork server first imports modules, maybe from disk
_ANSWER = 5.0


class ForkClient:
    """One fork server. Create it on a running loop. `alive` is False once it has ended.

    A fork server that does not answer (stopped, or stuck) is abandoned: it gets no more requests,
    but is kept while it has workers, because they would die with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._requests: dict[int, WorkerHandle] = {}
        self._owners: dict[int, WorkerHandle] = {}
        self._unsent_requests: deque[tuple[bytes, list[int]]] = deque()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._answers = 0
        self._is_abandoned = False
        open_standard_streams()
        self._socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._output = WorkerOutput(loop)
        # Ctrl-C reaches the whole group. It must not arrive before the child ignores it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._process = subprocess.Popen(
                # -P: import nothing from the working directory, which may be a model repository.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "slacktide.executors.fork_server",
                    str(child_socket.fileno()),
                ],
                pass_fds=[child_socket.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output.descriptor,
                stderr=self._output.descriptor,
                env=_environment(),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            child_socket.close()
        self._output.close_descriptor()
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._server_ended)
        loop.add_reader(self._socket, self._readable)

    @property
    def alive(self) -> bool:
        return not (self._ended.done() or self._is_abandoned)

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, request: SpawnRequest, descriptors: Sequence[int], owner: WorkerHandle) -> None:
        """Request a worker. The descriptors are copied, so the caller may close its own."""
        message = request.encode()
        if len(message) > MESSAGE_LIMIT:
            self._loop.call_soon(owner.not_spawned, "the model's configuration is too long")
            return
        self._requests[request.id] = owner
        self._unsent_requests.append((message, [os.dup(fd) for fd in descriptors]))
        self._send()
        patience = _ANSWER if self._answers else _FIRST_ANSWER
        call_later(self._loop, patience, self._overdue, request.id, patience)

    def end_if_deserted(self, workers: Collection[int]) -> None:
        """Kill the fork server if it was abandoned and none of the live `workers` is its child."""
        if (
            self._is_abandoned
            and not self._ended.done()
            and self._owners.keys().isdisjoint(workers)
        ):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _overdue(self, id: int, again: float = 0.0) -> None:
        if id in self._requests and not self._ended.done():
            self._readable()  # an answer may have arrived just now
        if id not in self._requests or self._ended.done():
            return
        if again:
            call_later(self._loop, again, self._overdue, id)
            return
        self._is_abandoned = True
        problem = "the process that starts workers does not respond"
        log.error("%s (process %d): replacing it", problem, self.pid)
        self._fail_requests(problem)

    async def close(self) -> None:
        """End the fork server and its remaining workers, and wait until it has ended."""
        if not self._ended.done():
            self._socket.shutdown(socket.SHUT_WR)
            try:
                await asyncio.wait_for(asyncio.shield(self._ended), _PATIENCE)
            except TimeoutError:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await self._ended

    def _send(self) -> None:
        while self._unsent_requests:
            message, descriptors = self._unsent_requests[0]
            try:
                socket.send_fds(self._socket, [message], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._send)
                return
            except OSError:  # it has just died, as `_server_ended` will report
                break
            self._unsent_requests.popleft()
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
            self._on_message(json.loads(message), descriptors)

    def _on_message(self, document: dict[str, object], descriptors: list[int]) -> None:
        if "exited" in document:
            if owner := self._owners.pop(int(str(document["exited"])), None):
                owner.exited(int(str(document["status"])))
            return
        self._answers += 1
        owner = self._requests.pop(int(str(document["id"])), None)
        if owner is None:  # the fork server was abandoned meanwhile, and the worker with it
            for pidfd in descriptors:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _close_all(descriptors)
            return
        if "error" in document:
            owner.not_spawned(str(document["error"]))
            return
        if not descriptors:  # our descriptor table is full; the worker ends when its socket closes
            owner.not_spawned("the server has no file descriptor left")
            return
        pid = int(str(document["pid"]))
        self._owners[pid] = owner
        owner.spawned(pid, descriptors[0])

    def _server_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._readable()  # last messages
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        os.close(self._pidfd)
        self._process.wait()  # returns immediately
        self._output.close()
        if not self._ended.done():
            self._ended.set_result(None)
        self._fail_requests("the process that starts workers has ended")

    def _fail_requests(self, detail: str) -> None:
        for _, descriptors in self._unsent_requests:
            _close_all(descriptors)
        self._unsent_requests.clear()
        owners, self._requests = list(self._requests.values()), {}
        for owner in owners:
            owner.not_spawned(detail)


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


def _environment() -> dict[str, str]:
    """The server's environment without NumPy's thread pools and ONNX Runtime's telemetry: a process
    that forks must have one thread, and workers do not need those pools, since they compute only in
    ONNX Runtime."""
    return {
        **os.environ,
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENCV_FOR_THREADS_NUM": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
