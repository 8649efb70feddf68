"""Between two plans: instances come and go with the load, as published (OctopInf, §III-D).

Each stage has a policy of its own, the scaling planner `octopinf`; an instance runs one batch in a
cycle, as its portion is for. A new instance takes a free portion of its device, if one fits; one
that goes gives its portion back. Devices, batches and portions of the others stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from slacktide.planning.pipelines.problem import PlacedStage, PlacementAnswer, PlacementQuestion
from slacktide.planning.pipelines.streams import Streams, cycle_of
from slacktide.planning.scaling.baselines import OctopInf, OctopInfOptions
from slacktide.planning.scaling.view import ModelView, ReplicaView, ScalingLimits
from slacktide.profiles import PointTime, TimeDistribution

MOST = 4
"""Streams that the instances of a stage are scaled to fill, as many as instances in the published
code, where they run back to back."""

RowsOf = Callable[[int, int], int]
"""Rows that have come so far: of a pipeline's stage."""


@dataclass(frozen=True, slots=True)
class _BatchSeconds:
    """From one batch of an instance to the next: its cycle, or its p99 where that is longer."""

    cycle: float
    rows: tuple[int, ...]
    p99: tuple[float, ...]

    def of(self, rows: int, cores: int) -> TimeDistribution:
        at = next(number for number, batch_size in enumerate(self.rows) if batch_size >= rows)
        return PointTime(max(self.cycle, self.p99[at]))


class StageInstances:
    """How many there are of each stage, and where. Cool-downs last over plans."""

    def __init__(self, options: OctopInfOptions | None = None) -> None:
        self._options = options or OctopInfOptions()
        self._policies: dict[tuple[str, int], OctopInf] = {}
        self._streams: Streams | None = None
        self._placed: list[list[PlacedStage]] = []
        self._without: set[tuple[str, int, int]] = set()
        """Instances that have no portion."""

    def begin(self, question: PlacementQuestion, answer: PlacementAnswer) -> None:
        """There is a new plan."""
        self._streams = Streams(question)
        again = self._streams.schedule(answer.pipelines)
        self._placed = [list(stages) for stages in again.pipelines]
        self._without = set(again.unscheduled)

    def checked(self, rows_of: RowsOf, *, now: float) -> PlacementAnswer | None:
        """The answer as it is to be now; None: as it was. To be asked every few seconds."""
        streams, changed = self._streams, False
        if streams is None:
            return None
        for number, pipeline in enumerate(streams.question.pipelines):
            for at in range(len(pipeline.stages)):
                target_count = self._wanted(streams, number, at, rows_of(number, at), now)
                changed = self._scaled(streams, number, at, target_count) or changed
        if not changed:
            return None
        portions = [portion for device in streams.devices.values() for portion in device.portions()]
        placed = tuple(tuple(stages) for stages in self._placed)
        return PlacementAnswer(placed, tuple(portions), tuple(sorted(self._without)))

    def _wanted(self, streams: Streams, number: int, at: int, rows: int, now: float) -> int:
        """Instances, as the policy says."""
        question = streams.question
        pipeline, stage = question.pipelines[number], self._placed[number][at]
        host = streams.devices[stage.device].device
        forms = pipeline.stages[at].forms[stage.form].times
        p99 = next(form_times.p99 for form_times in forms if form_times.kind == host.kind)
        key = pipeline.name, at
        cycle = cycle_of(pipeline)
        lane_instances = max(1, math.floor(cycle / p99[question.batches.index(stage.batch)]))
        least, most = 1, max(stage.replicas, min(MOST, host.lanes) * lane_instances)
        if key not in self._policies:  # no rate is known yet
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

    def _scaled(self, streams: Streams, number: int, at: int, target_count: int) -> bool:
        """Whether instances have come or gone. One for which no portion is free does not come."""
        pipeline, stages = streams.question.pipelines[number], self._placed[number]
        before = stages[at].replicas
        for replica in range(before, target_count):
            if streams.add(pipeline, stages, at, replica) is None:
                break
            stages[at] = replace(stages[at], replicas=replica + 1)
        for replica in range(before - 1, target_count - 1, -1):
            if (key := (pipeline.name, at, replica)) in self._without:
                self._without.remove(key)
            else:
                streams.remove(pipeline.name, stages, at, replica)
            stages[at] = replace(stages[at], replicas=replica)
        return stages[at].replicas != before
