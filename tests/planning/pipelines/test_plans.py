"""From answers to plans: each replica on one lane, windows as scheduled, all stages reachable."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.planning.pipelines.questions import SERVER, TRAFFIC, at_random, configuration, question

from slacktide.domain import LaneSpec, PoolId
from slacktide.planning.pipelines.coral import CoralSchedule
from slacktide.planning.pipelines.distribution import distribute
from slacktide.planning.pipelines.plans import DevicePlans, lanes_of, placed_whole
from slacktide.planning.pipelines.problem import (
    DeviceView,
    Inflow,
    LinkView,
    PlacedStage,
    PlacementAnswer,
    PlacementError,
    PlacementQuestion,
    StageView,
)
from slacktide.planning.pipelines.search import search
from slacktide_papers.policies.placement_policies import distream, jellyfish, rim


def many(seed: int) -> PlacementQuestion:
    """Several random pipelines from several edge devices, models shared by some; with joins."""
    draw = np.random.default_rng(seed)
    pick = random.Random(seed)
    singles = [at_random(draw, configurations=2) for _ in range(pick.randint(1, 5))]
    edges, links, pipelines = [], [], []
    for number, single in enumerate(singles):
        name = f"edge{number}"
        edges.append(replace(single.devices[0], name=name, kind=f"kind{number}"))
        links.append(replace(single.links[0], begin=name))
        stages = []
        for at, stage in enumerate(single.pipelines[0].stages):
            configurations = tuple(
                replace(
                    configuration,
                    name=f"v{size}",
                    times=tuple(
                        replace(t, kind=f"kind{number}") if t.kind == "edge" else t
                        for t in configuration.times
                    ),
                )
                for size, configuration in enumerate(stage.configurations)
            )
            inflows = stage.inflows
            if at >= 2 and pick.random() < 0.3:
                inflows = tuple(Inflow(before, 1.0) for before in range(at))
            model = f"m{at}" if pick.random() < 0.5 else ""
            stages.append(
                replace(stage, configurations=configurations, inflows=inflows, model=model)
            )
        fresh = {"name": f"p{number}", "source": name, "stages": tuple(stages)}
        pipelines.append(replace(single.pipelines[0], **fresh))
    server = replace(singles[0].devices[1], streams=pick.choice([1, 2, 4]))
    return PlacementQuestion((*edges, server), tuple(links), tuple(pipelines), singles[0].batches)


def answers(problem: PlacementQuestion, seed: int) -> list[PlacementAnswer]:
    cwd = placed_whole(problem, distribute(problem))
    ours = placed_whole(problem, search(problem))
    placements = [PlacementAnswer(ours), PlacementAnswer(cwd)]
    placements += [CoralSchedule(problem).schedule(cwd), CoralSchedule(problem).schedule(ours)]
    others = [distream(problem, np.random.default_rng(seed)), rim(problem), jellyfish(problem)]
    return placements + [PlacementAnswer(placed_whole(problem, way)) for way in others]


def followed(plans, problem) -> dict[tuple[str, str], str]:
    """Where each stage runs, if a frame goes from device to device as the plans say."""
    places = {
        device: {(place.pipeline, place.stage): place.device for place in plan.places}
        for device, plan in plans.items()
    }
    devices = {}
    for pipeline in problem.pipelines:
        at = [""] * len(pipeline.stages)
        for number, stage in enumerate(pipeline.stages):
            befores = {at[inflow.stage] for inflow in stage.inflows} or {pipeline.source}
            assert len(befores) == 1  # a join takes what is on one device
            device = befores.pop()
            at[number] = places[device].get((pipeline.name, stage.name), device)
            devices[pipeline.name, stage.name] = at[number]
    return devices


@pytest.mark.parametrize("seed", range(25))
def test_plans_are_whole(seed):
    problem = many(seed)
    for answer in answers(problem, seed):
        device_plans = DevicePlans(problem, answer)
        plans = {device.name: device_plans.of(device.name) for device in problem.devices}
        assert_replicas_sit_on_one_lane(device_plans, plans, problem)
        assert_windows_are_in_timetables(device_plans, plans, problem)
        assert_stages_are_reached(device_plans, plans, problem)


def assert_replicas_sit_on_one_lane(device_plans, plans, problem):
    seats = [
        (replica.device, replica.lane, replica.model, replica.configuration)
        for replica in device_plans.replicas
    ]
    assert len(seats) == len(set(seats))
    for name, plan in plans.items():
        own = [replica for replica in device_plans.replicas if replica.device == name]
        lanes = [lane.name for lane in plan.lanes]
        assert [lane.name for lane in lanes_of(problem.device(name))] == lanes
        placed = {(str(d.pool), d.lane, d.max_batch) for d in plan.deployments}
        pools = {str(PoolId(r.model, "1", f"v{r.configuration}")): r for r in own}
        assert len(plan.deployments) == len(own) == len(placed)
        assert {str(d.pool) for d in plan.deployments} == set(pools)
        assert {d.pool.model for d in plan.deployments} == {
            r.model for r in plan.routes if r.client is None
        }


def assert_windows_are_in_timetables(device_plans, plans, problem):
    for window in device_plans.answer.windows:
        lane = plans[window.device].lanes[window.lane]
        view = next(pipeline for pipeline in problem.pipelines if pipeline.name == window.pipeline)
        model = view.stages[window.stage].model_in(view)
        if lane.timetable is None:  # given up for a model without a window anywhere
            assert device_plans.answer.unscheduled
            continue
        assert lane.timetable.period == window.period
        windows = [(w.model, w.start, w.end) for w in lane.timetable.windows]
        assert windows.count((model, window.start, window.end)) == 1
        # that windows do not overlap, and that each model has one, is checked by the plan
    if not device_plans.answer.windows:
        assert all(lane.timetable is None for plan in plans.values() for lane in plan.lanes)


def assert_stages_are_reached(device_plans, plans, problem):
    at = followed(plans, problem)
    for view, placed in zip(problem.pipelines, device_plans.answer.pipelines, strict=True):
        for stage, placed_stage in zip(view.stages, placed, strict=True):
            assert at[view.name, stage.name] == placed_stage.device
            model, plan = stage.model_in(view), plans[placed_stage.device]
            routes = {r.client: r.pool for r in plan.routes if r.model == model}
            wanted = PoolId(model, "1", f"v{placed_stage.configuration}")
            assert routes.get(view.name, routes[None]) == wanted
            assert wanted in [d.pool for d in plan.deployments]
            caps = [d.max_batch for d in plan.deployments if d.pool == wanted]
            assert max(caps) >= placed_stage.batch


def test_handed_over_stages_have_their_times():
    problem = question()
    placed = (PlacedStage("edge", 1), PlacedStage("server", 4, 2), PlacedStage("server", 2, 1))
    plans = DevicePlans(problem, PlacementAnswer((placed,)))
    brand, plate = plans.of("edge").places
    assert (brand.stage, brand.device) == ("brand", "server")
    assert brand.p99 == pytest.approx(1.1 * 0.005)  # four rows at once
    assert plate.p99 == pytest.approx(1.1 * 0.005)  # two
    assert 0.005 < brand.transfer < 0.02
    assert 0.005 < brand.back < 0.006
    assert plans.of("server").places == ()
    placed_once = (placed[0], PlacedStage("server", 1, 2), placed[2])
    slower = DevicePlans(problem, PlacementAnswer((placed_once,))).of("edge").places[0]
    assert slower.p99 == pytest.approx(2 * 1.1 * 0.002)  # two rounds of two


def test_a_branch_that_no_link_reaches_costs_the_others_nothing():
    problem = question(bandwidth=0.0)
    placed = (PlacedStage("edge"), PlacedStage("server"), PlacedStage("edge"))
    (place,) = DevicePlans(problem, PlacementAnswer((placed,))).of("edge").places
    assert (place.stage, place.transfer, place.back) == ("brand", 0.0, 0.0)


def test_no_time_is_kept_for_a_way_that_takes_too_long():
    """Else its branch, which is lost anyway, would take the time of the others."""
    placed = (PlacedStage("edge"), PlacedStage("server"), PlacedStage("edge"))
    # 32 KB of brands; at 0.2 MB/s they would be in time without the detector before them
    for bandwidth, kept in ((1e6, True), (0.2e6, False), (0.1e6, False)):
        plans = DevicePlans(question(bandwidth=bandwidth), PlacementAnswer((placed,)))
        (place,) = plans.of("edge").places
        assert (place.transfer > 0.0, place.back > 0.0) == (kept, kept)
        assert place.p99 > 0.0


def test_stages_of_one_model_share_what_a_device_has_of_it():
    pair = [replace(TRAFFIC, name=name) for name in "ab"]
    shared = [
        replace(pipeline, stages=tuple(replace(s, model=s.name) for s in pipeline.stages))
        for pipeline in pair
    ]
    problem = question(*shared)
    placed = tuple(PlacedStage("server", at) for at in (1, 4, 2))
    plan = DevicePlans(problem, PlacementAnswer((placed, placed))).of("server")
    assert {deployment.pool.model for deployment in plan.deployments} == {
        "detector",
        "brand",
        "plate",
    }
    assert len(plan.routes) == 3


def test_pipelines_that_run_other_forms_have_routes_of_their_own():
    configurations = (
        configuration(0.003, 0.004, name="large"),
        configuration(0.002, 0.002, name="small"),
    )
    stages = (
        replace(TRAFFIC.stages[0], configurations=configurations, model="detector"),
        *TRAFFIC.stages[1:],
    )
    busy, calm = (
        replace(TRAFFIC, name=n, rate=r, stages=stages) for n, r in (("busy", 9.0), ("calm", 3.0))
    )
    problem = question(busy, calm)
    rest = (PlacedStage("server"),) * 2
    answer = PlacementAnswer(
        (
            (PlacedStage("server", configuration=1), *rest),
            (PlacedStage("server", configuration=0), *rest),
        )
    )
    routes = DevicePlans(problem, answer).of("server").routes
    variants = {r.client: r.pool.variant for r in routes if r.model == "detector"}
    assert variants == {None: "small", "calm": "large"}


def test_a_model_without_a_portion_still_comes_first_at_times():
    problem = question(devices=(replace(SERVER, accelerators=1, streams=1), EDGE_WITH_ROOM))
    placed = tuple(PlacedStage("server", at) for at in (8, 8, 16))
    answer = CoralSchedule(problem).schedule((placed,))
    assert answer.unscheduled == ()
    late = [window for window in answer.windows if window.stage != 2]
    answer = PlacementAnswer((placed,), tuple(late), (("traffic", 2, 0),))
    (lane,) = DevicePlans(problem, answer).of("server").lanes
    gap = next(window for window in lane.timetable.windows if window.model == "traffic/plate")
    assert gap.end - gap.start > 0.04  # of 100 ms; the others take 35 and 9.9
    full = replace(late[0], start=0.0, end=late[0].period)
    answer = PlacementAnswer((placed,), (full,), (("traffic", 1, 0), ("traffic", 2, 0)))
    (lane,) = DevicePlans(problem, answer).of("server").lanes
    assert lane.timetable is None


EDGE_WITH_ROOM = DeviceView("edge", "edge")


def test_stages_between_a_fork_and_its_join_stay_together():
    stages = (
        *TRAFFIC.stages,
        StageView("both", (configuration(0.001, 0.001),), (Inflow(1, 1.0), Inflow(2, 1.0))),
    )
    problem = question(replace(TRAFFIC, stages=stages))
    apart = tuple(PlacedStage(device) for device in ("edge", "server", "edge", "server"))
    with pytest.raises(PlacementError, match="traffic/brand cannot be handed over"):
        DevicePlans(problem, PlacementAnswer((apart,))).of("edge")
    (whole,) = placed_whole(problem, (apart,))
    assert [stage.device for stage in whole] == ["edge", "edge", "edge", "server"]
    only = (*stages[:1], replace(stages[1], devices=("server",)), *stages[2:])
    problem = question(replace(TRAFFIC, stages=only))
    with pytest.raises(PlacementError, match="'brand' feeds a join"):
        placed_whole(problem, (apart,))


def test_lanes_of_others_are_used_in_their_order():
    problem = question()
    placed = tuple(PlacedStage("edge") for _ in range(3))
    plans = DevicePlans(problem, PlacementAnswer((placed,)))
    lane = LaneSpec("cpu", (0, 1))
    assert {deployment.lane for deployment in plans.of("edge", (lane,)).deployments} == {"cpu"}
    with pytest.raises(PlacementError, match="'server': expected 8 lanes, got 1"):
        plans.of("server", (lane,))
    assert plans.of("server").deployments == ()


def test_a_device_without_a_link_to_it_is_no_part_of_a_plan():
    problem = question(
        devices=(EDGE_WITH_ROOM, SERVER, DeviceView("other", "edge")),
        links=(LinkView("edge", "server", 1e7), LinkView("other", "server", 1e7)),
    )
    placed = tuple(PlacedStage("server") for _ in range(3))
    plan = DevicePlans(problem, PlacementAnswer((placed,))).of("other")
    assert (plan.deployments, plan.routes, plan.places) == ((), (), ())
