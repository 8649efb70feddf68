"""Assigns replicas to lanes by best fit, for placements without a timetable.

Stages that run one model on one device share its replicas, of which there are as many as the
stages' total work needs. The busiest replica is assigned first. Each replica goes to the least busy
accelerator with enough memory, and there to the least busy lane without its model. A replica that
fits nowhere goes where the least memory is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.pipelines.costs import StageCost
    from slacktide.planning.pipelines.distribution import Placed
    from slacktide.planning.pipelines.problem import DeviceView, PlacementQuestion

MAX_UTILISATION = 0.8
"""Share of the time that a model's replicas are busy above which it gets one more replica."""


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica of a model in one configuration, for all stages that run it on the device."""

    device: str
    lane: int
    """Number on the device: lanes of its first accelerator come first."""
    model: str
    configuration: int
    batch: int
    stages: tuple[tuple[str, int], ...]
    """(pipeline, stage) that it serves."""


@dataclass(slots=True)
class _Group:
    """Stages that share replicas."""

    model: str
    configuration: int
    memory: float
    batch: int = 1
    busy: float = 0.0
    replicas: int = 0
    stages: list[tuple[str, int]] = field(default_factory=list)

    @property
    def part(self) -> float:
        """Lanes that each replica keeps busy, on average."""
        return self.busy / self.replicas


def best_fit(
    question: PlacementQuestion, placed: Placed, costs: Sequence[Sequence[StageCost]]
) -> tuple[PlacedReplica, ...]:
    """Return all replicas. `costs`: the costs of `placed`. Replicas of one model on a device are on
    different lanes, as long as there are enough."""
    groups: dict[tuple[str, str, int], _Group] = {}
    for pipeline, stages, stage_costs in zip(question.pipelines, placed, costs, strict=True):
        for at, (view, stage) in enumerate(zip(pipeline.stages, stages, strict=True)):
            chosen, model = view.configurations[stage.configuration], view.model_in(pipeline)
            group = groups.setdefault(
                (stage.device, model, stage.configuration),
                _Group(model, stage.configuration, chosen.weights + chosen.intermediate),
            )
            group.batch = max(group.batch, stage.batch)
            group.busy += stage_costs[at].busy
            group.replicas += stage.replicas
            group.stages.append((pipeline.name, at))
    replicas: list[PlacedReplica] = []
    for device in question.devices:
        device_groups = [group for (name, _, _), group in groups.items() if name == device.name]
        for group in device_groups:
            needed = math.ceil(group.busy / MAX_UTILISATION - 1e-9)
            group.replicas = max(1, min(group.replicas, needed, device.lanes))
        replicas += _fit(device, device_groups)
    return tuple(replicas)


def _fit(device: DeviceView, groups: list[_Group]) -> Iterator[PlacedReplica]:
    streams, lanes = device.streams, range(device.lanes)
    busy, memory = [0.0] * device.lanes, [0.0] * device.accelerators
    models: list[set[str]] = [set() for _ in lanes]
    for group in sorted(groups, key=lambda group: -group.part):
        for _ in range(group.replicas):
            missing = [max(0.0, used_bytes + group.memory - device.memory) for used_bytes in memory]
            work = [sum(busy[at * streams : (at + 1) * streams]) for at in range(len(memory))]
            rank = [
                (group.model in models[at], missing[at // streams], work[at // streams], busy[at])
                for at in lanes
            ]
            lane = min(lanes, key=rank.__getitem__)
            busy[lane] += group.part
            memory[lane // streams] += group.memory
            models[lane].add(group.model)
            stages = tuple(group.stages)
            yield PlacedReplica(
                device.name, lane, group.model, group.configuration, group.batch, stages
            )
