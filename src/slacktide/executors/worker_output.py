"""`WorkerOutput`: logs what workers print.

If workers wrote to the server's own standard error, a slow reader of it would make them seem to
hang. So all workers of a fork server write to a pipe that the server reads, whatever happens to its
log. A worker that prints endlessly is slowed down, and most of its lines are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import Final

log = logging.getLogger("slacktide.worker")

MOST_READ: Final = 1 << 16
"""Maximum bytes of one read, and of a line."""
MOST_LINES: Final = 100
"""Maximum lines logged after one read."""
MOST_WAITING: Final = 10_000
"""Maximum lines waiting to be logged; further lines are lost."""
REST_S: Final = 0.01
"""Seconds between two reads."""


class LostOutput:
    """Counts the lines of workers lost in this process, for metrics. It only rises."""

    def __init__(self) -> None:
        self.count = 0


LOST: Final = LostOutput()


class WorkerOutput:
    """The reading end of a pipe. Belongs to a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reading, self.descriptor = os.pipe()
        """`descriptor` is the writing end, for the workers."""
        os.set_blocking(self._reading, False)
        self._partial_line = b""
        self._lines: deque[bytes] = deque()
        self._lost_lines = 0
        """Lines lost since the last warning."""
        loop.add_reader(self._reading, self._look)

    def close_descriptor(self) -> None:
        """Close the server's copy of the writing end."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Log the remaining lines, after the processes have ended."""
        while self._reading >= 0 and self._read():
            pass
        self._end()
        while self._lines:
            self._log()

    def _look(self) -> None:
        """Read, and log waiting lines."""
        if self._reading < 0:
            return
        self._loop.remove_reader(self._reading)
        is_open = self._read() is not None
        self._log()
        if self._lines:
            self._loop.call_later(REST_S, self._look)
        elif is_open:
            self._loop.call_later(REST_S, self._watch)
        else:
            self._end()

    def _watch(self) -> None:
        if self._reading >= 0:
            self._loop.add_reader(self._reading, self._look)

    def _read(self) -> bool | None:
        """Read once. Returns whether there was anything to read; None at the end of the pipe."""
        try:
            data = os.read(self._reading, MOST_READ)
        except BlockingIOError:
            return False
        *lines, partial_line = (self._partial_line + data).split(b"\n")
        if len(partial_line) > MOST_READ or (partial_line and not data):
            lines.append(partial_line)
            partial_line = b""
        self._partial_line = partial_line
        room = MOST_WAITING - len(self._lines)
        self._lines.extend(lines[:room])
        if (lost := len(lines) - room) > 0:
            LOST.count += lost
            self._lost_lines += lost
        return True if data else None

    def _log(self) -> None:
        for _ in range(min(MOST_LINES, len(self._lines))):
            log.warning("%s", self._lines.popleft().decode("utf-8", "backslashreplace"))
        if self._lost_lines and not self._lines:
            log.warning("lost %d lines printed by workers, which print too much", self._lost_lines)
            self._lost_lines = 0

    def _end(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1
