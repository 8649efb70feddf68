"""What is learnt of demand: rates, fan-out, burstiness, from counts of several devices."""

from __future__ import annotations

import numpy as np
import pytest
from tests.pipelines.play import Play, graph
from tests.planning.pipelines.questions import TRAFFIC

from slacktide.planning.pipelines.demand import Demand, PipelineCounts, StageArrivals, counts_of
from slacktide.planning.pipelines.problem import burstiness


def counts(frames: int, brands: int, stages=None) -> PipelineCounts:
    edges = {("detector", "brand"): (frames, brands), ("detector", "plate"): (frames, 2 * frames)}
    return PipelineCounts(frames, edges, stages or {})


def test_until_something_was_counted_what_is_stated_holds():
    demand = Demand(TRAFFIC)
    assert demand.measured((15.0, 60.0), now=100.0) == TRAFFIC
    demand.note("edge", counts(0, 0), now=0.0)
    assert demand.measured((15.0,), now=1.0) == TRAFFIC


def test_the_largest_of_several_windows_counts():
    demand = Demand(TRAFFIC)
    frames = brands = 0
    for second in range(61):
        demand.note("edge", counts(frames, brands), now=float(second))
        rate = 30 if second >= 58 else 15
        frames, brands = frames + rate, brands + 3 * rate
    calm, surge = (demand.measured(windows, now=60.0) for windows in ((30.0, 60.0), (2.0, 60.0)))
    assert calm.rate == pytest.approx(16.0)
    assert surge.rate == pytest.approx(30.0)
    assert [stage.inflows[0].fan_out for stage in surge.stages[1:]] == [3.0, 2.0]


def test_fan_out_is_that_of_answered_rows_wherever_they_ran():
    demand = Demand(TRAFFIC)
    for second in range(31):
        frames = 15 * second
        server_frames, edge_frames = min(frames, 200), max(0, frames - 200)
        demand.note(
            "edge",
            PipelineCounts(frames, {("detector", "brand"): (edge_frames, edge_frames)}, {}),
            now=second,
        )
        demand.note(
            "server",
            PipelineCounts(0, {("detector", "brand"): (server_frames, 5 * server_frames)}, {}),
            now=second,
        )
    measured = demand.measured((30.0,), now=30.0)
    assert measured.rate == pytest.approx(15.0)
    assert measured.stages[1].inflows[0].fan_out == pytest.approx((250 + 1000) / 450)
    assert measured.stages[2].inflows == TRAFFIC.stages[2].inflows  # nothing is known of it


def test_a_device_that_begins_anew_takes_nothing_away():
    demand = Demand(TRAFFIC)
    for second in range(20):
        demand.note("edge", counts(15 * (second % 10), 0), now=float(second))
    assert demand.measured((5.0,), now=19.0).rate == pytest.approx(15.0)


@pytest.mark.parametrize("groups", [1, 4])
def test_burstiness_is_that_of_the_times_between_rows(groups):
    draw = np.random.default_rng(groups)
    moments = np.cumsum(draw.exponential(0.1, 400)).tolist()
    sums = StageArrivals()
    for at in moments:
        sums.add(groups, at)
    rows = (sums.rows, sums.gaps, sums.seconds, sums.squares)
    demand = Demand(TRAFFIC)
    demand.note("edge", counts(0, 0, {"brand": (0, 0, 0.0, 0.0)}), now=0.0)
    demand.note("edge", counts(9, 9, {"brand": rows}), now=moments[-1])
    measured = demand.measured((60.0,), now=moments[-1]).stages[1].burstiness
    moments_of_rows = [at for at in moments for _ in range(groups)]
    assert measured == pytest.approx(burstiness(moments_of_rows, window=1e9), rel=0.02)
    assert demand.rows(1) == 400 * groups


@pytest.mark.replaces_parts  # the engine that `Frames` reads
def test_a_device_counts_the_frames_of_its_cameras_and_what_stages_hand_on():
    play = Play(graph("a>b"))
    arrivals = {"p": {"a": StageArrivals()}}
    play.arrives(1)
    play.ends(next(iter(play.open)))
    play.yields(next(iter(play.yields_due)), 4)
    play.arrives(2, stage="b", parent=7)
    arrivals["p"]["a"].add(1, 0.0)
    (counts,) = counts_of(play.frames, arrivals).values()
    assert counts == PipelineCounts(1, {("a", "b"): (1, 4)}, {"a": (1, 0, 0.0, 0.0)})
    assert counts_of(None, arrivals) == {}
