"""`Unpacker`: does work that would block the event loop for too long.

A few bytes can ask for much work: 64 KiB of gzip hold 64 MiB, and 8 MiB of JSON take seconds and
thirty times their size in memory. Inflation runs step by step in a thread, as zlib releases the
interpreter's lock. Parsing JSON and protobuf's typed contents holds the lock, so long requests go
to another process, which returns them with their tensors in binary, as if the client had sent them
so. Memory for all of this is counted against the limits before it begins.

There are four such processes (`text_reader`), each started when first needed. Long texts never
delay medium texts. Requests without a deadline are read at low priority, and never delay requests
with a deadline. (Only root could raise a priority again, hence separate processes.)
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import orjson

from slacktide.domain import Reason
from slacktide.executors.hand_over.arena import MemoryBudget, MemoryLimitExceeded
from slacktide.frontends.common.fairness import FairThread
from slacktide.frontends.settings import KIB, MIB
from slacktide.frontends.text_reader import ALL_JSON, ANSWER, GRPC, NICENESS, REQUEST, receive
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import typed_bytes
from slacktide.wire.oip_json import MAX_REST

T = TypeVar("T")

DIRECT_BYTES = 16 * KIB
"""JSON and typed contents up to this length are read on the loop: they take less than a millisecond
for numbers, a few for the worst nesting."""
MIDDLING_BYTES = 128 * KIB
MOST_TYPED = 8 * MIB
"""Maximum bytes of typed contents in a gRPC message; the same as for JSON over HTTP."""
STEP_BYTES = 256 * KIB
"""Bytes inflated at a time."""
MEMORY_FACTOR = 40
"""Bytes of memory that parsing may take for each byte of text. `[]` is three bytes with its comma,
and takes 72 plus a place in a list or two. Measured: at worst 30."""
MOST_TIMES = 200
"""Maximum ratio of a body's inflated length to its length as sent (Apache's limit), unless its
model takes more: tensors of zeros, such as black frames, exceed it."""
FREE_BYTES = 1 << 20
"""Bytes that are inflated whatever the ratio."""
_COMMAND = (sys.executable, "-P", "-m", "slacktide.frontends.text_reader")
_PIECE = 64 * 1024
"""Bytes given to zlib in one call: it copies the bytes that it does not consume."""


class Unpacker:
    """Unpacks bodies off the event loop. All front ends of a server share one; it belongs to the
    loop."""

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        """`budget`: memory for payloads, by client; None: a gigabyte of its own."""
        self._budget = MemoryBudget(1024 * MIB) if budget is None else budget
        self._zlib = FairThread("slacktide-zlib")
        self._readers = {
            (long, urgent): _Reader(f"slacktide-{long:d}{urgent:d}", 0 if urgent else NICENESS)
            for long in (False, True)
            for urgent in (False, True)
        }

    async def inflate(self, inflation: Inflation, client: str) -> bytearray:
        """Finish an inflation in steps. Raises WireError."""
        charged = 0
        try:
            while True:
                # Twice, because a growing buffer is copied.
                self._charge(2 * STEP_BYTES, client)
                charged += 2 * STEP_BYTES
                if await self._zlib.ask(client, lambda: inflation.step(STEP_BYTES)):
                    return inflation.data
        finally:
            self._budget.release(charged, client)

    async def beside(self, client: str, work: Callable[[], T]) -> T:
        """Run `work`, which releases the interpreter's lock, in a thread."""
        return await self._zlib.ask(client, work)

    async def binary_form(
        self, body: Buffer, json_length: int | None, client: str, *, urgent: bool = False
    ) -> tuple[bytes, int]:
        """Call `oip_json.binary_form` in another process, at normal priority if `urgent`. Raises
        WireError."""
        size = len(body) if json_length is None else json_length
        kind = ALL_JSON if json_length is None else json_length
        length, form = await self._read(kind, body, size, client, urgent)
        return form, length

    async def raw_form(self, message: Buffer, client: str, *, urgent: bool = False) -> Buffer:
        """Convert the typed contents of a ModelInferRequest to raw contents, in another process, as
        `binary_form` does. Returns `message` itself if they are short. Raises WireError."""
        typed = typed_bytes(message)
        if typed <= DIRECT_BYTES:
            return message
        if typed > MOST_TYPED:
            expected = (
                f"at most {MOST_TYPED} bytes of typed contents (raw_input_contents may be longer)"
            )
            raise BadField("message", expected, typed, Reason.TOO_LARGE)
        return (await self._read(GRPC, message, typed, client, urgent))[1]

    async def _read(
        self, kind: int, body: Buffer, size: int, client: str, urgent: bool
    ) -> tuple[int, bytes]:
        reader = self._readers[size > MIDDLING_BYTES, urgent]
        needed = self._holding(MEMORY_FACTOR * size, client)
        good, length, answer = await reader.line.ask(client, lambda: reader.ask(kind, body), needed)
        if good:
            return length, answer
        reason, message = orjson.loads(answer)
        raise WireError(Reason[reason], message)

    @contextlib.contextmanager
    def _holding(self, nbytes: int, client: str) -> Iterator[None]:
        self._charge(nbytes, client)
        try:
            yield
        finally:
            self._budget.release(nbytes, client)

    def _charge(self, nbytes: int, client: str) -> None:
        try:
            self._budget.charge(nbytes, client)
        except MemoryLimitExceeded as error:
            raise WireError(error.reason, f"the body cannot be unpacked: {error}") from None

    def close(self) -> None:
        """End the processes and start no further work."""
        self._zlib.close()
        for reader in self._readers.values():
            reader.close()


def states_timeout(body: Buffer) -> bool:
    """Whether an unread request seems to state a deadline. Looks before and after the tensors:
    everything but tensor data is shorter than MAX_REST."""
    view = memoryview(body)
    return any(b"timeout" in bytes(part) for part in (view[:MAX_REST], view[-MAX_REST:]))


class Inflation:
    """Inflates one body step by step. Steps may run in a thread."""

    def __init__(self, body: Buffer, encoding: bytes, limit: int, largest: int = 0) -> None:
        """Holds at most `limit` + 1 bytes of output. Beyond the first `FREE_BYTES` plus `largest`,
        the size of its model's inputs, it stops at `MOST_TIMES` × the length of `body`."""
        self.data = bytearray()
        """The output so far."""
        self._body = memoryview(body)
        self._encoding = encoding.decode()
        bound = max(FREE_BYTES + largest, MOST_TIMES * len(body))
        self._limit = min(limit, bound)
        self._cure = (
            f", over {MOST_TIMES} times its length; send it uncompressed" if bound < limit else ""
        )
        self._stream = zlib.decompressobj(15 if encoding == b"deflate" else 31)
        self._at = 0

    def step(self, most: int) -> bool:
        """Inflate at most `most` more bytes. Returns True once the body is whole. Raises BadField
        for a broken, cut or padded stream, WireError (TOO_LARGE) beyond the limit."""
        stream, end = self._stream, len(self.data) + most
        while not stream.eof and len(self.data) < end:
            piece: Buffer = stream.unconsumed_tail
            if not piece:
                piece = self._body[self._at : self._at + _PIECE]
                self._at += len(piece)
            room = min(end, self._limit + 1) - len(self.data)
            try:
                inflated = stream.decompress(piece, room)
            except zlib.error:
                raise BadField("body", f"a valid {self._encoding} stream", "a broken one") from None
            if not inflated and not piece and not stream.eof:
                raise BadField("body", f"a whole {self._encoding} stream", "the beginning of one")
            self.data += inflated
            if len(self.data) > self._limit:
                raise WireError(
                    Reason.TOO_LARGE,
                    f"body: decompresses to more than {self._limit} bytes{self._cure}",
                )
        if stream.eof and (stream.unused_data or self._at < len(self._body)):
            raise BadField("body", f"one {self._encoding} stream", "bytes after its end")
        return stream.eof


class _Reader:
    """A process that reads long requests, and the thread that talks to it."""

    def __init__(self, name: str, niceness: int) -> None:
        self._niceness = niceness
        self.line = FairThread(name)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, kind: int, body: Buffer) -> tuple[bool, int, bytes]:
        """Send a body and wait for the answer, in the thread. Returns whether the body could be
        read, the length of its JSON, and its binary form or the reason why not."""
        try:
            if self._socket is None:
                self._start()
            assert self._socket is not None
            self._socket.sendall(REQUEST.pack(kind, len(body)))
            self._socket.sendall(body)
            good, length, size = ANSWER.unpack(receive(self._socket, ANSWER.size))
            return good, length, receive(self._socket, size)
        except OSError as error:
            self._end()
            message = f"the process that reads long requests has ended: {error}"
            raise WireError(Reason.RUNTIME_ERROR, message) from None

    def _start(self) -> None:
        self._socket, child = socket.socketpair()
        with child:
            self._process = subprocess.Popen(
                [*_COMMAND, str(child.fileno()), str(self._niceness)],
                pass_fds=[child.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.line.close(self._end)
