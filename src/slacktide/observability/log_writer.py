"""`LogWriter`: writes log lines on a thread, so that a stalled reader blocks nothing else.

Standard error may be a pipe that nobody reads, a stopped terminal, or a file on a network disk. A
write then blocks for as long as that lasts. O_NONBLOCK does not help: all processes that share the
pipe share the flag, and disks ignore it. So lines wait in a bounded queue. When the queue is full,
lines are dropped and counted, and the log reports their number once it is read again.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator

log = logging.getLogger("slacktide.log")

MOST_WAITING = 4 << 20
"""Maximum bytes waiting to be written: about 20,000 lines of the access log."""
MOST_WRITTEN = 1 << 16
"""Maximum bytes of one write, unless a single text is longer."""
REST_S = 0.005
"""Seconds between writes, so that busy servers write many lines at a time."""
CLOSE_S = 1.0
"""Seconds without progress after which `finish` gives up."""


class LostLines:
    """Number of log lines lost in this process, for metrics."""

    def __init__(self) -> None:
        self.count = 0


LOST = LostLines()


class LogWriter(io.TextIOBase):
    """A text stream in front of a file descriptor. Any thread may write to it."""

    def __init__(self, descriptor: int, *, limit: int = MOST_WAITING) -> None:
        """The caller keeps ownership of the descriptor. `limit`: maximum bytes that wait."""
        self._descriptor = descriptor
        self._limit = limit
        self._waiting: deque[bytes] = deque()
        self._lock = threading.RLock()  # reentrant: a finalizer may log while it is held
        self._nbytes = 0
        """Bytes that wait or are being written."""
        self._lost = 0
        """Lines lost since the last report of lost lines."""
        self._written = 0
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Queue text, or count its lines as lost. Never blocks or raises."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._nbytes + len(data) > self._limit:
                self._lost += _lose(data)
            else:
                self._nbytes += len(data)
                self._waiting.append(data)
        self._wake.set()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes as fast as it can."""

    def finish(self, patience_s: float = CLOSE_S) -> bool:
        """Write the waiting text and end the thread. Returns False, abandoning the rest, after
        `patience_s` without progress."""
        self._ending.set()
        self._wake.set()
        written = -1
        while self._thread.is_alive() and self._written != written:
            written = self._written
            self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while data := self._next():
                self._write_all(data)
            if self._ending.is_set():
                return
            self._ending.wait(REST_S)

    def _next(self) -> bytes:
        """Remove and return the texts for one write; empty if nothing waits."""
        texts: list[bytes] = []
        nbytes = 0
        with self._lock:
            while self._waiting and nbytes + len(self._waiting[0]) <= MOST_WRITTEN:
                nbytes += len(self._waiting[0])
                texts.append(self._waiting.popleft())
            if not texts and self._waiting:
                texts.append(self._waiting.popleft())
            lost = 0 if self._nbytes > self._limit // 2 else self._lost
            self._lost -= lost
        if lost:
            log.warning("lost %d log lines, because nothing read the log", lost)
        return b"".join(texts)

    def _write_all(self, data: bytes) -> None:
        remaining = memoryview(data)
        try:
            while remaining:
                try:
                    count = os.write(self._descriptor, remaining)
                except BlockingIOError:  # another process has set O_NONBLOCK
                    select.select((), (self._descriptor,), ())
                    continue
                remaining = remaining[count:]
                self._written += count
        except (OSError, ValueError):  # the reader has gone, or the disk is full
            _lose(bytes(remaining))
        finally:
            with self._lock:
                self._nbytes -= len(data)
            self._written += 1


def _lose(data: bytes) -> int:
    """Count the lines in `data` as lost, and return their number."""
    lines = max(1, data.count(b"\n"))
    LOST.count += lines
    return lines


@contextlib.contextmanager
def background_stderr() -> Iterator[LogWriter | None]:
    """Within the block, send everything written to `sys.stderr` through a `LogWriter`. Yields None
    if standard error is not a file."""
    original = sys.stderr
    try:
        original.flush()
        writer = LogWriter(original.fileno())
    except (AttributeError, OSError, ValueError):
        yield None
        return
    sys.stderr = writer
    try:
        yield writer
    finally:
        if writer.finish():
            sys.stderr = original  # otherwise the last output of this process would block
