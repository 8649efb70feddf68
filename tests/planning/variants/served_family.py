"""A family of variants on an engine, with its planner, for tests: stepped by hand, or in virtual
time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.planning.harness import CertainTimes, SteppedPlanners, lanes_of, parts_of, spread

from slacktide.domain import (
    Batch,
    Event,
    Outcome,
    Plan,
    PlanChanged,
    PoolId,
    Route,
    TimerFired,
)
from slacktide.engine import Engine
from slacktide.lab.simulation import Item, Simulation
from slacktide.planning import SessionMeasured, SessionOpened
from slacktide.planning.scaling import ScalingPlanner
from slacktide.planning.variants import Family, FamilyVariant, VariantsPlanner

SIDES = (128, 256, 416, 608)
ALONE = {"128": 0.010, "256": 0.016, "416": 0.030, "608": 0.060}
"""Seconds of a batch of one row, by variant; each row more takes half of that."""
SIZES = tuple(FamilyVariant(str(side), 0.2 + 0.1 * at, side) for at, side in enumerate(SIDES))
FILES = tuple(
    FamilyVariant(str(side), 0.2 + 0.1 * at, side, nbytes=1000) for at, side in enumerate(SIDES)
)
MAX_BATCH = 8
GAP = 0.02
"""Seconds after which the next plan of a few sessions may come."""
FAST = 50e6
"""Bytes per second of a link that carries everything."""


def times_of(pool: PoolId) -> CertainTimes:
    """Times of a variant."""
    return CertainTimes(lambda rows, cores: ALONE[pool.variant] * (1 + rows) / 2)


class AsLong:
    """An execution: batches take what is predicted."""

    def seconds(self, batch: Batch, cores: int) -> float:
        return times_of(batch.replica.pool).of(batch.rows, cores).expected


def pool_of(variant: str, version: str = "1", generation: int = 0) -> PoolId:
    return PoolId("m", version, variant, generation)


def base_plan(lanes: int, *, pin: str | None = None, generation: int = 0) -> Plan:
    """Every variant on every lane, as loads lay it out."""
    names = [f"lane{number}" for number in range(lanes)]
    pools = [pool_of(size.name, generation=generation) for size in SIZES]
    route = Route("m", pools[0], pin)
    return Plan(lanes_of(names), spread(pools, names, MAX_BATCH), (route,))


PARTS = parts_of("slack", times_of)


def opened(id: str, *, rate: float = 10.0, slo: float = 0.2, **more: Any) -> SessionOpened:
    return SessionOpened(id, "m", rate, slo, **more)


def measured(id: str, bytes_per_s: float = FAST, **more: Any) -> SessionMeasured:
    return SessionMeasured(id, bytes_per_s, 0.0, 0.6, **more)


class ServedFamily(SteppedPlanners):
    """Jobs of the planner wait until `compute` is called."""

    def __init__(
        self,
        *,
        lanes: int = 2,
        variants: Sequence[FamilyVariant] = SIZES,
        options: Mapping[str, object] | None = None,
        base: Plan | None = None,
        **stated: Any,
    ) -> None:
        self.reports: list[tuple[str, int, int]] = []
        self.planner = VariantsPlanner(report=lambda *facts: self.reports.append(facts))
        planners = (ScalingPlanner(range(lanes)), self.planner)
        super().__init__(PARTS, planners, keeps_faults=True)
        self.stated = {"m": Family(tuple(variants), options=options or {}, **stated)}
        self.rebase(base or base_plan(lanes))
        self.come_up()
        self.compute()

    def come_up(self) -> None:
        """Every replica that is to start is up, and the planner has been asked again."""
        while self.starting:
            self.bring_up()
            self.turn(TimerFired())

    def compute(self) -> int:
        """Run what waits to be computed, and put it in force; how many there were."""
        self.turn(TimerFired())
        jobs = self.run_jobs()
        self.turn(TimerFired(), after=GAP)
        return jobs

    @property
    def sizes(self) -> dict[str, str]:
        """The variant whose size each client is to send."""
        return {stated.client: stated.variant for stated in self.plan.inputs}

    @property
    def plain(self) -> str:
        """The variant of the plain route."""
        return self.route()

    def lane(self, name: str, *, standby: bool = True) -> set[str]:
        """The variants on a lane, those on standby too."""
        on = [deployment for deployment in self.plan.deployments if deployment.lane == name]
        return {deployment.pool.variant for deployment in on if standby or not deployment.standby}


def assert_sound(plan: Plan, sessions: Iterable[str]) -> None:
    """Each session has one size to send and one route; routes lead where something serves, to the
    variant of that size if it does, and never to a larger one that is not the smallest."""
    clients = sorted(sessions)
    assert sorted(stated.client for stated in plan.inputs) == clients
    assert sorted(route.client for route in plan.routes if route.client is not None) == clients
    placed = {deployment.pool for deployment in plan.deployments if not deployment.standby}
    assert {route.pool for route in plan.routes} <= placed
    size = {stated.client: stated for stated in plan.inputs}
    for route in plan.routes:
        if route.client is not None:
            wanted, served = size[route.client].variant, int(route.pool.variant)
            sides = sorted(int(pool.variant) for pool in placed)
            least = [side for side in sides if side <= int(wanted or "0")] or sides[:1]
            assert served == least[-1]


class VirtualFamily:
    """In virtual time, with invariants checked; every plan is kept."""

    def __init__(
        self,
        items: Iterable[Item],
        *,
        lanes: int = 2,
        variants: Sequence[FamilyVariant] = SIZES,
        job_s: float = 0.05,
        start_s: float = 0.0,
        **stated: Any,
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.plans: list[tuple[float, Plan]] = []
        self.planner = VariantsPlanner()
        self.simulation = Simulation(
            Engine(PARTS),
            base_plan(lanes),
            AsLong(),
            planners=(ScalingPlanner(range(lanes)), self.planner),
            stated={"m": Family(tuple(variants), **stated)},
            answered=lambda request, outcome: self.outcomes.__setitem__(request.id, outcome),
            watch=self._watch,
            job_s=job_s,
            start_s=start_s,
            check=True,
        )
        self.simulation.run(items)

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[object]) -> None:
        self.plans += [(now, event.plan) for event in events if isinstance(event, PlanChanged)]
