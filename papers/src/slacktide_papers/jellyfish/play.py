"""Play one cell in virtual time: active clients, the engine, and a planner of variants.

Clients, links and frames are the same for every contender. A batch takes exactly the profiled time
of its size: the profile holds P99 times, and the hardware is predictable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from random import Random

import numpy as np

from slacktide.client import Advice, ClientCore, ClientSettings
from slacktide.domain import Batch, Deployment, ExitMode, LaneSpec, Plan, PoolId, Request, Route
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import (
    ClientLogic,
    Execution,
    FrameRecord,
    MeasuredLink,
    SimulatedClient,
    SimulatedClients,
    Simulation,
    rng_for,
)
from slacktide.lab.workloads import TraceLink
from slacktide.planning.variants import Family, FamilyVariant, Variant, VariantsPlanner
from slacktide.profiles import BatchTimes, CorrectedTimes, LatencyTable, PointTime
from slacktide.scheduling import PoolRecipe
from slacktide_papers.harness.experiments import TraceCell
from slacktide_papers.harness.state import ReproduceError
from slacktide_papers.jellyfish.exits import (
    FamilyExits,
    leaving,
    measured_exits,
    policies,
    with_exit,
)
from slacktide_papers.jellyfish.experiments import DURATION, MECHANISMS
from slacktide_papers.jellyfish.published import (
    WIRE_S,
    Adaptation,
    PublishedClient,
    PublishedLink,
    PublishedPlanner,
)
from slacktide_papers.jellyfish.published_workers import PublishedWorkers, WorkerQueue
from slacktide_papers.jellyfish.setting import BATCHES, SETTINGS, SIDES, JellyfishSetting, load_data

MODEL = "detector"
LOAD_S = (0.15, 0.2)
"""Seconds that loading a variant takes (§7.7)."""
JOIN_S = (1.0, 10.0)
"""Range of the seconds between two clients' starts (§7.2); scaled down in shorter runs."""
START_S = 1.0
"""Seconds from the start of the engine until the first client joins."""
BURST_S, BURST_GAP_S, BURST_FACTOR = 1.0, 9.0, 3.0
"""Length of a burst of slowness, mean time between two bursts, and factor on batch times."""
MOST_BURSTS = 200
PLAN_S = 0.05
"""Seconds that our planner takes; the published planner takes no time."""
SETTLES_S = 1.0
"""Seconds at the end whose frames do not count: some have no outcome yet."""

Made = tuple[ClientLogic, MeasuredLink | None]


@dataclass(frozen=True, slots=True)
class PlayedFrames:
    """Outcome of a run."""

    frames: int
    missed: int
    unsavable: int
    """Frames that no policy could have answered in time."""
    beyond: int
    """Missed frames that some policy could have answered in time."""
    accuracy: float
    """Mean over all frames; a missed frame counts as 0."""
    busy: float
    """Share of the workers' time in which batches ran."""
    latency_ms: Sequence[float]
    """Latency from capture, of frames answered in time: percentiles 0 to 100."""
    switches: int
    """Changes of a worker's variant; `late_switches` are those to a variant not loaded."""
    late_switches: int
    mismatches: int
    """Frames that ran on another variant than planned."""
    course: Sequence[float]
    """Mean side of the first client's frames, by second; 0 if none was answered in time."""


class ScatteredHardware:
    """Draws batch times around the medians of `times`, by variant; slower during bursts."""

    def __init__(self, times: Mapping[str, BatchTimes], setting: JellyfishSetting, seed: int):
        self._times, self._random = times, rng_for(seed, "batch times")
        gaps = rng_for(seed, "bursts").exponential(BURST_GAP_S, size=MOST_BURSTS)
        self._bursts = np.cumsum(gaps + BURST_S) if setting.bursts else np.zeros(0)
        """Ends of the bursts, in seconds."""

    def seconds(self, batch: Batch, cores: int) -> float:
        at = int(np.searchsorted(self._bursts, batch.started))
        slow = at < len(self._bursts) and batch.started > self._bursts[at] - BURST_S
        drawn = self._times[batch.replica.pool.variant].of(batch.rows, cores)
        return drawn.quantile(self._random.random()) * (BURST_FACTOR if slow else 1.0)


def scattered_times(variants: Sequence[Variant], scatter: float) -> dict[str, BatchTimes]:
    """Batch times around the profile as median, by variant. They learn as in the server."""
    times: dict[str, BatchTimes] = {}
    for variant in variants:
        medians = [[seconds] for seconds in variant.seconds]
        p99s = [[scatter * seconds] for seconds in variant.seconds]
        rows = range(1, len(medians) + 1)
        times[variant.name] = CorrectedTimes(LatencyTable.from_grid(rows, (1,), medians, p99s))
    return times


class ProfileTimes(BatchTimes):
    """Batch times of one variant, on any number of cores; padding counts like other rows."""

    def __init__(self, variant: Variant) -> None:
        self._times = [PointTime(seconds) for seconds in variant.seconds]

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return self._times[min(rows, len(self._times)) - 1]


def play(cell: TraceCell) -> PlayedFrames:
    """Play `cell`; equal cells give equal outcomes. Raises ReproduceError,
    OptionError."""
    return _RUNS[cell.contender.policy](cell).played()


class _Run:
    """Everything that contenders share."""

    simulation: Simulation
    clients: SimulatedClients

    def __init__(self, cell: TraceCell) -> None:
        self.cell, self.setting = cell, SETTINGS[cell.setting]
        self.options = dict(cell.contender.options)
        self.data = load_data(cell.folder)
        only, count = self.options.pop("only", None), self.setting.variants
        self.planned = only is None
        chosen = slice(count) if only is None else slice(int(only), int(only) + 1)
        self.variants = self.data.variants[chosen]
        self.exits = int(self.options.pop("exits", 0))
        if self.exits:
            self.variants = with_exit(self.variants)
        self.sides = SIDES[chosen]
        resident = int(self.options.get("resident", 0))
        pairs = zip(self.variants, self.sides, strict=True)
        self.family = Family(
            tuple(FamilyVariant(v.name, v.accuracy, side, bool(resident)) for v, side in pairs),
            resident=resident or 1,
        )
        self.frame_bytes = self.data.frame_bytes.__getitem__
        self.lanes = tuple(LaneSpec(f"gpu-{at}", (at,)) for at in range(self.setting.workers))
        self.pools = {variant.name: PoolId(MODEL, "1", variant.name) for variant in self.variants}
        self.times: dict[str, BatchTimes] = {
            variant.name: ProfileTimes(variant) for variant in self.variants
        }
        self.hardware: Execution = self
        if self.setting.scatter > 1.0:
            scatter = self.setting.scatter
            self.times = scattered_times(self.variants, scatter)
            true_times = scattered_times(self.variants, scatter)
            self.hardware = ScatteredHardware(true_times, self.setting, cell.seed)
        self.workers = PublishedWorkers(self.variants, [lane.name for lane in self.lanes])

    def seconds(self, batch: Batch, cores: int) -> float:
        """True time of a batch: the run acts as the simulation's hardware."""
        return self.times[batch.replica.pool.variant].of(batch.rows, cores).expected

    def drawn(self, make: Callable[[str, float, float], Made]) -> list[SimulatedClient]:
        """The setting's clients; `make(id, rate, SLO)` makes a client's logic and link view."""
        setting, trace = self.setting, self.data.traces[self.setting.network]
        random = rng_for(self.cell.seed, f"clients of {setting.name}")
        joins, clients = 0.0, []
        for number in range(setting.clients):
            rate = setting.rates[random.integers(len(setting.rates))]
            slo = setting.slos[random.integers(len(setting.slos))]
            offset = float(random.uniform(0.0, trace.period))
            logic, measured = make(f"s:{number}", rate, slo)
            clients.append(
                SimulatedClient(
                    id=f"s:{number}",
                    model=MODEL,
                    logic=logic,
                    link=TraceLink(trace, 2.0 * WIRE_S, offset),
                    rate=rate,
                    slo=slo,
                    variants=self.family.variants,
                    smallest_run_s=self.variants[0].seconds[0],
                    frame_bytes=self.frame_bytes,
                    jitter=repeat(1.0),
                    joins=joins,
                    measured=measured,
                )
            )
            joins += float(random.uniform(*JOIN_S)) * self.cell.duration / DURATION
        self.ends = clients[-1].joins + self.cell.duration
        return clients

    def plan(self, placed: Iterable[tuple[PoolId, LaneSpec]]) -> Plan:
        """A plan with these pools on these lanes; requests go to the first pool."""
        deployments = tuple(Deployment(pool, lane.name, BATCHES) for pool, lane in placed)
        return Plan(self.lanes, deployments, (Route(MODEL, deployments[0].pool),))

    def accuracy(self, frame: FrameRecord) -> float:
        return frame.accuracy

    def switched(self) -> tuple[int, int]:
        """(all changes of a lane's variant, those to a variant that was not loaded)."""
        return self.workers.switches, self.workers.late

    def played(self) -> PlayedFrames:
        self.simulation.join(self.clients)
        self.simulation.run(until=self.ends + SETTLES_S)
        frames = [frame for frame in self.clients.frames if frame.captured <= self.ends]
        if not frames:
            raise ReproduceError("--seeds, --quick: no client sent a frame")
        switches, late = self.switched()
        latencies_ms = [1e3 * f.outcome.seconds for f in frames if f.outcome and not f.missed]
        return PlayedFrames(
            frames=len(frames),
            missed=sum(frame.missed for frame in frames),
            unsavable=sum(not frame.savable for frame in frames),
            beyond=sum(frame.missed and frame.savable for frame in frames),
            accuracy=sum(map(self.accuracy, frames)) / len(frames),
            busy=self.simulation.hardware.busy_s / (self.ends * len(self.lanes)),
            latency_ms=np.percentile(latencies_ms or [0.0], range(101)).round(2).tolist(),
            switches=switches,
            late_switches=late,
            mismatches=self.workers.mismatches,
            course=_course(frames),
        )


def _course(frames: Sequence[FrameRecord]) -> list[float]:
    sides: dict[int, list[int]] = {}
    for frame in frames:
        if frame.client == "s:0" and not frame.missed:
            sides.setdefault(int(frame.captured), []).append(frame.side)
    return [
        round(float(np.mean(sides.get(second, [0]))), 1)
        for second in range(int(frames[-1].captured) + 1)
    ]


class _Published(_Run):
    """Jellyfish, complete or without part of its client or planner."""

    def __init__(self, cell: TraceCell) -> None:
        super().__init__(cell)
        loads = rng_for(cell.seed, "loads")
        self.share = float(self.options.get("share", 0.0))
        fixed = int(self.options.get("fixed", -1))
        planner = PublishedPlanner(
            self.workers,
            [self.frame_bytes(side) for side in self.sides],
            self.sides,
            load=lambda: float(loads.uniform(*LOAD_S)),
            most=int(self.options.get("resident", 5)),
            adaptation=Adaptation(self.share, fixed, bool(self.options.get("aligned", 1))),
            seed=cell.seed,
        )
        times = ProfileTimes(self.variants[-1])  # slowest variant: only to detect a hung batch
        plan = self.plan((PoolId(MODEL, "1", lane.name), lane) for lane in self.lanes)
        engine = Engine(
            lambda id, most, view: PoolParts(WorkerQueue(self.workers, id.variant), times)
        )
        stated = {MODEL: ()}
        self.simulation = Simulation(engine, plan, self.workers, planners=(planner,), stated=stated)
        self.clients = SimulatedClients(
            self.drawn(self.make),
            self.simulation.put_turn,
            advise=planner.advise,
            variant_of=self.workers.variant_of,
        )

    def make(self, id: str, rate: float, slo: float) -> Made:
        network = (1.0 - self.share) * slo if self.options.get("network") else np.inf
        adapts = "fixed" not in self.options
        client = PublishedClient(
            self.sides, self.frame_bytes, rate=rate, slo=slo, adapts=adapts, network_s=network
        )
        return client, PublishedLink(id, rate)


class _Static(_Run):
    """One variant on all workers, `clockwork` queues, and clients that adapt to bandwidth only."""

    def __init__(self, cell: TraceCell) -> None:
        super().__init__(cell)
        at = min(int(self.options["variant"]), len(self.variants) - 1)
        self.pool, side = self.pools[self.variants[at].name], self.sides[at]
        plan = self.plan((self.pool, lane) for lane in self.lanes)
        self.simulation = Simulation(Engine(self.parts), plan, self)
        advice = Advice(size=side)
        self.clients = SimulatedClients(
            self.drawn(self.make), self.simulation.put_turn, advise=lambda session: advice
        )

    def parts(self, pool: PoolId, most: int, view: PoolView) -> PoolParts:
        times = self.times[pool.variant]
        return PoolRecipe("clockwork").parts(times, max_batch=most, view=view)

    def make(self, id: str, rate: float, slo: float) -> Made:
        client = PublishedClient(self.sides, self.frame_bytes, rate=rate, slo=slo)
        return client, PublishedLink(id, rate)


class _Ours(_Run):
    """Our system: the variants planner, `slack` with rescue, and the client of the SDK."""

    def __init__(self, cell: TraceCell) -> None:
        super().__init__(cell)
        options = dict(self.options)
        resident, rescue = options.pop("resident", 0.0), options.pop("rescue", 1.0)
        self.rescues = bool(rescue)
        planner_options = {k: bool(v) if k in MECHANISMS else v for k, v in options.items()}
        family = replace(self.family, options=planner_options)
        plan = self.plan((pool, lane) for lane in self.lanes for pool in self.pools.values())
        exits = None
        if self.exits:
            mode = ExitMode.SHRINK if self.exits == 1 else ExitMode.RELEASE
            plan = replace(plan, exits=policies(tuple(self.pools.values()), mode))
            exits = {MODEL: FamilyExits(self.variants, self.cell.seed)}
        self.planner = VariantsPlanner()
        self.simulation = Simulation(
            Engine(self.parts),
            plan,
            self.hardware,
            begin=-START_S,
            start_s=LOAD_S[1] if resident else 0.0,
            planners=(self.planner,) if self.planned else (),
            stated={MODEL: family} if self.planned else {},
            job_s=PLAN_S,
            exits=exits,
        )
        advice = Advice(self.sides[0], self.variants[0].name)
        self.clients = SimulatedClients(
            self.drawn(self.make),
            self.simulation.put_turn,
            advise=None if self.planned else lambda session: advice,
        )

    def accuracy(self, frame: FrameRecord) -> float:
        """With exits, the mean over the variant's frames, because a random draw decides which
        frames leave."""
        if not self.exits or not frame.accuracy:
            return frame.accuracy
        at = [variant.name for variant in self.variants].index(frame.variant)
        return frame.accuracy * measured_exits().relative_accuracy(leaving(at, len(self.variants)))

    def switched(self) -> tuple[int, int]:
        if not self.planned:
            return 0, 0
        status = self.planner.status()[MODEL]
        return status.switches, status.mismatches

    def parts(self, pool: PoolId, most: int, view: PoolView) -> PoolParts:
        rescue = self.family.smaller(pool.variant) if self.rescues else ()
        recipe = PoolRecipe("slack", size=int(pool.variant), rescue=rescue)
        return recipe.parts(self.times[pool.variant], max_batch=most, view=view)

    def make(self, id: str, rate: float, slo: float) -> Made:
        return ClientCore(ClientSettings(slo=slo, rate=rate), Random(id)), None


_RUNS: dict[str, type[_Run]] = {"published": _Published, "static": _Static, "variants": _Ours}
