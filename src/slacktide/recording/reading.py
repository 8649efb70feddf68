"""`Recording`: reads a file that a server recorded, line by line.

Strict: a line that differs from what would have been written is refused with file, line and field,
since a replay of something almost right proves nothing. Only an unterminated last line is skipped,
with a warning: a killed server leaves one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from slacktide.recording.layout import LayoutError, RecordingError
from slacktide.recording.records import Header, Reader, Record, read_header


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """A record with its file and line."""

    path: Path
    number: int
    record: Record

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number}"


class Recording:
    """The parts of one recording, oldest first."""

    def __init__(self, path: Path) -> None:
        """Open the recording whose newest part is `path`, with an older part beside it. Raises
        RecordingError if there is none."""
        self.path = path
        self.warnings: list[str] = []
        """Skipped lines; complete once all lines have been read."""
        newest = _header(path)
        self.reader = Reader(newest.layout)
        self._parts = [(path, newest)]
        before = path.with_name(f"{path.name}.1")
        if newest.part > 1 and before.exists():
            older = _header(before)
            if (older.recording, older.part) == (newest.recording, newest.part - 1):
                self._parts.insert(0, (before, older))

    @property
    def header(self) -> Header:
        """Header of the oldest part."""
        return self._parts[0][1]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path, _ in self._parts)

    @property
    def whole(self) -> bool:
        """Whether the recording includes its first part, which a replay requires."""
        return self.header.part == 1

    def lines(self) -> Iterator[RecordedLine]:
        """All records in order. Raises RecordingError at the first invalid line."""
        for path, _ in self._parts:
            yield from self._lines_of(path)

    def _lines_of(self, path: Path) -> Iterator[RecordedLine]:
        try:
            with path.open("rb") as file:
                file.readline()
                for number, text in enumerate(file, 2):
                    if not text.endswith(b"\n"):
                        self.warnings.append(
                            f"{path}:{number}: skipping the incomplete last line; "
                            "the server was killed"
                        )
                        return
                    yield RecordedLine(path, number, self._record(text, path, number))
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None

    def _record(self, text: bytes, path: Path, number: int) -> Record:
        try:
            return self.reader.record(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise RecordingError(f"{path}:{number}: expected a line of JSON: {error}") from None
        except LayoutError as error:
            raise RecordingError(f"{path}:{number}: {error}") from None


def _header(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            text = file.readline()
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return read_header(orjson.loads(text))
    except orjson.JSONDecodeError:
        raise RecordingError(f"{path}:1: expected the header of a recording") from None
    except LayoutError as error:
        raise RecordingError(f"{path}:1: {error}") from None
