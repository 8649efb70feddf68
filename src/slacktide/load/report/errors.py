"""The one error of reports: their documents, tables and pages."""

from __future__ import annotations


class ReportError(Exception):
    """A report that cannot be read or drawn; the text says what was expected."""
