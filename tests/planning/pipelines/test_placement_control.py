"""When pipelines are placed anew: every so often, by instances, when a prediction is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planning.pipelines.questions import TRAFFIC, question

from slacktide.domain.options import OptionError
from slacktide.planning.pipelines.control import (
    INTERVAL_S,
    WATCHED_S,
    PlacementControl,
    PlacementDecision,
)
from slacktide.planning.pipelines.demand import PipelineCounts
from slacktide.planning.pipelines.instances import StageInstances
from slacktide.planning.pipelines.policies import PLACEMENTS, make_placement
from slacktide.planning.pipelines.problem import LinkView

PLAIN = {"stretch": 1.0, "calibrate": False}


class World:
    """Counts as of a camera with so many frames and brands per second."""

    def __init__(self, name: str, asked=None, **options) -> None:
        self.asked = question() if asked is None else asked
        if name == "pipeline":
            options = {**PLAIN, **options}
        self.control = PlacementControl(self.asked, make_placement(name, options))
        self.control.decide(now=0.0)
        self.now = 0.0
        self.frames = self.brands = 0
        self.rate, self.fan_out, self.bandwidth = 15, 4, 10e6
        self.decided: list[float] = []
        self.reasons: list[str] = []

    def runs(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.frames += self.rate
            self.brands += self.rate * self.fan_out
            plates = self.frames * 2
            edges = {
                ("detector", "brand"): (self.frames, self.brands),
                ("detector", "plate"): (self.frames, plates),
            }
            stages = {
                stage: (rows, 0, 0.0, 0.0)
                for stage, rows in (
                    ("detector", self.frames),
                    ("brand", self.brands),
                    ("plate", plates),
                )
            }
            counts = PipelineCounts(self.frames, edges, stages)
            self.control.count("edge", {"traffic": counts, "unknown": counts}, now=self.now)
            self.control.measure((LinkView("edge", "server", self.bandwidth),), now=self.now)
            if self.control.next_wakeup() <= self.now:
                self.control.look(now=self.now)
                compute = self.control.job(now=self.now)
                if compute is not None:
                    self.control.accept(compute(), now=self.now)
                    self.decided.append(self.now)
                    self.reasons.append(self.control.reason)

    @property
    def instances(self) -> int:
        return sum(stage.replicas for stage in self.control.plans.answer.pipelines[0])

    @property
    def devices(self) -> list[str]:
        return [stage.device for stage in self.control.plans.answer.pipelines[0]]


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_it_plans_every_few_minutes_from_what_was_measured(name):
    world = World(name)
    every = WATCHED_S if world.control.policy.watches else INTERVAL_S
    world.fan_out = 3
    world.runs(2 * int(INTERVAL_S) + 61)
    if not world.control.early:
        count = int(2 * INTERVAL_S / every) + 1
        assert world.decided == [60.0 + at * every for at in range(count)]
    assert world.control.decided == len(world.decided) + 1
    (view,) = world.control.plans.question.pipelines
    assert view.rate == pytest.approx(15.0)
    assert view.stages[1].inflows[0].fan_out == pytest.approx(3.0)
    plans = [world.control.plans.of(device.name) for device in world.asked.devices]
    assert sum(len(plan.deployments) for plan in plans) >= 3


def test_published_instances_take_windows_in_a_surge_and_give_them_back():
    world = World("octopinf", question(replace(TRAFFIC, rate=60.0), bandwidth=60e6))
    world.bandwidth, world.rate = 60e6, 60
    world.runs(61)
    world.decided.clear()
    before, placed_windows = world.instances, world.control.plans.answer.windows
    world.fan_out = 30
    world.runs(40)
    assert world.decided == []
    assert world.instances > before
    answer = world.control.plans.answer
    assert len(answer.windows) + len(answer.unscheduled) == world.instances
    plans = world.control.plans
    windows = [t for (device, _), t in plans.timetables.items() if device == "server"]
    assert sum(len(window.windows) for window in windows) >= len(answer.windows) - 1
    world.fan_out = 4
    world.runs(250)
    assert before <= world.instances <= before + 2  # so many that 0.7 of them would be enough
    assert set(world.control.plans.answer.windows) >= set(placed_windows)
    assert world.control.scaled >= 2
    assert world.control.reason in ("regular plan", "instances were scaled to the measured rows")


@pytest.mark.parametrize("name", ["octopinf", "pipeline"])
def test_after_each_of_ten_surges_all_is_given_back(name):
    world = World(name, question(replace(TRAFFIC, rate=60.0), bandwidth=60e6))
    world.rate, world.bandwidth = 60, 60e6
    world.runs(61)
    before = world.instances
    for _ in range(10):
        world.runs(240)
        world.fan_out = 12
        world.runs(120)
        during = world.instances
        world.fan_out = 4
        world.runs(120)
        assert before <= during
        world.runs(240 if name == "octopinf" else 0)  # these go one by one, with pauses between
        assert world.instances <= before
        answer = world.control.plans.answer
        (placed,) = answer.pipelines
        for window in answer.windows:
            assert window.replica < placed[window.stage].replicas
            assert window.device == placed[window.stage].device
        given = {(window.stage, window.replica) for window in answer.windows}
        assert len(given) == len(answer.windows)
        if name == "octopinf":
            assert len(given) + len(answer.unscheduled) == world.instances
            assert world.control.scaled > 0
    assert world.control.early == 0 or name == "pipeline"


def test_a_repair_moves_only_what_is_not_in_time():
    near = replace(TRAFFIC, slo=0.4)
    far = replace(near, name="far", source="far")
    asked = question(near)
    edge = asked.device("edge")
    asked = replace(
        asked,
        devices=(*asked.devices, replace(edge, name="far")),
        links=(*asked.links, LinkView("far", "server", 10e6)),
        pipelines=(near, far),
    )
    policy = make_placement("pipeline", PLAIN)
    before = policy.decide(asked, None).pipelines
    away = [sum(stage.device == "server" for stage in stages) for stages in before]
    worse = replace(asked, links=(*asked.links[:-1], LinkView("far", "server", 0.2e6)))
    after = policy.repair(worse, before).pipelines
    assert after[0] == before[0]
    assert sum(stage.device == "server" for stage in after[1]) < away[1]
    assert policy.repair(asked, before).pipelines == before


def test_instances_are_those_of_the_last_plan():
    world = World("octopinf")
    instances = StageInstances()
    assert instances.checked(lambda pipeline, stage: 0, now=0.0) is None
    answer = world.control.plans.answer
    instances.begin(world.asked, answer)
    assert sum(stage.replicas for stage in answer.pipelines[0]) > 3
    assert instances.checked(lambda pipeline, stage: 0, now=0.0) is None  # no rate is known yet
    fewer = instances.checked(lambda pipeline, stage: 0, now=300.0)
    assert [stage.replicas for stage in fewer.pipelines[0]] == [1, 1, 1]
    assert set(fewer.windows) < set(answer.windows)


def test_a_surge_is_planned_for_at_once_and_forgotten_when_it_is_over():
    asked = question(replace(TRAFFIC, rate=60.0), bandwidth=60e6)
    world = World("pipeline", asked)
    world.rate, world.bandwidth = 60, 60e6
    world.runs(61)
    before = world.instances
    assert world.control.early == 0
    world.fan_out = 30
    world.runs(3)
    assert world.control.early >= 1
    assert world.instances > before
    (view,) = world.control.plans.question.pipelines
    assert view.stages[1].inflows[0].fan_out > 10.0
    world.runs(60)
    world.fan_out = 4
    world.runs(120)
    assert world.instances == before
    assert world.decided[-1] < INTERVAL_S
    reasons = [reason.partition(";")[0].partition(":")[0] for reason in world.reasons]
    assert reasons[:2] == ["regular plan", "traffic received more rows than planned"]
    assert "a surge ended" in reasons[2:]


def test_a_link_that_falls_is_planned_for_at_once():
    world = World("pipeline", question(replace(TRAFFIC, slo=0.4)))
    world.runs(30)
    assert "server" in world.devices
    world.bandwidth = 0.2e6
    world.runs(4)
    assert world.devices == ["edge"] * 3 or world.devices.count("server") < 3
    assert world.decided[:1]
    assert world.decided[0] <= 34.0
    assert world.reasons[0].startswith("the link from edge to server was slower than planned: ")
    early = world.control.early
    world.runs(60)
    assert world.control.early <= early + 3  # it does not plan for ever


def test_repairs_do_not_put_off_the_next_plan_of_everything():
    world = World("pipeline", question(replace(TRAFFIC, slo=0.4)))
    world.runs(61)
    world.runs(30)
    world.decided.clear()
    world.bandwidth = 0.1e6
    world.runs(60)
    first, *_, whole = world.decided
    assert 91.0 < first < 100.0
    assert world.control.early == len(world.decided) - 1
    assert whole == 60.0 + WATCHED_S


def test_repairs_that_hardly_serve_more_are_left_and_asked_for_ever_less():
    world = World("pipeline", question(replace(TRAFFIC, slo=0.4)))
    world.runs(61)
    control = world.control
    before, other = control.plans.answer, make_placement("rim").decide(world.asked, None)
    assert other != before
    control.policy.repair = lambda question, present: other
    world.decided.clear()
    for _ in range(20):  # 4 % less is served when the link is down
        world.bandwidth = 0.3e6 if world.bandwidth == 10e6 else 10e6
        world.runs(5)
    assert 2 <= len(world.decided) <= 7
    assert control.plans.answer == before
    (link,) = control.plans.question.links
    assert link.bandwidth in (0.3e6, 10e6)
    world.bandwidth = 10e6
    world.runs(31)
    world.decided.clear()
    world.bandwidth = 0.1e6  # a third less: that does not wait
    world.runs(4)
    assert len(world.decided) == 1
    control.accept(PlacementDecision(control.plans.question, other), now=world.now)
    assert control.plans.answer == other


def test_a_placement_about_as_good_stays():
    world = World("pipeline")
    world.runs(30)
    before = world.control.plans.answer
    world.control.decide(now=world.now)
    assert world.control.plans.answer == before


def test_pipelines_that_stay_are_placed_anew_for_what_was_measured_of_them():
    """With another pipeline there, of which no frames have come, and again a minute later."""
    world = World("pipeline")
    world.runs(70)
    assert world.decided == [60.0]
    (traffic,) = world.asked.pipelines
    world.control.restate(
        replace(
            world.asked,
            pipelines=(replace(traffic, rate=0.0), replace(traffic, name="new", rate=0.0)),
        )
    )
    assert world.control.plans is None
    assert world.control.reason == "pipelines, models or devices have changed"
    world.runs(1)
    assert world.decided[1:] == [71.0]
    assert world.reasons[-1].startswith("first placement; ")
    old, new = world.control.plans.question.pipelines
    assert (old.name, old.rate, new.name, new.rate) == ("traffic", 15.0, "new", 0.0)
    assert old.stages[1].inflows[0].fan_out == 4.0
    world.runs(70)
    assert world.decided[2:] == [131.0]


@pytest.mark.parametrize("name", ["octopinf", "pipeline"])
def test_while_no_frames_come_nothing_is_planned(name):
    world = World(name)
    world.runs(70)
    world.rate = 0
    world.runs(60)
    decisions, in_force = len(world.decided), world.control.plans.question
    assert in_force.pipelines[0].rate > 0.0
    world.runs(2 * round(INTERVAL_S))
    assert len(world.decided) == decisions
    assert world.control.plans.question is in_force
    world.rate = 15
    world.runs(1)
    assert world.decided[decisions:] == [world.now]


def test_the_first_plan_after_a_pause_is_followed_by_one_that_rests_on_more():
    world = World("octopinf")
    world.rate = 0
    world.runs(70)
    world.rate = 15
    world.runs(70)
    assert world.decided == [71.0, 131.0]
    assert world.control.plans.question.pipelines[0].rate == 15.0


def test_an_answer_for_earlier_stages_is_not_put_in_force():
    world = World("pipeline")
    world.runs(59)
    late = world.control.job(now=60.0)
    assert late is not None
    world.control.restate(replace(world.asked, pipelines=()))
    revision = world.control.revision
    world.control.accept(late(), now=61.0)
    assert world.control.plans is None
    assert world.control.revision == revision


def test_options_are_checked():
    with pytest.raises(OptionError, match="expected a placement, got 'octopus'; did you mean"):
        make_placement("octopus")
    with pytest.raises(OptionError, match="alpha"):
        make_placement("octopinf", {"alpha": -1})
