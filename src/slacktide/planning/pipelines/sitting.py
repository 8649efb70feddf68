"""On which streams the replicas of an answer sit, and in which windows they come first.

A portion is a window of its stream. A replica for which no portion is free gets a stream without
windows, else shares a replica that its model has already, else has the widest gap between the
windows of a stream: there it comes first for a while, so that it never waits for ever. Without
portions best fit says where replicas sit (spreading.py), and there are no windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from slacktide.domain import ModelWindow, Timetable
from slacktide.planning.pipelines.problem import (
    DeviceView,
    PipelineView,
    PlacedReplica,
    PlacedStage,
    PlacementAnswer,
    PlacementQuestion,
)
from slacktide.planning.pipelines.spreading import spread

LEAST_WINDOW_S = 1e-3
"""Gaps between windows that are no wider do not become one, and shorter periods no timetable."""

Timetables = Mapping[tuple[str, int], Timetable]
"""By device and stream; of others there is none."""


def seated(
    question: PlacementQuestion, answer: PlacementAnswer
) -> tuple[tuple[PlacedReplica, ...], Timetables]:
    """All replicas, and the timetables of their streams. Of one model and form there is one on a
    stream at most."""
    if not answer.portions and not answer.unscheduled:
        return spread(question, answer.pipelines), {}
    devices = {device.name: _Windows(device) for device in question.devices}
    views = {
        view.name: (view, placed)
        for view, placed in zip(question.pipelines, answer.pipelines, strict=True)
    }
    for portion in answer.portions:
        view, placed = views[portion.pipeline]
        need = _Wanted(view, portion.stage, placed[portion.stage])
        window = ModelWindow(need.model, portion.start, portion.end)
        devices[portion.device].add(need, portion.stream, window, portion.period)
    for name, at, _ in answer.unscheduled:
        view, placed = views[name]
        devices[placed[at].device].add_anywhere(_Wanted(view, at, placed[at]))
    for view, placed in views.values():
        for at, stage in enumerate(placed):
            if not stage.replicas:  # it shares those of another pipeline
                devices[stage.device].add_anywhere(_Wanted(view, at, stage))
    replicas: list[PlacedReplica] = []
    timetables: dict[tuple[str, int], Timetable] = {}
    for device, device_windows in devices.items():
        replicas += device_windows.replicas.values()
        for stream, table in device_windows.timetables():
            timetables[device, stream] = table
    return tuple(replicas), timetables


class _Wanted:
    """A replica of a stage that is to be put somewhere."""

    def __init__(self, view: PipelineView, at: int, stage: PlacedStage) -> None:
        self.key, self.stage = (view.name, at), stage
        self.model = view.stages[at].model_in(view)
        form = view.stages[at].forms[stage.form]
        self.memory = form.weights + form.intermediate


@dataclass(slots=True)
class _Windows:
    """What is where on one device. Changes."""

    device: DeviceView
    replicas: dict[tuple[int, str, int], PlacedReplica] = field(default_factory=dict)
    """By stream, model and form."""
    windows: dict[int, list[ModelWindow]] = field(default_factory=dict)
    periods: dict[int, float] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)
    """By accelerator: bytes of what is there."""
    plain: set[int] = field(default_factory=set)
    """Streams that are to have no timetable."""

    def add(self, need: _Wanted, stream: int, window: ModelWindow, period: float) -> None:
        self._put(need, stream)
        self.windows.setdefault(stream, []).append(window)
        self.periods[stream] = period

    def add_anywhere(self, need: _Wanted) -> None:
        """Where no portion is free for it."""
        present_streams = [
            stream
            for stream, model, form in self.replicas
            if (model, form) == (need.model, need.stage.form)
        ]
        lanes = [at for at in range(self.device.lanes) if at not in present_streams]
        free = [at for at in lanes if at not in self.windows or at in self.plain]
        if need.stage.replicas and free:
            self._put(need, min(free, key=lambda at: self._rank(at, need)))
        elif present_streams:
            self._put(need, present_streams[0])
        else:
            stream = min(lanes, key=lambda at: self._rank(at, need))
            self._put(need, stream)
            if stream in self.windows and stream not in self.plain:
                self._add_gap(need.model, stream)

    def timetables(self) -> Iterator[tuple[int, Timetable]]:
        for stream, windows in self.windows.items():
            if stream not in self.plain and self.periods[stream] >= LEAST_WINDOW_S:
                ordered = sorted(windows, key=lambda window: window.start)
                yield stream, Timetable(self.periods[stream], tuple(ordered))

    def _rank(self, stream: int, need: _Wanted) -> tuple[float, float, int]:
        """The least is the best: missing memory, time that others have windows of, replicas."""
        used_memory = self.memory.get(stream // self.device.streams, 0.0)
        reserved = sum(window.end - window.start for window in self.windows.get(stream, []))
        replica_count = sum(1 for at, _, _ in self.replicas if at == stream)
        missing = max(0.0, used_memory + need.memory - self.device.memory)
        return missing, reserved / self.periods.get(stream, 1.0), replica_count

    def _put(self, need: _Wanted, stream: int) -> None:
        key = stream, need.model, need.stage.form
        replica = self.replicas.get(key)
        if replica is None:
            accelerator = stream // self.device.streams
            self.memory[accelerator] = self.memory.get(accelerator, 0.0) + need.memory
            replica = PlacedReplica(self.device.name, *key, need.stage.batch, ())
        stages = replica.stages if need.key in replica.stages else (*replica.stages, need.key)
        batch = max(replica.batch, need.stage.batch)
        self.replicas[key] = replace(replica, batch=batch, stages=stages)

    def _add_gap(self, model: str, stream: int) -> None:
        """The widest gap becomes its window; without one the stream has no timetable."""
        windows = self.windows[stream]
        if any(window.model == model for window in windows):
            return
        ends = sorted([0.0, *(end for window in windows for end in (window.start, window.end))])
        ends.append(self.periods[stream])
        start, end = max(list(pairwise(ends))[::2], key=lambda gap: gap[1] - gap[0])
        if end - start > LEAST_WINDOW_S:
            windows.append(ModelWindow(model, start, end))
        else:
            self.plain.add(stream)
