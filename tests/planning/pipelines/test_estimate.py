"""What a placement is predicted to do, by hand."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import (
    EDGE,
    SERVER,
    TRAFFIC,
    at_random,
    configuration,
    question,
)

from slacktide.planning.pipelines.costs import EstimateRules, Load, PlacementScore, better
from slacktide.planning.pipelines.estimate import PipelineEstimator
from slacktide.planning.pipelines.problem import (
    Inflow,
    LinkView,
    PipelineView,
    PlacedStage,
    PlacementError,
    StageView,
    burstiness,
)

ALONE = EstimateRules(budget=1.0, shared=False)


def estimator(problem=None, rules=ALONE) -> PipelineEstimator:
    problem = problem or question()
    return PipelineEstimator(problem, problem.pipelines[0], rules)


def one_stage(rate=100.0, row_bytes=0.0, burst=1.0, **fields) -> PipelineView:
    stage = StageView("only", (configuration(0.0, 0.004),), (), row_bytes, burstiness=burst)
    return PipelineView(
        **{"name": "p", "source": "edge", "slo": 1.0, "rate": rate, **fields}, stages=(stage,)
    )


def test_a_stage_waits_for_its_batch_and_for_its_lane():
    judge = estimator(question(one_stage(100.0)))
    cost = judge.cost(0, 1, batch=1)  # two rows in 8 ms on the server
    assert cost.replicas == 1
    assert cost.busy == pytest.approx(0.4)
    assert cost.latency == pytest.approx(0.01 + 1.1 * 0.008)
    assert cost.alone == pytest.approx(0.4 * 0.008 / (2 * 0.6))
    estimate = judge.estimate([cost])
    assert estimate.latency == pytest.approx(0.005 + cost.latency + cost.alone + 0.005)
    assert estimate.score == PlacementScore(pytest.approx(100.0), pytest.approx(-0.4))


def test_bursts_fill_a_batch_sooner():
    latencies = [
        estimator(question(one_stage(100.0, burst=burst))).cost(0, 1, batch=2).latency
        for burst in (1.0, 2.0, 3.0)
    ]
    fills = [latency - 1.1 * 0.016 for latency in latencies]
    assert fills == pytest.approx([0.03, 0.015, 0.0])  # together come 1, 2.5 and 5 rows


def test_replicas_come_with_the_rate_and_end_with_the_lanes():
    replicas = [
        estimator(question(one_stage(rate))).cost(0, 1).replicas for rate in (10, 300, 900, 9000)
    ]
    assert replicas == [1, 2, 5, 8]
    full = estimator(question(one_stage(9000.0))).cost(0, 1)
    assert full.share == pytest.approx(0.95 * 8 / 0.004 / 9000)


def test_transfers_count_where_the_device_changes():
    judge = estimator()
    edge = judge.chosen([PlacedStage("edge")] * 3)
    mixed = judge.chosen([PlacedStage("edge"), PlacedStage("server"), PlacedStage("edge")])
    assert judge.load(edge).links == {}
    links = judge.load(mixed).links
    assert links[0, 1] == (pytest.approx(60 * 8e3), pytest.approx(15 * (4 * 8e3) ** 2))
    assert links[1, 0][0] == pytest.approx(60 * 100)
    over = 0.005 + 4 * 8e3 / 1e7 + 15 * (4 * 8e3 / 1e7) ** 2 / (2 * (1 - 60 * 8e3 / 1e7))
    estimate = judge.estimate(mixed)
    detector = judge.cost(0, 0)
    brand = judge.cost(1, 1)
    assert estimate.latencies[0] == pytest.approx(detector.latency + detector.alone)
    assert estimate.latencies[1] == pytest.approx(
        estimate.latencies[0] + over + brand.latency + brand.alone
    )


def test_a_link_bounds_what_gets_through():
    slow = estimator(question(bandwidth=0.75e6))
    server = slow.chosen([PlacedStage("server")] * 3)
    estimate = slow.estimate(server)  # 1.5 MB/s of frames
    assert estimate.shares == pytest.approx([0.95 * 0.75 / 1.5] * 3)
    assert estimate.latency > 0.2
    assert estimate.worth == 0.0


def test_a_path_that_is_late_is_worth_nothing_and_the_others_are():
    heavy = TRAFFIC.stages[2]
    late = replace(
        TRAFFIC,
        stages=(*TRAFFIC.stages[:2], replace(heavy, configurations=(configuration(0.19, 0.0),))),
    )
    judge = estimator(question(late))
    estimate = judge.estimate(judge.chosen([PlacedStage("server")] * 3))
    assert estimate.worth == pytest.approx(60.0)
    assert estimate.latency > 0.2


def test_between_budget_and_slo_ever_fewer_are_likely_to_be_in_time():
    worth = []
    for slo in (1.0, 0.1, 0.06, 0.05, 0.045, 0.04, 0.035, 0.03, 0.01):
        judge = estimator(question(replace(TRAFFIC, slo=slo)), EstimateRules())
        estimate = judge.estimate(judge.chosen([PlacedStage("server")] * 3))
        worth.append(estimate.worth)
        share = min(1.0, max(0.0, (slo - estimate.latency) / (0.5 * slo)))
        assert estimate.worth >= judge.most * share - 1e-9
    assert worth == sorted(worth, reverse=True)
    assert (worth[0], worth[-1]) == (pytest.approx(90.0), 0.0)
    assert any(0.0 < rate < 89.0 for rate in worth)


def test_shared_lanes_wait_for_background_load():
    shared = estimator(rules=EstimateRules(budget=1.0))
    edge = shared.chosen([PlacedStage("edge")] + [PlacedStage("server")] * 2)
    load = Load(2)
    load.busy[0], load.squares[0] = 0.3, 0.05
    alone, beside = shared.estimate(edge), shared.estimate(edge, load)
    rate, seconds = 15.0, 0.028
    wait = (rate * seconds**2 + 0.05) / (2 * (1 - rate * seconds - 0.3))
    assert alone.latencies[0] == pytest.approx(
        1.1 * seconds + rate * seconds**2 / (2 * (1 - rate * seconds))
    )
    assert beside.latencies[0] == pytest.approx(1.1 * seconds + wait)


def test_rows_of_a_frame_that_need_several_batches_wait_for_these():
    judge = estimator(rules=EstimateRules(fill=False))
    costs = [judge.cost(1, 1, batch=at) for at in range(4)]  # four brands on each frame
    for cost, rounds in zip(costs, (4, 2, 1, 1), strict=True):
        assert cost.latency == pytest.approx(rounds * cost.p99)
    assert min(costs, key=lambda cost: cost.latency).batch == 2


def test_late_answers_are_worth_a_little_the_less_the_later():
    worth = []
    for slo in (0.01, 0.005):
        problem = question(one_stage(10.0, slo=slo))
        judge = estimator(problem, rules=EstimateRules(late_chance=0.05))
        estimate = judge.estimate(judge.chosen([PlacedStage("edge")]))
        assert estimate.latency > slo
        assert estimate.worth == pytest.approx(10.0 * 0.05 * slo / estimate.latency)
        worth.append(estimate.worth)
    assert worth[0] == pytest.approx(2.0 * worth[1])


def test_background_load_reduces_capacity():
    judge = estimator(question(replace(TRAFFIC, slo=9.0)))
    edge = judge.chosen([PlacedStage("edge"), PlacedStage("server"), PlacedStage("server")])
    load = Load(2)
    load.busy[0] = 0.95 - 0.21
    assert judge.estimate(edge, load).shares[0] == pytest.approx(0.5)
    load.memory[0] = 3.99e9
    assert judge.estimate(edge, load).score.worth == 0.0


def test_loads_add_up_and_go():
    judge = estimator()
    own = judge.load(judge.chosen([PlacedStage("edge"), *[PlacedStage("server")] * 2]))
    total = Load(2)
    total.add(own, judge.places)
    assert total.busy == own.busy
    assert total.links == own.links
    total.add(own, judge.places, -1.0)
    assert total.memory == [0.0, 0.0]
    assert all(link == (0.0, 0.0) for link in total.links.values())


def test_a_join_has_the_rows_of_its_largest_inflow():
    joined = replace(
        TRAFFIC,
        stages=(
            *TRAFFIC.stages,
            StageView("both", (configuration(0.001, 0.001),), (Inflow(1, 0.25), Inflow(2, 0.25))),
        ),
    )
    assert joined.rates() == [15.0, 60.0, 30.0, 15.0]
    judge = estimator(question(joined))
    assert judge.sinks == [3]
    estimate = judge.estimate(judge.chosen([PlacedStage("server")] * 4))
    assert estimate.latencies[3] > max(estimate.latencies[1:3])
    assert estimate.worth == pytest.approx(15.0)


def test_answers_are_data():
    judge = estimator()
    placed = (PlacedStage("edge", 1, 1), PlacedStage("server", 4, 1), PlacedStage("server", 2, 1))
    assert judge.placed(judge.chosen(placed)) == placed
    assert json.loads(json.dumps(asdict(question())))["pipelines"][0]["name"] == "traffic"
    with pytest.raises(ValueError, match="not in list"):
        judge.chosen(
            [PlacedStage("edge", configuration=0), PlacedStage("nowhere"), PlacedStage("edge")]
        )


def test_burstiness_is_of_the_last_minute():
    assert burstiness(np.arange(100) / 10) == pytest.approx(0.0, abs=1e-6)
    assert burstiness([0.0, 1.0]) == 1.0
    assert burstiness([0.0, 500.0, 501.0, 502.0, 503.0]) == pytest.approx(0.0)
    grouped = np.repeat(np.random.default_rng(1).exponential(1.0, 4000).cumsum() / 80, 4)
    assert burstiness(grouped) == pytest.approx((2 * 4 - 1) ** 0.5, rel=0.1)


def test_the_better_score_serves_more_then_works_less():
    assert better(PlacementScore(10.0, -5.0), PlacementScore(9.0, 0.0))
    assert better(PlacementScore(10.0, -1.0), PlacementScore(10.0 + 1e-12, -2.0))
    assert not better(PlacementScore(10.0, -1.0), PlacementScore(10.0, -1.0))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pipelines": (replace(TRAFFIC, source="moon"),)}, "traffic.*source.*moon"),
        ({"pipelines": (replace(TRAFFIC, slo=0.0),)}, "traffic.*slo"),
        ({"pipelines": (replace(TRAFFIC, rate=-1.0),)}, "traffic.*rate"),
        ({"pipelines": (replace(TRAFFIC, stages=()),)}, "traffic.*at least one stage"),
        ({"pipelines": (TRAFFIC, TRAFFIC)}, "pipelines: expected distinct names"),
        ({"pipelines": (replace(TRAFFIC, stages=TRAFFIC.stages[::-1]),)}, "plate.*source first"),
        ({"batches": (2, 4)}, "batches"),
        ({"links": (LinkView("edge", "sea", 1.0),)}, "no device 'sea'"),
        ({"links": (LinkView("edge", "server", -1.0),)}, "bandwidth"),
        (
            {"devices": (replace(EDGE, memory=1e6), replace(SERVER, memory=1e6))},
            "'detector': fits no device.*edge: needs 120000000 of 1000000 bytes",
        ),
        ({"devices": (replace(EDGE, kind="x"), replace(SERVER, kind="y"))}, "no times for .* 'x'"),
    ],
)
def test_a_question_that_cannot_be_is_told(change, complaint):
    with pytest.raises(PlacementError, match=complaint):
        replace(question(), **change)


def test_no_bandwidth_leaves_everything_at_home():
    judge = estimator(question(bandwidth=0.0))
    assert judge.estimate(judge.chosen([PlacedStage("server")] * 3)).score.worth == 0.0
    assert judge.estimate(judge.chosen([PlacedStage("edge")] * 3)).score.worth > 0.0


def test_random_questions_can_be_asked():
    for seed in range(50):
        problem = at_random(np.random.default_rng(seed))
        judge = estimator(problem)
        for costs in zip(*map(judge.choices, range(len(judge.rates))), strict=False):
            estimate = judge.estimate(costs)
            assert 0.0 <= estimate.worth <= sum(judge.rates[at] for at in judge.sinks) + 1e-9
