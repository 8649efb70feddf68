"""The fluid bound: above whatever can be placed, and no higher than the rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import TRAFFIC, at_random, configuration, question

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.estimate import PipelineEstimator
from slacktide.planning.pipelines.search import search
from slacktide_papers.bounds.fluid import fluid_bound

WHOLE = EstimateRules(budget=1.0)


def test_it_is_all_that_is_offered_where_there_is_room():
    assert fluid_bound(question()) == pytest.approx(90.0)
    assert fluid_bound(question(replace(TRAFFIC, rate=0.0))) == 0.0


def test_a_link_bounds_what_the_edge_cannot_do():
    """Frames of 100 kB at 1 MB/s: ten a second, where no stage can be at the edge."""
    stages = tuple(replace(stage, devices=("server",)) for stage in TRAFFIC.stages)
    query = question(replace(TRAFFIC, slo=0.5, stages=stages), bandwidth=1e6)
    assert fluid_bound(query) == pytest.approx(10 * 6.0)


def test_lanes_bound_it_and_a_branch_is_given_up_for_another():
    """At the edge a frame takes 4 × (4 ms + 4 brands of 1 ms + 2 plates of 4 ms), and a little."""
    heavy = replace(TRAFFIC.stages[2], configurations=(configuration(0.001, 0.004),))
    stages = (*TRAFFIC.stages[:2], heavy)
    query = question(replace(TRAFFIC, rate=60.0, slo=9.0, stages=stages), bandwidth=0.0)
    detector, brands = 4 * (0.004 + 0.003 / 64), 16 * (0.001 + 0.001 / 64)
    assert fluid_bound(query) == pytest.approx(4 / (detector + brands))


def test_a_path_that_cannot_be_in_time_does_not_count():
    """Over and back in 5 ms each, the detector in 7, a brand in 2; a plate takes 3."""
    query = question(replace(TRAFFIC, slo=0.0195), bandwidth=1e9)
    assert fluid_bound(query) == pytest.approx(60.0)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_is_placed_serves_more(seed):
    query = at_random(np.random.default_rng(seed), configurations=2)
    judge = PipelineEstimator(query, query.pipelines[0], WHOLE)
    estimate = judge.estimate(judge.chosen(search(query, WHOLE)[0]))
    assert estimate.worth <= fluid_bound(query) + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_fewer_choices_and_accuracies_lower_it(seed):
    query = at_random(np.random.default_rng(seed), configurations=2)
    whole = fluid_bound(query)
    undivided, weighted = fluid_bound(query, divided=False), fluid_bound(query, weighted=True)
    assert undivided <= whole + 1e-6
    assert weighted <= whole + 1e-6
    assert fluid_bound(query, divided=False, weighted=True) <= min(undivided, weighted) + 1e-6


def test_an_undivided_camera_is_at_home_or_on_the_server():
    """The edge carries 20 frames/s, the link ten: 30 together, 20 where a camera is whole."""
    edge = configuration(0.0, 0.0125)  # 50 ms at the edge, which is four times as slow
    detector = replace(TRAFFIC.stages[0], configurations=(edge,), row_bytes=1e5)
    query = question(replace(TRAFFIC, rate=40.0, slo=0.9, stages=(detector,)), bandwidth=1e6)
    assert fluid_bound(query) == pytest.approx(30.0)
    assert fluid_bound(query, divided=False) == pytest.approx(20.0)


def test_weighted_rows_count_the_accuracy_of_a_variant():
    """The small variant is twice as fast, and its answers count half: both give the same."""
    small = configuration(0.0, 0.00625, name="small", accuracy=0.3)
    large = configuration(0.0, 0.0125, name="large", accuracy=0.6)
    detector = replace(TRAFFIC.stages[0], configurations=(small, large))
    query = question(replace(TRAFFIC, rate=40.0, slo=0.9, stages=(detector,)), bandwidth=0.0)
    assert fluid_bound(query) == pytest.approx(40.0)
    assert fluid_bound(query, weighted=True) == pytest.approx(20.0)
