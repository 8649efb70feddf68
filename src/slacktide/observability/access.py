"""The access log: one line for each answer, over HTTP and gRPC alike (docs/logs.md)."""

from __future__ import annotations

import logging

from slacktide.frontends.ports import AccessRecord
from slacktide.observability.logs import ACCESS, printable


class AccessLogger:
    """What the front ends take as their `access_log`.

    Strings that clients chose are made printable here too, for handlers that are not ours.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger(ACCESS)

    def __call__(self, access: AccessRecord) -> None:
        method, target = printable(access.method), printable(access.target)
        ms = access.seconds * 1e3
        fields: dict[str, object] = {
            "transport": access.transport,
            "client": access.client,
            "method": method,
            "path" if access.transport == "http" else "model": target,
            "status": access.status,
        }
        if access.transport == "http":
            sent = fields["bytes_sent"] = access.bytes_sent
            text = f'{access.client} "{method} {target}" {access.status} {sent} B {ms:.3f} ms'
        else:
            model = f" {target}" if target else ""
            text = f'{access.client} "{method}"{model} {access.status} {ms:.3f} ms'
        fields["seconds"] = round(access.seconds, 6)
        fields["request_id"] = printable(access.request_id)
        self._log.info("%s", text, extra=fields)
