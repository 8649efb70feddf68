"""`LoopWatch`: when a loop stood still, so that its peers are not blamed for it.

While the server's process is stopped, frozen with its container, or held up by one long callback,
what workers and clients send waits in sockets: their silence proves nothing. Deadlines against them
are therefore held on time in which the loop turned. A beat on the loop notices a standstill as soon
as it is over. The standstill counts as going on for a moment longer, in which the loop reads what
has arrived; only then may a deadline run out.

The loop's own promises, such as the deadlines of requests, are kept on real time.
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
"""A beat that is later than this ends a standstill."""
READ_S: Final = 0.5
"""Seconds after a standstill in which the loop reads what has arrived. Within these it turns, or
stands still anew."""
MOST_STALLS: Final = 256
"""Standstills that are remembered; for older ones nobody is excused."""


class LoopWatch:
    """The standstills of one loop. Times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seen = clock()
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_STALLS)
        """Begin and end of each, in order."""
        self._total = 0.0

    def look(self) -> float:
        """Note that the loop turns. Returns the seconds of all standstills so far."""
        now = self.clock()
        if now - self._seen > BEAT_S + LATE_S:
            begin, end = self._seen, now + READ_S
            if self._stalls:
                begin = max(begin, self._stalls[-1][1])
            self._stalls.append((begin, end))
            self._total += end - begin
        self._seen = now
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
    """Calls back once the loop has turned for some seconds. Made by `call_later`."""

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
        if remaining > 0.001:  # the clocks of loops are coarse
            self._handle = self._loop.call_later(remaining, self._ring)
        else:
            self._callback()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = WeakKeyDictionary()


def loop_watch(loop: asyncio.AbstractEventLoop | None = None) -> LoopWatch:
    """The watch of `loop` (the running one); its first call starts it."""
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
    """As `loop.call_later`, on time in which the loop turned."""
    return PatientTimer(loop, seconds, lambda: callback(*args))


class patience:  # noqa: N801  # beside asyncio.timeout
    """As `asyncio.timeout`, on time in which the loop turned."""

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
