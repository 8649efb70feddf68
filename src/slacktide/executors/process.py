"""`ProcessExecutor`: a worker process for each replica, so that a crash costs one batch.

Replicas of one file on one lane that differ only in their image size share a process.

The default executor. It runs on the server's loop (asyncio or uvloop) and never blocks it.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import count

from slacktide.domain import Replica
from slacktide.executors.allocator import AffinityAllocator, CpuAllocator
from slacktide.executors.fork_client import ForkClient
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.output_file import OutputReader, make_output_file
from slacktide.executors.hand_over.worker_handle import WorkerHandle
from slacktide.executors.kernel import require_kernel
from slacktide.executors.ports import ModelSource, ReplicaHandle, Reporter
from slacktide.executors.shared_replicas import SharedReplicas
from slacktide.executors.spawning import SpawnRequest


class ProcessExecutor:
    """Starts replicas as forks of a fork server, which it starts when first needed.

    A replica on a device such as `cuda:1` gets ONNX Runtime's provider for it. Call all methods on
    the loop's thread.
    """

    def __init__(self, allocator: CpuAllocator | None = None) -> None:
        """`allocator` gives workers their cores; the default uses affinity. Raises
        UnsupportedKernelError."""
        require_kernel()
        self._allocator = AffinityAllocator() if allocator is None else allocator
        self._fork_clients: list[ForkClient] = []
        """The last client is in use. Earlier ones were abandoned, but still have workers."""
        self._handles: set[WorkerHandle] = set()
        self._shared = SharedReplicas(self._start)
        self._numbers = count()
        self._closed = False
        self._empty: asyncio.Event | None = None

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> ReplicaHandle:
        if self._closed:
            raise RuntimeError("the executor is closed")
        start = self._shared.start if source.image_size else self._start
        return start(replica, source, arena, report)

    def _start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> WorkerHandle:
        loop = asyncio.get_running_loop()
        self.warm()
        control, their_control = socket.socketpair()
        aborts, their_aborts = socket.socketpair()
        output_fd = make_output_file()
        handle = WorkerHandle(
            loop,
            control,
            aborts,
            OutputReader(output_fd),
            self._allocator,
            replica,
            report,
            self._forget,
            source.worker_memory,
        )
        self._handles.add(handle)
        request = SpawnRequest(next(self._numbers), source, replica.cores, replica.device)
        descriptors = [their_control.fileno(), their_aborts.fileno(), arena.fd, output_fd]
        with their_control, their_aborts:
            self._fork_clients[-1].spawn(request, descriptors, handle)
        return handle

    def warm(self) -> None:
        """Start the fork server before the first replica (takes a quarter of a second)."""
        if self.fork_server_pid is None:
            self._fork_clients.append(ForkClient(asyncio.get_running_loop()))

    @property
    def fork_server_pid(self) -> int | None:
        """Process id of the fork server; None if there is none."""
        return next((client.pid for client in self._fork_clients if client.alive), None)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the live workers."""
        return tuple(handle.pid for handle in self._handles if handle.pid is not None)

    async def close(self) -> None:
        """Stop every worker (its batch has two seconds to end), then the fork server."""
        self._closed = True
        self._empty = asyncio.Event()
        for handle in list(self._handles):
            handle.stop()
        if self._handles:
            await self._empty.wait()
        await asyncio.gather(*(client.close() for client in self._fork_clients))

    def _forget(self, handle: WorkerHandle) -> None:
        self._handles.discard(handle)
        for client in self._fork_clients:
            client.end_if_deserted(self.worker_pids)
        if self._empty is not None and not self._handles:
            self._empty.set()
