"""Schedules: everything due, in order, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slacktide.lab.load.schedule import make_schedule
from slacktide.lab.load.spec import LoadSpec, Stream, Target, Transport
from slacktide.lab.workloads import Constant, Fixed, Mix, Poisson, Replay

TARGET = Target(Transport.HTTP, "h", 1)


def spec(*streams: Stream, **fields: Any) -> LoadSpec:
    return LoadSpec(**{"target": TARGET, "streams": streams, "duration": 2.0, **fields})


def test_streams_are_merged_in_the_order_they_are_due() -> None:
    schedule = make_schedule(
        spec(
            Stream("a", Replay([0.0, 1.0]), Fixed(0.5)),
            Stream("b", Replay([0.5, 1.0, 1.5]), None),
        ),
        (1, 1),
    )
    assert schedule.due.tolist() == [0.0, 0.5, 1.0, 1.0, 1.5]
    assert schedule.stream.tolist() == [0, 1, 0, 1, 1]  # a tie keeps the order of the streams
    assert schedule.payload.tolist() == [0, 1, 0, 1, 1]
    assert schedule.allowance.tolist() == [0.5, np.inf, 0.5, np.inf, np.inf]


def test_the_warm_up_comes_on_top() -> None:
    schedule = make_schedule(spec(Stream("a", Constant(10.0)), warmup=1.0), (1,))
    assert len(schedule) == 30


def test_payloads_are_drawn_evenly_from_the_streams_own() -> None:
    schedule = make_schedule(
        spec(Stream("a", Poisson(1000.0)), Stream("b", Poisson(1000.0))), (2, 4)
    )
    first = schedule.payload[schedule.stream == 0]
    second = schedule.payload[schedule.stream == 1]
    assert set(first.tolist()) == {0, 1}
    assert set(second.tolist()) == {2, 3, 4, 5}
    assert np.mean(first == 0) == pytest.approx(0.5, abs=0.06)


def test_the_seed_decides_and_streams_do_not_disturb_each_other() -> None:
    first = Stream("a", Poisson(50.0), Mix((0.1, 0.2)))
    two = Stream("b", Poisson(50.0), Mix((0.1, 0.2)))
    alone = make_schedule(spec(first), (3,))
    again = make_schedule(spec(first), (3,))
    reseeded = make_schedule(spec(first, seed=1), (3,))
    both = make_schedule(spec(first, two), (3, 3))
    tighter = make_schedule(spec(replace(first, deadlines=Fixed(0.1))), (3,))
    for field in ("due", "payload", "allowance"):
        mine = getattr(both, field)[both.stream == 0]
        assert np.array_equal(getattr(alone, field), getattr(again, field))
        assert np.array_equal(getattr(alone, field), mine)
    assert not np.array_equal(alone.due[:10], reseeded.due[:10])
    assert not np.array_equal(both.due[both.stream == 1][:10], alone.due[:10])
    assert np.array_equal(alone.due, tighter.due)
    assert np.array_equal(alone.payload, tighter.payload)
