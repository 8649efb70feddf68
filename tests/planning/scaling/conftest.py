"""A driver to step by hand: an engine, its planner, and policies that want what tests say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from slacktide.domain import (
    BatchFinished,
    Command,
    Deployment,
    Event,
    LaneResized,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaUp,
    Request,
    ResizeLane,
    Route,
    RunBatch,
    StartReplica,
    Submitted,
    TimerFired,
)
from slacktide.domain.options import Options, option
from slacktide.domain.registry import Registered
from slacktide.engine import Engine, PoolParts, PoolView, check_invariants
from slacktide.planning.scaling import (
    ModelView,
    ScaledModel,
    ScalingLimits,
    ScalingPlanner,
    ScalingPolicy,
    ScalingStatus,
    ScalingTarget,
)
from slacktide.planning.scaling.planners import PLANNERS
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.runtime import Runtime
from slacktide.scheduling import make_scheduler

ROWS, CORES = (1, 2, 4, 8), (1, 2, 4, 8)
TABLE = [[0.1 * rows / cores + 0.01 for cores in CORES] for rows in ROWS]
"""A row takes 0.1 s of one core, and a batch 10 ms more."""


class Scripted(ScalingPolicy):
    """A policy that wants what it is told to, and notes what it was shown."""

    def __init__(self, period: float) -> None:
        self.period = period
        self.target = ScalingTarget(1, 1, 8)
        self.endangered = False
        self.views: list[tuple[float, ModelView]] = []
        self.looks: list[float] = []

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        self.views.append((now, view))
        return self.target

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        self.looks.append(now)
        return self.endangered


@dataclass(frozen=True, slots=True)
class ScriptOptions(Options):
    key: str = option("", "Which script it follows.")
    period: float = option(1.0, "Time between two plans.", above=0)


@dataclass
class Driver:
    """What a driver does, one step at a time."""

    machine: int
    scripts: dict[str, Scripted]
    now: float = 0.0
    resizes: list[ResizeLane] = field(default_factory=list)
    """Asked for and not yet confirmed."""
    starting: list[int] = field(default_factory=list)
    started: list[Deployment] = field(default_factory=list)
    batches: list[RunBatch] = field(default_factory=list)
    plans: list[tuple[float, Plan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Engine(self._parts)
        self.planner = ScalingPlanner(range(self.machine))
        self.runtime = Runtime(self.engine, (self.planner,))
        self.models: dict[str, ScaledModel] = {}
        self.base = Plan()

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(LatencyTable.from_grid(ROWS, CORES, TABLE, TABLE))
        scheduler = make_scheduler("edf", {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(scheduler, times)

    def send(self, *events: Event, after: float = 0.0) -> list[Command]:
        """Deliver events together, `after` seconds from now, with the plan that comes of them."""
        self.now += after
        made, stated = self.runtime.plans, [e.plan for e in events if isinstance(e, PlanChanged)]
        commands = self.runtime.handle(events, now=self.now)
        if self.runtime.plans > made:
            assert self.engine.plan not in stated
            self.plans.append((self.now, self.engine.plan))
        for command in commands:
            if isinstance(command, ResizeLane):
                self.resizes.append(command)
            elif isinstance(command, StartReplica):
                self.starting.append(command.replica.id)
            elif isinstance(command, RunBatch):
                self.batches.append(command)
        check_invariants(self.engine)
        self.check_cores()
        return commands

    def check_cores(self) -> None:
        """No core is held by two lanes, none is beyond the machine. Only a lane on which nothing
        is up yet may be promised what another is about to let go."""
        lanes = self.engine.state.lanes.values()
        held = [core for lane in lanes for core in lane.target if not lane.removed]
        assert len(held) == len(set(held)), held
        live = [lane for lane in lanes if any(each.phase.serves for each in lane.placements)]
        held = [core for lane in live for core in lane.held]
        assert len(held) == len(set(held)), held
        assert set(held) <= set(range(self.machine)), held

    def rebase(self, base: Plan, **models: ScaledModel) -> None:
        self.base, self.models = base, models
        self.send(PlanChanged(self.runtime.rebase(base, models, now=self.now)))

    def serve(self, base: Plan, **models: ScaledModel) -> None:
        """Put a base plan in force, bring everything up, and let what follows happen."""
        self.rebase(base, **models)
        self.bring_up()
        self.settle()

    def bring_up(self) -> None:
        while self.starting:
            self.send(ReplicaUp(self.starting.pop(0)))

    def confirm(self, after: float = 0.001) -> None:
        """Every resize under way is confirmed."""
        while self.resizes:
            resize = self.resizes.pop(0)
            self.send(LaneResized(resize.lane, resize.cores), after=after)

    def next_look(self) -> float | None:
        """When the planner wants to be asked."""
        return self.runtime.composer.next_wakeup(self.engine.snapshot())

    def status(self, model: str) -> ScalingStatus:
        return self.planner.status(self.engine.snapshot(now=self.now))[model]

    def tick(self) -> None:
        """Let the planner's timer fire."""
        at = self.next_look()
        assert at is not None
        self.send(TimerFired(), after=max(0.0, at - self.now))

    def settle(self) -> None:
        """Confirm and tick until nothing is to be done at this moment."""
        for _ in range(20):
            self.confirm(after=0.0)
            at = self.next_look()
            if at is None or at > self.now:
                return
            self.tick()
        raise AssertionError("it never settles")

    def submit(
        self, *ids: int, model: str = "m", slo: float = 1.0, rows: int = 1, after: float = 0.0
    ) -> None:
        self.now += after
        due = self.now + slo
        self.send(*[Submitted(Request(id, model, self.now, due, rows=rows)) for id in ids])

    def finish(self, after: float = 0.01) -> None:
        """The latest batch ends."""
        self.send(BatchFinished(self.batches[-1].batch.id), after=after)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Cores confirmed and aimed at, by lane."""
        lanes = self.engine.state.lanes
        return {name: (len(lane.cores), len(lane.target)) for name, lane in sorted(lanes.items())}


def base_plan(*models: str, lanes: Sequence[str] | None = None, cores: int = 1) -> Plan:
    """Each model on a lane of its own, by its name, or on the one named beside it."""
    names = list(lanes or models)
    distinct = list(dict.fromkeys(names))
    specs = [
        LaneSpec(name, tuple(range(i * cores, (i + 1) * cores))) for i, name in enumerate(distinct)
    ]
    pools = [PoolId(model, "1") for model in models]
    return Plan(
        tuple(specs),
        tuple(Deployment(pool, name, 8) for pool, name in zip(pools, names, strict=True)),
        tuple(Route(model, pool) for model, pool in zip(models, pools, strict=True)),
    )


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Scripted]:
    """Planners of the kind `scripted`, by their key."""
    made: dict[str, Scripted] = {}

    def make(options: ScriptOptions) -> Scripted:
        return made.setdefault(options.key, Scripted(options.period))

    monkeypatch.setitem(PLANNERS, "scripted", Registered("scripted", ScriptOptions, make))
    return made


@pytest.fixture
def driver(scripts: dict[str, Scripted]) -> Callable[..., Driver]:
    """Makes a driver of a machine with so many cores."""
    return lambda machine=8: Driver(machine, scripts)


@pytest.fixture
def scaled() -> Callable[..., ScaledModel]:
    """Makes a model whose planner is the script `key`."""

    def make(
        key: str = "m", *, period: float = 1.0, cores: int = 8, replicas: int = 1, least: int = 1
    ) -> ScaledModel:
        limits = ScalingLimits(least, cores, 1, replicas, 8)
        return ScaledModel(limits, "scripted", {"key": key, "period": period})

    return make


@pytest.fixture(name="base_plan")
def base_plan_fixture() -> Callable[..., Plan]:
    return base_plan
