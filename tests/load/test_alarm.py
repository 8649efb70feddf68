"""The alarm wakes at its instant, never before, with or without a timer file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from slacktide.load.alarm import Alarm


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("precise", [True, False])
def test_it_never_wakes_early(run: Callable[..., Any], precise: bool) -> None:
    async def main() -> list[tuple[float, float]]:
        alarm = Alarm(asyncio.get_running_loop(), precise=precise)
        woken = []
        try:
            for delay in (0.004, 0.0003, 0.0, -1.0, 0.002):
                instant = time.monotonic() + delay
                await alarm.until(instant)
                woken.append((instant, time.monotonic()))
        finally:
            alarm.close()
        return woken

    assert all(at >= instant for instant, at in run(main()))


def test_the_past_still_gives_the_loop_a_turn() -> None:
    async def main() -> bool:
        alarm = Alarm(asyncio.get_running_loop())
        turns = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        try:
            await alarm.until(0.0)
        finally:
            alarm.close()
        return bool(turns)

    assert asyncio.run(main())


def test_a_cancelled_sleeper_leaves_the_alarm_usable() -> None:
    async def main() -> float:
        alarm = Alarm(asyncio.get_running_loop())
        sleeper = asyncio.create_task(alarm.until(time.monotonic() + 60.0))
        await asyncio.sleep(0)
        sleeper.cancel()
        await asyncio.gather(sleeper, return_exceptions=True)
        instant = time.monotonic() + 0.002
        await alarm.until(instant)
        alarm.close()
        alarm.close()
        return time.monotonic() - instant

    assert asyncio.run(main()) >= 0.0
