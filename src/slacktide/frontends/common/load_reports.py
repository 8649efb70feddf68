"""Load reports in answers, from which balancers learn where to send more (ORCA).

A report is a header over HTTP (`endpoint-load-metrics`, as text, JSON or base64) and a trailer over
gRPC (`endpoint-load-metrics-bin`). Its one value is `application_utilization` of the message
xds.data.orca.v3.OrcaLoadReport: the work that clients offer the server, divided by what it can do
in time (`slacktide_offered_share`). A client asks for a report with `endpoint-load-metrics-format`;
with `--load-reports`, every answer to an inference request has a report.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

from slacktide.frontends.http2.frames import header_block

FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
_FORMATS: Final = frozenset((b"TEXT", b"JSON", b"BIN"))
_DOUBLE: Final = struct.Struct("<Bd")
_APPLICATION_UTILIZATION: Final = 9 << 3 | 1
"""Tag of the field: number 9, eight bytes."""


def report_format(headers: Mapping[bytes, bytes], *, always: bool) -> bytes:
    """The format of the report that an answer over HTTP must have; empty: none. `always`: a client
    that has not asked gets text. A request for an unknown format does not count as asking."""
    style = headers.get(FORMAT_HEADER, b"").strip().upper()
    return style if style in _FORMATS else b"TEXT" if always else b""


def report_line(style: bytes, share: float) -> bytes:
    """A report as a header line of HTTP. `style`: from `report_format`."""
    if style == b"BIN":
        report = b64encode(_message(share))
    elif style == b"JSON":
        report = b'{"application_utilization": %.6f}' % share
    else:
        report = b"application_utilization=%.6f" % share
    return b"endpoint-load-metrics: %b %b\r\n" % (style, report)


def report_trailer(share: float) -> bytes:
    """A report as an encoded trailer of gRPC."""
    report = b64encode(_message(share)).rstrip(b"=")
    return header_block(None, ((b"endpoint-load-metrics-bin", report),))


def _message(share: float) -> bytes:
    """The serialized OrcaLoadReport."""
    return bytes(_DOUBLE.pack(_APPLICATION_UTILIZATION, share))
