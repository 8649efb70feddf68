"""`TokenizerProcess`: tokenizes the texts of requests in a process of its own, clients in turn.

Tokenizing takes 0.4 µs for each byte of a text, too long for the loop; and no library may parse
strangers' bytes in the server's process (decision 0076). Texts are sent in parts of at most
`PART_BYTES`, short requests first. The next part is sent only while few bytes are under way, so a
long request delays a short one by one part at most. If the process dies or hangs, the request that
it was working on fails, and all others are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from slacktide.domain.fair_queue import FairQueue
from slacktide.executors.tokenizer_process import ANSWER, HEADER, LENGTH, PART, REFUSAL

log = logging.getLogger("slacktide.models")

PART_BYTES = 64 << 10
"""Maximum bytes of texts in a part (25 ms of work); a part of a single text may be longer."""
SHORT_BYTES = 4 << 10
"""Maximum bytes of a request that precedes longer ones."""
_MOST_UNDER_WAY = 16 << 10
"""Bytes under way above which the next part waits."""
PATIENCE_S = 10.0
"""Seconds for a part after which the process counts as hung."""
START_S = 60.0
_COMMAND = (sys.executable, "-P", "-m", "slacktide.executors.tokenizer_process")


@dataclass(frozen=True, slots=True)
class Tokenizing:
    """The tokenizer of a model, and the inputs that its tokens become."""

    path: Path
    """The tokenizer.json."""
    roles: Sequence[tuple[str, str]]
    """`input_ids`, `attention_mask`, `token_type_ids`, each with NumPy's name of its datatype."""
    max_length: int | None
    """Tokens to which texts are cut."""
    length: int
    """Length of all rows; 0: that of the longest one."""
    multiple: int
    """Lengths are multiples of this, if `length` is 0."""
    pad_id: int | None
    """None: rows that would need padding are refused."""
    pad_type_id: int
    pads_left: bool
    pairs: bool


class TokenizingError(Exception):
    """Texts have no tensors. `of_client`: whether the texts themselves are the reason."""

    def __init__(self, message: str, *, of_client: bool = False) -> None:
        super().__init__(message)
        self.of_client = of_client


class UnwantedTextsError(TokenizingError):
    """Texts were not sent, since no one waits for them any longer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tensors of a request's rows, all of one length."""

    length: int
    data: memoryview
    """Tensors in the order of `Tokenizing.roles`."""


Done = Callable[[Tokens | TokenizingError], None]


class _Texts(NamedTuple):
    """One request."""

    number: int
    client: str
    parts: Sequence[bytes]
    done: Done
    is_wanted: Callable[[], bool]


class TokenizerProcess:
    """The server's end. It belongs to the loop."""

    def __init__(self, tokenizing: Tokenizing) -> None:
        self._message = orjson.dumps(asdict(tokenizing), default=str)
        self.pid = 0
        """Process id; 0 while none runs."""
        self._writer: StreamWriter | None = None
        """None while no process is ready."""
        self._task: asyncio.Task[None] | None = None
        self._pending = asyncio.Event()
        """Set while requests have no answer."""
        self._live: dict[int, _Texts] = {}
        """Requests without an answer, oldest first."""
        self._queues: tuple[FairQueue[tuple[_Texts, int]], ...] = (FairQueue(), FairQueue())
        """Parts of short and of long requests, by their number."""
        self._sent: deque[_Texts] = deque()
        """The requests of parts under way."""
        self._sizes: deque[int] = deque()
        self._under_way = 0
        """Bytes of the parts in `_sent` together."""
        self._patience: asyncio.TimerHandle | None = None
        self._numbers = 0

    @property
    def waiting(self) -> int:
        """Number of requests without an answer."""
        return len(self._live)

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises TokenizingError."""
        ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run(ready))
        await ready

    def encode(
        self,
        client: str,
        parts: Sequence[bytes],
        done: Done,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Tokenize the parts of a request; `done` is called once. Parts are sent only while the
        request `is_wanted`."""
        self._numbers += 1
        texts = _Texts(self._numbers, client, parts, done, is_wanted)
        self._live[texts.number] = texts
        self._pending.set()
        self._push(texts)
        self._send()

    def close(self) -> None:
        """End the process. Requests without an answer are refused."""
        self._refuse_all("the model was unloaded")
        if self._task is not None:
            self._task.cancel()

    async def _run(self, ready: asyncio.Future[None]) -> None:
        """Keep a process running. If it cannot be started, try again for the next request."""
        while True:
            try:
                await self._serve(ready)
            except TokenizingError as error:
                if not ready.done():
                    ready.set_exception(error)
                    return
                self._refuse_all(str(error))
            if self._sent:
                texts = self._sent[0]
                log.error("a tokenizer's process has ended at a text of %s", texts.client)
                self._end(texts.number, TokenizingError("the tokenizer ended at one of these"))
            self._sent.clear()
            self._sizes.clear()
            self._queues, self._under_way = (FairQueue(), FairQueue()), 0
            for texts in self._live.values():
                self._push(texts)
            await self._pending.wait()

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        """Start a process and handle its answers until it ends. Raises TokenizingError if it cannot
        be opened."""
        try:
            server_socket, child_socket = socket.socketpair()
            try:
                process = await asyncio.to_thread(_spawn, child_socket)
            except BaseException:
                server_socket.close()
                raise
        except OSError as error:
            raise TokenizingError(f"its process cannot start: {error.strerror}") from None
        server_socket.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=server_socket)
        try:
            writer.write(HEADER.pack(0, True, len(self._message)) + self._message)
            async with asyncio.timeout(START_S):
                _, kind, content = await self._answer(reader)
            if kind == REFUSAL:
                raise TokenizingError(content.decode())
            self.pid, self._writer = process.pid, writer
            if not ready.done():
                ready.set_result(None)
            self._send()
            while True:
                self._answered(*await self._answer(reader))
        except (OSError, asyncio.IncompleteReadError):  # a timeout is an OSError, too
            if self._writer is None:
                raise TokenizingError("its process ends or hangs when it starts") from None
        finally:
            self._writer, self.pid = None, 0
            self._await(None)
            writer.transport.abort()
            process.kill()
            await asyncio.shield(asyncio.to_thread(process.wait))

    @staticmethod
    async def _answer(reader: StreamReader) -> tuple[int, int, bytes]:
        number, kind, size = ANSWER.unpack(await reader.readexactly(ANSWER.size))
        return number, kind, await reader.readexactly(size)

    def _answered(self, number: int, kind: int, content: bytes) -> None:
        self._sent.popleft()
        self._under_way -= self._sizes.popleft()
        self._await(self._writer if self._sent else None)
        if kind == REFUSAL:
            self._end(number, TokenizingError(content.decode(), of_client=True))
        elif kind != PART:
            (length,) = LENGTH.unpack_from(content)
            self._end(number, Tokens(length, memoryview(content)[LENGTH.size :]))
        self._send()

    def _push(self, texts: _Texts) -> None:
        queue = self._queues[sum(map(len, texts.parts)) > SHORT_BYTES]
        for index in range(len(texts.parts)):
            queue.push(texts.client, (texts, index))

    def _send(self) -> None:
        while self._writer is not None and self._under_way < _MOST_UNDER_WAY:
            queue = self._queues[0] or self._queues[1]
            if not queue:
                return
            _, (texts, index) = queue.pop()
            if texts.number not in self._live:
                continue
            part, last = texts.parts[index], index == len(texts.parts) - 1
            if not texts.is_wanted():
                self._end(texts.number, UnwantedTextsError("they were not tokenized in time"))
                if index == 0:
                    continue
                part, last = b"", True  # the process forgets the parts before
            self._writer.write(HEADER.pack(texts.number, last, len(part)) + part)
            self._sent.append(texts)
            self._sizes.append(len(part))
            self._under_way += len(part)
            if len(self._sent) == 1:
                self._await(self._writer)

    def _await(self, writer: StreamWriter | None) -> None:
        """End the process unless it answers the next part in time; None: no part is under way."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if writer is not None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_S, writer.transport.abort)

    def _end(self, number: int, result: Tokens | TokenizingError) -> None:
        texts = self._live.pop(number, None)
        if not self._live:
            self._pending.clear()
        if texts is not None:
            texts.done(result)

    def _refuse_all(self, message: str) -> None:
        self._queues = (FairQueue(), FairQueue())
        for number in list(self._live):
            self._end(number, TokenizingError(message))


def _spawn(server: socket.socket) -> subprocess.Popen[bytes]:
    """Start a process with its end of the socket, which is then closed here."""
    with server:
        return subprocess.Popen(
            [*_COMMAND, str(server.fileno())],
            pass_fds=[server.fileno()],
            stdin=subprocess.DEVNULL,
        )
