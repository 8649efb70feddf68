"""`LogWriter`: writes log lines on a thread, so that a reader that stalls holds nothing else up.

Standard error may be a pipe that nobody reads, a terminal that is stopped, or a file on a network
disk. A write then takes as long as that lasts. Setting O_NONBLOCK would not do: the flag belongs to
all processes that share the pipe, and disks ignore it. So lines wait in a bounded queue; beyond its
bound they are lost, counted, and the log says so once it is read again.
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
"""Bytes that wait to be written; beyond that lines are lost. Some 20,000 of the access log."""
MOST_WRITTEN = 1 << 16
"""Bytes of one write, unless a single text is longer."""
REST_S = 0.005
"""Pause between two writes, so that busy servers write many lines at once."""
CLOSE_S = 1.0
"""Seconds without progress after which `close` leaves behind what waits."""


class LostLines:
    """Log lines that were lost in this process, for metrics. Only rises."""

    def __init__(self) -> None:
        self.count = 0


LOST = LostLines()


class LogWriter(io.TextIOBase):
    """A text stream, which any thread may write to, in front of a file descriptor."""

    def __init__(self, descriptor: int, *, most: int = MOST_WAITING) -> None:
        """The descriptor stays the caller's."""
        self._descriptor = descriptor
        self._most = most
        self._waiting: deque[bytes] = deque()
        self._lock = threading.RLock()  # a finalizer that runs while it is held may warn
        self._nbytes = 0
        """Of what waits, and of what is being written."""
        self._lost = 0
        """Lines that found no room since the log last said so."""
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
        """Have it written, or count it as lost. Never blocks and never raises."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            if self._nbytes + len(data) > self._most:
                self._lost += _lose(data)
            else:
                self._nbytes += len(data)
                self._waiting.append(data)
        self._wake.set()
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread writes as fast as it can."""

    def finish(self, patience_s: float = CLOSE_S) -> bool:
        """Write what waits and end the thread; False once nothing has moved for `patience_s`, and
        what waits is left behind."""
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
        """What to write at once: whole texts; empty if nothing waits."""
        texts: list[bytes] = []
        nbytes = 0
        with self._lock:
            while self._waiting and nbytes + len(self._waiting[0]) <= MOST_WRITTEN:
                nbytes += len(self._waiting[0])
                texts.append(self._waiting.popleft())
            if not texts and self._waiting:
                texts.append(self._waiting.popleft())
            lost = 0 if self._nbytes > self._most // 2 else self._lost
            self._lost -= lost
        if lost:
            log.warning("%d log lines were lost, since nothing read the log", lost)
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
        except (OSError, ValueError):  # its reader has gone, or the disk is full
            _lose(bytes(remaining))
        finally:
            with self._lock:
                self._nbytes -= len(data)
            self._written += 1


def _lose(data: bytes) -> int:
    """Count lines as lost; how many."""
    lines = max(1, data.count(b"\n"))
    LOST.count += lines
    return lines


@contextlib.contextmanager
def background_stderr() -> Iterator[LogWriter | None]:
    """Until the end of the block, everything that this process writes to `sys.stderr` goes through
    a `LogWriter`; None where it has no standard error that is a file."""
    before = sys.stderr
    try:
        before.flush()
        writer = LogWriter(before.fileno())
    except (AttributeError, OSError, ValueError):
        yield None
        return
    sys.stderr = writer
    try:
        yield writer
    finally:
        if writer.finish():
            sys.stderr = before  # else the last words of this process would wait for its reader
