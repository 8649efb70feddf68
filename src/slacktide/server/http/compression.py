"""gzip and deflate, both ways, bounded. `deflate` is a zlib stream, as HTTP says."""

from __future__ import annotations

import zlib

from slacktide.domain import Reason
from slacktide.server.http.messages import Response
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_LEVEL = 1
"""Tensors gain little from higher levels and the event loop waits."""

SUPPORTED = b"Accept-Encoding: gzip, deflate\r\n"


def encoding_of(header: bytes) -> bytes | None:
    """The coding a Content-Encoding header names, b"" for none; None if we do not know it."""
    name = header.strip().lower()
    if name in (b"", b"identity"):
        return b""
    return name if name in _WINDOW else None


def inflate(data: Buffer, encoding: bytes, limit: int) -> bytes:
    """`data` inflated. Never holds more than `limit` + 1 bytes of output.

    Raises BadField for a broken, cut or padded stream, WireError (TOO_LARGE) beyond `limit`.
    """
    stream = zlib.decompressobj(_WINDOW[encoding])
    try:
        inflated = stream.decompress(data, limit + 1)
    except zlib.error:
        raise BadField("body", f"a valid {encoding.decode()} stream", "a broken one") from None
    if len(inflated) > limit:
        raise WireError(Reason.TOO_LARGE, f"body: more than {limit} bytes when inflated")
    if not stream.eof:
        raise BadField("body", f"a whole {encoding.decode()} stream", "the beginning of one")
    if stream.unused_data:
        raise BadField("body", f"one {encoding.decode()} stream", "bytes after its end")
    return inflated


def chosen_encoding(accept: bytes) -> bytes:
    """gzip or deflate if the Accept-Encoding header allows one, else b"" (send as it is)."""
    allowed: dict[bytes, bool] = {}
    for item in accept.lower().split(b","):
        name, _, weight = item.partition(b";")
        allowed[name.strip()] = not _is_zero(weight)
    for name in (b"gzip", b"deflate"):
        if allowed.get(name, allowed.get(b"*", False)):
            return name
    return b""


def compressed(response: Response, encoding: bytes) -> Response:
    """The response under that coding; the Inference-Header-Content-Length stays as it was."""
    stream = zlib.compressobj(_LEVEL, wbits=_WINDOW[encoding])
    pieces = [stream.compress(piece) for piece in response.body]
    pieces.append(stream.flush())
    line = b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % encoding
    return response._replace(body=pieces, extra=response.extra + line)


def _is_zero(weight: bytes) -> bool:
    """True for `q=0`, `q=0.0` and the like."""
    name, _, value = weight.partition(b"=")
    return name.strip() == b"q" and not value.strip().strip(b"0.")


__all__ = ["SUPPORTED", "chosen_encoding", "compressed", "encoding_of", "inflate"]
