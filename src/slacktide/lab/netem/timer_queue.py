"""Calls functions at given instants, precise to tens of microseconds, without busy-waiting.

Timers of event loops have a resolution of a millisecond (epoll's timeout, libuv's clock), which
would be the largest error of a load generator. On Linux, a timer can be a file descriptor
(timerfd_create(2)), for which the loop waits as for a socket. Python has `os.timerfd_create` only
from 3.13 on, so this module calls the C library.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from heapq import heappop, heappush

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


_libc = ctypes.CDLL(None, use_errno=True)


class TimerQueue:
    """Makes calls on the running event loop; instants are those of `time.monotonic()`. Close the
    queue after use. An exception in a call ends the queue; the next `at` or `close` raises it. The
    constructor raises OSError if no file descriptor is left."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS))
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._fd: int | None = fd
        """None if the queue is closed."""
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._armed = float("inf")
        """Instant for which the timer is set; −∞ while calls are made."""
        self._failure: Exception | None = None
        self._loop.add_reader(fd, self._ring, fd)

    def at(self, instant: float, call: Callable[[], object]) -> None:
        """Call `call` at `instant`, never earlier. Calls for the same instant keep the order of
        `at`; an infinite instant means never."""
        if self._failure is not None:
            raise self._failure
        if instant == float("inf"):
            return
        heappush(self._entries, (instant, self._count, call))
        self._count += 1
        if instant < self._armed:
            self._arm(instant)

    async def until(self, instant: float) -> None:
        """Return at `instant`, never earlier; if it has passed, in the loop's next turn."""
        if instant <= time.monotonic():
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.at(instant, wake)
        await waiter

    def close(self) -> None:
        """Make no more calls."""
        self._entries.clear()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        if self._failure is not None:
            raise self._failure

    def _arm(self, instant: float) -> None:
        self._armed = instant
        if self._fd is not None:
            nanoseconds = max(0, int(instant * 1e9)) + 1
            setting = _Itimerspec(value=_Timespec(*divmod(nanoseconds, 1_000_000_000)))
            _libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(setting), None)

    def _ring(self, fd: int) -> None:
        try:
            os.read(fd, 8)
        except BlockingIOError:
            return
        self._armed = float("-inf")
        entries = self._entries
        try:
            while entries and entries[0][0] <= time.monotonic():
                heappop(entries)[2]()
        except Exception as error:
            self._failure = error
            entries.clear()
        if entries:
            self._arm(entries[0][0])
        else:
            self._armed = float("inf")
