"""Planners beside each other: who owns what, in which order drafts pass, and slow ones off the
loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slacktide.domain import Deployment, LaneSpec, Plan, PlanChanged, PoolId, Request, Route
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView, Snapshot
from slacktide.lab.replay import replay
from slacktide.lab.simulation import AsExpected, Simulation
from slacktide.planning import (
    Composer,
    Draft,
    JobDone,
    Owned,
    PlanField,
    Planner,
    PlannerError,
    Stated,
)
from slacktide.planning.planner import stated_as
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times
from slacktide.runtime import Runtime
from slacktide.scheduling import PoolRecipe, make_scheduler

M = PoolId("m", "1")
BASE = Plan((LaneSpec("m", (0,)),), (Deployment(M, "m", 4),), (Route("m", M),))
TABLE = LatencyTable.flat(0.01, max_batch=4)


@dataclass(frozen=True, slots=True)
class Capped:
    """A model whose batches `Caps` looks after."""


class Caps(Planner):
    """A toy: the largest batch is what waits, counted half a second ago, off the loop."""

    name = "caps"

    def __init__(self) -> None:
        self.cap = 4
        self.asked: list[float] = []
        self.told: list[float] = []
        self._due = math.inf

    def owns(self, stated: Stated) -> frozenset[Owned]:
        own = [name for name, planner in stated.items() if isinstance(planner, Capped)]
        return frozenset((name, PlanField.BATCH_CAPS) for name in own)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        self._due = now + 1.0

    def observe(self, events: Sequence[Any], snapshot: Snapshot, *, now: float) -> None:
        for event in events:
            if isinstance(event, JobDone):
                self.told.append(now)
                self.cap, self._due = event.answer, now

    def next_wakeup(self, snapshot: Snapshot) -> float:
        return self._due

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if self.told and self.told[-1] == now:
            self._due = now + 1.0
            return None  # plan with the answer
        self.asked.append(now)
        return partial(_waiting, snapshot.freeze())

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        plan = draft.plan
        capped = tuple(replace(deployment, max_batch=self.cap) for deployment in plan.deployments)
        return replace(draft, plan=replace(plan, deployments=capped))


def _waiting(snapshot: Snapshot) -> int:
    return max(1, min(4, len(snapshot.waiting(M))))


def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
    times = CorrectedTimes(TABLE)
    return PoolParts(make_scheduler("edf", {}, max_batch=max_batch, times=times, view=view), times)


class Adds(Planner):
    """Gives the first lane one core more."""

    def __init__(self, name: str, core: int) -> None:
        self.name = name
        self._core = core

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset({(self.name, PlanField.LANE_CORES)})

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        (lane,) = draft.plan.lanes
        lanes = (replace(lane, cores=(*lane.cores, self._core)),)
        return replace(draft, plan=replace(draft.plan, lanes=lanes))


class TestOwners:
    def test_two_owners_of_one_field_are_refused_when_the_runtime_is_made(self) -> None:
        first, other = Adds("a", 1), Adds("b", 2)
        other.owns = first.owns  # type: ignore[method-assign]  # both decide the cores of a
        with pytest.raises(
            PlannerError,
            match=r"^a: the planners 'a' and 'b' both decide the cores of its lanes",
        ):
            Runtime(Engine(parts), (first, other))

    def test_two_planners_of_one_name_are_refused(self) -> None:
        with pytest.raises(PlannerError, match="share a name"):
            Composer((Adds("a", 1), Adds("a", 2)))

    def test_and_when_a_model_is_loaded_what_serves_goes_on(self) -> None:
        class Grabs(Adds):
            def owns(self, stated: Stated) -> frozenset[Owned]:
                return frozenset((name, PlanField.REPLICAS) for name in stated)

        runtime = Runtime(Engine(parts), (ScalingPlanner((0, 1)), Grabs("grabs", 1)))
        runtime.handle([PlanChanged(runtime.rebase(BASE, {}, now=0.0))], now=0.0)
        scaled = {"m": ScaledModel(ScalingLimits(1, 2, batch_max=4), "static")}
        with pytest.raises(PlannerError, match="'scaling' and 'grabs' both decide the numb"):
            runtime.rebase(BASE, scaled, now=1.0)
        again = runtime.rebase(BASE, {}, now=2.0)
        runtime.handle([PlanChanged(again)], now=2.0)
        assert runtime.engine.plan == again

    def test_a_draft_passes_through_the_planners_in_their_order(self) -> None:
        runtime = Runtime(Engine(parts), (Adds("a", 3), Adds("b", 2)))
        plan = runtime.rebase(BASE, {}, now=0.0)
        assert plan.lanes == (LaneSpec("m", (0, 3, 2)),)


class TestASlowPlanner:
    def run(self, caps: Caps, until: float = 3.2, watch: Any = None, factory: Any = parts) -> Any:
        simulation = Simulation(
            Engine(factory, EngineSettings()),
            BASE,
            AsExpected(CorrectedTimes(TABLE)),
            planners=(caps,),
            stated={"m": Capped()},
            job_s=0.5,
            watch=watch,
            check=True,
        )
        requests = [Request(k, "m", 0.999 + k / 1e6, 9.0) for k in range(3)]
        later = [Request(k, "m", 0.5 + k / 10.0, 9.0 + k) for k in range(6, 30)]
        simulation.run(iter([*requests, *later]), until=until)
        return simulation

    def test_its_answer_is_merged_when_it_is_there(self) -> None:
        caps, plans = Caps(), []
        simulation = self.run(
            caps,
            watch=lambda events, now, commands: plans.extend(
                (now, event.plan.deployments[0].max_batch)
                for event in events
                if isinstance(event, PlanChanged)
            ),
        )
        assert caps.asked == pytest.approx([1.0, 2.5])
        assert caps.told == pytest.approx([1.5, 3.0])
        assert [cap for _, cap in plans] == [4, 2, 1], "two waited when it was first asked"
        assert [now for now, _ in plans] == pytest.approx([0.0, 1.5, 3.0])
        assert simulation.runtime.plans == 2

    def test_the_plan_is_recorded_so_a_replay_needs_no_planner(self, tmp_path: Path) -> None:
        recorder = Recorder(tmp_path / "run.rec", EngineSettings(), limit=1 << 30)

        def recorded(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            recipe, times = PoolRecipe("edf", {}), CorrectedTimes(TABLE)
            recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
            return recipe.parts(times, max_batch=max_batch, view=view)

        simulation = self.run(Caps(), watch=recorder.called, factory=recorded)
        recorder.close()
        replayed = replay(Recording(tmp_path / "run.rec"))
        assert replayed.difference is None
        assert replayed.engine.plan == simulation.engine.plan != BASE

    def test_a_job_that_fails_is_told_of_and_asked_for_again(self) -> None:
        caps = Caps()
        faults: list[str] = []
        runtime = Runtime(
            Engine(parts),
            (caps,),
            on_fault=lambda subject, error, fatal=False: faults.append(subject),
        )
        stated = {"m": Capped()}
        runtime.handle([PlanChanged(runtime.rebase(BASE, stated, now=0.0))], now=0.0)
        assert runtime.next_wakeup() == 1.0
        runtime.handle([], now=1.0)
        (job,) = runtime.take_jobs()
        nothing = runtime.engine.snapshot()
        assert runtime.composer.next_wakeup(nothing) is None, "its answer is waited for"
        failed = replace(job, compute=lambda: 1 / 0).run()
        assert isinstance(failed.error, ZeroDivisionError)
        runtime.handle([failed, JobDone("another")], now=1.5)
        assert faults == ["planning failed: keeping the current plan for 10 s"]
        assert runtime.next_wakeup() == 11.5
        runtime.handle([], now=11.5)
        (job,) = runtime.take_jobs()
        runtime.handle([job.run()], now=12.0)
        assert caps.told == [12.0]


def test_several_things_may_be_stated_of_one_model() -> None:
    scaled, family = ScaledModel(ScalingLimits(1, 2)), Family((FamilyVariant("small", 0.5),))
    stated = {"a": (scaled, family), "b": scaled, "c": family, "d": object()}
    assert stated_as(ScaledModel, stated) == {"a": scaled, "b": scaled}
    assert stated_as(Family, stated) == {"a": family, "c": family}
    owned = {("b", PlanField.BATCH_CAPS)}  # of a family they are another planner's
    owned |= {(n, f) for n in "ab" for f in (PlanField.REPLICAS, PlanField.LANE_CORES)}
    assert ScalingPlanner((0, 1)).owns(stated) == owned
