"""The fork server: a process that forks workers. `python -m slacktide.executors.fork_server FD`.

It has imported everything a worker needs, and has one thread and no session. So a fork of it is
cheap (10 ms instead of 200) and safe; a process with threads of ONNX Runtime must never be forked.
It reads spawn requests from its socket, answers with process ids and pidfds, reports how each
worker ended, and ends with its workers when the server's end of the socket closes.

The server must not import this module. `fork_client.py` is the other end.
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
    """Import and freeze what every worker needs: a garbage collection would copy its pages."""
    import numpy  # noqa: F401  (to load it)
    import onnx  # noqa: F401

    load_onnxruntime()
    gc.collect()
    gc.freeze()


class ForkServer:
    """A loop that handles requests on the socket `server` and reports children that end."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._children: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)

    def serve(self) -> None:
        """Serve until the server's end closes; then kill and reap every child.

        Children would die with this process anyway, but as zombies of process 1, which in a
        container may not reap them.
        """
        try:
            while self._turn():
                pass
        finally:
            for pidfd in list(self._children):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                self._reap(pidfd)

    def _turn(self) -> bool:
        """Handle the next events; False once the server has ended."""
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
        # Bind before the server knows the process: later, binding could undo a resize.
        _bind(pid, request.cores)
        # The child has not been reaped yet, so no other process can have its id.
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._tell({"id": request.id, "pid": pid}, pidfd)

    def _live_as_worker(self, request: SpawnRequest, descriptors: list[int], parent: int) -> None:
        """Run the worker in the child, and exit."""
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
        except ConnectionError:  # the next poll finds that the server has ended
            return


def _bind(pid: int, cores: tuple[int, ...]) -> None:
    """Bind a new worker, which still has one thread, to its cores."""
    if cores:
        try:
            os.sched_setaffinity(pid, cores)
        except OSError:  # the container has lost these cores; others will do
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
