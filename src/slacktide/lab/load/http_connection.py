"""HTTP/1.1 clients: `ClientConnection`, kept alive between the requests of a run, and `fetch` for a
single GET before the run."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import httptools
import orjson

from slacktide.lab.load.encode import common_headers, format_head
from slacktide.lab.load.spec import Target, TargetError

if TYPE_CHECKING:
    from slacktide.lab.load.http_sender import HttpSender

_MAX_DETAIL = 512


class ClientConnection(asyncio.Protocol):
    """A connection of a run, and its parser's callbacks. Drops the bodies of 200 answers."""

    def __init__(self, owner: HttpSender) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._index: int | None = None
        self._status = 0
        self._detail = b""
        self._fault = ""
        self._half = False
        """Whether the headers of request `_index` were sent but not its body."""

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, index: int, parts: Sequence[bytes]) -> None:
        """Send request `index`. The connection must be open and free."""
        self._begin(index).writelines(parts)

    def send_headers(self, index: int, headers: Sequence[bytes]) -> None:
        """Send the headers of request `index`. The connection must be open and free. If an answer
        comes before the body is sent, the connection cannot be used again."""
        self._begin(index).writelines(headers)
        self._half = True

    def send_body(self, parts: Sequence[bytes]) -> None:
        """Send the body of the unanswered request whose headers were sent last."""
        if self._transport is None or not self._half:
            raise RuntimeError("no headers wait for their body")
        self._half = False
        self._transport.writelines(parts)

    def _begin(self, index: int) -> asyncio.Transport:
        if self._transport is None or self._index is not None:
            raise RuntimeError("the connection is not free")
        self._index = index
        self._status = 0
        self._detail = b""
        return self._transport

    def abort(self) -> None:
        """Close immediately, which the server can detect. The owner's `broken` is called later."""
        self._index = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        index, self._index = self._index, None
        why = self._fault or (str(exc) if exc else "connection closed before the answer")
        self._owner.broken(self, index, why)

    def data_received(self, data: bytes) -> None:
        if self._index is None:
            self._fail("unexpected bytes")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"malformed answer: {error}")

    # Callbacks of the parser.

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status != 200 and len(self._detail) < _MAX_DETAIL:
            self._detail += body[:_MAX_DETAIL]

    def on_message_complete(self) -> None:
        if self._status < 200 or self._index is None:  # interim answers (1xx) are not the answer
            return
        index, self._index = self._index, None
        reusable = self._parser.should_keep_alive() and not self.closing and not self._half
        self._owner.answered(self, index, self._status, self._detail, reusable)

    def _fail(self, reason: str) -> None:
        self._fault = reason
        if self._transport is not None:
            self._transport.abort()


def error_text(body: bytes, most: int) -> str:
    """Return the text of a protocol error; for any other body, its first `most` bytes."""
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:most].decode(errors="replace").strip()


_READ = 1 << 16
_LARGEST = 16 << 20


def tls_context(target: Target) -> ssl.SSLContext | None:
    """Return the TLS context for `target`; None if it does not use TLS. Raises TargetError."""
    if not target.tls:
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise TargetError(f"cannot use the certificates in {target.ca_file}: {error}") from None


class _Collector:
    """Collects the body of a single answer from the parser's callbacks."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def fetch(target: Target, path: str) -> tuple[int, bytes]:
    """Return status and body of GET `path`. Raises TargetError without a valid answer."""
    try:
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=tls_context(target)
        )
    except OSError as error:
        raise TargetError(f"cannot connect to {target.url}: {error.strerror or error}") from None
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    try:
        headers = {**common_headers(target), "Connection": "close"}
        writer.write(format_head("GET", target.base_path + path, headers))
        while not collector.complete:
            data = await reader.read(_READ)
            if not data or len(collector.body) > _LARGEST:
                raise TargetError(f"{target.url}{path}: the answer is incomplete")
            parser.feed_data(data)
    except (OSError, httptools.HttpParserError) as error:
        raise TargetError(f"{target.url}{path}: malformed answer: {error}") from None
    finally:
        writer.transport.abort()
    return parser.get_status_code(), bytes(collector.body)
