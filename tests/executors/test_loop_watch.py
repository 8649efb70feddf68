"""Time in which the server itself stood still is held against nobody."""

from __future__ import annotations

import asyncio
import time

import pytest

from slacktide.executors.hand_over import loop_watch as module
from slacktide.executors.hand_over.loop_watch import (
    READ_S,
    LoopWatch,
    call_later,
    loop_watch,
    patience,
)
from slacktide.testing import FakeClock


class Loop:
    """A loop of which a test says when its timers fire."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, call, *args):
        self.timers.append((delay, lambda: call(*args)))
        return self

    def cancel(self):
        self.timers.clear()


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def watch(clock):
    return LoopWatch(clock)


def turn(watch, clock, seconds):
    """The loop turns for so long."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + 0.1)
        watch.look()


def test_a_loop_that_turns_never_stands_still(watch, clock):
    turn(watch, clock, 30.0)
    clock.now += 0.5
    assert watch.look() == 0.0
    assert watch.waited(100.0, clock.now) == pytest.approx(30.5)


def test_a_standstill_counts_for_nobody_and_neither_does_the_reading_after_it(watch, clock):
    turn(watch, clock, 1.0)
    clock.now += 4.0
    assert watch.waited(100.0, clock.now) == pytest.approx(1.0)
    turn(watch, clock, READ_S)
    assert watch.waited(100.0, clock.now) == pytest.approx(1.0)
    turn(watch, clock, 2.0)
    assert watch.waited(100.0, clock.now) == pytest.approx(3.0)
    assert watch.waited(102.0, clock.now) == pytest.approx(2.0)  # it began within
    assert watch.waited(clock.now - 2.0, clock.now) == pytest.approx(2.0)  # after it
    assert watch.look() == pytest.approx(4.0 + READ_S)


def test_standstills_close_together_are_not_counted_twice(watch, clock):
    for _ in range(3):
        clock.now += 2.0
        watch.look()
    assert watch.look() == pytest.approx(6.0 + READ_S)
    turn(watch, clock, READ_S)
    assert watch.waited(100.0, clock.now) == pytest.approx(0.0)


def test_a_timer_waits_for_as_long_as_the_loop_stood_still(watch, clock):
    loop, rung = Loop(), []
    module._watches[loop] = watch
    call_later(loop, 2.0, rung.append, "rang")
    clock.now += 5.0  # the timer is the first that runs afterwards
    loop.timers.pop()[1]()
    assert rung == []
    ((delay, ring),) = loop.timers
    assert delay == pytest.approx(2.0)
    loop.timers.clear()
    turn(watch, clock, READ_S + 1.9)
    ring()
    ((delay, ring),) = loop.timers
    assert delay == pytest.approx(0.1)
    turn(watch, clock, 0.1)
    ring()
    assert rung == ["rang"]


async def test_patience_is_for_a_loop_that_turns(monkeypatch):
    clock = FakeClock(100.0)
    module._watches[asyncio.get_running_loop()] = LoopWatch(clock)
    read = []

    async def wait():
        async with patience(0.05):
            clock.now += 60.0  # it is overdue at once, but nothing has been read yet
            await asyncio.sleep(0.1)
            read.append("what has arrived")
            while True:
                clock.now += 0.01
                await asyncio.sleep(0.01)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait(), 30)
    assert read
    assert clock.now > 160.0 + READ_S


@pytest.mark.replaces_parts
async def test_a_loop_is_watched_from_the_first_question_on(monkeypatch):
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    monkeypatch.setattr(module, "LATE_S", 0.05)

    watch = loop_watch()
    assert loop_watch() is watch
    before = watch.look()
    time.sleep(0.1)  # the standstill
    await asyncio.sleep(0.02)
    assert watch.look() - before >= 0.1
