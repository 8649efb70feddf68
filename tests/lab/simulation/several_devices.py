"""Devices, links and cameras for tests of several engines on one heap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route, StagePlace
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation.frame_score import FrameScore
from slacktide.lab.simulation.items import rng_for
from slacktide.lab.simulation.world.device_times import DeviceTimes, ModelTimes
from slacktide.lab.simulation.world.devices import SimulatedDevices
from slacktide.lab.simulation.world.stage_rows import EdgeRows, PipelineCamera, StageRows
from slacktide.lab.workloads import BandwidthTrace
from slacktide.lab.workloads.bandwidth import MBIT
from slacktide.lab.workloads.object_counts import ObjectCounts, draw_object_counts
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe

TABLES = {
    "detector": LatencyTable.linear(0.012, 0.006, 8, spread=1.2),
    "brand": LatencyTable.linear(0.003, 0.001, 8, spread=1.2),
    "plate": LatencyTable.linear(0.004, 0.0015, 8, spread=1.2),
    "owner": LatencyTable.linear(0.002, 0.001, 8, spread=1.2),
}
POOLS = {model: PoolId(model, "1") for model in TABLES}
EDGES = (("detector", "brand"), ("detector", "plate"), ("plate", "owner"))
CLASSES = (("cars",), ("cars",))
HAND_OVER = StagePlace("", "", "s", p99=0.02, transfer=0.02, back=0.01)


def steady(megabits: float) -> BandwidthTrace:
    return BandwidthTrace([0.0], [megabits * MBIT])


def rows_of(name: str, fan_out: float = 0.5) -> StageRows:
    pipeline = Pipeline(
        name,
        tuple(PipelineStage(model, model) for model in TABLES),
        tuple(Edge(*ends) for ends in EDGES),
    )
    handed = {ends: EdgeRows(8e3, fan_out) for ends in EDGES}
    return StageRows(pipeline, handed, {"brand": 100.0, "owner": 100.0})


def plan(lanes: int, *, places: Sequence[StagePlace] = (), max_batch: int = 8) -> Plan:
    """All models on all lanes."""
    specs = tuple(LaneSpec(f"l{at}", (at,)) for at in range(lanes))
    deployed = tuple(
        Deployment(pool, lane.name, max_batch) for pool in POOLS.values() for lane in specs
    )
    routes = tuple(Route(model, pool) for model, pool in POOLS.items())
    return Plan(specs, deployed, routes, places=tuple(places))


def away(pipeline: str, *stages: str) -> list[StagePlace]:
    """These stages run on the server."""
    return [StagePlace(pipeline, stage, "s", 0.02, 0.02, 0.01) for stage in stages]


class Testbed:
    """`edges` devices with a camera each, and the server `s`."""

    __test__ = False

    def __init__(
        self,
        *,
        edges: int = 2,
        cars: float = 5.0,
        slo: float = 0.2,
        rate: float = 15.0,
        seconds: float = 6.0,
        seed: int = 1,
        stages: Sequence[str] = ("brand", "plate", "owner"),
        links: Mapping[str, BandwidthTrace] | None = None,
        counts: ObjectCounts | None = None,
        server_lanes: int = 2,
        contention: float = 1.0,
        max_batch: int = 8,
        scheduler: str = "slack",
        check: bool = True,
    ) -> None:
        """`stages`: that the server runs. `links`: by edge device; others carry 20 Mbit/s."""
        self.rows = {f"e{at}": rows_of(f"p{at}") for at in range(edges)}
        traces: dict[tuple[str, str], tuple[BandwidthTrace, float, float]] = {}
        for name in self.rows:
            trace = (links or {}).get(name, steady(20.0))
            traces[name, "s"] = traces["s", name] = (trace, 0.005, 0.0)
        self.score = FrameScore()
        pipelines = [rows.pipeline for rows in self.rows.values()]
        self.devices = SimulatedDevices(pipelines, traces, score=self.score, check=check)
        self.contention, self.scheduler = contention, scheduler
        for at, (name, rows) in enumerate(self.rows.items()):
            drawn = draw_object_counts({"cars": cars}, seconds, rng_for(seed, f"cars {name}"))
            camera = PipelineCamera(
                rows, counts or drawn, CLASSES, slo, rate, 120e3, start=0.01 * at, end=seconds
            )
            places = away(f"p{at}", *stages)
            self.add(name, plan(1, places=places, max_batch=max_batch), seed, [camera])
        self.add("s", plan(server_lanes, max_batch=max_batch), seed, [])

    def add(self, name: str, plan: Plan, seed: int, cameras: Sequence[PipelineCamera]) -> None:
        times = DeviceTimes(
            {pool: ModelTimes(TABLES[model]) for model, pool in POOLS.items()},
            {lane.name: 0 for lane in plan.lanes},
            rng_for(seed, f"batches on {name}"),
            contention=self.contention,
            utilisation=float(len(plan.lanes)),
        )
        self.devices.add(name, Engine(self.parts), plan, times, cameras=cameras)

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(TABLES[pool.model])
        return PoolRecipe(self.scheduler).parts(times, max_batch=max_batch, view=view)

    def run(self, until: float = 1e6) -> FrameScore:
        self.devices.run(until=until)
        return self.score


def generator(seed: int = 1) -> np.random.Generator:
    return rng_for(seed, "a test")
