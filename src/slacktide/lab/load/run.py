"""The open-loop run: every request leaves when it is due, whether or not earlier ones are answered.

No send waits for an answer, so a slow server cannot slow its own load down (coordinated omission).
Every latency counts from the intended send, so it includes the lateness of the generator, which is
also reported separately.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from slacktide.lab.load.request_log import RequestLog, Result
from slacktide.lab.load.spec import LoadSpec
from slacktide.lab.netem import TimerQueue


class Sender(Protocol):
    """Sends requests over a protocol. Methods never block. The sender logs the end of each request
    exactly once, unless the run gives the request up first (and logs that itself)."""

    def submit(self, index: int) -> None:
        """Send request `index` of the schedule as soon as possible."""

    def give_up(self, index: int) -> None:
        """Cancel request `index` on the wire."""

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the sending, for readers of the report."""

    async def close(self) -> None:
        """Close every connection."""


_log = logging.getLogger(__name__)

_BURST = 64
"""Maximum number of requests sent before the event loop gets a turn to read answers."""
_SWEEP = 0.05
"""Seconds between two checks for requests to cancel."""
_REPORT = 0.25
"""Seconds between calls of the observer."""
_HURRY = 1.0
"""Patience after an interruption, seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    elapsed_s: float
    length_s: float
    planned: int
    submitted: int
    ended: int
    on_time: int


Observer = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """When and how the sending ended."""

    sent_until: float
    """Instant at which sending ended, in seconds from the start."""
    interrupted: bool


class StartClock:
    """Seconds since the run started; negative before."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, lead: float = 0.02) -> None:
        """Let the run start `lead` seconds from now."""
        self.origin = time.monotonic() + lead

    def __call__(self) -> float:
        return time.monotonic() - self.origin


@dataclass(slots=True, eq=False)
class Pacer:
    """Sends all requests of a log on time, and waits until each has ended."""

    spec: LoadSpec
    requests: RequestLog
    sender: Sender
    clock: StartClock
    observer: Observer | None
    _patience: float = field(init=False)

    def __post_init__(self) -> None:
        self._patience = self.spec.patience

    async def run(self, stop: asyncio.Event) -> RunEnd:
        """Run to the end. Setting `stop` ends the sending; patience is then at most a second."""
        tend = asyncio.create_task(self._tend())
        send = asyncio.create_task(self._send())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((send, stopped, tend), return_when=asyncio.FIRST_COMPLETED)
            interrupted = not send.done()
            send.cancel()
            if interrupted:
                self._patience = min(self._patience, _HURRY)
            sent_until = min(self.clock(), self.spec.length)
            await asyncio.wait((send,))
            while self.requests.open and not tend.done():
                await asyncio.sleep(_SWEEP / 4)
            for ours in (send, tend):
                if ours.done() and not ours.cancelled():
                    ours.result()  # raises if the task failed
            self._observe()
            return RunEnd(sent_until if interrupted else self.spec.length, interrupted)
        finally:
            tasks = (send, stopped, tend)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        """Hand every request to the sender when it is due, in bursts if several are due."""
        requests, sender, clock = self.requests, self.sender, self.clock
        sends, count = requests.due, len(requests)
        timer = TimerQueue()
        try:
            while requests.submitted < count:
                await self._wait(timer, sends[requests.submitted])
                now = clock()
                last = min(count, requests.submitted + _BURST)
                while requests.submitted < last and sends[requests.submitted] <= now:
                    sender.submit(requests.submit())
            await self._wait(timer, self.spec.length)
        finally:
            timer.close()

    async def _wait(self, timer: TimerQueue, instant: float) -> None:
        if not self.spec.spin:
            await timer.until(self.clock.origin + instant)
            return
        while True:
            await asyncio.sleep(0)
            if self.clock() >= instant:
                return

    async def _tend(self) -> None:
        """Give up overdue requests, and call the observer."""
        next_report = 0.0
        while True:
            await asyncio.sleep(_SWEEP)
            now = self.clock()
            for index in self.requests.overdue(self._patience, now=now):
                self.requests.ended(index, Result.GAVE_UP, now=now)
                self.sender.give_up(index)
            if now >= next_report:
                next_report = now + _REPORT
                self._observe()

    def _observe(self) -> None:
        if self.observer is None:
            return
        requests = self.requests
        progress = Progress(
            elapsed_s=max(0.0, min(self.clock(), self.spec.length)),
            length_s=self.spec.length,
            planned=len(requests),
            submitted=requests.submitted,
            ended=requests.ended_count,
            on_time=requests.on_time,
        )
        try:
            self.observer(progress)
        except Exception:  # a failing observer must not end the run
            _log.exception("the progress observer failed and was removed")
            self.observer = None
