"""Gives replicas that share accelerators their turns: CORAL (OctopInf, Algorithm 2).

A lane repeats a cycle of half the SLO of its first pipeline. Each replica gets a window of the
cycle, as long as its batch takes (p99), in the free window that fits it best
(lanes/lane_schedule.py).

A window begins after the windows of earlier stages on its device, and early enough for the windows
of later stages to end within the cycle. (The paper allows a single start, so two pipelines could
not share a lane.) A replica with a window runs one batch per cycle, so a stage gets enough replicas
for the rows of one cycle (decision 0014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from slacktide.planning.lanes.best_fit import MAX_UTILISATION
from slacktide.planning.lanes.lane_schedule import DeviceSchedule, Key, PlacedWindow, Resident
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.problem import (
    PipelineView,
    PlacedStage,
    PlacementAnswer,
    PlacementQuestion,
)


def cycle_of(pipeline: PipelineView) -> float:
    """Return the seconds from one turn of its replicas to the next (paper, §III-C1)."""
    return 0.5 * pipeline.slo


class CoralSchedule:
    """Schedules of all devices for one placement with fixed devices, configurations and batches."""

    def __init__(self, question: PlacementQuestion) -> None:
        self.question = question
        self.devices = {device.name: DeviceSchedule(device) for device in question.devices}
        self._ends: dict[Key, float] = {}
        """End of each window."""
        self._firsts: dict[str, list[tuple[Resident, list[int]]]] = {}
        """By pipeline and stage: (the stage's first replica, without its earliest start; the stages
        on the same device that feed the stage)."""

    def schedule(self, placed: Placed) -> PlacementAnswer:
        """Schedule one replica of each stage per round, so that every stage has a replica before
        any stage has two. `placed` counts replicas that run back to back; with a window, a replica
        runs one batch per cycle. So stages get more replicas if a cycle brings more rows than their
        batches hold, as far as windows are free."""
        unscheduled: list[Key] = []
        chosen = [list(stages) for stages in placed]
        targets = [
            [
                max(
                    stage.replicas,
                    math.ceil(rate * cycle_of(pipeline) / (MAX_UTILISATION * stage.batch)),
                )
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
        windows = [window for device in self.devices.values() for window in device.windows()]
        return PlacementAnswer(tuple(map(tuple, chosen)), tuple(windows), tuple(unscheduled))

    def add(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> PlacedWindow | None:
        """Give one more replica of a stage a window; None if no window is free for it."""
        resident = self._resident(pipeline, stages, at, replica)
        window = self.devices[stages[at].device].place(resident)
        if window is not None:
            self._ends[resident.key] = window.end
        return window

    def remove(self, pipeline: str, stages: Sequence[PlacedStage], at: int, replica: int) -> None:
        """Give back the window of a replica. Raises KeyError if it has none."""
        key = pipeline, at, replica
        self.devices[stages[at].device].give_back(key)
        del self._ends[key]

    def _resident(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int, replica: int
    ) -> Resident:
        name = pipeline.name
        if name not in self._firsts:
            self._firsts[name] = self._first_residents(pipeline, stages)
        first, before = self._firsts[name][at]
        earliest = 0.0
        for predecessor in before:
            last = min(replica, stages[predecessor].replicas - 1)
            earliest = max(earliest, self._ends.get((name, predecessor, last), 0.0))
        return first._replace(key=(name, at, replica), earliest=earliest)

    def _first_residents(
        self, pipeline: PipelineView, stages: Sequence[PlacedStage]
    ) -> list[tuple[Resident, list[int]]]:
        cycle = cycle_of(pipeline)
        seconds = [self._seconds(pipeline, stages, at) for at in range(len(stages))]
        after = [0.0] * len(stages)
        """By stage: seconds of the stages that follow it on its device."""
        residents: list[tuple[Resident, list[int]]] = []
        for at in reversed(range(len(stages))):
            view, stage = pipeline.stages[at], stages[at]
            before = [i.stage for i in view.inflows if stages[i.stage].device == stage.device]
            for predecessor in before:
                after[predecessor] = max(after[predecessor], seconds[at] + after[at])
            configuration = view.configurations[stage.configuration]
            first = Resident(
                (pipeline.name, at, 0),
                seconds[at],
                0.0,
                cycle - seconds[at] - after[at],
                cycle,
                configuration.weights,
                configuration.intermediate,
                configuration.utilisation,
            )
            residents.append((first, before))
        return residents[::-1]

    def _seconds(self, pipeline: PipelineView, stages: Sequence[PlacedStage], at: int) -> float:
        """Return the p99 of a batch of the stage, in seconds."""
        stage = stages[at]
        kind = self.devices[stage.device].device.kind
        times = pipeline.stages[at].configurations[stage.configuration].times
        p99 = next(by_batch.p99 for by_batch in times if by_batch.kind == kind)
        return p99[self.question.batches.index(stage.batch)]
