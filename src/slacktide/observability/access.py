"""The access log: one line for each answer, over HTTP and gRPC alike (docs/logs.md)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slacktide.observability.logs import ACCESS, printable

if TYPE_CHECKING:
    from slacktide.frontends.grpc.rpc import AccessEntry
    from slacktide.frontends.http.hub import Access


class AccessLogger:
    """Its two methods are what the front ends take as `access_log`.

    Strings that clients chose are made printable here too, for handlers that are not ours.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or logging.getLogger(ACCESS)

    def http(self, access: Access) -> None:
        """An answer over HTTP, or its absence (499: the client left)."""
        path = printable(access.path)
        self._log.info(
            '%s "%s %s" %d %d B %.3f ms',
            access.client,
            printable(access.method),
            path,
            access.status,
            access.bytes_sent,
            access.seconds * 1e3,
            extra={
                "transport": "http",
                "client": access.client,
                "method": printable(access.method),
                "path": path,
                "status": access.status,
                "bytes_sent": access.bytes_sent,
                "seconds": round(access.seconds, 6),
                "request_id": printable(access.request_id),
            },
        )

    def grpc(self, entry: AccessEntry) -> None:
        """The end of a gRPC call; of a stream, once for all its requests."""
        model = printable(entry.model)
        self._log.info(
            '%s "%s"%s %s %.3f ms',
            entry.client,
            entry.method,
            f" {model}" if model else "",
            entry.status,
            entry.seconds * 1e3,
            extra={
                "transport": "grpc",
                "client": entry.client,
                "method": entry.method,
                "model": model,
                "status": entry.status,
                "seconds": round(entry.seconds, 6),
                "request_id": printable(entry.request_id),
            },
        )
