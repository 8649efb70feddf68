"""When replicas run that share accelerators: CORAL (OctopInf, Algorithm 2).

A stream is a lane of an accelerator that repeats a cycle. Each replica has a portion of one, as
long as its batch takes (p99), and gets the free portion that fits it best:

1. the portion lies within the free one;
2. the accelerator has the memory (weights of all, and of each stream the largest intermediate) and
   the utilisation (of each stream the largest) (eq. 4 and 5);
3. the stream's cycle is no longer than that of the pipeline, half its SLO: so what is there already
   fixes it.

A portion begins after those of the stages before it on the same device, and early enough for those
that come after it to end within the cycle; the paper knows one start only, by which two pipelines
could share no stream. As an instance with a portion runs one batch in a cycle, there are as many of
them as take the rows that come in one (decision 0014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from slacktide.planning.pipelines.costs import EstimateRules
from slacktide.planning.pipelines.device_streams import DeviceStreams, Key, Resident
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.problem import (
    PipelineView,
    PlacedPortion,
    PlacedStage,
    PlacementAnswer,
    PlacementQuestion,
)


def cycle_of(pipeline: PipelineView) -> float:
    """Seconds after which its portions come again (paper, §III-C1)."""
    return 0.5 * pipeline.slo


class Streams:
    """All devices, for one placement: where stages run, in which form and batch, stays."""

    def __init__(self, question: PlacementQuestion) -> None:
        self.question = question
        self.devices = {device.name: DeviceStreams(device) for device in question.devices}
        self._ends: dict[Key, float] = {}
        """End of each portion."""
        self._firsts: dict[tuple[str, int], tuple[Resident, list[int]]] = {}
        """By pipeline and stage: what the first replica wants, and each other but for when it may
        begin; and the stages on its device that it takes rows from."""

    def schedule(self, placed: Placed) -> PlacementAnswer:
        """Portions for all that is placed: one replica of each stage in a round, so that all
        pipelines get one before any gets two. What is placed counts replicas that run back to
        back; one with a portion runs one batch in a cycle. So where a cycle brings more rows than
        their batches take there are more, as far as portions are free."""
        unscheduled: list[Key] = []
        room = EstimateRules().room
        chosen = [list(stages) for stages in placed]
        targets = [
            [
                max(stage.replicas, math.ceil(rate * cycle_of(pipeline) / (room * stage.batch)))
                for stage, rate in zip(stages, pipeline.rates(), strict=True)
            ]
            for pipeline, stages in zip(self.question.pipelines, placed, strict=True)
        ]
        for replica in range(max((most for counts in targets for most in counts), default=0)):
            for number, pipeline in enumerate(self.question.pipelines):
                stages = chosen[number]
                for at, stage in enumerate(stages):
                    if targets[number][at] <= replica:
                        continue
                    if self.add(pipeline, stages, at, replica) is not None:
                        if stage.replicas <= replica:
                            stages[at] = replace(stage, replicas=replica + 1)
                    elif replica < placed[number][at].replicas:
                        unscheduled.append((pipeline.name, at, replica))
                    else:
                        targets[number][at] = replica
        portions = [portion for device in self.devices.values() for portion in device.portions()]
        return PlacementAnswer(tuple(map(tuple, chosen)), tuple(portions), tuple(unscheduled))

    def add(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> PlacedPortion | None:
        """A portion for one more replica of a stage; None: there is none for it."""
        resident = self._resident(pipeline, stages, at, replica)
        portion = self.devices[stages[at].device].place(resident)
        if portion is not None:
            self._ends[resident.key] = portion.end
        return portion

    def remove(self, pipeline: str, stages: Sequence[PlacedStage], at: int, replica: int) -> None:
        """Its portion is given back. Raises KeyError if it has none."""
        key = pipeline, at, replica
        self.devices[stages[at].device].give_back(key)
        del self._ends[key]

    def _resident(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> Resident:
        name, key = pipeline.name, (pipeline.name, at)
        first_and_inflows = self._firsts.get(key)
        if first_and_inflows is None:
            first_and_inflows = self._firsts[key] = self._first(pipeline, stages, at)
        first, before = first_and_inflows
        earliest = 0.0
        for predecessor in before:
            last = min(replica, stages[predecessor].replicas - 1)
            earliest = max(earliest, self._ends.get((name, predecessor, last), 0.0))
        return Resident(
            (name, at, replica),
            first.seconds,
            earliest,
            first.latest,
            first.cycle,
            first.weights,
            first.intermediate,
            first.utilisation,
        )

    def _first(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int
    ) -> tuple[Resident, list[int]]:
        device, cycle = stages[at].device, cycle_of(pipeline)
        seconds = [self._seconds(pipeline, stages, stage) for stage in range(len(stages))]
        after = [0.0] * len(stages)
        for stage in range(len(stages) - 1, at, -1):
            for inflow in pipeline.stages[stage].inflows:
                if stages[stage].device == stages[inflow.stage].device:
                    path_seconds = seconds[stage] + after[stage]
                    after[inflow.stage] = max(after[inflow.stage], path_seconds)
        form = pipeline.stages[at].forms[stages[at].form]
        first = Resident(
            (pipeline.name, at, 0),
            seconds[at],
            0.0,
            cycle - seconds[at] - after[at],
            cycle,
            form.weights,
            form.intermediate,
            form.utilisation,
        )
        inflows = pipeline.stages[at].inflows
        return first, [inflow.stage for inflow in inflows if stages[inflow.stage].device == device]

    def _seconds(self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int) -> float:
        """P99 seconds of its batches."""
        stage = stages[at]
        kind = self.devices[stage.device].device.kind
        times = pipeline.stages[at].forms[stage.form].times
        p99 = next(form_times.p99 for form_times in times if form_times.kind == kind)
        return p99[self.question.batches.index(stage.batch)]
