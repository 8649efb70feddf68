"""A gRPC server on doubles in a thread, and `Player`, a client that sends raw bytes to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.frontends.doubles import FakeControlPlane, FakeDataPlane
from tests.frontends.http2.conformance import ACKNOWLEDGED, ANSWER, NOTHING, PONG

from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http2 import frames as f

PATIENCE_S = 30.0
MARK = b"mark%04d"


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """The port of a gRPC server in a thread of its own."""
    listening: list[int] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        server = GrpcServer(FakeDataPlane(), FakeControlPlane())
        await server.start("127.0.0.1", 0)
        listening.append(server.port)
        ready.set()
        await over.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield listening[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


class Player:
    """A client that sends bytes and notes what comes back."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.first: int | None = None
        self.error = ""
        self.data: list[int] = []
        self.answered = self.closed = False
        self.acknowledged = self.pongs = self.marks = 0
        self._held = b""

    def begin(self) -> None:
        """Preface and SETTINGS, and those of the server acknowledged."""
        self.send(f.PREFACE + f.settings(()) + f.frame(f.SETTINGS, f.ACK, 0))
        self.mark()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has been closed; what it said is still to be read
            self.socket.sendall(data)

    def hear(self) -> None:
        """Take the next frames, or the end."""
        try:
            part = self.socket.recv(1 << 16)
        except ConnectionResetError:
            part = b""
        self.closed = not part
        self._held += part
        while len(self._held) >= f.HEAD_BYTES:
            word, flags, _ = f.FRAME_HEAD.unpack_from(self._held)
            end = f.HEAD_BYTES + (word >> 8)
            if len(self._held) < end:
                break
            payload, self._held = self._held[f.HEAD_BYTES : end], self._held[end:]
            self._take(word & 0xFF, flags, payload)

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        self.first = kind if self.first is None else self.first
        ended = kind in (f.HEADERS, f.DATA) and bool(flags & f.END_STREAM)
        self.answered = self.answered or ended
        if kind == f.GOAWAY:
            self.error = f"GOAWAY {f.ErrorCode(int.from_bytes(payload[4:8])).name}"
        elif kind == f.RST_STREAM and not self.error:
            code = f.ErrorCode(int.from_bytes(payload))
            if code is not f.ErrorCode.NO_ERROR:
                self.error = f"RST_STREAM {code.name}"
        elif kind == f.DATA:
            self.data.append(len(payload))
        elif kind == f.SETTINGS:
            self.acknowledged += flags & f.ACK
        elif kind == f.PING and flags & f.ACK:
            if payload.startswith(MARK[:4]):
                self.marks += 1
            else:
                self.pongs += 1

    def mark(self) -> None:
        """Send a PING and wait for its answer, or for the end of the connection. Twice: what one
        turn of the server has to say may follow the answer to the first."""
        for _ in range(2):
            wanted = self.marks + 1
            self.send(f.frame(f.PING, 0, 0, MARK % wanted))
            while self.marks < wanted and not self.closed:
                self.hear()

    def result(self, expected: str) -> str:
        """What it comes to; that SETTINGS were acknowledged only where that is `expected`."""
        if self.error:
            return self.error
        if self.data and not self.answered:
            sizes = ", ".join(map(str, self.data))
            return f"DATA of {sizes} byte{'s' if len(self.data) > 1 else ''}"
        if self.answered:
            return ANSWER
        if self.pongs:
            return PONG
        return ACKNOWLEDGED if expected == ACKNOWLEDGED and self.acknowledged > 1 else NOTHING
