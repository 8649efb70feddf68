"""`Http2Dialling`: the client's side of an HTTP/2 connection that carries one stream, without a
socket.

Windows, settings, pings and bodies work as on the server's side; only heads and ends differ. The
stream's request has no end until `finish`, and its answer may begin before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.connection import HEAD_WORK, Http2Connection
from slacktide.frontends.http2.frames import ErrorCode, Http2Error, expect
from slacktide.frontends.http2.header_blocks import BlockDecoder
from slacktide.frontends.http2.heads import LEAST_LIST, Head
from slacktide.frontends.http2.reading import Http2Reader
from slacktide.frontends.http2.sending import Http2Stream

STREAM: Final = 1
"""Id of the stream."""


class Http2Dialling(Http2Connection):
    """A connection that was dialled. `out` begins with the preface."""

    def __init__(self, *, max_list: int, now: float) -> None:
        """`max_list`: maximum bytes of the fields of a head."""
        super().__init__(_open_none, max_streams=1, max_list=max_list, now=now)
        self.out.insert(0, f.PREFACE + f.settings(((f.ENABLE_PUSH, 0),)))
        self.frames = Http2Reader(prefaced=True)
        self._decoder = BlockDecoder(max(LEAST_LIST, 2 * max_list))
        self.why = ""
        """Why the connection or the stream ended, if this end or the server said so."""

    def open(self, stream: Http2Stream, fields: Sequence[tuple[bytes, bytes]]) -> None:
        """Send the head of the only request."""
        self.last_id = stream.id
        self.streams[stream.id] = stream
        self.out.append(f.frame(f.HEADERS, f.END_HEADERS, stream.id, f.header_block(None, fields)))

    @property
    def settled(self) -> bool:
        """Whether the server has said anything."""
        return not self.frames.is_new

    # ---------------------------------------------------------------- frames in

    def _take_head(self, id: int, block: bytes, ends: bool) -> None:
        fields = dict(self._decoder.decode(block))
        self.work -= HEAD_WORK + len(fields)
        self._spend_patience(1.0)
        expect(id == self.last_id, "HEADERS on a stream that was not opened")
        stream = self.streams.get(id)
        if stream is None:  # the stream ended while its head was under way
            return
        expect(ends or b":status" in fields, "HEADERS in the middle of an answer")
        expect(not stream.ended, "HEADERS after the end of an answer")
        stream.headed(fields, ends)
        if ends:
            self._finish_body(stream)

    def _take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        if kind == f.RST_STREAM and len(payload) == 4:
            self.why = self.why or f"the server reset the stream ({_code(payload)})"
        elif kind == f.GOAWAY and len(payload) >= 8:
            code = _code(payload[4:8])
            if code != ErrorCode.NO_ERROR.name:
                self.why = self.why or f"the server ended the connection ({code})"
            refused = int.from_bytes(payload[:4]) & 0x7FFFFFFF < self.last_id
            if refused and id == 0:
                raise Http2Error(ErrorCode.NO_ERROR, "the server takes no connections")
        super()._take_frame(kind, flags, id, payload)

    # ---------------------------------------------------------------- ends

    def _finish(self, stream: Http2Stream) -> None:
        self.out.append(f.frame(f.DATA, f.END_STREAM, stream.id))
        self._note_early_end(stream.id)
        del self.streams[stream.id]

    def go_away(self) -> None:
        if not self.closing:
            self.closing = True
            self.out.append(f.goaway(0, ErrorCode.NO_ERROR))

    def end(self, code: ErrorCode, message: str) -> None:
        self.why = self.why or message
        super().end(code, message)


def _open_none(id: int, head: Head) -> Http2Stream:
    raise Http2Error(ErrorCode.REFUSED_STREAM, "a server cannot open streams")


def _code(payload: memoryview) -> str:
    number = int.from_bytes(payload)
    return ErrorCode(number).name if number < len(ErrorCode) else f"code {number}"
