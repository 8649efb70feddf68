"""The errors of this room.

RecordingError     a file that is no recording, or not a whole one: the text names file and line
└ LayoutError      one value is not what its field holds: the text names the field
"""

from __future__ import annotations


class RecordingError(Exception):
    """A recording that cannot be written or read; the text says what, where and why."""


class LayoutError(RecordingError):
    """A value that its field cannot hold, named as `Submitted.request.rows`."""
