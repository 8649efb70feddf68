"""A worker that a test plays, for what the server's end of it makes of its words."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from slacktide.domain import Replica
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.allocator import AffinityAllocator
from slacktide.executors.hand_over.output_file import OutputReader, OutputWriter, make_output_file
from slacktide.executors.hand_over.protocol import FrameKind, FrameReader, encode_ready
from slacktide.executors.hand_over.worker_handle import WorkerHandle
from slacktide.executors.ports import OpenedModel


class PlayedWorker:
    """A handle, and the worker that it talks to."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, replica: Replica, interface: ModelInterface
    ) -> None:
        self.loop = loop
        ours, self.control = socket.socketpair()
        aborts, self.aborts = socket.socketpair()
        fd = make_output_file()
        self.file = OutputWriter(fd)
        self.heard: list[tuple[Any, list[Any]]] = []
        self.gone = False
        self.handle = WorkerHandle(
            loop,
            ours,
            aborts,
            OutputReader(fd),
            AffinityAllocator(),
            replica,
            self.report,
            self.ended,
        )
        self.reader = FrameReader()
        self.tell(encode_ready(OpenedModel(interface)))

    def report(self, event: Any, outputs: Any = (), **_: Any) -> None:
        self.heard.append((event, list(outputs)))

    def ended(self, handle: WorkerHandle) -> None:
        self.gone = True

    def turn(self) -> None:
        """Let the loop turn once."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def tell(self, data: bytes) -> None:
        """Have the handle hear this."""
        self.control.sendall(data)
        self.turn()
        self.turn()

    def told(self) -> list[tuple[FrameKind, bytes]]:
        return list(self.reader.feed(self.control.recv(1 << 16)))

    def close(self) -> None:
        self.handle.not_spawned("the play is over")
        while not self.gone:  # it copies what was told last
            self.turn()
        self.control.close()
        self.aborts.close()
