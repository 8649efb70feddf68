"""The one error of this room."""

from __future__ import annotations


class ReportError(Exception):
    """A report that cannot be read or drawn; the text says what was expected."""
