"""Adds and removes instances between two plans, as published (OctopInf, §III-D).

Each stage has its own scaling policy, `octopinf`. An instance runs one batch in a cycle, in its
window. A new instance takes a free window of its device, if one fits, and gives it back when it is
removed. Devices, batches and all other windows stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from slacktide.planning.pipelines.coral import CoralSchedule, cycle_of
from slacktide.planning.pipelines.problem import PlacedStage, PlacementAnswer, PlacementQuestion
from slacktide.planning.scaling.baselines import OctopInf, OctopInfOptions
from slacktide.planning.scaling.view import ModelView, ReplicaView, ScalingLimits
from slacktide.profiles import PointTime, TimeDistribution

MOST = 4
"""Maximum number of lanes that the instances of a stage may fill: the published code's limit on
instances, which run back to back there."""

RowsOf = Callable[[int, int], int]
"""Rows that have arrived so far, by pipeline and stage."""


@dataclass(frozen=True, slots=True)
class _BatchSeconds:
    """Seconds from one batch of an instance to the next: its cycle, or its p99 if that is
    longer."""

    cycle: float
    rows: tuple[int, ...]
    p99: tuple[float, ...]

    def of(self, rows: int, cores: int) -> TimeDistribution:
        at = next(number for number, batch_size in enumerate(self.rows) if batch_size >= rows)
        return PointTime(max(self.cycle, self.p99[at]))


class StageInstances:
    """The instances of all stages. Cool-downs continue across plans."""

    def __init__(self, options: OctopInfOptions | None = None) -> None:
        self._options = options or OctopInfOptions()
        self._policies: dict[tuple[str, int], OctopInf] = {}
        self._schedule: CoralSchedule | None = None
        self._placed: list[list[PlacedStage]] = []
        self._without: set[tuple[str, int, int]] = set()
        """Instances that have no window."""

    def begin(self, question: PlacementQuestion, answer: PlacementAnswer) -> None:
        """Start from a new plan."""
        self._schedule = CoralSchedule(question)
        schedule = self._schedule.schedule(answer.pipelines)
        self._placed = [list(stages) for stages in schedule.pipelines]
        self._without = set(schedule.unscheduled)

    def checked(self, rows_of: RowsOf, *, now: float) -> PlacementAnswer | None:
        """Scale all stages, and return the new answer; None: nothing has changed."""
        schedule, changed = self._schedule, False
        if schedule is None:
            return None
        for number, pipeline in enumerate(schedule.question.pipelines):
            for at in range(len(pipeline.stages)):
                target_count = self._target_count(schedule, number, at, rows_of(number, at), now)
                changed = self._scaled(schedule, number, at, target_count) or changed
        if not changed:
            return None
        windows = [window for device in schedule.devices.values() for window in device.windows()]
        placed = tuple(tuple(stages) for stages in self._placed)
        return PlacementAnswer(placed, tuple(windows), tuple(sorted(self._without)))

    def _target_count(
        self, schedule: CoralSchedule, number: int, at: int, rows: int, now: float
    ) -> int:
        """Return the number of instances that the policy asks for."""
        question = schedule.question
        pipeline, stage = question.pipelines[number], self._placed[number][at]
        host = schedule.devices[stage.device].device
        times = pipeline.stages[at].configurations[stage.configuration].times
        p99 = next(by_batch.p99 for by_batch in times if by_batch.kind == host.kind)
        key = pipeline.name, at
        cycle = cycle_of(pipeline)
        lane_instances = max(1, math.floor(cycle / p99[question.batches.index(stage.batch)]))
        least, most = 1, max(stage.replicas, min(MOST, host.lanes) * lane_instances)
        if key not in self._policies:  # its rate is not known yet
            least = most = max(1, stage.replicas)
        policy = self._policies.setdefault(key, OctopInf(self._options))
        view = ModelView(
            pipeline.stages[at].model_in(pipeline),
            (),
            (ReplicaView(1, now, now),) * stage.replicas,
            rate=0.0,
            budget=math.inf,
            batch=stage.batch,
            times=_BatchSeconds(cycle, question.batches, p99),
            limits=ScalingLimits(1, 1, least, most, stage.batch),
            arrived=rows,
        )
        return policy.decide(view, now=now).replicas

    def _scaled(self, schedule: CoralSchedule, number: int, at: int, target_count: int) -> bool:
        """Add or remove instances, and return whether any changed. Each added instance has a
        window."""
        pipeline, stages = schedule.question.pipelines[number], self._placed[number]
        before = stages[at].replicas
        for replica in range(before, target_count):
            if schedule.add(pipeline, stages, at, replica) is None:
                break
            stages[at] = replace(stages[at], replicas=replica + 1)
        for replica in range(before - 1, target_count - 1, -1):
            if (key := (pipeline.name, at, replica)) in self._without:
                self._without.remove(key)
            else:
                schedule.remove(pipeline.name, stages, at, replica)
            stages[at] = replace(stages[at], replicas=replica)
        return stages[at].replicas != before
