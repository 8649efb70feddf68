"""Pipelines of one device, placed together."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tests.planning.pipelines.questions import TRAFFIC, configuration, question

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.estimate import score_of_all, total_score
from slacktide.planning.pipelines.joint_search import climbed
from slacktide.planning.pipelines.problem import Inflow, StageView
from slacktide.planning.pipelines.search import search

RULES = EstimateRules(budget=0.9, fill=False, late_chance=0.05)


def pair(seed: int):
    """Two pipelines of two stages on one device, with too little of everything."""
    draw = np.random.default_rng(seed)
    views = []
    for name in ("left", "right"):
        stages = []
        for at in range(2):
            base, row = draw.uniform(0.001, 0.004), draw.uniform(0.002, 0.009)
            stages.append(
                StageView(
                    f"s{at}",
                    (configuration(base, row),),
                    (Inflow(0, draw.uniform(0.5, 3.0)),) if at else (),
                    row_bytes=draw.uniform(2e4, 2e5),
                )
            )
        slo, rate = draw.uniform(0.1, 0.4), draw.uniform(8, 25)
        views.append(replace(TRAFFIC, name=name, slo=slo, rate=rate, stages=tuple(stages)))
    return question(*views, bandwidth=draw.uniform(1e6, 4e6), batches=(1, 2, 4))


def best_of_all(asked) -> float:
    from slacktide.planning.pipelines.estimate import make_estimators

    estimators = make_estimators(asked, RULES)
    choices = [
        [list(c) for c in product(*(e.choices(at) for at in range(len(e.rates))))]
        for e in estimators
    ]
    return max(score_of_all(estimators, costs).worth for costs in product(*choices))


@pytest.mark.parametrize("seed", range(12))
def test_a_climb_finds_what_is_best_for_both(seed):
    asked = pair(seed)
    placed = search(asked, RULES)
    together = climbed(asked, placed, RULES)
    worth = total_score(asked, together, RULES).worth
    assert worth >= total_score(asked, placed, RULES).worth - 1e-9
    assert worth >= 0.98 * best_of_all(asked)


def test_pipelines_that_share_no_device_stay():
    asked = question()
    placed = search(asked, RULES)
    assert climbed(asked, placed, RULES) == placed
