"""gzip and deflate: what headers say of them, and answers under them.

`deflate` is a zlib stream, as HTTP says. Requests are inflated by `Inflation` (unpacking.py)."""

from __future__ import annotations

import zlib

from slacktide.frontends.http.messages import HttpResponse

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_LEVEL = 1
"""Tensors gain little from higher levels."""


SUPPORTED = b"Accept-Encoding: gzip, deflate\r\n"


def encoding_of(header: bytes) -> bytes | None:
    """The coding a Content-Encoding header names, b"" for none; None if we do not know it."""
    name = header.strip().lower()
    if name in (b"", b"identity"):
        return b""
    return name if name in _WINDOW else None


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


def compressed(response: HttpResponse, encoding: bytes) -> HttpResponse:
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
