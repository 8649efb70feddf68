"""`LoopWatch`: notes when a loop stood still, so that its peers are not blamed for it.

While the server's process is stopped, frozen with its container, or held up by a long callback,
messages of workers and clients wait in sockets: their silence proves nothing. Timeouts for them
therefore count only time in which the loop turned. A beat on the loop notices a standstill as soon
as it is over. A standstill counts for a moment longer than it lasted, because the loop must then
read the messages that have arrived.

The loop's own promises, such as deadlines of requests, use real time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final
from weakref import WeakKeyDictionary

BEAT_S: Final = 0.1
LATE_S: Final = 0.5
"""Delay of a beat that counts as a standstill of the loop."""
READ_S: Final = 0.5
"""Seconds added to a standstill, for the loop to read data that has arrived."""
MOST_STALLS: Final = 256
"""Number of standstills remembered."""


class LoopWatch:
    """The standstills of one loop. Times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._last_look = clock()
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_STALLS)
        """Begin and end of each standstill, in order."""
        self._total = 0.0

    def look(self) -> float:
        """Note that the loop turns. Returns the seconds of all standstills so far."""
        now = self.clock()
        if now - self._last_look > BEAT_S + LATE_S:
            begin, end = self._last_look, now + READ_S
            if self._stalls:
                begin = max(begin, self._stalls[-1][1])
            self._stalls.append((begin, end))
            self._total += end - begin
        self._last_look = now
        return self._total

    def waited(self, since: float, now: float) -> float:
        """Seconds from `since` to `now` in which the loop turned."""
        self.look()
        seconds = now - since
        for begin, end in reversed(self._stalls):
            if end <= since:
                break
            seconds -= max(0.0, min(end, now) - max(begin, since))
        return seconds


class PatientTimer:
    """A callback after the loop has turned for some seconds. Made by `call_later`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._watch = loop_watch(loop)
        self._since = self._watch.clock()
        self._seconds = seconds
        self._callback = callback
        self._handle = loop.call_later(seconds, self._ring)

    def cancel(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        remaining = self._seconds - self._watch.waited(self._since, self._watch.clock())
        if remaining > 0.001:  # clocks of loops are coarse
            self._handle = self._loop.call_later(remaining, self._ring)
        else:
            self._callback()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def loop_watch(loop: asyncio.AbstractEventLoop | None = None) -> LoopWatch:
    """The watch of `loop`, by default the running one. The first call starts it."""
    loop = loop or asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch()
        _beat(loop, watch)
    return watch


def _beat(loop: asyncio.AbstractEventLoop, watch: LoopWatch) -> None:
    watch.look()
    loop.call_later(BEAT_S, _beat, loop, watch)


def call_later(
    loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[..., object], *args: Any
) -> PatientTimer:
    """Like `loop.call_later`, but counts only time in which the loop turned."""
    return PatientTimer(loop, seconds, lambda: callback(*args))


class patience:  # noqa: N801  # beside asyncio.timeout
    """Like `asyncio.timeout`, but counts only time in which the loop turned."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._timer: PatientTimer | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        loop = asyncio.get_running_loop()
        self._timer = call_later(loop, self._seconds, self._timeout.reschedule, 0.0)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, traceback)
