"""Pipelines on the lanes of one server, beside the planners of cores and variants."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.harness import (
    CertainTimes,
    SteppedPlanners,
    family_pools,
    lanes_of,
    parts_of,
    spread,
)

from slacktide.domain import (
    Command,
    Deployment,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaUp,
    Request,
    Route,
    Submitted,
    TimerFired,
)
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine.request_table import ModelCounts
from slacktide.lab.replay.decisions import Decision, Notes, PlacesChanged
from slacktide.pipelines import FanOut
from slacktide.planning import Composer, ModelBounds, PlanField, PlannerError
from slacktide.planning.exits import StatedExits
from slacktide.planning.pipelines import (
    PlacedPipeline,
    PlacementError,
    ServerPipelinesPlanner,
    make_placement,
)
from slacktide.planning.pipelines.placed_pipeline import OF_FAMILY, OWNED
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.variants import Family, FamilyVariant, VariantsPlanner
from slacktide.recording import Call

SIZES = (128, 256, 416, 608)
SECONDS = {"128": 0.005, "256": 0.010, "416": 0.020, "608": 0.040, "brand": 0.004}
FAMILY = Family(
    tuple(FamilyVariant(str(side), 0.3 + 0.1 * at, side) for at, side in enumerate(SIZES))
)
STREET = Pipeline(
    "traffic",
    (PipelineStage("find", "street"), PipelineStage("brand", "brand")),
    (Edge("find", "brand"),),
    slo=0.2,
)
PLACED = PlacedPipeline({"find": "street", "brand": "brand"}, STREET)


def times_of(pool: PoolId) -> CertainTimes:
    """Each row takes as long; two cores are worth 1.7."""
    return CertainTimes(lambda rows, cores: SECONDS[pool.variant or pool.model] * rows / cores**0.8)


def base_plan(lanes: int = 1, *, brands: int = 1, version: str = "1") -> Plan:
    names = [f"lane{number}" for number in range(lanes)]
    pools, brand = family_pools("street", SIZES, version), PoolId("brand", "1")
    return Plan(
        lanes_of(names),
        (*spread(pools, names[:1], 8), *spread([brand], names[lanes - brands :], 16)),
        (Route("street", pools[-1]), Route("brand", brand)),
    )


class Server(SteppedPlanners):
    """Stepped a second at a time; frames are only counted."""

    def __init__(
        self,
        base: Plan | None = None,
        name: str = "pipeline",
        cores: int = 0,
        exits: Any = dict,
        **stated: Any,
    ) -> None:
        self.reports: list[str] = []
        self.fan_out = FanOut()
        self.served = SimpleNamespace(pipeline=STREET, frames=0, fan_outs=(self.fan_out,))
        self.ends = ModelCounts()
        frames: Any = SimpleNamespace(
            pipelines={"traffic": self.served}, counts={"traffic": self.ends}
        )
        self.placement = ServerPipelinesPlanner(
            make_placement(name, on_one_server=True),
            lambda: frames,
            cores=cores,
            exits=exits,
            report=self.reports.append,
        )
        self.variants = VariantsPlanner()
        self.scaling = ScalingPlanner(range(4))
        planners = (self.placement, self.scaling, self.variants)
        self.told: list[Decision] = []
        self.notes = Notes(self.told.append)
        super().__init__(parts_of("slack", times_of), planners, watch=self.watch)
        self.stated = {"street": FAMILY, "traffic": PLACED} | stated
        self.ids = 0
        self.up = True
        self.rebase(base or base_plan())

    def watch(self, events: Any, now: float, commands: Any) -> None:
        changes = tuple(event for event in events if isinstance(event, PlanChanged))
        self.notes.after(Call(now, changes), self.runtime.engine, [])

    def turn(self, *events: Any, **when: float) -> list[Command]:
        commands = super().turn(*events, **when)
        if self.up:
            self.bring_up()
        self.run_jobs()
        return commands

    def runs(
        self, seconds: float, *, frames: int, rows: int = 3, end: Reason = Reason.PARTIAL
    ) -> None:
        """So many frames a second, each with so many vehicles. `end`: how they all do."""
        for _ in range(round(seconds * frames)):
            self.now += 1.0 / frames
            self.served.frames += 1
            self.ends.by_reason[end] = self.ends.by_reason.get(end, 0) + 1
            self.fan_out.observe(1, rows)
            self.ids += 1
            request = Request(self.ids, "street", self.now, self.now + 0.15, rows=1)
            self.turn(Submitted(request), TimerFired())

    @property
    def plain(self) -> str:
        return self.route(model="street")


def test_nothing_is_placed_before_frames_come():
    server = Server()
    server.now = 100.0
    server.turn(TimerFired())
    assert server.placement.status().decided == 0
    assert server.lanes("street") == server.lanes("brand") == {"lane0"}
    assert server.placement.next_wakeup(None) <= 101.0


def test_a_family_gets_the_largest_variant_for_which_all_stages_have_time():
    """8 frames a second fill .3 of the lane at 608 pixels, and their vehicles .1 of it; 15 with
    four times as many vehicles leave less time."""
    server = Server()
    server.runs(10, frames=8)
    assert server.placement.status().within["street"].largest == "608"
    server.runs(12, frames=15, rows=12)
    status = server.placement.status()
    assert int(status.within["street"].largest) < 608
    assert status.decided >= 2
    assert status.early >= 1
    assert int(server.plain) <= int(status.within["street"].largest)
    assert "street" in server.reports[-1]
    assert {deployment.pool.variant for deployment in server.plan.deployments} >= {
        str(side) for side in SIZES
    }


def test_without_bounds_the_detector_takes_the_time_of_what_is_behind_it():
    server = Server()
    del server.stated["traffic"]
    server.rebase(base_plan())
    server.runs(12, frames=15, rows=12)
    assert server.plain == "608"
    assert server.placement.status().decided == 0


def test_replicas_go_to_more_lanes_where_rows_ask_for_them_and_old_ones_stay_until_those_are_up():
    server = Server(base_plan(3, brands=2))
    assert server.lanes("brand") == {"lane1", "lane2"}
    server.rebase(base_plan(2, brands=2))
    server.runs(3, frames=10, rows=1)
    before = server.lanes("brand")
    server.up = False
    server.runs(20, frames=16, rows=24)
    (cap,) = {
        deployment.max_batch
        for deployment in server.plan.deployments
        if deployment.pool.model == "brand"
    }
    assert cap <= 16
    assert server.lanes("brand") >= before
    server.up = True
    server.turn(*(ReplicaUp(server.starting.pop()) for _ in range(len(server.starting))))
    server.runs(3, frames=16, rows=24)
    status = server.placement.status()
    for model in ("street", "brand"):
        assert server.lanes(model) == set(status.lanes[model])


def test_a_new_load_of_a_model_follows():
    server = Server(base_plan(2, brands=2))
    server.runs(5, frames=10)
    lanes = server.lanes("street")
    server.rebase(base_plan(2, brands=2, version="2"))
    assert server.lanes("street") == lanes
    assert {
        deployment.pool.version for deployment in server.plan.deployments if deployment.pool.variant
    } == {"2"}


@pytest.mark.parametrize("sizes", [(100, 200, 300, 400), (256, 416, 608, 700), (608, 700)])
def test_a_model_may_be_loaded_with_other_variants(sizes, monkeypatch):
    """Of which the bound in force, 416 pixels, may be none."""
    server = Server()
    server.runs(12, frames=15, rows=12)
    assert server.placement.status().within["street"].largest == "416"
    for side in sizes:
        monkeypatch.setitem(SECONDS, str(side), side / 2e4)
    variants = [FamilyVariant(str(side), 0.3 + 1e-3 * side, side) for side in sizes]
    server.stated["street"] = Family(tuple(variants))
    pools, brand = family_pools("street", sizes, "2"), PoolId("brand", "1")
    deployments = (*spread(pools, ["lane0"], 8), Deployment(brand, "lane0", 16))
    routes = (Route("street", pools[-1]), Route("brand", brand))
    server.rebase(replace(base_plan(), deployments=deployments, routes=routes))
    server.runs(5, frames=15, rows=12)
    largest = server.placement.status().within["street"].largest
    assert int(server.plain) <= int(largest or sizes[-1])
    assert server.plain in map(str, sizes)


def test_pipelines_that_go_take_their_bounds_along():
    server = Server()
    server.runs(12, frames=15, rows=12)
    assert server.placement.bounds
    del server.stated["traffic"]
    server.rebase(base_plan())
    server.runs(3, frames=15)
    assert not server.placement.bounds
    assert server.placement.status().reason == "no frames have arrived yet"
    assert server.plain == "608"


@pytest.mark.parametrize("name", ["pipeline", "octopinf"])
def test_the_only_pipeline_is_placed_at_once_when_it_comes_back(name):
    """One of its models may just have been unloaded and loaded again."""
    server = Server(name=name)
    server.runs(5, frames=15, rows=12)
    before = server.placement.status().decided
    del server.stated["traffic"]
    server.rebase(base_plan())
    server.runs(1, frames=15)
    server.stated["traffic"] = PLACED
    server.served.frames = 0
    server.rebase(base_plan())
    server.runs(5, frames=15, rows=12)
    status = server.placement.status()
    assert status.decided > before
    assert status.lanes["street"]
    assert server.placement.bounds


def test_another_pipeline_leaves_the_first_its_bounds():
    server = Server()
    server.runs(30, frames=8)
    assert server.placement.status().within["street"].largest == "608"
    other = replace(STREET, name="other")
    server.stated["other"] = PlacedPipeline(PLACED.stages, other)
    server.rebase(base_plan())
    for _ in range(40):
        server.runs(0.25, frames=8)
        within = server.placement.status().within
        assert not within or within["street"].largest == "608"
        assert "at 0 frames/s of traffic" not in server.reports[-1]
    assert server.placement.status().within["street"].largest == "608"


def test_a_move_says_why():
    server = Server(base_plan(3, brands=3))
    server.runs(65, frames=8, rows=1)
    assert not any(isinstance(event, PlacesChanged) for event in server.told)
    server.runs(8, frames=60, rows=1)
    (moved,) = [event for event in server.told if isinstance(event, PlacesChanged)]
    assert (moved.name, moved.before, moved.after) == ("street", ("lane0",), ("lane0", "lane1"))
    assert re.fullmatch(
        r"traffic received more rows than planned: the share expected in time fell from 100% to "
        r"\d+%; now \d+% is expected in time",
        moved.why,
    )
    server.told.clear()
    server.stated.pop("traffic")
    server.rebase(base_plan(3, brands=3))
    (back,) = [event for event in server.told if isinstance(event, PlacesChanged)]
    assert (back.name, back.after, back.why) == ("street", ("lane0",), ""), "no planner did that"


def test_a_placement_is_reported_once():
    server = Server()
    server.runs(180, frames=8)
    assert server.placement.status().decided >= 2
    assert len(server.reports) == 1
    server.runs(12, frames=15, rows=12)
    placements = [report.partition(" (")[0] for report in server.reports]
    assert len(placements) > 1
    assert all(report != other for report, other in pairwise(placements))


def test_fields_have_one_owner_whatever_the_stages_are():
    limits = ScalingLimits(1, 2)
    server = Server(brand=ScaledModel(limits), street=FAMILY)
    owned = server.placement.owns(server.stated)
    assert ("traffic", PlanField.PLACES) in owned
    assert {field for name, field in owned if name == "street"} == OF_FAMILY
    assert not [field for name, field in owned if name == "brand"]
    alone = server.placement.owns({"traffic": PLACED})
    assert {field for name, field in alone if name == "brand"} == OWNED

    class Other(ServerPipelinesPlanner):
        name = "other"

    pair = [
        kind(make_placement("pipeline"), lambda: None) for kind in (ServerPipelinesPlanner, Other)
    ]
    with pytest.raises(PlannerError, match="both decide"):
        Composer(pair).rebase(
            Plan(), server.stated, server.runtime.engine.snapshot(now=0.0), now=0.0
        )


def test_an_impossible_placement_is_reported_and_tried_again_later():
    server = Server(name="octopinf")

    def refuse(question, present):
        raise PlacementError("stage 'find': fits no device (lane0: 2 bytes needed)")

    server.placement._control.policy.decide = refuse
    server.runs(5, frames=10)
    assert server.reports == [
        "pipelines cannot be placed: stage 'find': fits no device (lane0: 2 bytes needed)"
    ]
    assert server.placement.status().decided == 0
    assert server.lanes("street") == {"lane0"}


def test_replicas_that_come_up_while_nothing_can_be_placed_are_waited_for_no_more():
    """Else the planner would want to be asked at once, again and again, until it may try again."""
    pool, brand = PoolId("street", "1", "416"), PoolId("brand", "1")
    names = [f"lane{number}" for number in range(3)]
    base = Plan(
        lanes_of(names),
        (Deployment(pool, "lane0", 8), *spread([brand], names, 8)),
        (Route("street", pool), Route("brand", brand)),
    )
    server = Server(base, street=Family((FamilyVariant("416", 0.5, 416),)))
    server.up = False
    server.runs(5, frames=80, rows=2)
    assert server.starting  # another lane for the detector

    def refuse(question, present):
        raise PlacementError("stage 'find': fits no device (lane0: 2 bytes needed)")

    server.placement._control.policy.decide = refuse
    server.runs(70, frames=80, rows=2)
    assert "fits no device" in server.reports[-1]
    server.turn(ReplicaUp(server.starting.pop()))
    server.turn(TimerFired())
    snapshot = server.runtime.engine.snapshot(now=server.now)
    assert server.placement.next_wakeup(snapshot) > server.now


def test_windows_of_a_placement_become_timetables_of_lanes():
    server = Server(base_plan(2, brands=2), name="octopinf")
    server.runs(5, frames=10)
    timed = [lane for lane in server.plan.lanes if lane.timetable is not None]
    assert timed
    for lane in timed:
        models = {
            deployment.pool.model
            for deployment in server.plan.deployments
            if deployment.lane == lane.name
        }
        assert models <= {window.model for window in lane.timetable.windows}


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 20), st.integers(1, 6)),
        min_size=1, max_size=4,
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_plans_stay_sound_under_any_load(loads, lanes):
    """Models keep lanes of their own group, plain routes lead to what serves, within the bounds."""
    server = Server(base_plan(lanes, brands=lanes))
    for frames, rows, seconds in loads:
        server.runs(seconds, frames=frames, rows=rows)
        plan, status = server.plan, server.placement.status()
        names = {lane.name for lane in plan.lanes}
        pools = {deployment.pool for deployment in plan.deployments if not deployment.standby}
        assert {deployment.lane for deployment in plan.deployments} <= names
        assert {deployment.pool.model for deployment in plan.deployments} == {"street", "brand"}
        assert {route.pool for route in plan.routes} <= pools
        assert len({(deployment.pool, deployment.lane) for deployment in plan.deployments}) == len(
            plan.deployments
        )
        within = status.within.get("street")
        largest = (within and within.largest) or "608"
        assert int(server.plain) <= int(largest)
        assert all(deployment.max_batch <= 16 for deployment in plan.deployments)


def test_bounds_do_not_make_planners_forget():
    """Cores are given back only after a while: a model that began anew would have none of that."""
    limits = ScalingLimits(1, 4, batch_max=8)
    server = Server(street=(FAMILY, ScaledModel(limits)), brand=ScaledModel(limits))
    states = server.scaling.states["brand"], server.variants.states["street"]
    server.runs(12, frames=15, rows=12)
    assert server.placement.bounds
    assert (server.scaling.states["brand"], server.variants.states["street"]) == states


def test_a_lane_may_have_the_cores_that_no_other_lane_needs():
    """Of four cores the detector's lane may have three: what is behind it needs one."""
    base = base_plan(2)
    scaled = ScaledModel(ScalingLimits(1, 4, batch_max=8))
    for machine, most in ((4, 3), (8, None), (0, None)):
        server = Server(base, cores=machine, street=(FAMILY, scaled), brand=scaled)
        server.runs(8, frames=8)
        within = server.placement.status().within
        assert within["street"].cores == most
        assert within["street"].largest == "608"
        assert server.scaling.states["street"].limits.cores_max == (most or 4)
    server = Server(base, cores=4, street=(FAMILY, scaled), brand=scaled)
    server.runs(10, frames=16, rows=24)  # now brands take 1.5 cores
    bounds = server.placement.status().within
    assert bounds["street"].cores + (bounds["brand"].cores or 4) >= 4
    assert bounds["street"].cores < 3
    assert f"at most {bounds['street'].cores} cores" in server.reports[-1]


def exits_of(overhead: float | None) -> Any:
    status = SimpleNamespace(policy=object(), overhead=overhead)
    return lambda: {PoolId("brand", "1"): status}


def test_rows_leave_early_unless_ramps_make_frames_late():
    """Ramps that make a pass half as long again take the time of what comes after."""
    for overhead, frames, rows, leave in (
        (0.02, 8, 3, True),
        (0.5, 8, 3, True),
        (None, 15, 15, True),
        (0.5, 15, 15, False),
    ):
        server = Server(exits=exits_of(overhead), brand=StatedExits(), street=FAMILY)
        server.runs(8, frames=frames, rows=rows)
        assert server.placement.status().within["brand"].exits is leave
    assert "brand on lane0, without early exits" in server.reports[-1]
    server.runs(70, frames=8, rows=1)  # with less to do, they may again
    assert server.placement.status().within["brand"].exits


def test_facts_about_a_pool_go_with_it():
    facts = {}
    server = Server(exits=lambda: facts, brand=StatedExits(), street=FAMILY)
    for version in ("1", "2", "3"):
        pool = PoolId("brand", version)
        facts.clear()
        facts[pool] = SimpleNamespace(policy=object(), overhead=0.02)
        base = base_plan()
        server.rebase(
            replace(
                base,
                deployments=(*base.deployments[:-1], replace(base.deployments[-1], pool=pool)),
                routes=(base.routes[0], Route("brand", pool)),
            )
        )
        server.runs(3, frames=8)
        assert list(server.placement._question._lane_share) == [pool]


def test_a_floor_that_is_stated_stays_below_the_bound_of_a_placement():
    for floor, largest, within in (("", "416", (0, 2)), ("608", "608", (3, 3))):
        server = Server(street=(FAMILY, ModelBounds(smallest=floor)))
        server.runs(6, frames=20, rows=14)
        assert server.placement.status().within["street"].largest == largest
        assert server.variants.states["street"].within == within


def test_a_group_of_lanes_has_the_capacity_of_all_of_them():
    """2.4 lanes' work on three lanes: 0.02 s for each of 30 frames, and as much for 15 brands."""
    limits = FamilyVariant("416", 0.5, 416)
    pool, brand = PoolId("street", "1", "416"), PoolId("brand", "1")
    names = [f"lane{number}" for number in range(3)]
    base = Plan(
        lanes_of(names),
        spread([pool, brand], names, 8),
        (Route("street", pool), Route("brand", brand)),
    )
    server = Server(base, street=Family((limits,)))
    server.runs(10, frames=30, rows=15)
    assert server.placement.status().expected > 0.9
    assert server.lanes("brand") == set(names)


def test_a_variant_stays_allowed_while_frames_are_worth_what_is_expected_without_it():
    server = Server()
    server.runs(9, frames=15, rows=12, end=Reason.ON_TIME)
    assert server.placement.status().within["street"].largest == ""  # as before
    server.runs(9, frames=15, rows=12, end=Reason.PARTIAL)
    assert int(server.placement.status().within["street"].largest) < 608
    low = server.placement.status().within["street"].largest
    server.runs(9, frames=15, rows=12, end=Reason.ON_TIME)
    assert server.placement.status().within["street"].largest == low  # predictions say no more
    server.runs(70, frames=5, rows=1, end=Reason.ON_TIME)
    assert server.placement.status().within["street"].largest == "608"
