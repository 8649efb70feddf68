"""One GET on a connection of its own, for questions asked before a run."""

from __future__ import annotations

import asyncio
import ssl

import httptools

from slacktide.load.encode import common_headers, format_head
from slacktide.load.errors import TargetError
from slacktide.load.spec import Target

_READ = 1 << 16
_LARGEST = 16 << 20


def tls_context(target: Target) -> ssl.SSLContext | None:
    """How to speak TLS to `target`; None if it does not. Raises TargetError."""
    if not target.tls:
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise TargetError(f"cannot use the certificates in {target.ca_file}: {error}") from None


class _Collector:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def fetch(target: Target, path: str) -> tuple[int, bytes]:
    """Status and body of GET `path`. Raises TargetError if there is no proper answer."""
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
                raise TargetError(f"{target.url}{path}: no complete answer")
            parser.feed_data(data)
    except (OSError, httptools.HttpParserError) as error:
        raise TargetError(f"{target.url}{path}: no proper answer: {error}") from None
    finally:
        writer.transport.abort()
    return parser.get_status_code(), bytes(collector.body)
