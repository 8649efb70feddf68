"""A world in virtual time that is recorded: one lane, two pools, and whatever happens to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slacktide.domain import (
    Batch,
    Cancelled,
    Command,
    Deployment,
    Event,
    LaneSpec,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Refused,
    Request,
    Route,
    RunBatch,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.simulation import ByProfile, Item, SimulatedUpload, Simulation
from slacktide.lab.simulation.items import ExternalEvent, Failure
from slacktide.profiles import ClassedTimes, CorrectedTimes, LatencyTable
from slacktide.recording import Recorder
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

MIB = 1 << 20
A, B, AGAIN = PoolId("a", "1"), PoolId("b", "1"), PoolId("a", "1", generation=1)
TABLE = LatencyTable.linear(0.004, 0.002, 8, spread=1.3)


def plan(*pools: PoolId) -> Plan:
    """These pools on one lane; requests for a model go to the last of its pools."""
    routes = {pool.model: pool for pool in pools}
    return Plan(
        (LaneSpec("lane", (0,)),),
        tuple(Deployment(pool, "lane", 8) for pool in pools),
        tuple(Route(model, pool) for model, pool in routes.items()),
    )


class Hinted:
    """Takes a part longer for each unit of the largest hint."""

    def __init__(self, drawn: ByProfile) -> None:
        self._drawn = drawn

    def seconds(self, batch: Batch, cores: int) -> float:
        longest = max(member.work_hint or 0.0 for member in batch.members)
        return self._drawn.seconds(batch, cores) * (1.0 + longest / 10.0)


class Recorded:
    """An engine in virtual time with a recorder, as the server's driver has one."""

    def __init__(self, path: Path, recipe: PoolRecipe, *, limit: int = 64 * MIB) -> None:
        self.path = path
        self.recipe = recipe
        settings = EngineSettings(hang_floor=0.5)
        self.recorder = Recorder(path, settings, limit=limit)
        self.engine = Engine(self._parts, settings)
        self.times: dict[PoolId, CorrectedTimes | ClassedTimes] = {}
        self.batches: list[Batch] = []

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        classed = self.recipe.profiling > 0.0
        times = self.times[pool] = ClassedTimes(TABLE) if classed else CorrectedTimes(TABLE)
        self.recorder.opened(pool, max_batch, self.recipe, lambda: export_times(times))
        return self.recipe.parts(times, max_batch=max_batch, view=view)

    def run(self, items: Sequence[Item], *, seed: int = 0) -> None:
        """Let `items` happen, with batch times drawn from a profile 20 % slower than is thought,
        and longer by the largest hint in the batch."""
        slower = LatencyTable.linear(0.0048, 0.0024, 8, spread=1.3)
        truth = Hinted(ByProfile(CorrectedTimes(slower), np.random.default_rng(seed)))
        simulation = Simulation(self.engine, plan(A, B), truth, watch=self._watch, start_s=0.01)
        simulation.run(items)
        self.recorder.close()

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        self.recorder.called(events, now, commands)
        self.recorder.encode()
        self.batches += [command.batch for command in commands if isinstance(command, RunBatch)]


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., Recorded]:
    """Makes recorded worlds."""

    def make(
        scheduler: str = "slack",
        limit: int = 64 * MIB,
        profiling: float = 0.0,
        **options: object,
    ) -> Recorded:
        recipe = PoolRecipe(scheduler, options, profiling=profiling)
        return Recorded(tmp_path / "run.rec", recipe, limit=limit)

    return make


@pytest.fixture
def happenings() -> Callable[..., list[Item]]:
    return make_happenings


def make_happenings(
    seed: int,
    count: int = 300,
    *,
    rate: float = 250.0,
    trouble: bool = True,
    hints: Sequence[float | None] = (None, 5.0),
) -> list[Item]:
    """Arrivals of both models, some announced; with `trouble` clients that withdraw, lanes that
    fail, requests that the server refuses, and a model that is loaded anew."""
    chance = random.Random(seed)
    items: list[Item] = []
    now = 0.05
    for id in range(count):
        now += chance.expovariate(rate)
        request = Request(
            id,
            chance.choice("ab"),
            now,
            now + chance.choice((0.01, 0.02, 0.05, 0.1, 0.5)),
            rows=chance.choice((1, 1, 1, 2, 9)) if trouble else 1,
            penalty=chance.choice((1.0, 1.0, 3.0)),
            signature=((chance.choice((3, 3, 4)),),) if trouble else (),
            best_effort=trouble and chance.random() < 0.1,
            application=chance.choice(("", "tenant")),
            work_hint=chance.choice(hints),
        )
        if trouble and chance.random() < 0.3:
            items.append(announced(request, chance.choice((0.0, 0.002, 0.03))))
        else:
            items.append(request)
        if trouble and chance.random() < 0.1:
            later = now + chance.choice((0.0, 0.004, 0.02))
            items.append(ExternalEvent(later, Cancelled(id, Reason.DISCONNECTED)))
        if trouble and chance.random() < 0.02:
            items.append(
                ExternalEvent(now, Refused(10**6 + id, "a", Reason.BAD_INPUT, detail="no"))
            )
    if trouble:
        items.append(Failure(0.3, "lane", detail="killed"))
        items.append(Failure(0.31, "lane", "b", detail="killed"))
        items.append(ExternalEvent(0.5, PlanChanged(plan(A, AGAIN, B))))
        items.append(ExternalEvent(0.7, PlanChanged(plan(AGAIN, B))))
    items.sort(key=lambda item: item.arrival)
    return items


def announced(request: Request, takes: float) -> SimulatedUpload:
    """`request` with a notice; its body takes `takes` seconds, or never comes if that is 0."""
    notice = Notice(
        request.id,
        request.model,
        request.arrival,
        request.deadline,
        1000,
        request.arrival + takes / 2,
        penalty=request.penalty,
    )
    body = replace(request, best_effort=False) if takes > 0.0 else None
    return SimulatedUpload(notice, body, request.arrival + takes)
