"""Lanes that are resized in virtual time, by plans and by planners, and what it is charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slacktide.domain import LaneSpec, PlanChanged, Reason, Request, ResizeLane
from slacktide.engine import Engine, EngineSettings
from slacktide.lab.load.report import Provenance
from slacktide.lab.replay import replay
from slacktide.lab.simulation import Simulation, predict
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.recorded_inputs import recorded_inputs
from slacktide.lab.simulation.scenario import ScenarioError, build, run_cell
from slacktide.lab.simulation.scenario.profiles import TableProfile
from slacktide.lab.simulation.scenario.reading import parse_scenario
from slacktide.lab.simulation.scenario.world import World
from slacktide.planning.scaling import ScalingPlanner
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.profiles import CorrectedTimes, PointTime
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times

SCENARIO = """\
duration: 20s
cores: 4
resize_s: 2ms
start_s: 100ms
scheduler: edf
models:
  m:
    cores: {min: 1, max: 4}
    latency:
      batches: [1, 4]
      cores: [1, 2, 4]
      p50: [[100ms, 52ms, 28ms], [340ms, 175ms, 90ms]]
applications:
  calm:
    model: m
    arrivals: poisson:4
    slo: 400ms
  hasty:
    model: m
    arrivals: onoff:30:1:500ms:4s
    slo: 250ms
"""


def sized(make: Any, cores: int) -> PlanChanged:
    plan = make.plan()
    return PlanChanged(replace(plan, lanes=(LaneSpec("lane0", tuple(range(cores))),)))


class TestPlansThatResize:
    @pytest.fixture
    def make(self, make: Any) -> Any:
        """The builders, with batch times that cores divide among them."""

        class Divided(make.LinearTimes):  # type: ignore[misc, name-defined]
            def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
                return PointTime(super().of(rows, cores).expected / cores)

        make.Divided = Divided
        return make

    def world(self, make: Any, **fields: Any) -> Any:
        world = make.world(**fields)
        times = make.Divided(0.0, 1.0)
        world.times = times
        world.engine = world.fresh_engine()
        world.simulation = Simulation(
            world.engine,
            world.plan,
            times,
            answered=world._answered,
            watch=world._watch,
            resize_s=0.25,
            check=True,
        )
        return world

    def test_the_rest_of_a_batch_takes_less_time_on_more_cores(self, make: Any) -> None:
        world = self.world(make).run(make.request(1, 0.0), ExternalEvent(0.25, sized(make, 2)))
        # Half a second on one core, a quarter on two.
        assert world.outcomes[1].at == pytest.approx(0.75)
        assert world.simulation.hardware.busy_s == pytest.approx(0.5 + 0.5)

    def test_and_more_time_on_fewer(self, make: Any) -> None:
        world = self.world(make)
        world.run(
            ExternalEvent(0.0, sized(make, 2)),
            make.request(1, 1.0),
            ExternalEvent(1.0, sized(make, 1)),
            make.request(2, 10.0),
        )
        assert world.outcomes[1].at == pytest.approx(1.0 + 0.25 + 0.5)
        assert world.outcomes[2].at == pytest.approx(11.0)

    def test_a_superseded_resize_never_happens(self, make: Any) -> None:
        world = self.world(make)
        world.run(
            ExternalEvent(1.0, sized(make, 3)),
            ExternalEvent(1.125, sized(make, 2)),
            make.request(1, 9.0),
        )
        resized = [now for now, names in world.events if names == "LaneResized"]
        assert resized == [1.375]
        assert world.simulation.hardware.allocated.seconds(0.0, 2.0) == 1.375 + 2 * 0.625

    def test_cores_count_from_their_confirmation_busy_or_not(self, make: Any) -> None:
        world = self.world(make).run(
            ExternalEvent(1.0, sized(make, 3)),
            ExternalEvent(2.0, sized(make, 1)),
            make.request(1, 9.0),
        )
        allocated = world.simulation.hardware.allocated
        assert allocated.seconds(0.0, 1.25) == 1.25
        assert allocated.seconds(1.25, 2.25) == 3.0
        assert allocated.seconds(2.25, 4.25) == 2.0


class TestScenariosWithPlanners:
    def read(self, tmp_path: Path, *settings: str) -> Any:
        (cell,) = parse_scenario(SCENARIO, "s.yaml", tmp_path, settings)
        return cell

    def test_a_planner_serves_as_much_as_the_machine_on_fewer_cores(self, tmp_path: Path) -> None:
        fixed = run_cell(self.read(tmp_path, "models.m.scaling={name: static, cores: 4}"), 1)
        scaled = run_cell(self.read(tmp_path), 1)
        assert fixed.mean_cores == 4.0
        assert fixed.core_seconds == 80.0
        assert scaled.mean_cores is not None
        assert scaled.mean_cores < 3.0
        assert scaled.total.violation_rate <= fixed.total.violation_rate + 0.05
        assert sum(scaled.timeline.cores) == pytest.approx(scaled.core_seconds)
        assert scaled.cores is not None
        assert scaled.cores < scaled.mean_cores, "busy ones are but a part of them"
        document = scaled.to_dict()
        assert document["total"]["violation_rate"] == 1.0 - scaled.goodput

    @pytest.mark.parametrize("planner", ["vertical", "joint", "horizontal"])
    def test_requests_that_no_cores_can_save_take_none(self, tmp_path: Path, planner: str) -> None:
        """Whether their payload is on its way for longer than they have, or they have less time
        than the model takes on all cores: cores are those of the others, and one without them."""
        lost = (
            "applications.lost={model: m, arrivals: 'poisson:60', slo: 200ms, "
            "link: {bandwidth: 1MB, rtt: 20ms, payload: 500kB}}"
        )
        hurried = "applications.hurried={model: m, arrivals: 'poisson:15', slo: 5ms}"
        saved = "applications={saved: {model: m, arrivals: 'poisson:15', slo: 200ms}}"

        def report(*settings: str) -> Any:
            world = (f"models.m.scaling={planner}", "models.m.replicas={max: 2}", "warmup=5s")
            return run_cell(self.read(tmp_path, *world, *settings), 1)

        alone = report(saved)
        assert alone.mean_cores > 1.0
        for hopeless in (lost, hurried):
            mixed = report(saved, hopeless)
            assert mixed.total.on_time == pytest.approx(alone.total.on_time, rel=0.03)
            assert mixed.mean_cores == pytest.approx(alone.mean_cores, rel=0.03)
            by_itself = report("applications={}", hopeless)
            assert by_itself.goodput == 0.0
            assert by_itself.mean_cores == 1.0

    @pytest.mark.parametrize("planner", sorted(SCALING_POLICIES))
    def test_every_planner_runs_and_repeats(self, tmp_path: Path, planner: str) -> None:
        cell = self.read(
            tmp_path, "duration=4s", f"models.m.scaling={planner}", "models.m.replicas={max: 2}"
        )
        first, second = (run_cell(cell, 3).to_dict() for _ in range(2))
        assert first["total"] == second["total"]
        assert first["core_seconds"] == second["core_seconds"]
        assert 1.0 <= first["mean_cores"] <= 4.0

    def test_the_engine_keeps_its_word_under_a_planner(self, tmp_path: Path) -> None:
        world = build(self.read(tmp_path, "duration=5s", "models.m.replicas={max: 2}"))
        simulation = world.simulation(1)
        simulation._check = True
        simulation.run(world.items(1))

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("models.m.cores={min: 3, max: 2}", "models.m.cores: expected min at most max"),
            ("models.m.cores={min: 0, max: 2}", "models.m.cores.min: expected greater than or"),
            (
                "models.m.cores={min: 1, max: 5}",
                "cores.max: needs 5 cores, but the server may use only 4; "
                "'cores' of the scenario gives it more",
            ),
            ("models.m.cores={min: 5, max: 6}", "cores.min: needs 5 cores, but the server may"),
            (
                "models.m.scaling=verticle",
                "models.m.scaling.name: expected a scaling policy, got 'verticle'; did you mean",
            ),
            (
                "models.m.scaling={name: static, core: 2}",
                "models.m.scaling.core: unknown key; did you mean 'cores'",
            ),
            ("models.m.cores=2", None),
            ("models.m.latency.cores=[1, 2, 3]", "models.m.cores: the profile of 'm' "),
        ],
    )
    def test_invalid_settings_are_named(
        self, tmp_path: Path, setting: str, message: str | None
    ) -> None:
        if message is None:
            build(self.read(tmp_path, setting))
            return
        with pytest.raises(ScenarioError) as caught:
            build(self.read(tmp_path, setting))
        assert message in str(caught.value)


class TestRecordings:
    @pytest.fixture
    def recording(self, tmp_path: Path) -> Recording:
        """A run under a planner, recorded as a server records."""
        (cell,) = parse_scenario(SCENARIO, "s.yaml", tmp_path)
        world = build(cell)
        recorder = Recorder(tmp_path / "run.rec", EngineSettings(), limit=1 << 26)
        profile = world.models["m"].profile
        assert isinstance(profile, TableProfile)

        def parts(pool: Any, max_batch: int, view: Any) -> Any:
            recipe = world.models["m"].scheduler
            times = CorrectedTimes(profile.record.table)
            recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
            return recipe.parts(times, max_batch=max_batch, view=view)

        def watch(events: Any, now: float, commands: Any) -> None:
            recorder.called(events, now, commands)
            recorder.encode()

        engine = Engine(parts, EngineSettings())
        simulation = Simulation(
            engine,
            world.plan,
            world.execution(1),
            watch=watch,
            start_s=0.01,
            resize_s=0.002,
            planners=(ScalingPlanner(world.cores),),
            stated=world.scaled,
        )
        simulation.run(world.items(1))
        recorder.close()
        return Recording(tmp_path / "run.rec")

    def test_a_recording_replays_without_the_planner(self, recording: Recording) -> None:
        replayed = replay(recording)
        assert replayed.difference is None
        assert replayed.calls > 100
        resizes = [
            command
            for line in recording.lines()
            for command in getattr(line.record, "commands", ())
            if command[0] == ResizeLane.__name__
        ]
        assert len(resizes) > 5

    def test_a_prediction_follows_the_recorded_plans(self, recording: Recording) -> None:
        inputs = recorded_inputs(line.record for line in recording.lines())
        assert inputs.resize_s == pytest.approx(0.002)
        prediction = predict(recording, seeds=(1, 2), provenance=Provenance("", {}, ""))
        assert abs(prediction.difference) < 0.05


def test_the_world_of_a_scenario_without_ranges_has_no_planner(tmp_path: Path) -> None:
    (cell,) = parse_scenario(SCENARIO, "s.yaml", tmp_path, ["models.m.cores=2"])
    world: World = build(cell)
    assert world.scaled == {}
    report = run_cell(cell, 1)
    assert report.mean_cores == 2.0
    assert report.total.reasons[Reason.ON_TIME.label] > 0
