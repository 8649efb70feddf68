"""The fork server: a process that forks workers. `python -m slacktide.executors.fork_server FD`.

It has imported what a worker needs and has one thread and no session, so a fork of it is cheap
(10 ms instead of 200) and safe; a process that runs ONNX Runtime's threads must never be forked.
It reads spawn requests from its socket, answers with process ids and pidfds, reports how each
worker ended, and goes when the server's end of the socket closes; its workers go with it.

Not to be imported by the server: `fork_client.py` is its other end.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from io import TextIOWrapper
from typing import Any, cast

from slacktide.executors.hand_over.worker import ignore_terminal_signals, run_worker
from slacktide.executors.inherited import take_over
from slacktide.executors.onnx_runtime import load_onnxruntime
from slacktide.executors.spawning import DESCRIPTORS, MESSAGE_LIMIT, SpawnRequest


def preload() -> None:
    """Import what every worker needs, and keep the collector from touching (copying) it."""
    import numpy  # noqa: F401  (for its side effect: being loaded)
    import onnx  # noqa: F401  (the same)

    load_onnxruntime()
    gc.collect()
    gc.freeze()


class ForkServer:
    """The loop: requests come in on `server`, children end on their pidfds."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._children: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)

    def serve(self) -> None:
        """Until the server's end closes; then end every child, and see it gone.

        They would die with this process anyway, but as zombies of process 1, which in a container
        need not be one that reaps.
        """
        try:
            while self._turn():
                pass
        finally:
            for pidfd in list(self._children):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                self._reap(pidfd)

    def _turn(self) -> bool:
        """Wait for something and deal with it; False once the server is gone."""
        for fd, _ in self._poll.poll():
            if fd != self._server.fileno():
                self._reap(fd)
            elif not self._receive():
                return False
        return True

    def _receive(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(
            self._server, MESSAGE_LIMIT, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return False
        try:
            self._spawn(SpawnRequest.decode(message), descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    def _spawn(self, request: SpawnRequest, descriptors: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell({"id": request.id, "error": f"cannot fork: {error.strerror}"})
            return
        if pid == 0:
            self._live_as_worker(request, descriptors, parent)
        # Before the server knows of it, so that a resize while it starts cannot be undone here.
        _bind(pid, request.cores)
        # Opened before the child can be reaped: its number cannot have become another's.
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._tell({"id": request.id, "pid": pid}, pidfd)

    def _live_as_worker(self, request: SpawnRequest, descriptors: list[int], parent: int) -> None:
        """In the child. Does not return."""
        status = 1
        try:
            self._server.close()
            for pidfd in self._children:
                os.close(pidfd)
            status = run_worker(request, descriptors, parent)
        except BaseException:  # also SystemExit: nothing may get past the fork
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._tell({"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def _tell(self, document: dict[str, Any], *descriptors: int) -> None:
        message = json.dumps(document).encode()
        try:
            socket.send_fds(self._server, [message], list(descriptors))
        except ConnectionError:  # the next poll sees that the server is gone
            return


def _bind(pid: int, cores: tuple[int, ...]) -> None:
    """Put a worker, which has one thread yet, on its cores."""
    if cores:
        try:
            os.sched_setaffinity(pid, cores)
        except OSError:  # cores that a container has lost meanwhile: any are better than none
            print(f"slacktide worker: cannot run on cores {cores}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    server = socket.socket(fileno=int(arguments[0]))
    ignore_terminal_signals()
    take_over()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)  # as standard error is
    preload()
    ForkServer(server).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
