"""True times of batches: by length, by profile, as expected; random numbers by purpose."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from slacktide.domain import Batch, PoolId, Replica, Request
from slacktide.lab.simulation import (
    AsExpected,
    ByLength,
    ByPool,
    ByProfile,
    DrawnRequest,
    SimulationError,
    rng_for,
)
from slacktide.profiles import BatchLatency, CorrectedTimes, LatencyTable


def batch(*members: Request, model: str = "m") -> Batch:
    replica = Replica(0, PoolId(model, "1"), "cpu", (0,), 16)
    return Batch(0, replica, members, sum(member.rows for member in members), 0.0, 1.0)


def drawn(id: int, length: float, rows: int = 1) -> DrawnRequest:
    return DrawnRequest(id, "m", 0.0, 1.0, rows=rows, length=length)


def test_a_batch_is_padded_to_its_longest_member_and_to_the_next_size():
    execution = ByLength(BatchLatency(5.0, 2.0, sizes=(1, 2, 4)))
    assert execution.seconds(batch(drawn(1, 3.0)), 1) == 5.0 + 2.0 * 1 * 3.0
    assert execution.seconds(batch(drawn(1, 3.0), drawn(2, 7.0, rows=2)), 1) == 5.0 + 2.0 * 4 * 7.0


def test_a_request_without_a_length_has_no_true_time():
    with pytest.raises(SimulationError, match="request 4 has no length of its own"):
        ByLength(BatchLatency(1.0, 1.0)).seconds(batch(Request(4, "m", 0.0, 1.0)), 1)


def test_a_drawn_request_is_checked_as_any_other_and_its_length_is_no_hint():
    with pytest.raises(ValueError, match="rows must be at least 1"):
        DrawnRequest(1, "m", 0.0, 1.0, rows=0, length=2.0).check()
    assert drawn(1, 3.0).work_hint is None
    names = [field.name for field in dataclasses.fields(DrawnRequest)]
    assert names == [*(field.name for field in dataclasses.fields(Request)), "length"]


def test_times_drawn_from_a_profile_have_its_median_and_its_p99():
    times = CorrectedTimes(LatencyTable.linear(0.004, 0.001, 8, spread=1.5))
    execution = ByProfile(times, rng_for(1, "batch times"))
    single = batch(Request(1, "m", 0.0, 1.0))
    seconds = np.array([execution.seconds(single, 1) for _ in range(20_000)])
    assert np.mean(seconds <= times.of(1, 1).expected) == pytest.approx(0.5, abs=0.01)
    assert np.mean(seconds <= times.of(1, 1).p99) == pytest.approx(0.99, abs=0.002)


def test_each_pool_has_its_own_hardware():
    slow = AsExpected(CorrectedTimes(LatencyTable.linear(0.1, 0.1, 8)))
    fast = AsExpected(CorrectedTimes(LatencyTable.linear(0.001, 0.001, 8)))
    execution = ByPool({PoolId("slow", "1"): slow, PoolId("fast", "1"): fast})
    request = Request(1, "m", 0.0, 1.0)
    assert execution.seconds(batch(request, model="slow"), 1) == pytest.approx(0.2)
    assert execution.seconds(batch(request, model="fast"), 1) == pytest.approx(0.002)


def test_a_stream_belongs_to_its_purpose_and_seed():
    first = rng_for(7, "arrivals").random(4).tolist()
    rng_for(7, "lengths").random(100)  # who draws for another purpose changes nothing
    assert rng_for(7, "arrivals").random(4).tolist() == first
    streams = [rng_for(7, "lengths"), rng_for(8, "arrivals"), rng_for(7, "arrivals of b")]
    assert all(rng.random(4).tolist() != first for rng in streams)


def test_streams_are_the_same_on_every_machine():
    assert rng_for(1, "arrivals").integers(1_000_000, size=3).tolist() == [506659, 304026, 204872]
