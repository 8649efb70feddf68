"""The scaling planner with policies that want what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.planning.harness import SteppedPlanners, lanes_of, parts_of

from slacktide.domain import (
    BatchFinished,
    Command,
    Deployment,
    Event,
    LaneResized,
    Plan,
    PlanChanged,
    PoolId,
    Request,
    ResizeLane,
    Route,
    RunBatch,
    Submitted,
    TimerFired,
)
from slacktide.domain.options import Options, option
from slacktide.domain.registry import Registered
from slacktide.engine import check_invariants
from slacktide.planning.scaling import (
    ModelView,
    ScaledModel,
    ScalingLimits,
    ScalingPlanner,
    ScalingPolicy,
    ScalingStatus,
    ScalingTarget,
)
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.profiles import CorrectedTimes, LatencyTable

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


class ScriptedScaling(SteppedPlanners):
    """A machine with so many cores. The engine and its cores are checked after every turn."""

    def __init__(self, machine: int = 8) -> None:
        self.machine = machine
        self.scripts: dict[str, Scripted] = {}
        """Policies of the kind `scripted`, by their key."""
        self.resizes: list[ResizeLane] = []
        """Asked for and not yet confirmed."""
        self.batches: list[RunBatch] = []
        self.planner = ScalingPlanner(range(machine))
        parts = parts_of(
            "edf", lambda pool: CorrectedTimes(LatencyTable.from_grid(ROWS, CORES, TABLE, TABLE))
        )
        super().__init__(parts, (self.planner,))

    def turn(self, *events: Event, at: float | None = None, after: float = 0.0) -> list[Command]:
        plans = self.runtime.plans
        stated = [event.plan for event in events if isinstance(event, PlanChanged)]
        commands = super().turn(*events, at=at, after=after)
        assert self.runtime.plans == plans or self.plan not in stated
        self.resizes += [command for command in commands if isinstance(command, ResizeLane)]
        self.batches += [command for command in commands if isinstance(command, RunBatch)]
        check_invariants(self.engine)
        self.check_cores()
        return commands

    def check_cores(self) -> None:
        """No core is held by two lanes, none is beyond the machine. Only a lane on which nothing
        is up yet may be promised what another is about to let go."""
        lanes = self.engine.state.lanes.values()
        held = [core for lane in lanes for core in lane.target if not lane.removed]
        assert len(held) == len(set(held)), held
        live = [
            lane for lane in lanes if any(placement.phase.serves for placement in lane.placements)
        ]
        held = [core for lane in live for core in lane.held]
        assert len(held) == len(set(held)), held
        assert set(held) <= set(range(self.machine)), held

    def state(self, base: Plan, **models: ScaledModel) -> None:
        """Put a base plan in force for these models."""

        def make(options: ScriptOptions) -> Scripted:
            return self.scripts.setdefault(options.key, Scripted(options.period))

        SCALING_POLICIES["scripted"] = Registered("scripted", ScriptOptions, make)
        self.stated = models
        self.rebase(base)

    def serve(self, base: Plan, **models: ScaledModel) -> None:
        """State models, bring everything up and let what follows happen."""
        self.state(base, **models)
        self.bring_up()
        self.settle()

    def confirm(self, after: float = 0.001) -> None:
        """Every resize under way is confirmed."""
        while self.resizes:
            resize = self.resizes.pop(0)
            self.turn(LaneResized(resize.lane, resize.cores), after=after)

    def next_look(self) -> float | None:
        """When the planner wants to be asked."""
        return self.runtime.composer.next_wakeup(self.engine.snapshot())

    def status(self, model: str) -> ScalingStatus:
        return self.planner.status(self.engine.snapshot(now=self.now))[model]

    def tick(self) -> None:
        """Let the planner's timer fire."""
        at = self.next_look()
        assert at is not None
        self.turn(TimerFired(), after=max(0.0, at - self.now))

    def aim(self, **targets: ScalingTarget) -> None:
        """Have policies want these targets, and the planner look."""
        for key, target in targets.items():
            self.scripts[key].target = target
        self.tick()

    def reach(self, **targets: ScalingTarget) -> None:
        """`aim`, and go on until nothing is to be done."""
        self.aim(**targets)
        self.settle()

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
        self.turn(*[Submitted(Request(id, model, self.now, due, rows=rows)) for id in ids])

    def finish(self, after: float = 0.01) -> None:
        """The latest batch ends."""
        self.turn(BatchFinished(self.batches[-1].batch.id), after=after)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Cores confirmed and aimed at, by lane."""
        lanes = self.engine.state.lanes
        return {name: (len(lane.cores), len(lane.target)) for name, lane in sorted(lanes.items())}


def scaled(
    key: str = "m", *, period: float = 1.0, cores: int = 8, replicas: int = 1, least: int = 1
) -> ScaledModel:
    """A model whose policy is the script `key`."""
    limits = ScalingLimits(least, cores, 1, replicas, 8)
    return ScaledModel(limits, "scripted", {"key": key, "period": period})


def base_plan(*models: str, lanes: Sequence[str] | None = None, cores: int = 1) -> Plan:
    """Each model on a lane of its own, by its name, or on the one named beside it."""
    names = list(lanes or models)
    pools = [PoolId(model, "1") for model in models]
    return Plan(
        lanes_of(dict.fromkeys(names), cores),
        tuple(Deployment(pool, name, 8) for pool, name in zip(pools, names, strict=True)),
        tuple(Route(model, pool) for model, pool in zip(models, pools, strict=True)),
    )


def serving(
    *models: str, machine: int = 8, lanes: Sequence[str] | None = None, cores: int = 1
) -> ScriptedScaling:
    """A machine that serves these models, each scaled by the script of its name."""
    world = ScriptedScaling(machine)
    plan = base_plan(*models, lanes=lanes, cores=cores)
    world.serve(plan, **{model: scaled(model) for model in models})
    return world
