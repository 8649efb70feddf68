"""Calls at instants, to some tens of microseconds, without spinning.

Timers of event loops are good to a millisecond (epoll's timeout, libuv's clock), which would be the
largest error of a load generator. Linux has timers that are files (timerfd_create(2)): the loop
waits for one as for a socket, and wakes when it is due. Python has `os.timerfd_create` from 3.13
on; until then we call the C library.
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
    """Calls on the loop it was made on; instants are those of `time.monotonic()`. Close it when
    done. What a call raises ends the queue, and the next `at` or `close` raises it. To make one
    raises OSError if there is no file descriptor left."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS))
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._fd: int | None = fd
        """None: it is closed."""
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._armed = float("inf")
        """Instant that the timer is set to; −∞ while calls are made."""
        self._failure: Exception | None = None
        self._loop.add_reader(fd, self._ring, fd)

    def at(self, instant: float, call: Callable[[], object]) -> None:
        """Have `call` called at `instant`, never before; calls for one instant come in the order of
        asking, and none at infinity."""
        if self._failure is not None:
            raise self._failure
        if instant == float("inf"):
            return
        heappush(self._entries, (instant, self._count, call))
        self._count += 1
        if instant < self._armed:
            self._arm(instant)

    async def until(self, instant: float) -> None:
        """Return at `instant`, never before; at the loop's next turn if it has passed."""
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
