"""`QuietProfiler`: repeats profiles that were measured on a busy machine, once it is quiet.

The machine is quiet when no request has come for `QUIET_S` seconds and the processors were mostly
idle. A request ends the measurement immediately. A better profile is stored, and its model is
reloaded without an interruption.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.model_manager import ModelManager
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.errors import RepositoryError
from slacktide.observability.metrics import Machine
from slacktide.wire.errors import ControlError

log = logging.getLogger("slacktide.profiles")

LOOK_S = 1.0
"""Seconds between checks of the machine."""
QUIET_S = 5.0
MOST_BUSY = 0.25
"""CPU utilisation above which the machine is not idle."""
CANCEL_S = 0.01
"""Maximum delay in seconds before a measurement notices a request."""
MOST_PAUSE_S = 600.0
"""Maximum pause after measurements that ended early or improved nothing; the first is `QUIET_S`."""


class QuietProfiler:
    """Runs until it is cancelled."""

    def __init__(
        self,
        profiles: ProfileCache,
        models: ModelManager,
        requests: Callable[[], int],
        machine: Machine | None = None,
        *,
        look_s: float = LOOK_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        """`requests` returns the number of requests so far; the rest is for tests."""
        self._profiles = profiles
        self._models = models
        self._requests = requests
        self._machine = machine or Machine()
        self._look_s, self._quiet_s = look_s, quiet_s

    async def run(self) -> None:
        """Wait for quiet times and measure in them."""
        pause_s, quiet_since, requests = self._quiet_s, time.monotonic(), self._requests()
        while True:
            await asyncio.sleep(self._look_s)
            now = time.monotonic()
            if not self._profiles.busy:
                pause_s, quiet_since = self._quiet_s, now
                continue
            if requests != self._requests() or self._machine.cpu_utilization() > MOST_BUSY:
                requests, quiet_since = self._requests(), now
            if now - quiet_since >= pause_s:
                is_better = await self._measure()
                pause_s = self._quiet_s if is_better else min(2.0 * pause_s, MOST_PAUSE_S)
                quiet_since = time.monotonic()

    async def _measure(self) -> bool:
        """Measure one model. Returns whether its profile is better than before."""
        label, busy = next(iter(self._profiles.busy.items()))
        requests = self._requests()
        needed = sum(session.nbytes for session in busy.profiled.sessions)
        if self._machine.memory().free < 2 * needed:  # the model is in memory twice
            return False
        task = asyncio.create_task(self._profiles.measure_again(busy))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=CANCEL_S)
                if self._requests() != requests:
                    return False
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        del self._profiles.busy[label]
        try:
            profiled = task.result()
            if profiled is None:
                self._profiles.busy[label] = busy  # try other profiles first
                return False
            before, after = busy.profiled.record.table, profiled.record.table
            times = [1e3 * table.expected(1, table.cores[0]) for table in (after, before)]
            log.info("%s was measured again: a row takes %.3g ms instead of %.3g ms", label, *times)
            await self._models.refresh(busy.definition.name)
        except (ControlError, MeasuringError, RepositoryError) as error:
            log.warning("%s cannot be measured again: %s", label, error)
        except Exception:  # a bug must not end serving
            log.exception("measuring %s again", label)
        return True
