"""All five in one: its setting, and short runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide_papers.harness.experiments import Contender, TraceCell
from slacktide_papers.octopinf.five_play import _Run
from slacktide_papers.octopinf.five_setting import (
    ALL_CORES,
    BATCHES,
    CORES,
    DAY_S,
    FIXED,
    LANE_CORES,
    MECHANISMS,
    PLATE,
    SLOWER,
    VARIANTS,
    FiveSwitches,
    FiveTestbed,
    bytes_share,
    day_begins,
    exit_table,
    lanes_on,
    level,
    mean_plate_table,
    plate_sizes,
    table_of,
)
from slacktide_papers.octopinf.play import play
from slacktide_papers.octopinf.setting import load_data


def cell(*on: str, seconds: int = 3) -> TraceCell:
    options = tuple(sorted((name, 1.0) for name in on))
    return TraceCell("all-five", Contender("some", "pipeline", options), 1, seconds)


@pytest.mark.parametrize("on", [(), MECHANISMS])
def test_a_run_repeats_exactly(on: tuple[str, ...]) -> None:
    first, second = play(cell(*on, seconds=2)), play(cell(*on, seconds=2))
    assert replace(first, cpu_s=0.0) == replace(second, cpu_s=0.0)
    assert first.frames == 4 * 30
    assert first.complete + first.partial <= first.frames
    assert 0.0 < first.worth < first.in_time <= first.offered
    assert first.offered == play(cell(seconds=2)).offered


def test_mechanisms_that_are_off_do_nothing() -> None:
    played = play(cell())
    assert played.acted == {}
    assert played.cores[0] == pytest.approx(ALL_CORES)
    assert played.plans[0] == 1
    exact = {str(side): exact for side, exact, _ in VARIANTS}[str(FIXED)]
    assert played.worth == pytest.approx(exact * played.in_time)


@pytest.mark.parametrize(
    ("on", "action"),
    [
        ("exits", "rows that left early"),
        ("distribution", "plates told by width"),
        ("cores", "lanes resized"),
    ],
)
def test_each_mechanism_is_seen_to_act_alone(on: str, action: str) -> None:
    acted = play(cell(on, seconds=6)).acted
    assert acted[action] > 0
    assert len(acted) == 1


def test_variants_are_those_for_which_frames_are_sent() -> None:
    run = _Run(FiveSwitches(variants=True, placement=True), load_data(None), 1, 3.0)
    run.played()
    plans = run.control.plans
    assert plans is not None
    for name in run.testbed.kinds:
        plan, stated = run._begun(plans, name)
        names = {
            deployment.pool.variant
            for deployment in plan.deployments
            if deployment.pool.model == "detector"
        }
        if not names:
            assert "detector" not in stated
            continue
        largest = run._largest(plans, name)
        assert names == {str(side) for side, _, _ in VARIANTS if FIXED <= side <= largest}
        detectors = [
            (view.source == name, placed[0])
            for view, placed in zip(plans.question.pipelines, plans.answer.pipelines, strict=True)
            if placed[0].device == name
        ]
        assert detectors
        if all(is_source for is_source, _ in detectors):
            assert largest == VARIANTS[-1][0]


def test_a_short_run_is_about_noon() -> None:
    assert day_begins(DAY_S) == 0.0
    assert level(0.0) < level(0.5 * DAY_S)
    assert day_begins(40.0) == 100.0
    assert level(105.0) == pytest.approx(3.0 * level(135.0), rel=0.1)


def test_times_are_of_lanes_and_cores() -> None:
    for kind, cores in CORES.items():
        table = table_of("detector", str(FIXED), kind)
        assert table.expected(1, 1) == pytest.approx(1e-3 * SLOWER[kind] * 13.6)
        assert table.expected(1, cores) < table.expected(1, 2) < table.expected(1, 1)
        assert [len(lane.cores) for lane in lanes_on(kind)] == [LANE_CORES] * (cores // LANE_CORES)
        mean = mean_plate_table(kind).expected(BATCHES[-1], 1)
        narrow, *_ = plate_sizes(kind)
        assert narrow.seconds < mean / BATCHES[-1] * 2.0
    assert bytes_share(VARIANTS[-1][0]) == 1.0
    assert bytes_share(FIXED) < 1.0


def test_the_exit_table_is_small_and_whole() -> None:
    table = exit_table()
    assert len(table) == 2000
    assert len(table.positions) == 4
    assert table.agrees.mean(axis=0).tolist() == sorted(table.agrees.mean(axis=0).tolist())


def test_the_usual_variant_leaves_half_of_the_cores_idle_on_average() -> None:
    """What the setting was chosen for, in lane seconds of the cores that are slowest."""
    question = FiveTestbed(load_data(None), 1).question()
    view = question.pipelines[0]
    rates = view.rates()
    work = {}
    for kind in CORES:
        seconds = [
            next(times for times in stage.configurations[0].times if times.kind == kind).expected[0]
            for stage in view.stages
        ]
        work[kind] = len(question.pipelines) * sum(map(float.__mul__, rates, seconds))
    lanes = {kind: cores // LANE_CORES for kind, cores in CORES.items()}
    share = 1.0 / (lanes["server"] / work["server"] + 2 * lanes["box"] / work["box"])
    assert 0.4 < share < 0.7
    assert work["box"] > 2 * lanes["box"]
    assert view.stages[2].name == PLATE
