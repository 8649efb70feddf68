"""Several engines on one heap, and the links between them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.simulation.several_devices import (
    CLASSES,
    EDGES,
    POOLS,
    TABLES,
    Testbed,
    generator,
    plan,
    rows_of,
    steady,
)

from slacktide.domain import (
    Batch,
    Deployment,
    LaneSpec,
    Plan,
    PoolId,
    Reason,
    Replica,
    Request,
    ResizeLane,
    Route,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import AsExpected, ByPool
from slacktide.lab.simulation.items import SimulationError
from slacktide.lab.simulation.local_frames import LocalChild
from slacktide.lab.simulation.world.device_times import DeviceTimes, ModelTimes
from slacktide.lab.simulation.world.devices import SimulatedDevices
from slacktide.lab.simulation.world.stage_rows import EdgeRows, PipelineCamera, StageRows
from slacktide.lab.workloads import BandwidthTrace, WorkloadError
from slacktide.lab.workloads.bandwidth import MBIT
from slacktide.lab.workloads.object_counts import ObjectCounts
from slacktide.planning.exits import ExitsPlanner, RampsLearnt, StatedExits
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe


def test_frames_are_whole_where_there_is_room() -> None:
    bed = Testbed(edges=3)
    score = bed.run()
    total = score.total
    assert total.frames == total.complete == 3 * 90
    assert total.in_time == total.offered > 1_000
    assert score.parts["answered"] > 400
    assert score.wasted_s == 0.0
    assert bed.devices.in_flight == 0


def test_a_run_repeats_exactly() -> None:
    first, second = Testbed(cars=9.0, check=False).run(), Testbed(cars=9.0, check=False).run()
    assert (first.total, first.parts, first.ran_s) == (second.total, second.parts, second.ran_s)
    reseeded = Testbed(cars=9.0, seed=2, check=False).run()
    assert reseeded.ran_s != first.ran_s


def test_the_device_alone_and_the_server_alone_see_the_same_objects() -> None:
    everywhere = [
        Testbed(stages=stages, slo=2.0).run().total
        for stages in ((), ("detector", "brand", "plate", "owner"), ("plate", "owner"))
    ]
    assert len({(total.offered, total.in_time, total.frames) for total in everywhere}) == 1
    assert everywhere[0].in_time == everywhere[0].offered


@pytest.mark.slow
@settings(max_examples=25)
@given(
    seed=st.integers(1, 1_000),
    cars=st.sampled_from([0.0, 3.0, 20.0]),
    slo=st.sampled_from([0.06, 0.15, 0.4]),
    megabits=st.lists(st.sampled_from([0.0, 0.5, 5.0, 50.0]), min_size=1, max_size=5),
    stages=st.sampled_from(
        [(), ("brand",), ("plate", "owner"), ("detector", "brand", "plate", "owner")]
    ),
    max_batch=st.sampled_from([1, 3, 8]),
)
def test_every_frame_and_every_part_has_one_outcome(
    seed: int,
    cars: float,
    slo: float,
    megabits: list[float],
    stages: tuple[str, ...],
    max_batch: int,
) -> None:
    trace = BandwidthTrace([0.5 * at for at in range(len(megabits))], [m * MBIT for m in megabits])
    bed = Testbed(
        edges=2,
        cars=cars,
        slo=slo,
        seconds=2.0,
        seed=seed,
        stages=stages,
        links={"e0": trace},
        max_batch=max_batch,
    )
    score = bed.run()
    total = score.total
    assert total.frames == 60
    assert total.complete + total.partial + total.lost == 60
    assert total.reasons[Reason.AFTER_DEADLINE] == 0
    assert 0 <= total.in_time <= total.offered
    assert bed.devices.in_flight == 0
    for device in bed.devices.devices.values():
        assert not device.frames.parts.open
        assert not device.frames.children
        frames = device.simulation.runtime.frames
        assert frames is not None
        assert frames.in_flight == 0
        # Rows of parts are counted once: nothing is answered that was not offered.
    assert 0.0 <= score.wasted_s <= score.ran_s + 1e-9


def test_parts_of_a_dead_link_are_given_up_and_the_rest_is_answered() -> None:
    trace = BandwidthTrace([0.0, 2.0, 62.0], [20 * MBIT, 0.0, 20 * MBIT], 70.0)
    bed = Testbed(edges=1, seconds=70.0, stages=("plate", "owner"), links={"e0": trace}, cars=4.0)
    score = bed.run()
    total = score.total
    assert total.frames == 1_050
    assert total.lost == 0  # brands are answered at home
    assert total.partial == pytest.approx(60 * 15, rel=0.05)
    assert score.parts["given up"] + score.parts["cancelled"] == total.partial
    assert score.in_time_in[5] < score.offered_in[5]
    assert score.in_time_in[6] > 0


def test_a_camera_that_stops_leaves_the_others_alone() -> None:
    bed = Testbed(edges=2, seconds=4.0)
    rows = rows_of("p2")
    counts = ObjectCounts({"cars": [3]})
    camera = PipelineCamera(rows, counts, CLASSES, 0.2, 15.0, 1e5, end=1.0)
    assert sum(1 for _ in camera.frames()) == 15
    score = bed.run()
    assert score.pipelines["p0"].frames == score.pipelines["p1"].frames == 60


def test_overload_wastes_little_and_ends_frames_in_time() -> None:
    bed = Testbed(edges=3, cars=14.0, seconds=20.0, server_lanes=1, check=False)
    score = bed.run()
    total = score.total
    assert total.in_time < 0.9 * total.offered
    assert total.reasons[Reason.AFTER_DEADLINE] == 0
    assert score.wasted < 0.01


def test_a_missing_link_or_device_is_named() -> None:
    bed = Testbed(edges=1, check=False)
    bed.devices._links.clear()
    with pytest.raises(SimulationError, match="no link from 'e0' to 's'"):
        bed.run()
    with pytest.raises(SimulationError, match="no device 'x'"):
        SimulatedDevices([], {}).frames_on("x")


def test_a_plan_may_change_under_frames_in_flight() -> None:
    bed = Testbed(edges=2, seconds=6.0)
    home = {f"e{at}": plan(1) for at in range(2)}
    bed.devices.call_at(3.0, lambda now: bed.devices.change_plans(home, now=now))
    score = bed.run()
    total = score.total
    assert total.frames == 180
    sent = score.parts.total()
    assert 150 < sent < 250  # two a frame, for half of the run
    assert bed.devices.in_flight == 0


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@given(
    cuts=st.lists(st.integers(0, 40), max_size=6),
    rows=st.integers(0, 40),
    fan_out=st.floats(0.0, 3.0),
    spin=st.floats(0.0, 0.999),
)
def test_however_rows_are_cut_they_hand_on_the_same(
    cuts: list[int], rows: int, fan_out: float, spin: float
) -> None:
    stage_rows = rows_of("p", fan_out)
    frame = PipelineCamera(
        stage_rows, ObjectCounts({"cars": [rows]}), CLASSES, 1.0, 1.0, 0.0
    ).frames()
    _, picture = next(frame)
    picture.spin = spin
    edges = sorted({0, rows, *(cut for cut in cuts if cut < rows)})
    spans = [stage_rows.span(picture, 2, a, b) for a, b in pairwise(edges)]
    assert sum(end - first for first, end in spans) == (int(rows * fan_out + spin) - int(spin))
    for (_, end), (first, _) in pairwise(spans):
        assert end == first


def test_rows_that_cannot_be_are_named() -> None:
    pipeline = rows_of("p").pipeline
    with pytest.raises(WorkloadError, match=r"p: plate to owner: each: must not be negative"):
        StageRows(pipeline, {EDGES[2]: EdgeRows(fan_out=-1.0)})
    rows = rows_of("p")
    with pytest.raises(WorkloadError, match=r"counts: cars, frame 1: must not be negative, got -2"):
        ObjectCounts({"cars": [1, -2]})
    with pytest.raises(WorkloadError, match="no class 'bikes'"):
        PipelineCamera(rows, ObjectCounts({"cars": [1]}), (("cars",), ("bikes",)), 0.2, 15.0, 1.0)
    with pytest.raises(WorkloadError, match="slo: must be positive"):
        PipelineCamera(rows, ObjectCounts({"cars": [1]}), CLASSES, 0.0, 15.0, 1.0)


# ── the time of batches ──────────────────────────────────────────────────────────────────────────

BRAND = POOLS["brand"]


def batch(id: int, lane: str, at: float, pool: PoolId = BRAND) -> Batch:
    member = Request(id, pool.model, at, at + 1.0)
    return Batch(id, Replica(id, pool, lane, (0,), 8), (member,), 1, at, math.inf)


def test_lanes_slow_one_another_only_beyond_what_there_is() -> None:
    def times(share: float, contention: float) -> tuple[float, ...]:
        device_times = DeviceTimes(
            {BRAND: ModelTimes(TABLES["brand"], share)},
            {"a": 0, "b": 0, "c": 1},
            generator(),
            contention=contention,
        )
        device_times._sigmas[BRAND] = [0.0] * 8
        return tuple(device_times.seconds(batch(at, lane, 0.0), 1) for at, lane in enumerate("abc"))

    alone = TABLES["brand"].expected(1, 1)
    assert times(0.5, 1.6) == pytest.approx((alone, alone, alone))
    assert times(0.8, 1.0) == pytest.approx((alone, 1.6 * alone, alone))
    assert times(0.8, 1.3) == pytest.approx((alone, 1.3 * 1.6 * alone, alone))


def test_batch_times_have_the_percentiles_of_their_profile() -> None:
    times = DeviceTimes({BRAND: ModelTimes(TABLES["brand"])}, {"a": 0}, generator())
    seconds = sorted(times.seconds(batch(at, "a", 10.0 * at), 1) for at in range(4_000))
    assert seconds[2_000] == pytest.approx(TABLES["brand"].expected(1, 1), rel=0.02)
    assert seconds[3_960] == pytest.approx(TABLES["brand"].p99(1, 1), rel=0.03)
    with pytest.raises(SimulationError, match="contention: expected more than 0"):
        DeviceTimes({}, {}, generator(), contention=0.0)


def test_a_slow_link_serves_fewer() -> None:
    fast, slow = (
        Testbed(edges=1, stages=("detector", "brand", "plate", "owner"), links={"e0": steady(m)})
        for m in (60.0, 8.0)
    )
    fast.run()
    slow.run()
    assert fast.score.total.complete == 90
    assert 20 < slow.score.total.complete < 80  # 120 kB at 8 Mbit/s take 120 ms of 67


def test_answers_are_worth_what_their_source_and_their_own_stage_are_accurate() -> None:
    bed = Testbed(edges=1, cars=3.0)

    def accuracy(child: LocalChild, id: int) -> float:
        return {"detector": 0.5, "brand": 0.8}.get(child.stage, 1.0)

    for device in bed.devices.devices.values():
        device.frames.accuracy = accuracy
    total = bed.run().total
    assert total.in_time == total.offered > 0
    assert 0.5 * 0.8 * total.in_time < total.worth < 0.5 * total.in_time


def test_answers_are_worth_a_row_each_where_no_accuracies_are_known() -> None:
    total = Testbed(edges=1, cars=3.0).run().total
    assert total.worth == total.in_time > 0


def test_rows_of_a_frame_are_of_one_shape_and_all_shapes_come() -> None:
    shapes = tuple(((64, width, 3),) for width in (48, 112, 208))
    edge = EdgeRows(shapes=shapes)
    drawn_shapes = [edge.shape((at * 0.618034) % 1.0) for at in range(300)]
    assert {drawn_shapes.count(shape) for shape in shapes} <= set(range(85, 116))
    assert EdgeRows().shape(0.5) == ()


class Ranged:
    """One device whose models share four cores, in two lanes."""

    TABLES: ClassVar = {
        model: LatencyTable.linear(0.01, 0.008, 8, cores=(1, 2, 3)) for model in TABLES
    }

    def __init__(self, cars: float) -> None:
        self.rows = rows_of("p")
        self.devices = SimulatedDevices([self.rows.pipeline], {}, check=True)
        self.resized: list[tuple[float, str, int]] = []
        counts = ObjectCounts({"cars": [int(cars)]})
        camera = PipelineCamera(self.rows, counts, CLASSES, 0.4, 10.0, 1e5, end=4.0)
        self.devices.add(
            "d",
            Engine(self.parts),
            self.plan("a", "b"),
            ByPool({pool: AsExpected(self.times(pool)) for pool in POOLS.values()}),
            cameras=[camera],
            begin=-1.0,
            resize_s=0.02,
            planners=[ScalingPlanner(range(4)), ExitsPlanner()],
            stated=self.stated(2),
            watch=self.watch,
        )

    def times(self, pool: PoolId) -> CorrectedTimes:
        return CorrectedTimes(self.TABLES[pool.model])

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        return PoolRecipe("slack").parts(self.times(pool), max_batch=max_batch, view=view)

    def plan(self, detector: str, stages: str) -> Plan:
        """The detector on one lane, all others on another."""
        deployed = [
            Deployment(pool, detector if model == "detector" else stages, 8)
            for model, pool in POOLS.items()
        ]
        lanes = LaneSpec("a", (0, 1)), LaneSpec("b", (2, 3))
        routes = tuple(Route(model, pool) for model, pool in POOLS.items())
        return Plan(lanes, tuple(deployed), routes)

    def stated(self, most: int) -> dict[str, object]:
        limits = ScalingLimits(1, most, 1, 1, 8)
        return {model: ScaledModel(limits) for model in POOLS}

    def watch(self, events: object, now: float, commands: object) -> None:
        for command in commands:  # type: ignore[attr-defined]
            if isinstance(command, ResizeLane):
                self.resized.append((now, command.lane, len(command.cores)))


def test_cores_move_on_a_device_while_its_placement_stays() -> None:
    device = Ranged(cars=4.0)
    device.devices.run(until=10.0)
    total = device.devices.score.total
    assert total.frames == 40
    assert total.complete > 30
    assert device.resized
    hardware = device.devices.devices["d"].simulation.hardware
    assert 1.0 <= hardware.allocated.seconds(0.0, 4.0) / 4.0 <= 4.0


def test_planners_go_on_from_another_placement_within_its_bounds() -> None:
    device = Ranged(cars=4.0)
    wide = device.stated(3)
    devices = device.devices
    plan = device.plan("b", "a")
    devices.call_at(2.0, lambda now: devices.change_plans({"d": plan}, now=now, stated={"d": wide}))
    devices.run(until=10.0)
    assert devices.devices["d"].base == (plan, wide)
    sizes = {count for at, _, count in device.resized if at > 2.0}
    assert sizes
    assert max(sizes) <= 3
    assert max((count for at, _, count in device.resized if at < 2.0), default=0) <= 2
    on = {
        deployment.pool.model: deployment.lane
        for deployment in devices.frames_on("d").plan().deployments
    }
    assert on["detector"] == "b"
    assert devices.score.total.frames == 40


def test_a_device_to_which_a_model_moves_is_told_of_its_ramps() -> None:
    class Told:
        def learnt(self, pool: PoolId) -> RampsLearnt:
            models.append(pool.model)
            return RampsLearnt(pool, 1, ())

    models: list[str] = []
    bed = Testbed(edges=1, cars=2.0)
    simulation = bed.devices.devices["e0"].simulation
    simulation._exits = {"brand": Told()}  # type: ignore[dict-item]  # it is asked for nothing else
    without = plan(1)
    fewer = Plan(
        without.lanes,
        tuple(part for part in without.deployments if part.pool.model != "brand"),
        tuple(part for part in without.routes if part.model != "brand"),
    )
    bed.devices.change_plans({"e0": fewer}, now=0.0)
    models.clear()
    bed.devices.change_plans({"e0": without}, now=0.0, stated={"e0": {"brand": StatedExits()}})
    assert models == ["brand"]
