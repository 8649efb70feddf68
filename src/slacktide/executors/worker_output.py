"""`WorkerOutput`: what workers print, as lines of the server's log.

A worker that wrote to the server's own standard error would wait for whoever reads that, and be
taken to hang. So all workers of a fork server write into a pipe that the server reads, whatever
becomes of its log. One that prints without end is slowed down, and most of its lines are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from typing import Final

log = logging.getLogger("slacktide.worker")

MOST_READ: Final = 1 << 16
"""Bytes of one look, and of a line that never ends."""
MOST_LINES: Final = 100
"""Lines logged of one look."""
MOST_WAITING: Final = 10_000
"""Lines that wait to be logged; beyond that they are lost."""
REST_S: Final = 0.01
"""Seconds between two looks."""


class LostOutput:
    """Lines of workers that were lost in this process, for metrics. Only rises."""

    def __init__(self) -> None:
        self.count = 0


LOST: Final = LostOutput()


class WorkerOutput:
    """The reading end of one pipe. Belongs to a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reading, self.descriptor = os.pipe()
        """`descriptor` is for the processes that write."""
        os.set_blocking(self._reading, False)
        self._begun = b""
        """A line whose end has not come."""
        self._lines: deque[bytes] = deque()
        self._lost = 0
        """Lines lost since the log last said so."""
        loop.add_reader(self._reading, self._look)

    def close_descriptor(self) -> None:
        """Close the writing end here: the processes have theirs."""
        os.close(self.descriptor)

    def close(self) -> None:
        """Log what is still there, once the processes have ended."""
        while self._reading >= 0 and self._read():
            pass
        self._end()
        while self._lines:
            self._log()

    def _look(self) -> None:
        """Something has come, or waits to be logged."""
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
        """Take what has come: whether anything has; None where nothing will."""
        try:
            data = os.read(self._reading, MOST_READ)
        except BlockingIOError:
            return False
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > MOST_READ or (self._begun and not data):
            lines.append(self._begun)
            self._begun = b""
        room = MOST_WAITING - len(self._lines)
        self._lines.extend(lines[:room])
        if (lost := len(lines) - room) > 0:
            LOST.count += lost
            self._lost += lost
        return True if data else None

    def _log(self) -> None:
        for _ in range(min(MOST_LINES, len(self._lines))):
            log.warning("%s", self._lines.popleft().decode("utf-8", "backslashreplace"))
        if self._lost and not self._lines:
            log.warning("%d lines of workers were lost: they print too much", self._lost)
            self._lost = 0

    def _end(self) -> None:
        if self._reading >= 0:
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1
