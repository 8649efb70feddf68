"""What a front end answers with when a client's message is wrong, or a control call cannot be done.

    WireError               carries the Reason that picks the status code (wire/status.py)
    └── BadField            names the field, what was expected and what came
    ControlError            a control call that cannot be done; its kind picks the status

Messages go to the client as they are: they quote the client's own words (shortened), never a
path, a trace or an internal name.
"""

from __future__ import annotations

from slacktide.domain import Reason

_QUOTE_LIMIT = 60
"""Characters of a client's value that a message repeats."""


class WireError(Exception):
    """A message that cannot be taken. `str()` is what the client reads."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @property
    def message(self) -> str:
        return str(self.args[0])


class BadField(WireError):  # noqa: N818  # reads as what it names: a bad field
    """One field of a message is wrong. Its reason is BAD_INPUT unless the size is the trouble."""

    def __init__(
        self, field: str, expected: str, got: object, reason: Reason = Reason.BAD_INPUT
    ) -> None:
        super().__init__(reason, f"{_shorten(field)}: expected {expected}, got {quote(got)}")
        self.field = field
        self.expected = expected


class ControlError(Exception):
    """A control call that cannot be done. `kind` picks the status; `str()` is for the client."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """`not_found`, `bad_input`, `unavailable`, `unsupported`, `forbidden` or `internal`."""


def quote(value: object) -> str:
    """A short, printable, one-line picture of something a client sent."""
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
