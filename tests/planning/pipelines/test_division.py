"""Pipelines whose frames divide between the camera's device and a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import EDGE, SERVER, TRAFFIC, at_random, question

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.division import divide
from slacktide.planning.pipelines.estimate import total_score
from slacktide.planning.pipelines.plans import DevicePlans, placed_whole
from slacktide.planning.pipelines.problem import Inflow, PlacedStage
from slacktide.planning.pipelines.search import search

RULES = EstimateRules(budget=0.9, fill=False)
AWAY = (PlacedStage("server"), PlacedStage("server", 4), PlacedStage("server", 2))
HOME = (PlacedStage("edge"), PlacedStage("edge", 2), PlacedStage("server", 2))


def places(asked, placed) -> dict[str, tuple[str, str]]:
    plans = DevicePlans(asked, divide(asked, (placed,), RULES))
    assert plans.of("server").places == ()
    return {place.stage: (place.device, place.takes) for place in plans.of("edge").places}


def test_a_pipeline_at_home_has_a_spare_on_the_server():
    assert places(question(), HOME) == {
        "detector": ("server", "late"),
        "brand": ("server", "late"),
        "plate": ("server", "all"),
    }
    answer = divide(question(), (HOME,), RULES)
    assert {stage.device for stage in answer.spares[0]} == {"server"}
    server = DevicePlans(question(), answer).of("server")
    served = {deployment.pool.model for deployment in server.deployments}
    assert served == {"traffic/detector", "traffic/brand", "traffic/plate"}


def test_a_pipeline_on_the_server_has_a_spare_at_home_as_far_as_memory_goes():
    assert places(question(), AWAY) == dict.fromkeys(
        ("detector", "brand", "plate"), ("server", "timely")
    )
    small = replace(EDGE, memory=3e8)  # for two models of 120 MB
    assert places(question(devices=(small, SERVER)), AWAY) == {
        "detector": ("server", "timely"),
        "brand": ("server", "timely"),
        "plate": ("server", "all"),
    }
    none = replace(EDGE, memory=1.2e8)
    filled = question(TRAFFIC, replace(TRAFFIC, name="other"), devices=(none, SERVER))
    answer = divide(filled, (AWAY, AWAY), RULES)
    assert [len(spare) for spare in answer.spares] == [3, 0]


def test_some_pipelines_are_not_divided():
    back = (PlacedStage("server"), PlacedStage("edge"), PlacedStage("server"))
    assert divide(question(), (back,), RULES).spares == ((),)
    join = replace(TRAFFIC.stages[2], inflows=(Inflow(0, 1.0), Inflow(1, 1.0)))
    joined = question(replace(TRAFFIC, stages=(*TRAFFIC.stages[:2], join)))
    assert divide(joined, (AWAY,), RULES).spares == ((),)
    hosted = question(devices=(replace(EDGE, server=True), SERVER))
    assert divide(hosted, (AWAY,), RULES).spares == ((),)


def test_what_would_be_late_in_any_case_is_not_handed_over():
    assert places(question(bandwidth=1e5), HOME) == {"plate": ("server", "all")}


@pytest.mark.parametrize("seed", range(40))
def test_spares_change_no_estimate_and_every_stage_of_a_spare_is_served(seed):
    asked = at_random(np.random.default_rng(seed), configurations=2)
    placed = placed_whole(asked, search(asked, RULES))
    answer = divide(asked, placed, RULES)
    assert answer.pipelines == placed
    whole, both = answer.with_spares(asked)
    assert total_score(whole, both, RULES).worth == pytest.approx(
        total_score(asked, placed, RULES).worth
    )
    plans = DevicePlans(asked, answer)
    source = asked.pipelines[0].source
    for stage, view in zip(answer.spares[0], asked.pipelines[0].stages, strict=False):
        models = {deployment.pool.model for deployment in plans.of(stage.device).deployments}
        assert view.model_in(asked.pipelines[0]) in models
    for place in plans.of(source).places:
        models = {deployment.pool.model for deployment in plans.of(source).deployments}
        assert (f"{place.pipeline}/{place.stage}" in models) == (place.takes != "all")
