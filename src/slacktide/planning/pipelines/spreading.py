"""On which lanes the replicas sit that a placement asks for, where no timetable says so: best fit.

Stages of one model on one device share its replicas: as many as their work asks for together. The
replica that takes the most goes first, and each goes to the accelerator that is least busy of those
with the memory for it, and there to the lane that is least busy of those without its model. One
that fits nowhere goes where the least is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import estimators
from slacktide.planning.pipelines.problem import DeviceView, PlacedReplica, PlacementQuestion

RULES = EstimateRules()


@dataclass(slots=True)
class _Group:
    """Stages that share replicas."""

    model: str
    form: int
    memory: float
    batch: int = 1
    busy: float = 0.0
    replicas: int = 0
    stages: list[tuple[str, int]] = field(default_factory=list)

    @property
    def part(self) -> float:
        """Lanes that each replica takes, on average."""
        return self.busy / self.replicas


def spread(
    question: PlacementQuestion, placed: Placed, *, merged: bool = True
) -> tuple[PlacedReplica, ...]:
    """All replicas. Those of one model on a device are on different lanes, as long as there are
    such. Unless `merged`, stages that share them have all that each of them asks for."""
    groups: dict[tuple[str, str, int], _Group] = {}
    for judge, stages in zip(estimators(question, RULES), placed, strict=True):
        for at, (cost, stage) in enumerate(zip(judge.chosen(stages), stages, strict=True)):
            view = judge.pipeline.stages[at]
            form, model = view.forms[stage.form], view.model_in(judge.pipeline)
            group = groups.setdefault(
                (stage.device, model, stage.form),
                _Group(model, stage.form, form.weights + form.intermediate),
            )
            group.batch = max(group.batch, stage.batch)
            group.busy += cost.busy
            group.replicas += stage.replicas
            group.stages.append((judge.pipeline.name, at))
    replicas: list[PlacedReplica] = []
    for device in question.devices:
        device_groups = [group for (name, _, _), group in groups.items() if name == device.name]
        for group in device_groups:
            needed = math.ceil(group.busy / RULES.room - 1e-9) if merged else group.replicas
            group.replicas = max(1, min(group.replicas, needed, device.lanes))
        replicas += _on_device(device, device_groups)
    return tuple(replicas)


def _on_device(device: DeviceView, groups: list[_Group]) -> Iterator[PlacedReplica]:
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
            yield PlacedReplica(device.name, lane, group.model, group.form, group.batch, stages)
