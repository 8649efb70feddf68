"""Pauses of a loop that shares its core: only when they save something, and never long."""

from __future__ import annotations

import os
import time

import pytest

from slacktide.server.calls.driver_timing import LONGEST, ReadCoalescing


def busy(rate, *, cores=1):
    """A moderation that has seen requests come at `rate` a second for a while, and the time."""
    coalescing = ReadCoalescing(cores)
    now = 0.0
    for _ in range(500):
        now += 1.0 / rate
        coalescing.arrived(now)
    return coalescing, now


def ask(pair, *, end=0.010, batch=0.010, lane_cores=1):
    coalescing, now = pair
    coalescing.lanes_have(lane_cores)
    coalescing.expected = batch
    pause = coalescing.pause_for(now=now, soonest_end=now + end, shortest_batch=batch)
    assert pause == 0.0 or coalescing.may_pause
    return pause


def test_requests_that_come_close_together_are_worth_a_pause():
    assert ask(busy(1000)) == LONGEST


def test_requests_that_come_rarely_are_not():
    rare = busy(100)
    assert ask(rare) == 0.0
    assert not rare[0].may_pause, "and it need not be asked"


def test_a_loop_with_a_core_to_itself_never_pauses():
    assert ask(busy(1000, cores=2), lane_cores=1) == 0.0


def test_pauses_are_short_beside_the_batch_and_end_with_it():
    assert ask(busy(10_000), batch=0.004) == pytest.approx(0.001)
    assert ask(busy(10_000), end=0.0005) == pytest.approx(0.0005)
    short = busy(10_000)
    assert ask(short, batch=0.0004) == 0.0
    assert not short[0].may_pause, "and it need not be asked"
    assert ask(busy(10_000), end=-1.0) == 0.0


def test_a_report_ends_the_pause():
    reader, writer = os.pipe()
    try:
        os.write(writer, b"done")
        coalescing, _ = busy(1000)
        begin = time.monotonic()
        coalescing.pause(30.0, [reader], now=begin)
        assert time.monotonic() - begin < 30.0
    finally:
        os.close(reader)
        os.close(writer)


def test_requests_during_a_pause_count_from_its_beginning():
    coalescing, _ = busy(1000)
    coalescing.pause(0.0, [], now=123.0)
    assert coalescing.arrival_clock() == 123.0
    coalescing.resume()
    assert coalescing.arrival_clock() == pytest.approx(time.monotonic(), abs=10.0)
