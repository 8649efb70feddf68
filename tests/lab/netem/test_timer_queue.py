"""Calls at instants: in order, never early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from slacktide.lab.netem import TimerQueue


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.usefixtures("run")
async def test_it_never_wakes_early() -> None:
    timers = TimerQueue()
    woken = []
    try:
        for delay in (0.004, 0.0003, 0.0, -1.0, 0.002):
            instant = time.monotonic() + delay
            await timers.until(instant)
            woken.append((instant, time.monotonic()))
    finally:
        timers.close()
    assert all(at >= instant for instant, at in woken)


async def test_the_past_still_gives_the_loop_a_turn() -> None:
    timers = TimerQueue()
    turns = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    try:
        await timers.until(0.0)
    finally:
        timers.close()
    assert bool(turns)


async def test_a_cancelled_sleeper_leaves_the_queue_usable() -> None:
    timers = TimerQueue()
    sleeper = asyncio.create_task(timers.until(time.monotonic() + 60.0))
    await asyncio.sleep(0)
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    instant = time.monotonic() + 0.002
    await timers.until(instant)
    timers.close()
    timers.close()
    assert (time.monotonic() - instant) >= 0.0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.usefixtures("run")
async def test_calls_come_in_order_and_never_early() -> None:
    calls: list[tuple[str, float]] = []

    timers, done = TimerQueue(), asyncio.Event()
    begin = time.monotonic()

    def note(name: str) -> Callable[[], None]:
        return lambda: calls.append((name, time.monotonic() - begin))

    def first() -> None:
        note("b")()
        timers.at(begin + 0.4, note("c"))
        timers.at(begin + 0.3, note("d"))

    timers.at(begin + 60.0, note("never"))
    timers.at(float("inf"), note("never"))
    timers.at(begin + 0.5, note("e"))
    timers.at(begin + 0.2, first)
    timers.at(begin + 0.1, note("a"))
    timers.at(begin + 0.5, note("f"))
    timers.at(begin + 0.6, done.set)
    await asyncio.sleep(0)
    timers.at(begin - 1.0, note("at once"))
    await done.wait()
    timers.close()
    timers.close()
    assert [name for name, _ in calls] == ["at once", "a", "b", "d", "c", "e", "f"]
    for (_, at), due_at in zip(calls[1:], (0.1, 0.2, 0.3, 0.4, 0.5, 0.5), strict=True):
        assert at >= due_at


async def test_an_error_of_a_call_is_not_swallowed() -> None:
    for close in (True, False):
        timers, failed = TimerQueue(), asyncio.Event()

        def fail(failed: asyncio.Event = failed) -> None:
            failed.set()
            raise RuntimeError("ours")

        timers.at(0.0, fail)
        await failed.wait()
        await asyncio.sleep(0)
        if not close:
            with pytest.raises(RuntimeError, match="ours"):
                timers.at(0.0, fail)
        with pytest.raises(RuntimeError, match="ours"):
            timers.close()
