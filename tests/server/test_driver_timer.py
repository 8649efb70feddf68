"""The driver's one timer: set often, started rarely, never late."""

from __future__ import annotations

import pytest

from slacktide.server.calls.driver_timing import DriverTimer


class Loop:
    """A loop that only notes when it would call."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def call_later(self, delay, call):
        timer = Timer(self.now + delay, call)
        self.timers.append(timer)
        return timer

    @property
    def pending(self):
        return [timer.at for timer in self.timers if not timer.cancelled]


class Timer:
    def __init__(self, at, call):
        self.at, self.call, self.cancelled = at, call, False

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def fired():
    return []


@pytest.fixture
def timer(loop, fired):
    return DriverTimer(loop, lambda: loop.now, lambda: fired.append(loop.now))


def test_a_timer_that_fires_soon_enough_is_left_alone(timer, loop):
    timer.set(1.0)
    timer.set(2.0)
    assert loop.pending == [1.0]
    timer.set(0.5)
    assert loop.pending == [0.5]


def test_patience_of_one_time_does_not_delay_another(timer, loop):
    timer.set(1.0, patience=0.004)
    assert loop.pending == [1.004]
    timer.set(1.001)  # a lane has become free and wants to be asked on time
    assert loop.pending == [1.001]


def test_a_due_timer_is_taken_once(timer, loop):
    timer.set(1.0, patience=0.004)
    assert not timer.take_due(now=0.999)
    assert timer.take_due(now=1.0)
    assert not timer.take_due(now=1.0)
    assert loop.pending == []


def test_the_earliest_time_asked_for_counts_as_due(timer):
    timer.set(1.003)
    timer.set(1.001, patience=0.004)  # the timer at 1.003 is early enough for it
    assert timer.take_due(now=1.002)


def test_it_fires_and_can_be_set_again(timer, loop, fired):
    timer.set(1.0)
    loop.now = 1.0
    loop.timers[0].call()
    assert fired == [1.0]
    timer.set(2.0)
    assert loop.timers[-1].at == 2.0
    timer.clear()
    assert loop.timers[-1].cancelled
