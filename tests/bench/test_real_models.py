"""The yardstick of several sizes, and what is read of predictions; nothing is timed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.real_models import FIRST, LEARNT, REFUSED, Measured, Phase, Predictions
from bench.yardstick import Arrivals, Sized, slack_by_size

from slacktide.domain import (
    Batch,
    BatchFinished,
    PoolId,
    Replica,
    Request,
    RunBatch,
    Submitted,
)
from slacktide.profiles import PointTime
from slacktide.recording import Call

SHORT, LONG = np.full(20, 0.010), np.full(20, 0.040)


def on_time(due: list[float], allowance: list[float], size: list[int]) -> list[bool]:
    sized = Sized(Arrivals(np.array(due), np.array(allowance)), np.array(size))
    return slack_by_size(sized, [SHORT, LONG], 0.0, 1, seed=1).tolist()


def test_the_yardstick_knows_what_each_size_takes() -> None:
    # The second is hopeless, so it is refused and does not delay the third.
    assert on_time([0.0, 0.0, 0.001], [0.015, 0.030, 0.020], [0, 1, 0]) == [True, False, True]


def test_sizes_do_not_share_a_batch() -> None:
    sized = Sized(Arrivals(np.zeros(2), np.full(2, 0.045)), np.array([0, 1]))
    assert slack_by_size(sized, [SHORT, LONG], 0.009, 8, seed=1).sum() == 1
    same = dataclasses.replace(sized, size=np.array([0, 0]))
    assert slack_by_size(same, [SHORT, LONG], 0.009, 8, seed=1).all()


def test_a_first_request_is_wrongly_refused_if_it_was_possible() -> None:
    count = 2 * FIRST + 10
    ended = np.zeros(count, np.int64)
    ended[[0, 2, 4]] = REFUSED[0]
    ended[-2:] = REFUSED[1]  # beyond the first
    possible = np.ones(count, np.bool_)
    possible[2] = False
    due = np.linspace(0.0, 10.0, count)
    phase = Phase("10x", due, np.arange(count) % 2, ended, possible, 0.0)
    assert phase.wrongly_refused([0]) == 2
    assert phase.wrongly_refused([1]) == 0
    assert phase.in_time == pytest.approx(1.0 - 2 / (due >= 2.0).sum())


def test_the_time_outside_of_the_lane_is_what_the_closed_loop_does_not_show() -> None:
    timing = Measured(true=0.012, lane=0.010, bare=(0.008, 0.010), two_rows=0.018)
    assert timing.on_the_way == pytest.approx(0.002)
    assert timing.in_lane.tolist() == pytest.approx([0.009, 0.011])
    assert dataclasses.replace(timing, true=0.009).on_the_way == 0.0


def test_predictions_are_read_before_the_first_request_and_after_thirty() -> None:
    estimate = PointTime(0.5)
    pool = SimpleNamespace(times=SimpleNamespace(of=lambda rows, cores, members: estimate))
    snapshot = SimpleNamespace(serving=lambda model: [pool])
    engine: Any = SimpleNamespace(snapshot=lambda: snapshot)
    replica = Replica(0, PoolId("m", "1"), "lane", (0,), 1)
    read = Predictions()
    for number in range(2 * LEARNT):
        now, request = float(number), Request(number, "m", 0.0, 1.0, signature=((7,),))
        submitted = Call(now, (Submitted(request),))
        read.before(submitted, engine)
        batch = Batch(number, replica, (request,), 1, now, now + 9.0)
        read.after(submitted, engine, [RunBatch(batch, 0, 0.5, 0.5)])
        finished = Call(now + 0.4, (BatchFinished(number),))
        estimate = PointTime(0.5 - 0.001 * number)
        read.before(finished, engine)
        read.after(finished, engine, [])
    predictions = read.of(((7,),))
    assert predictions["before"] == 0.5
    assert predictions["learnt"] == pytest.approx(0.5 - 0.001 * (LEARNT - 1))
    assert (predictions["took"], predictions["then"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert predictions["batches"] == 2 * LEARNT
