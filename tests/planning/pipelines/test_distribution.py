"""CWD: what it chooses, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import EDGE, TRAFFIC, at_random, question

from slacktide.planning.pipelines.distribution import (
    RULES,
    DistributionOptions,
    StaticBatches,
    distribute,
)
from slacktide.planning.pipelines.estimate import PipelineEstimator
from slacktide.planning.pipelines.problem import PlacementQuestion


def devices(placed) -> list[str]:
    return [stage.device for stage in placed[0]]


def batches(placed) -> list[int]:
    return [stage.batch for stage in placed[0]]


def judged(problem: PlacementQuestion, placed):
    judge = PipelineEstimator(problem, problem.pipelines[0], RULES)
    return judge.estimate(judge.chosen(placed[0]))


def test_a_stage_that_shrinks_its_input_goes_to_the_edge_alone():
    """100 kB frames become 44 kB of crops; the crops become next to nothing."""
    alone = distribute(question(), DistributionOptions(alpha=0.6))
    assert devices(alone)[0] == "edge"


def test_a_stage_that_grows_its_input_stays_on_the_server():
    crops = [replace(stage, row_bytes=60e3, devices=("server",)) for stage in TRAFFIC.stages[1:]]
    grown = replace(TRAFFIC, stages=(TRAFFIC.stages[0], *crops))
    problem = question(grown, bandwidth=50e6)
    assert devices(distribute(problem)) == ["server"] * 3
    assert devices(distribute(problem, DistributionOptions(alpha=9.0)))[0] == "edge"


def test_a_stage_that_grows_its_input_stays_at_the_edge_for_one_that_follows_it():
    grown = replace(
        TRAFFIC,
        stages=(TRAFFIC.stages[0], *(replace(s, row_bytes=60e3) for s in TRAFFIC.stages[1:])),
    )
    placed = distribute(question(grown, bandwidth=50e6))
    assert devices(placed)[0] == "edge"
    assert "edge" in devices(placed)[1:]


def test_the_less_bursty_stage_moves_first():
    """The device has the memory for one of the two."""
    small = replace(EDGE, memory=2.5e8)
    for bursty, calm in ((1, 2), (2, 1)):
        stages = list(TRAFFIC.stages)
        stages[bursty] = replace(stages[bursty], burstiness=4.0)
        stages[calm] = replace(stages[calm], burstiness=1.0)
        problem = question(replace(TRAFFIC, slo=0.3, stages=tuple(stages)))
        problem = replace(problem, devices=(small, problem.devices[1]))
        placed = distribute(problem)
        assert devices(placed)[calm] == "edge"
        assert devices(placed)[bursty] == "server"


def test_batches_grow_with_the_rate_and_within_half_of_the_slo():
    slow, fast = (
        distribute(
            question(replace(TRAFFIC, rate=rate), bandwidth=1e9), DistributionOptions(edge=False)
        )
        for rate in (5.0, 60.0)
    )
    assert sum(batches(slow)) < sum(batches(fast))
    tight = distribute(
        question(replace(TRAFFIC, rate=60.0, slo=0.08), bandwidth=1e9),
        DistributionOptions(edge=False),
    )
    assert sum(batches(tight)) < sum(batches(fast))


def test_the_ablations_leave_a_part_out():
    static = distribute(question(), DistributionOptions(static=StaticBatches()))
    assert batches(static) == [
        2,
        *(8 if device == "server" else 4 for device in devices(static)[1:]),
    ]
    assert devices(distribute(question(), DistributionOptions(edge=False))) == ["server"] * 3


def test_without_a_link_all_stages_run_where_frames_come_in():
    assert devices(distribute(question(bandwidth=0.0))) == ["edge"] * 3


def test_pipelines_of_one_device_share_it():
    """What one has taken the next does not get."""
    pipelines = [replace(TRAFFIC, name=f"p{k}") for k in range(4)]
    problem = question(*pipelines)
    placed = distribute(problem)
    busy = 0.0
    for pipeline, stages in zip(problem.pipelines, placed, strict=True):
        judge = PipelineEstimator(problem, pipeline, RULES)
        busy += judge.load(judge.chosen(stages)).busy[0]
    assert busy <= 0.95
    assert {stages[0].device for stages in placed} == {"edge", "server"}


@pytest.mark.parametrize("seed", range(60))
def test_the_found_placement_is_feasible_wherever_the_server_alone_is(seed):
    problem = at_random(np.random.default_rng(seed))
    placed = distribute(problem)
    judge = PipelineEstimator(problem, problem.pipelines[0], RULES)
    first = [judge.cost(at, 1) for at in range(len(judge.rates))]
    estimate = judged(problem, placed)
    assert estimate.latency <= max(judge.budget, judge.estimate(first).latency)
    if judge.estimate(first).latency <= judge.budget:
        assert estimate.latency <= judge.budget
