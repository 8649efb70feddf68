"""Distream, Rim and Jellyfish: functions that answer a placement question, each by our reading of
its paper, and the policies that use them.

All run static batches: 2 at the source, 4 on the edge, 8 on servers (OctopInf, §IV-A4). Late
requests should be dropped before they run. Replicas follow from the rates, as for OctopInf, though
the papers scale nothing; `spread` assigns them to accelerators. A stage stays on the server if a
device lacks the memory or the batch times for it.

Decision 0014 names other readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slacktide.domain import Options, option
from slacktide.planning.pipelines import (
    STATIC,
    EstimateRules,
    PipelineEstimator,
    Placed,
    PlacedStage,
    PlacementAnswer,
    PlacementError,
    PlacementPolicy,
    PlacementQuestion,
    StageConfiguration,
    StageCost,
    StaticBatches,
    make_estimators,
    placed_whole,
)
from slacktide.planning.variants import UNMAPPED, Client, Fleet, Variant, published

RULES = EstimateRules(budget=1.0)
_HALVINGS = 40


class _Split:
    """A pipeline whose first stages run at its source and the rest on servers."""

    def __init__(self, estimator: PipelineEstimator, batches: StaticBatches) -> None:
        self.estimator = estimator
        self.server = [self._cost(at, batches, server=True) for at in range(len(estimator.rates))]
        edge = [self._cost(at, batches, server=False) for at in range(len(estimator.rates))]
        self.edge: list[StageCost] = []
        """Costs of the first stages on the source's device, up to one that it cannot run."""
        for cost in edge:
            if cost is None:
                break
            self.edge.append(cost)

    def _cost(self, at: int, batches: StaticBatches, *, server: bool) -> StageCost | None:
        rows = batches.of(at, server)
        sizes = self.estimator.question.batches
        most = max(number for number, size in enumerate(sizes) if size <= rows)
        for device, host in enumerate(self.estimator.devices):
            if host.server is server and (server or device == 0):
                for batch in range(most, -1, -1):
                    cost = self.estimator.cost(at, device, 0, batch)
                    if cost is not None:
                        return cost
        return None

    @property
    def least(self) -> int:
        """Fewest stages at the source: up to the last stage that no server can run."""
        return max((at + 1 for at, cost in enumerate(self.server) if cost is None), default=0)

    def placed(self, count: int) -> tuple[PlacedStage, ...]:
        """The placement with `count` stages at the source, or the nearest number possible."""
        count = min(max(count, self.least), len(self.edge))
        stage_costs = [*self.edge[:count], *self.server[count:]]
        costs = [cost for cost in stage_costs if cost is not None]
        if len(costs) < len(stage_costs):
            name = self.estimator.pipeline.name
            raise PlacementError(f"pipeline {name!r}: no split point has times for all stages")
        return self.estimator.placed(costs)


def distream(
    question: PlacementQuestion, random: np.random.Generator, batches: StaticBatches = STATIC
) -> Placed:
    """Draw a split point for each pipeline, at each plan: the stages before it run at the source.

    Splits are drawn so that devices and servers are equally busy in expectation. Each device runs
    first stages of its pipelines until it reaches that level; the last of them runs there with the
    probability that makes the load exact. Links are ignored.

    Source: Distream (Zeng et al., SenSys 2020), stochastic partition of the pipeline's graph.
    """
    splits = [_Split(estimator, batches) for estimator in make_estimators(question, RULES)]
    servers = sum(device.lanes for device in question.devices if device.server)
    sources = [pipeline.source for pipeline in question.pipelines]

    def points(level: float) -> list[float]:
        split_points = []
        for split, source in zip(splits, sources, strict=True):
            spare = level * split.estimator.devices[0].lanes / sources.count(source)
            at = 0.0
            for cost in split.edge:
                share = min(1.0, spare / cost.busy) if cost.busy > 0.0 else 1.0
                at += share
                spare -= share * cost.busy
                if share < 1.0:
                    break
            split_points.append(at)
        return split_points

    def server_level(at: Sequence[float]) -> float:
        work = 0.0
        for split, point in zip(splits, at, strict=True):
            for number, cost in enumerate(split.server):
                work += cost.busy * min(1.0, max(0.0, number + 1 - point)) if cost else 0.0
        return work / servers if servers else 0.0

    low, high = 0.0, 1.0
    while server_level(points(high)) > high:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if server_level(points(middle)) > middle:
            low = middle
        else:
            high = middle
    return tuple(
        split.placed(int(point) + bool(random.random() < point % 1.0))
        for split, point in zip(splits, points(high), strict=True)
    )


def rim(question: PlacementQuestion, batches: StaticBatches = STATIC) -> Placed:
    """Place as many stages at the source as keep its device busy, the rest on servers.

    From the source on, pipeline by pipeline, stages are put on the device while its lanes are not
    all busy and its memory has room for one more. Links and burstiness are ignored.

    Source: Rim (Hu et al., IoTDI 2021), offloading that maximises what runs concurrently.
    """
    busy = {device.name: 0.0 for device in question.devices}
    memory = dict(busy)
    placed = []
    for estimator in make_estimators(question, RULES):
        split, host, count = _Split(estimator, batches), estimator.devices[0], 0
        for cost in split.edge:
            needed = memory[host.name] + cost.memory
            if busy[host.name] >= host.lanes or needed > host.accelerators * host.memory:
                break
            busy[host.name] += cost.busy
            memory[host.name] = needed
            count += 1
        placed.append(split.placed(count))
    return tuple(placed)


def jellyfish(
    question: PlacementQuestion, *, seed: int = 0, detectors: int | None = None, batch: int = 8
) -> Placed:
    """Place all stages on the server. The published planner chooses the variant of each pipeline's
    first stage, for the part of the SLO that the link and the later stages leave.

    `detectors`: replicas of first stages, divided among their models (None: lanes of servers ÷
    stages of the longest pipeline). Pipelines with the same model share its replicas; later stages
    have as many replicas. A pipeline mapped to no replica sends frames for the smallest variant. A
    first stage without batch times on a server stays at its source.

    Source: Jellyfish (Nigade et al., RTSS 2022), Algorithms 1 and 2; OctopInf, §IV-A4.
    """
    estimators = make_estimators(question, RULES)
    static = StaticBatches(server=batch, source=1)
    splits = [_Split(estimator, static) for estimator in estimators]
    lanes = sum(device.lanes for device in question.devices if device.server)
    longest = max(len(estimator.rates) for estimator in estimators)
    count = max(1, lanes // longest) if detectors is None else detectors
    placements = [split.placed(0) for split in splits]
    models: dict[str, list[int]] = {}
    for number, split in enumerate(splits):
        if split.least == 0:
            first = estimators[number].pipeline.stages[0]
            models.setdefault(first.model_in(estimators[number].pipeline), []).append(number)
    for members in models.values():
        share = max(1, count * len(members) // len(estimators))
        mapped = _mapped([splits[number] for number in members], share, seed)
        placed_models: set[tuple[str, int]] = set()
        for number, (replica, first_stage) in zip(members, mapped, strict=True):
            stages = [first_stage, *placements[number][1:]]
            for at, (stage, view) in enumerate(
                zip(stages, estimators[number].pipeline.stages, strict=True)
            ):
                key = view.model_in(estimators[number].pipeline), replica
                stages[at] = replace(stage, replicas=int(key not in placed_models))
                placed_models.add(key)
            placements[number] = tuple(stages)
    return tuple(placements)


def _mapped(
    splits: Sequence[_Split], replicas: int, seed: int
) -> Iterator[tuple[int, PlacedStage]]:
    """Yield for each pipeline the number of its detector replica, and its placed first stage."""
    estimator = splits[0].estimator
    question, choices = estimator.question, estimator.pipeline.stages[0].configurations
    server = next(device for device in estimator.devices if device.server)
    order = sorted(range(len(choices)), key=lambda at: choices[at].accuracy)
    variants = [
        Variant(str(at), choices[at].accuracy, _by_rows(choices[at], server.kind, question.batches))
        for at in order
    ]
    clients = []
    for split in splits:
        estimator, size = split.estimator, split.estimator.pipeline.stages[0].row_bytes
        allowance, place = estimator.pipeline.slo - _path_s(split), estimator.devices.index(server)
        way = [estimator.transfer(0, place, size * choices[at].row_share) for at in order]
        budgets = tuple([allowance - delay for delay in way])
        clients.append(Client(estimator.pipeline.name, max(estimator.pipeline.rate, 1e-9), budgets))
    fleet = Fleet(variants, clients, replicas)
    answer = published(fleet, seed=seed)
    for replica, limits in zip(answer.clients, fleet.limits, strict=True):
        variant = 0 if replica == UNMAPPED else answer.variants[replica]
        rows = max(batch for batch in question.batches if batch <= max(1, int(limits[variant])))
        yield max(replica, 0), PlacedStage(server.name, rows, 1, order[variant])


def _path_s(split: _Split) -> float:
    """Seconds of the longest path after the first stage (p99) and of the answer's way back."""
    estimator = split.estimator
    after = [0.0] * len(estimator.rates)
    for at in range(len(after) - 1, 0, -1):
        cost = split.server[at]
        path_s = after[at] + (cost.p99 if cost is not None else 0.0)
        for inflow in estimator.pipeline.stages[at].inflows:
            after[inflow.stage] = max(after[inflow.stage], path_s)
    device = next(at for at, host in enumerate(estimator.devices) if host.server)
    return after[0] + estimator.transfer(device, 0, 0.0)


def _by_rows(choice: StageConfiguration, kind: str, batches: Sequence[int]) -> tuple[float, ...]:
    """p99 seconds of 1, 2, … rows, interpolated linearly between the sizes in `batches`."""
    p99 = next(times.p99 for times in choice.times if times.kind == kind)
    sizes = list(batches[: len(p99)])
    return tuple(float(seconds) for seconds in np.interp(range(1, sizes[-1] + 1), sizes, p99))


@dataclass(frozen=True, slots=True)
class StaticBatchOptions(Options):
    """Options of baselines: batches that do not follow the load (OctopInf, §IV-A4)."""

    edge: int = option(4, "Rows in a batch on the device of a camera.", least=1)
    server: int = option(8, "Rows in a batch on a server.", least=1)
    source: int = option(2, "Rows in a batch of a pipeline's first stage.", least=1)

    @property
    def batches(self) -> StaticBatches:
        return StaticBatches(self.edge, self.server, self.source)


@dataclass(frozen=True, slots=True)
class DistreamOptions(StaticBatchOptions):
    """Options of `distream`."""

    seed: int = option(0, "Seed of the splits that it draws.", least=0)


class DistreamPlacement(PlacementPolicy):
    """See `distream`."""

    Options = DistreamOptions

    def __init__(self, options: DistreamOptions) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        placed = distream(question, self._random, self._options.batches)
        return PlacementAnswer(placed_whole(question, placed))


class RimPlacement(PlacementPolicy):
    """See `rim`."""

    Options = StaticBatchOptions

    def __init__(self, options: StaticBatchOptions) -> None:
        self._batches = options.batches

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        return PlacementAnswer(placed_whole(question, rim(question, self._batches)))


@dataclass(frozen=True, slots=True)
class JellyfishOptions(Options):
    """Options of `jellyfish`."""

    batch: int = option(8, "Rows in a batch.", least=1)
    detectors: int = option(0, "Instances of the first stage; 0: as lanes allow.", least=0)
    seed: int = option(0, "Seed of the first variants of the published planner.", least=0)


class JellyfishPlacement(PlacementPolicy):
    """See `jellyfish`."""

    Options = JellyfishOptions

    def __init__(self, options: JellyfishOptions) -> None:
        self._options = options

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        options = self._options
        placed = jellyfish(
            question, seed=options.seed, detectors=options.detectors or None, batch=options.batch
        )
        return PlacementAnswer(placed_whole(question, placed))
