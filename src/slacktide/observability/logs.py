"""The formats of logs: text for people, or one JSON object per line for machines.

Strings from clients end up in log lines. Whatever they contain, each record is a single line: in
JSON always, in text except for tracebacks, whose lines are indented so that none can be mistaken
for a record.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from slacktide.domain.suggestions import escaped
from slacktide.frontends.ports import AccessRecord

ACCESS = "slacktide.access"
"""Logger of the access log: one line per request, whatever the general level."""
LEVELS = ("debug", "info", "warning", "error")


class LogFormat(StrEnum):
    """`text` or `json`."""

    TEXT = "text"
    JSON = "json"


def configure(
    level: str = "info", format: LogFormat | str = LogFormat.TEXT, *, stream: TextIO | None = None
) -> None:
    """Send the logs of this process to `stream` (default: standard error). A further call replaces
    the previous configuration; other handlers are left alone.

    `level` applies to our own loggers; other libraries log from `warning` on. Raises ValueError for
    an unknown level or format.
    """
    if level not in LEVELS:
        raise ValueError(f"log level: expected one of {', '.join(LEVELS)}, got {level!r}")
    if format not in list(LogFormat):
        raise ValueError(f"log format: expected one of {', '.join(LogFormat)}, got {format!r}")
    handler = _Handler(stream or sys.stderr)
    if format == LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        colour = handler.stream.isatty() and not os.environ.get("NO_COLOR")
        handler.setFormatter(TextFormatter(colour=colour))
    root = logging.getLogger()
    for old_handler in [present for present in root.handlers if isinstance(present, _Handler)]:
        root.removeHandler(old_handler)
    root.addHandler(handler)
    logging.captureWarnings(format == LogFormat.JSON)
    if format == LogFormat.JSON:
        sys.excepthook = lambda *error: root.critical("uncaught exception", exc_info=error)
        threading.excepthook = lambda thread: root.error(
            "uncaught exception in a thread", exc_info=thread.exc_value
        )
    logging.getLogger("slacktide").setLevel(level.upper())
    logging.getLogger(ACCESS).setLevel(logging.INFO)


def printable(text: str, limit: int = 256) -> str:
    """Make a client's string safe for logs: one line, without terminal control sequences, at most
    `limit` characters. Printable text in any script is unchanged."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    text = escaped(text)
    return "".join([c if c.isprintable() else ascii(c)[1:-1] for c in text])


class _Handler(logging.StreamHandler[TextIO]):
    """Our handler, distinguishable from others."""


class JsonFormatter(logging.Formatter):
    """Formats `ts` (RFC 3339, UTC), `level`, `logger`, `message` and the record's extras; with an
    exception also `error`, `error_message` and `traceback`. ASCII, always one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:  # passed as `extra`
                entry.setdefault(name, _plain(value))
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = record.exc_info[0].__qualname__
            entry["error_message"] = str(record.exc_info[1])
            entry["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        for name, value in entry.items():
            if isinstance(value, str):
                entry[name] = escaped(value)  # JSON does not allow lone surrogates
        return json.dumps(entry)


class TextFormatter(logging.Formatter):
    """Formats `12:34:56.789 warning server: message [request id]`, with tracebacks indented
    below."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = f"{record.levelname.lower():7}"
        colour = _COLOURS.get(record.levelno)
        if self._colour and colour is not None:
            level = f"\x1b[{colour}m{level}\x1b[0m"
        name = record.name.removeprefix("slacktide.")
        message = printable(record.getMessage(), _LONGEST)
        line = f"{clock}.{int(record.msecs):03} {level} {name}: {message}"
        request_id = getattr(record, "request_id", "")
        if request_id:
            line += f" [{printable(str(request_id))}]"
        if record.exc_info and record.exc_info[0] is not None:
            for below in "".join(traceback.format_exception(*record.exc_info)).splitlines():
                line += f"\n    {printable(below, _LONGEST)}"
        return line


_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}
_LONGEST = 8192
"""Maximum characters of a text line; longer ones are cut."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _plain(value: object) -> object:
    """Convert a value to one that JSON supports, if necessary to its text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)


class AccessLogger:
    """The access log: one line per answer, over HTTP and gRPC (docs/logs.md). Pass it to front ends
    as `access_log`. It escapes clients' strings itself, because other handlers may not."""

    def __init__(self, *, health: bool = False) -> None:
        """`health`: whether to log health probes too. They are often the bulk of all requests."""
        self._log = logging.getLogger(ACCESS)
        self._health = health

    def __call__(self, access: AccessRecord) -> None:
        if access.health and not self._health:
            return
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
            if access.model:
                fields["model"] = printable(access.model)
            sent = fields["bytes_sent"] = access.bytes_sent
            text = f'{access.client} "{method} {target}" {access.status} {sent} B {ms:.3f} ms'
        else:
            model = f" {target}" if target else ""
            text = f'{access.client} "{method}"{model} {access.status} {ms:.3f} ms'
        if (outcome := access.outcome) is not None:
            fields["outcome"], fields["reason"] = outcome.kind.value, outcome.reason.label
            text += f", {outcome.reason.label}"
            if outcome.batch_rows:
                fields["batch_rows"] = outcome.batch_rows
                queue_s = fields["queue_seconds"] = round(outcome.queue_s, 6)
                compute_s = fields["compute_seconds"] = round(outcome.compute_s, 6)
                text += f", {outcome.batch_rows} rows, queue {queue_s * 1e3:.3f} ms, "
                text += f"compute {compute_s * 1e3:.3f} ms"
        fields["seconds"] = round(access.seconds, 6)
        fields["request_id"] = printable(access.request_id)
        self._log.info("%s", text, extra=fields)
