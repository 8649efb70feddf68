"""The open-loop run: every request leaves when it is due, whatever became of those before.

Nothing waits for an answer before it sends, so a slow server cannot slow its own load down
(coordinated omission), and every latency counts from the intended send, so lateness of the
generator is never forgotten; it is reported on its own as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slacktide.load.alarm import Alarm
from slacktide.load.ledger import Ledger
from slacktide.load.results import Result
from slacktide.load.spec import LoadSpec


class Sender(Protocol):
    """Carries requests: the seam between run and wire. Methods never block; every submitted request
    ends in the ledger once, unless it is given up first (the run has written that down by then)."""

    def submit(self, index: int) -> None:
        """Send request `index` of the schedule as soon as possible."""
        ...

    def give_up(self, index: int) -> None:
        """Nobody waits for request `index` any more: take it off the wire."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What the reader of the report should know of how requests were carried."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


_log = logging.getLogger(__name__)

_BURST = 64
"""Requests sent before the loop gets a turn to read answers."""
_SWEEP = 0.05
"""Seconds between looks for requests to give up."""
_REPORT = 0.25
"""Seconds between calls of the observer."""
_HURRY = 1.0
"""Patience after an interruption, seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    elapsed_s: float
    length_s: float
    planned: int
    submitted: int
    ended: int
    on_time: int


Observer = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How the sending ended."""

    sent_until: float
    """Seconds from the start until which requests were sent."""
    interrupted: bool


class StartClock:
    """Seconds since the run started; negative before."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, lead: float = 0.02) -> None:
        """The run starts `lead` seconds from now."""
        self.origin = time.monotonic() + lead

    def __call__(self) -> float:
        return time.monotonic() - self.origin


async def drive(
    spec: LoadSpec,
    ledger: Ledger,
    sender: Sender,
    clock: StartClock,
    observer: Observer | None = None,
    stop: asyncio.Event | None = None,
) -> RunEnd:
    """Send everything in `ledger` on time and wait until each request has ended.

    Setting `stop` ends the sending; what is under way gets a second more than its deadline.
    """
    run = _Run(spec, ledger, sender, clock, observer)
    return await run.carry_out(stop or asyncio.Event())


class _Run:
    def __init__(
        self,
        spec: LoadSpec,
        ledger: Ledger,
        sender: Sender,
        clock: StartClock,
        observer: Observer | None,
    ) -> None:
        self._spec = spec
        self._ledger = ledger
        self._sender = sender
        self._clock = clock
        self._observer = observer
        self._patience = spec.patience

    async def carry_out(self, stop: asyncio.Event) -> RunEnd:
        tend = asyncio.create_task(self._tend())
        send = asyncio.create_task(self._send())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((send, stopped, tend), return_when=asyncio.FIRST_COMPLETED)
            interrupted = not send.done()
            send.cancel()
            if interrupted:
                self._patience = min(self._patience, _HURRY)
            sent_until = min(self._clock(), self._spec.length)
            await asyncio.wait((send,))
            while self._ledger.open and not tend.done():
                await asyncio.sleep(_SWEEP / 4)
            for ours in (send, tend):
                if ours.done() and not ours.cancelled():
                    ours.result()  # a failure of ours is not swallowed
            self._observe()
            return RunEnd(sent_until if interrupted else self._spec.length, interrupted)
        finally:
            tasks = (send, stopped, tend)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        """Hand every request over when it is due; several at once if they are."""
        ledger, sender, clock = self._ledger, self._sender, self._clock
        due, count = ledger.due, len(ledger)
        alarm = Alarm(asyncio.get_running_loop())
        try:
            while ledger.submitted < count:
                await self._wait(alarm, due[ledger.submitted])
                now = clock()
                last = min(count, ledger.submitted + _BURST)
                while ledger.submitted < last and due[ledger.submitted] <= now:
                    sender.submit(ledger.submit())
            await self._wait(alarm, self._spec.length)
        finally:
            alarm.close()

    async def _wait(self, alarm: Alarm, due: float) -> None:
        if not self._spec.spin:
            await alarm.until(self._clock.origin + due)
            return
        while True:
            await asyncio.sleep(0)
            if self._clock() >= due:
                return

    async def _tend(self) -> None:
        """Give up what is overdue, and keep the observer informed."""
        next_report = 0.0
        while True:
            await asyncio.sleep(_SWEEP)
            now = self._clock()
            for index in self._ledger.overdue(self._patience, now=now):
                self._ledger.ended(index, Result.GAVE_UP, now=now)
                self._sender.give_up(index)
            if now >= next_report:
                next_report = now + _REPORT
                self._observe()

    def _observe(self) -> None:
        if self._observer is None:
            return
        ledger = self._ledger
        progress = Progress(
            elapsed_s=max(0.0, min(self._clock(), self._spec.length)),
            length_s=self._spec.length,
            planned=len(ledger),
            submitted=ledger.submitted,
            ended=ledger.ended_count,
            on_time=ledger.on_time,
        )
        try:
            self._observer(progress)
        except Exception:  # an observer cannot hurt the run: it is logged and removed
            _log.exception("the progress observer failed and is removed")
            self._observer = None
