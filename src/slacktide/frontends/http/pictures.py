"""Bodies that are pictures: `Content-Type: image/jpeg`, or the only file of a form.

curl --data-binary @x.jpg -H 'Content-Type: image/jpeg' …/infer
curl -F image=@x.jpg …/infer                                      RFC 7578, RFC 2046 5.1
"""

from __future__ import annotations

import re

from slacktide.domain import Reason
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError

_FORM = b"multipart/form-data"
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.I)
_MOST_HEADERS = 4096
"""Maximum bytes of a part's headers."""


def picture_boundary(content_type: bytes) -> bytes | None:
    """The boundary of the form that holds a picture; empty: the body is the picture; None: there is
    no picture. Raises BadField."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind.startswith(b"image/"):
        return b""
    if kind != _FORM:
        return None
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise BadField(
            "Content-Type", "a boundary of 1 to 70 characters", content_type.decode("latin-1")
        )
    return match[1] or match[2]


def file_of_form(body: Buffer, boundary: bytes) -> memoryview:
    """Return the content of a form's only part. Raises WireError."""
    view, opening = memoryview(body), b"--" + boundary + b"\r\n"
    closing = b"\r\n--" + boundary + b"--"
    tail = bytes(view[-len(closing) - 4 :])
    if bytes(view[: len(opening)]) != opening or closing not in tail:
        raise WireError(Reason.BAD_INPUT, "body: expected a form with the boundary of Content-Type")
    end = len(view) - len(tail) + tail.index(closing)
    headers, blank, _ = bytes(view[len(opening) : len(opening) + _MOST_HEADERS]).partition(
        b"\r\n\r\n"
    )
    if not blank:
        raise WireError(Reason.BAD_INPUT, "body: the form's part has no headers, or endless ones")
    content = view[len(opening) + len(headers) + len(blank) : end]
    if re.search(re.escape(b"\r\n--" + boundary), content) is not None:
        raise WireError(Reason.BAD_INPUT, "body: expected a form with one part, the picture")
    return content
