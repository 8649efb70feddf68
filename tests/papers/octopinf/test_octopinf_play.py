"""The setting of OctopInf, and one cell of every contender, tiny."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slacktide.planning.pipelines.control import PlacementControl
from slacktide.planning.pipelines.policies import make_placement
from slacktide_papers.bounds.exact import SolverMissingError
from slacktide_papers.harness.experiments import Contender, TraceCell
from slacktide_papers.harness.state import ReproduceError
from slacktide_papers.octopinf.play import _PlayedCell, memory_of, play
from slacktide_papers.octopinf.setting import (
    DAY_S,
    SETTINGS,
    OctopInfTestbed,
    configuration_of,
    level,
    load_data,
)

CONTENDERS = ("pipeline", "octopinf", "distream", "rim", "jellyfish")


def cell(name: str, setting: str = "base", seconds: int = 3, **options: float) -> TraceCell:
    return TraceCell(setting, Contender(name, name, tuple(sorted(options.items()))), 1, seconds)


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_plays_the_same_frames_twice_alike(name: str) -> None:
    first, second = play(cell(name)), play(cell(name))
    assert replace(first, cpu_s=0.0, planning_s=0.0) == replace(second, cpu_s=0.0, planning_s=0.0)
    assert first.frames == 9 * 45
    assert 0 < first.in_time <= first.offered
    assert first.offered == play(cell("octopinf", edge=0)).offered
    assert sum(sum(counts) for counts in first.timeline) == first.offered + first.in_time
    assert first.memory_gb > 1.0
    assert len(first.instances) == 3


@pytest.mark.slow
def test_a_plan_made_for_a_surge_follows_links_alone() -> None:
    run = _PlayedCell(cell("pipeline", "surges", seconds=20, fixed=3.0))
    first = run.question
    plain = OctopInfTestbed(SETTINGS["surges"], load_data(None), 1, warm=20).question()
    for view, stated in zip(first.pipelines, plain.pipelines, strict=True):
        for rate, once in zip(view.rates()[1:], stated.rates()[1:], strict=True):
            assert rate == pytest.approx(3.0 * once)
    assert run.played().plans[1] > 0
    assert run.control.plans is not None
    last = run.control.plans.question
    assert last.pipelines == first.pipelines
    assert last.links != first.links


def test_a_plan_made_for_a_surge_keeps_its_instances() -> None:
    """Nothing is counted, which the autoscaler would take for a rate of 0."""
    for options, changes in (({"fixed": 3.0}, False), ({}, True)):
        control = _PlayedCell(cell("octopinf", "surges", **options)).control
        control.decide(now=0.0)
        for now in range(0, 600, 5):
            control.look(now=float(now))
        assert (control.scaled > 0) is changes


def test_without_a_solver_there_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(question: object, **of: object) -> float:
        raise SolverMissingError("it needs scipy")

    monkeypatch.setattr("slacktide_papers.octopinf.play.fluid_bound", missing)
    played = play(cell("pipeline", bound=1))
    assert played.bounds == {}
    assert played.in_time > 0


def test_bounds_are_above_what_is_served() -> None:
    pytest.importorskip("scipy")
    played = play(cell("pipeline", bound=1))
    assert played.in_time / played.seconds <= played.bounds["fluid"] * 1.05  # of half a minute


def test_settings_differ_in_what_the_paper_changes() -> None:
    data = load_data(None)
    base, doubled = (OctopInfTestbed(SETTINGS[name], data, 1) for name in ("base", "doubled"))
    assert len(base.rows) == 9
    assert len(doubled.rows) == 18
    strict = OctopInfTestbed(SETTINGS["slo-100"], data, 1)
    slos = {camera.slo for cameras in strict.cameras.values() for camera in cameras}
    assert sorted(slos) == pytest.approx([0.1, 0.2])
    sizes = [camera.nbytes for cameras in base.cameras.values() for camera in cameras]
    assert (min(sizes), max(sizes)) == (60e3, 250e3)
    question = base.question()
    assert {device.kind for device in question.devices} == {"server", "agx", "nx", "nano"}
    assert all(len(pipeline.stages) == 5 for pipeline in question.pipelines)
    assert len(base.question(sizes=True).pipelines[0].stages[0].configurations) == 5


def test_the_day_has_two_peaks_of_traffic_and_one_of_people() -> None:
    hours = [level("traffic", 3600.0 * hour) for hour in range(int(DAY_S / 3600.0) + 1)]
    assert max(hours) == hours[11]
    assert hours[6] < hours[2]
    assert level("surveillance", 6 * 3600.0) == pytest.approx(1.2)


def test_a_surge_is_three_times_as_much_for_two_minutes() -> None:
    testbed = OctopInfTestbed(SETTINGS["surges"], load_data(None), 1)
    camera = next(iter(testbed.cameras.values()))[0]
    assert camera.level(360.0) == pytest.approx(3.0 * camera.level(299.0), rel=0.01)
    assert camera.level(421.0) == pytest.approx(camera.level(299.0), rel=0.01)


def test_a_stream_needs_the_largest_of_what_runs_on_it_whoever_places() -> None:
    question = OctopInfTestbed(SETTINGS["base"], load_data(None), 1).question()
    for name in ("pipeline", "octopinf", "distream"):
        control = PlacementControl(question, make_placement(name))
        control.decide(now=0.0)
        plans = control.plans
        assert plans is not None
        on = [replica for replica in plans.replicas if replica.device == "server"]
        streams: dict[int, float] = {}
        for replica in on:
            needed = configuration_of(replica.model).intermediate
            streams[replica.lane] = max(streams.get(replica.lane, 0.0), needed)
        before = memory_of(plans)
        plans.replicas = tuple(replace(replica, lane=0) for replica in plans.replicas)
        saved = sum(streams.values()) - max(streams.values(), default=0.0)
        assert memory_of(plans) == pytest.approx(before - saved)


def test_bad_counts_are_named(tmp_path: Path) -> None:
    (tmp_path / "octopinf_object_counts.csv").write_text(
        "video,frame,time_s,persons,cars\ntraffic1,0,0.0,1,-3\n"
    )
    (tmp_path / "octopinf_5g_30s.csv").write_text("trace_id,time_s,bandwidth_mbps\n1,0,50\n")
    with pytest.raises(ReproduceError, match="line 2, cars: must not be negative, got '-3'"):
        load_data(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ReproduceError, match=r"expected octopinf_object_counts\.csv under"):
        load_data(empty)
