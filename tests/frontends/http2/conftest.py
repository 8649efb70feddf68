"""A server's side of HTTP/2 whose streams note what comes, and frames to send it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from slacktide.frontends.http2 import ErrorCode, Head, Http2Connection, Http2Stream
from slacktide.frontends.http2 import frames as f

FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"t"),
    (b"te", b"trailers"),
)
HEAD = f.header_block(None, FIELDS)
"""A request's header block, which leaves the table as it is."""
ANSWER = f.header_block(200, ((b"content-type", b"text/plain"),))
TRAILERS = f.header_block(None, ((b"end", b"1"),))


class Noted(Http2Stream):
    """Keeps its body; answers when told to."""

    __slots__ = ("body", "heads", "lost", "whole")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.body = bytearray()
        self.heads: list[tuple[dict[bytes, bytes], bool]] = []
        self.whole = self.lost = False

    def headed(self, fields: dict[bytes, bytes], ends: bool) -> None:
        self.heads.append((fields, ends))

    def received(self, data: memoryview) -> None:
        self.body += data

    def received_all(self) -> None:
        self.whole = True

    def aborted(self) -> None:
        self.lost = True


class Bench:
    """A connection that has had its preface, and what it said."""

    def __init__(self, *, opened: bool = True, max_streams: int = 8, max_list: int = 4096) -> None:
        self.now = 0.0
        self.streams: list[Noted] = []
        self.connection = Http2Connection(
            self._open, max_streams=max_streams, max_list=max_list, now=0.0
        )
        if opened:
            self.say(f.PREFACE + f.settings(()))
            self.heard()

    def _open(self, id: int, head: Head) -> Noted:
        stream = Noted(self.connection, id, head)
        self.streams.append(stream)
        return stream

    def say(self, data: bytes) -> None:
        """Bytes from the client, taken to their end."""
        self.connection.receive(data, self.now)
        while self.connection.can_resume:
            self.connection.receive(b"", self.now)
        self.connection.drop(len(self.connection.orphans))

    def ask(self, id: int, block: bytes = HEAD, *, ends: bool = True) -> None:
        flags = f.END_HEADERS | (f.END_STREAM if ends else 0)
        self.say(f.frame(f.HEADERS, flags, id, block))

    def answer(self, stream: Http2Stream, body: Sequence[bytes]) -> None:
        """The whole of it."""
        self.connection.begin(stream, ANSWER)
        self.connection.send(stream, body, sum(map(len, body)))
        self.connection.finish(stream, TRAILERS)

    def heard(self) -> list[tuple[int, int, int, bytes]]:
        """Frames that went out since the last look: kind, flags, stream, payload."""
        self.connection.pump()
        raw = b"".join(self.connection.out)
        self.connection.out.clear()
        frames, at = [], 0
        while at < len(raw):
            word, flags, id = f.FRAME_HEAD.unpack_from(raw, at)
            at += f.HEAD_BYTES
            frames.append((word & 0xFF, flags, id, raw[at : at + (word >> 8)]))
            at += word >> 8
        assert at == len(raw)
        return frames

    def end(self) -> tuple[ErrorCode, str] | None:
        """What the connection ended with, if it has."""
        for kind, _, _, payload in self.heard():
            if kind == f.GOAWAY:
                return ErrorCode(int.from_bytes(payload[4:8])), payload[8:].decode()
        return None

    def resets(self) -> dict[int, ErrorCode]:
        """Streams that were reset, and why."""
        return {
            id: ErrorCode(int.from_bytes(payload))
            for kind, _, id, payload in self.heard()
            if kind == f.RST_STREAM
        }


@pytest.fixture(scope="session")
def http2() -> ModuleType:
    """This file's names: pytest's import mode lets no test import its conftest."""
    return sys.modules[__name__]
