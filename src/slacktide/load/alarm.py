"""Sleeping until an instant, to some tens of microseconds, without spinning.

Timers of event loops are good to a millisecond (epoll's timeout, libuv's clock), which would be the
largest error of a load generator. Linux has timers that are files (timerfd_create(2)): the loop
waits for one as for a socket, and wakes when it is due. Where there is none, the loop's own timer
serves. Python has `os.timerfd_create` from 3.13 on; until then we call the C library.

`Agenda` makes many calls, each at its instant, with one such sleeper.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

_TICK = 1e-3
"""Resolution of the loop's own timers."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """One sleeper at a time. `time.monotonic()` is the clock. Close it when done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, precise: bool = True) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._fd = _timer_fd() if precise else None
        if self._fd is not None:
            loop.add_reader(self._fd, self._ring)

    @property
    def precise(self) -> bool:
        """True if a timer file does the waking."""
        return self._fd is not None

    async def until(self, instant: float) -> None:
        """Return at `instant` (never before), or at the loop's next turn if it has passed."""
        while (left := instant - time.monotonic()) > 0.0:
            if self._fd is None:
                # Below half a tick uvloop would not sleep at all, and we would spin.
                await asyncio.sleep(max(left, _TICK))
            else:
                await self._sleep(self._fd, instant)
        await asyncio.sleep(0)

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    async def _sleep(self, fd: int, instant: float) -> None:
        self._waiter = self._loop.create_future()
        nanoseconds = int(instant * 1e9) + 1
        setting = _Itimerspec(value=_Timespec(*divmod(nanoseconds, 1_000_000_000)))
        _libc.timerfd_settime(fd, _ABSOLUTE, ctypes.byref(setting), None)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _ring(self) -> None:
        if self._fd is not None:
            try:
                os.read(self._fd, 8)
            except BlockingIOError:
                return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_libc = ctypes.CDLL(None, use_errno=True)


def _timer_fd() -> int | None:
    try:
        fd = int(_libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS))
    except AttributeError:  # not Linux
        return None
    return fd if fd >= 0 else None


class Agenda:
    """Calls on the loop it was made on; instants are those of `time.monotonic()`. Close it when
    done. What a call raises, the next `at` or `close` raises."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop)
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sleeper: asyncio.Task[None] | None = None
        self._until = float("inf")
        """What the sleeper sleeps for; −∞ while it makes calls."""

    def at(self, instant: float, call: Callable[[], None]) -> None:
        """Have `call` called at `instant`; calls for one instant come in the order of asking."""
        if self._sleeper is not None and self._sleeper.done():
            self._sleeper.result()
        if instant == float("inf"):
            return
        heappush(self._entries, (instant, self._count, call))
        self._count += 1
        if self._sleeper is None or instant < self._until:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._until = instant
            self._sleeper = self._loop.create_task(self._tend())

    async def close(self) -> None:
        """Make no more calls."""
        self._entries.clear()
        if self._sleeper is not None:
            self._sleeper.cancel()
            with suppress(asyncio.CancelledError):  # but no failure of ours
                await self._sleeper
        self._alarm.close()

    async def _tend(self) -> None:
        entries = self._entries
        while entries:
            self._until = entries[0][0]
            await self._alarm.until(self._until)
            self._until = float("-inf")
            while entries and entries[0][0] <= time.monotonic():
                heappop(entries)[2]()
        self._sleeper = None
