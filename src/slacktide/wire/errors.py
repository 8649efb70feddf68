"""Errors that front ends report to clients.

    WireError               an invalid message; its Reason selects the status (wire/status.py)
    └── BadField            an invalid field: its name, the expected and the actual value
    ControlError            a failed control call; its kind selects the status

Messages go to the client as they are. They quote the client's own values, shortened, but never a
path, a traceback or an internal name.
"""

from __future__ import annotations

from slacktide.domain import Reason

_QUOTE_LIMIT = 60
"""Maximum number of characters quoted from a client's value."""


class WireError(Exception):
    """An invalid message. `str()` is the text for the client."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def message(self) -> str:
        return str(self.args[0])


class BadField(WireError):  # noqa: N818  # reads as what it names: a bad field
    """A field of a message is invalid. The reason is BAD_INPUT unless the size is at fault."""

    def __init__(
        self, field: str, expected: str, got: object, reason: Reason = Reason.BAD_INPUT
    ) -> None:
        super().__init__(reason, f"{_shorten(field)}: expected {expected}, got {quote(got)}")
        self.field = field
        self.expected = expected


class ControlError(Exception):
    """A control call that failed. `kind` selects the status; `str()` is the text for the client."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`not_found`, `bad_input`, `unavailable`, `unsupported`, `forbidden` or `internal`."""


def quote(value: object) -> str:
    """A short, printable, single-line representation of a client's value."""
    if value is None:
        return "nothing"
    if isinstance(value, bytes):
        value = value[: _QUOTE_LIMIT + 1].decode("ascii", "backslashreplace")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if len(value) > 8 else _shorten(repr(value))
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(_shorten(value))
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _QUOTE_LIMIT else text[:_QUOTE_LIMIT] + "…"
