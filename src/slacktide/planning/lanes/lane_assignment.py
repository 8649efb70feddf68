"""Assigns the replicas of a placement to lanes, and to the windows in which they have priority.

A placement with a timetable states the windows of its replicas. A replica without a window gets a
lane without windows if it can; otherwise no replica is added, and the stage uses a replica that its
model already has. If its model has none, the replica gets the widest gap between the windows of a
lane, so that the stage does not wait for ever. Without a timetable replicas are assigned by best
fit (best_fit.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from slacktide.domain import ModelWindow, Timetable
from slacktide.planning.lanes.best_fit import PlacedReplica, best_fit

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.pipelines.costs import StageCost
    from slacktide.planning.pipelines.problem import (
        DeviceView,
        PipelineView,
        PlacedStage,
        PlacementAnswer,
        PlacementQuestion,
    )

LEAST_WINDOW_S = 1e-3
"""Gaps of at most this width do not become windows; shorter periods get no timetable."""

Timetables = Mapping[tuple[str, int], Timetable]
"""By device and lane; other lanes have none."""


def assign_replicas(
    question: PlacementQuestion, answer: PlacementAnswer, costs: Sequence[Sequence[StageCost]]
) -> tuple[tuple[PlacedReplica, ...], Timetables]:
    """Return all replicas (on each lane, at most one for each model and configuration) and
    timetables of their lanes. `costs`: the costs of the answer's stages."""
    if not answer.windows and not answer.unscheduled:
        return best_fit(question, answer.pipelines, costs), {}
    devices = {device.name: _DeviceLanes(device) for device in question.devices}
    views = {
        view.name: (view, placed)
        for view, placed in zip(question.pipelines, answer.pipelines, strict=True)
    }
    for placed_window in answer.windows:
        view, placed = views[placed_window.pipeline]
        need = _Need(view, placed_window.stage, placed[placed_window.stage])
        window = ModelWindow(need.model, placed_window.start, placed_window.end)
        devices[placed_window.device].add(need, placed_window.lane, window, placed_window.period)
    for name, at, _ in answer.unscheduled:
        view, placed = views[name]
        devices[placed[at].device].add_anywhere(_Need(view, at, placed[at]))
    for view, placed in views.values():
        for at, stage in enumerate(placed):
            if not stage.replicas:  # it shares another pipeline's replicas
                devices[stage.device].add_anywhere(_Need(view, at, stage))
    replicas: list[PlacedReplica] = []
    timetables: dict[tuple[str, int], Timetable] = {}
    for device, device_lanes in devices.items():
        replicas += device_lanes.replicas.values()
        for lane, table in device_lanes.timetables():
            timetables[device, lane] = table
    return tuple(replicas), timetables


class _Need:
    """A replica of a stage that needs a lane."""

    def __init__(self, view: PipelineView, at: int, stage: PlacedStage) -> None:
        self.key, self.stage = (view.name, at), stage
        self.model = view.stages[at].model_in(view)
        configuration = view.stages[at].configurations[stage.configuration]
        self.memory = configuration.weights + configuration.intermediate


@dataclass(slots=True)
class _DeviceLanes:
    """Replicas and windows on the lanes of one device. Mutable."""

    device: DeviceView
    replicas: dict[tuple[int, str, int], PlacedReplica] = field(default_factory=dict)
    """By lane, model and configuration."""
    windows: dict[int, list[ModelWindow]] = field(default_factory=dict)
    periods: dict[int, float] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)
    """By accelerator: bytes of its replicas."""
    plain: set[int] = field(default_factory=set)
    """Lanes that get no timetable."""

    def add(self, need: _Need, lane: int, window: ModelWindow, period: float) -> None:
        self._put(need, lane)
        self.windows.setdefault(lane, []).append(window)
        self.periods[lane] = period

    def add_anywhere(self, need: _Need) -> None:
        """Add a replica that has no window."""
        present_lanes = [
            lane
            for lane, model, configuration in self.replicas
            if (model, configuration) == (need.model, need.stage.configuration)
        ]
        lanes = [at for at in range(self.device.lanes) if at not in present_lanes]
        free = [at for at in lanes if at not in self.windows or at in self.plain]
        if need.stage.replicas and free:
            self._put(need, min(free, key=lambda at: self._rank(at, need)))
        elif present_lanes:
            self._put(need, present_lanes[0])
        else:
            lane = min(lanes, key=lambda at: self._rank(at, need))
            self._put(need, lane)
            if lane in self.windows and lane not in self.plain:
                self._add_gap(need.model, lane)

    def timetables(self) -> Iterator[tuple[int, Timetable]]:
        for lane, windows in self.windows.items():
            if lane not in self.plain and self.periods[lane] >= LEAST_WINDOW_S:
                ordered = sorted(windows, key=lambda window: window.start)
                yield lane, Timetable(self.periods[lane], tuple(ordered))

    def _rank(self, lane: int, need: _Need) -> tuple[float, float, int]:
        """Return (missing bytes, share of time in windows, replicas); the smallest is best."""
        used_memory = self.memory.get(lane // self.device.streams, 0.0)
        reserved = sum(window.end - window.start for window in self.windows.get(lane, []))
        replica_count = sum(1 for at, _, _ in self.replicas if at == lane)
        missing = max(0.0, used_memory + need.memory - self.device.memory)
        return missing, reserved / self.periods.get(lane, 1.0), replica_count

    def _put(self, need: _Need, lane: int) -> None:
        key = lane, need.model, need.stage.configuration
        replica = self.replicas.get(key)
        if replica is None:
            accelerator = lane // self.device.streams
            self.memory[accelerator] = self.memory.get(accelerator, 0.0) + need.memory
            replica = PlacedReplica(self.device.name, *key, need.stage.batch, ())
        stages = replica.stages if need.key in replica.stages else (*replica.stages, need.key)
        batch = max(replica.batch, need.stage.batch)
        self.replicas[key] = replace(replica, batch=batch, stages=stages)

    def _add_gap(self, model: str, lane: int) -> None:
        """Give the model the widest gap; if there is none, the lane loses its timetable."""
        windows = self.windows[lane]
        if any(window.model == model for window in windows):
            return
        ends = sorted([0.0, *(end for window in windows for end in (window.start, window.end))])
        ends.append(self.periods[lane])
        start, end = max(list(pairwise(ends))[::2], key=lambda gap: gap[1] - gap[0])
        if end - start > LEAST_WINDOW_S:
            windows.append(ModelWindow(model, start, end))
        else:
            self.plain.add(lane)
