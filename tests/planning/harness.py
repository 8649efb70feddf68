"""One harness for all planners: an engine and its planners stepped by hand, times that are certain,
and views of a model. Folders add what their planners need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slacktide.domain import (
    Command,
    Deployment,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaUp,
    Request,
    StartReplica,
    TimerFired,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.planning import Planner
from slacktide.planning.scaling import ModelView, ScalingLimits
from slacktide.profiles import BatchTimes, PointTime
from slacktide.profiles.time_distribution import SplitLogLogistic
from slacktide.runtime import Runtime
from slacktide.scheduling import make_scheduler

Seconds = Callable[[int, int], float]
Parts = Callable[[PoolId, int, PoolView], PoolParts]


class CertainTimes(BatchTimes):
    """Every batch takes `seconds(rows, cores)`, and `p99` times that at its 99th percentile."""

    def __init__(self, seconds: Seconds, *, p99: float = 1.0) -> None:
        self._seconds, self._p99 = seconds, p99

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> Any:
        seconds = self._seconds(rows, cores)
        if self._p99 == 1.0:
            return PointTime(seconds)
        return SplitLogLogistic(seconds, self._p99 * seconds, lower=0.1, tail=0.1)


def parts_of(scheduler: str, times_of: Callable[[PoolId], Any]) -> Parts:
    """Parts of pools under one scheduler; a variant is named by its size."""

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = times_of(pool)
        size = int(pool.variant) if pool.variant.isdigit() else 0
        policy = make_scheduler(scheduler, {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(policy, times, size=size)

    return parts


def model_view(times: Any, limits: ScalingLimits, **fields: Any) -> ModelView:
    """A model of which nothing waits and nothing comes, but for what `fields` say."""
    usual = {"model": "m", "waiting": (), "replicas": (), "rate": 0.0, "budget": math.inf}
    return ModelView(**usual | {"batch": 1} | fields, times=times, limits=limits)


def lanes_of(names: Iterable[str], cores: int = 1) -> tuple[LaneSpec, ...]:
    """Lanes beside each other, of so many cores each."""
    return tuple(
        LaneSpec(name, tuple(range(at * cores, (at + 1) * cores))) for at, name in enumerate(names)
    )


def spread(pools: Sequence[PoolId], lanes: Iterable[str], max_batch: int) -> tuple[Deployment, ...]:
    """Every pool on every lane."""
    return tuple(Deployment(pool, lane, max_batch) for lane in lanes for pool in pools)


def family_pools(model: str, variants: Iterable[object], version: str = "1") -> list[PoolId]:
    return [PoolId(model, version, str(variant)) for variant in variants]


class SteppedPlanners:
    """An engine with its planners; time passes when a test says so. Replicas that are to start wait
    in `starting`, and jobs until `run_jobs`."""

    def __init__(
        self,
        parts: Parts,
        planners: Sequence[Planner],
        *,
        keeps_faults: bool = False,
        watch: Any = None,
    ) -> None:
        """`keeps_faults`: what planners raise goes to `faults`; else it is raised."""
        self.engine = Engine(parts)
        self.faults: list[str] = []
        note = self._note_fault if keeps_faults else None
        self.runtime = Runtime(self.engine, planners, watch=watch, on_fault=note)
        self.stated: Mapping[str, Any] = {}
        self.now = 0.0
        self.starting: list[int] = []

    def _note_fault(self, subject: str, error: BaseException, fatal: bool = False) -> None:
        self.faults.append(f"{subject}: {error!r}")

    def turn(self, *events: Any, at: float | None = None, after: float = 0.0) -> list[Command]:
        """One turn of a driver, `at` a moment or `after` so many seconds: its commands."""
        self.now = (self.now if at is None else at) + after
        commands = self.runtime.handle(events, now=self.now)
        starts = [command for command in commands if isinstance(command, StartReplica)]
        self.starting += [command.replica.id for command in starts]
        return commands

    def rebase(self, base: Plan) -> None:
        """Put a base plan in force, with what is stated of its models."""
        self.turn(PlanChanged(self.runtime.rebase(base, self.stated, now=self.now)))

    def bring_up(self) -> None:
        while self.starting:
            self.turn(ReplicaUp(self.starting.pop(0)))

    def run_jobs(self) -> int:
        """Compute what planners have asked for; how many jobs there were."""
        jobs = self.runtime.take_jobs()
        for job in jobs:
            self.turn(job.run())
        return len(jobs)

    def wait(self, seconds: float) -> None:
        """Let time pass, with everything that is due in it."""
        until = self.now + seconds
        while True:
            self.run_jobs()
            due = self.runtime.next_wakeup()
            if due is None or due > until:
                break
            self.turn(TimerFired(), at=max(due, self.now))
        self.now = until

    @property
    def plan(self) -> Plan:
        return self.engine.plan

    def lanes(self, model: str) -> set[str]:
        """Lanes on which a model is deployed."""
        deployments = self.plan.deployments
        return {deployment.lane for deployment in deployments if deployment.pool.model == model}

    def route(self, client: str | None = None, model: str = "m") -> str:
        """Variant that requests of a client go to, or requests without one."""
        (variant,) = {
            route.pool.variant
            for route in self.plan.routes
            if (route.model, route.client) == (model, client)
        }
        return variant
