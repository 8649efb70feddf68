"""The question of where the stages of pipelines run, and its answer, as data.

A device is any machine with lanes; the device that asks is not special. Stages of a pipeline are in
topological order. Rows are the inputs of a stage: frames at the source, crops further on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from slacktide.planning.lanes.lane_schedule import Key, PlacedWindow

BATCHES = (1, 2, 4, 8, 16, 32, 64)


class PlacementError(ValueError):
    """An invalid question. The text names the field and the fault."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One machine. Its accelerators are alike; a CPU counts as one."""

    name: str
    kind: str
    """Devices of one kind have the same times (`ConfigurationTimes.kind`)."""
    accelerators: int = 1
    streams: int = 1
    """Lanes of each accelerator. A lane runs one batch at a time."""
    memory: float = math.inf
    """Bytes of each accelerator."""
    utilisation: float = 1.0
    """Largest sum of `StageConfiguration.utilisation` that may run together on an accelerator (eq.
    5)."""
    server: bool = False
    """Whether any pipeline may use it. Other devices serve only pipelines that begin on them."""

    @property
    def lanes(self) -> int:
        return self.accelerators * self.streams


@dataclass(frozen=True, slots=True)
class LinkView:
    """A link from one device to another. It also serves the way back, unless a link is stated for
    that."""

    begin: str
    end: str
    bandwidth: float
    """Bytes per second; 0: no connection."""
    latency: float = 0.0
    burst: float = 0.0
    """Bytes that pass immediately, before the bandwidth counts."""


@dataclass(frozen=True, slots=True)
class ConfigurationTimes:
    """Seconds of batches of `PlacementQuestion.batches` rows, on devices of one kind. Batch sizes
    beyond the last time given cannot run."""

    kind: str
    expected: tuple[float, ...]
    p99: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StageConfiguration:
    """One way to run a stage: a variant of its model, on a number of cores, with exits or
    without."""

    times: tuple[ConfigurationTimes, ...]
    """Times on each kind of device that can run the configuration."""
    name: str = ""
    accuracy: float = 1.0
    """Worth of an answer."""
    weights: float = 0.0
    """Bytes that each replica holds at all times."""
    intermediate: float = 0.0
    """Further bytes of a replica while it runs."""
    utilisation: float = 1.0
    """Share of an accelerator that a running batch uses."""
    row_share: float = 1.0
    """Share of a row's bytes that it reads: a smaller variant takes smaller images."""
    cores: int = 0
    """Maximum cores of each lane, if the model has a range of them; 0: no further limit."""
    exits: bool = True
    """Whether rows may leave early, if the model has exits."""


@dataclass(frozen=True, slots=True)
class Inflow:
    """Rows that a stage gets from an earlier stage."""

    stage: int
    fan_out: float = 1.0
    """Rows for each row of the earlier stage, on average."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage and its rows."""

    name: str
    configurations: tuple[StageConfiguration, ...]
    inflows: tuple[Inflow, ...] = ()
    """Empty for the source."""
    model: str = ""
    """Stages of one model share its replicas on a device; empty: a model of this stage alone."""
    row_bytes: float = 0.0
    """Bytes of one row of its input on a link."""
    answer_bytes: float = 0.0
    """Bytes of one row of its output, if it is a sink."""
    burstiness: float = 1.0
    """Standard deviation of the time between rows, divided by the mean (see `burstiness`)."""
    devices: tuple[str, ...] = ()
    """Devices that it may run on; empty: all."""

    def model_in(self, pipeline: PipelineView) -> str:
        """Return the name of the stage's model, unique among pipelines."""
        return self.model or f"{pipeline.owner}/{self.name}"


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline with a camera on one device. Cameras on two devices make two pipelines."""

    name: str
    source: str
    """The device of the camera. Answers go there."""
    slo: float
    rate: float
    """Frames per second."""
    stages: tuple[StageView, ...]
    spare_of: str = ""
    """The pipeline whose spare placement this is (`with_spares`); empty: it is no spare."""

    @property
    def owner(self) -> str:
        """The name of the pipeline itself."""
        return self.spare_of or self.name

    def rates(self) -> list[float]:
        """Return the rows per second by stage. A join has the rows of its largest inflow."""
        rates = [self.rate]
        for stage in self.stages[1:]:
            rates.append(max(rates[inflow.stage] * inflow.fan_out for inflow in stage.inflows))
        return rates

    def downstream(self) -> list[list[int]]:
        """Return the stages that each stage feeds."""
        return [
            [to for to, stage in enumerate(self.stages) if at in [i.stage for i in stage.inflows]]
            for at in range(len(self.stages))
        ]


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """All devices, links and pipelines that are placed together. Raises PlacementError."""

    devices: tuple[DeviceView, ...]
    links: tuple[LinkView, ...]
    pipelines: tuple[PipelineView, ...]
    batches: tuple[int, ...] = BATCHES
    """Possible batch sizes, ascending from 1."""

    def __post_init__(self) -> None:
        names = {device.name for device in self.devices}
        _unique("devices", [device.name for device in self.devices])
        _unique("pipelines", [pipeline.name for pipeline in self.pipelines])
        if self.batches[:1] != (1,) or list(self.batches) != sorted({*self.batches}):
            raise PlacementError(f"batches: expected ascending sizes from 1, got {self.batches}")
        for link in self.links:
            for end in (link.begin, link.end):
                if end not in names:
                    raise PlacementError(f"link {link.begin} to {link.end}: no device {end!r}")
            _not_negative(
                f"link {link.begin} to {link.end}",
                bandwidth=link.bandwidth,
                latency=link.latency,
                burst=link.burst,
            )
        for pipeline in self.pipelines:
            self._check(pipeline, names)

    def _check(self, pipeline: PipelineView, names: set[str]) -> None:
        where = f"pipeline {pipeline.name!r}"
        if pipeline.source not in names:
            raise PlacementError(f"{where}: source: no device {pipeline.source!r}")
        if not 0.0 < pipeline.slo < math.inf:
            raise PlacementError(f"{where}: slo: expected seconds, got {pipeline.slo}")
        _not_negative(where, rate=pipeline.rate)
        _unique(f"{where}: stages", [stage.name for stage in pipeline.stages])
        if not pipeline.stages:
            raise PlacementError(f"{where}: expected at least one stage")
        for at, stage in enumerate(pipeline.stages):
            label = f"{where}: stage {stage.name!r}"
            if bool(at) == (not stage.inflows) or any(not 0 <= i.stage < at for i in stage.inflows):
                expected = "the source first, and inflows from earlier stages"
                raise PlacementError(f"{label}: expected {expected}")
            for inflow in stage.inflows:
                _not_negative(label, fan_out=inflow.fan_out)
            _not_negative(
                label,
                row_bytes=stage.row_bytes,
                answer_bytes=stage.answer_bytes,
                burstiness=stage.burstiness,
            )
            self._check_fit(pipeline, stage, label)

    def _check_fit(self, pipeline: PipelineView, stage: StageView, label: str) -> None:
        """Raise PlacementError, naming the limits exceeded, if the stage fits no device."""
        limits = []
        for device in self.devices:
            if not (device.server or device.name == pipeline.source):
                continue
            if stage.devices and device.name not in stage.devices:
                limits.append(f"{device.name}: not among its devices {list(stage.devices)}")
            elif all(t.kind != device.kind for c in stage.configurations for t in c.times):
                limits.append(f"{device.name}: no times for devices of kind {device.kind!r}")
            elif fits(stage, device):
                return
            else:
                least = min(c.weights + c.intermediate for c in stage.configurations)
                limits.append(
                    f"{device.name}: needs {least:.0f} of {device.memory:.0f} bytes, or exceeds "
                    f"the utilisation limit of {device.utilisation}"
                )
        raise PlacementError(f"{label}: fits no device ({'; '.join(limits) or 'there are none'})")

    def device(self, name: str) -> DeviceView:
        return next(device for device in self.devices if device.name == name)

    def candidates(self, pipeline: PipelineView) -> list[DeviceView]:
        """Return the devices that the pipeline may use, its source first."""
        source = self.device(pipeline.source)
        return [source, *(host for host in self.devices if host.server and host is not source)]


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """The placement of one stage."""

    device: str
    batch: int = 1
    """Largest number of rows in one batch."""
    replicas: int = 1
    """Number of replicas for its rows; 0: it shares another pipeline's replicas of its model."""
    configuration: int = 0


@dataclass(frozen=True, slots=True)
class PlacementAnswer:
    """A placement: the stages of each pipeline, in the order of the question."""

    pipelines: tuple[tuple[PlacedStage, ...], ...]
    windows: tuple[PlacedWindow, ...] = ()
    """Empty if there is no timetable."""
    unscheduled: tuple[Key, ...] = ()
    """Replicas for which no window is free: they run when a lane is idle."""
    spares: tuple[tuple[PlacedStage, ...], ...] = ()
    """By pipeline: a second placement for frames that would be late in the first, on a server if
    the first begins on the camera's device, and the reverse. Empty: there is none."""

    def with_spares(
        self, question: PlacementQuestion
    ) -> tuple[PlacementQuestion, tuple[tuple[PlacedStage, ...], ...]]:
        """Return a question and a placement in which spares are pipelines without frames. They come
        last."""
        if not any(self.spares):
            return question, self.pipelines
        views, placed = list(question.pipelines), list(self.pipelines)
        for view, spare in zip(question.pipelines, self.spares, strict=True):
            if spare:
                name = f"spare of {view.name}"
                views.append(replace(view, name=name, rate=0.0, spare_of=view.name))
                placed.append(spare)
        return replace(question, pipelines=tuple(views)), tuple(placed)


def fits(stage: StageView, device: DeviceView) -> bool:
    """Whether a replica in any of the stage's configurations fits one accelerator (eq. 4 and 5)."""
    return any(
        configuration.weights + configuration.intermediate <= device.memory
        and configuration.utilisation <= device.utilisation
        and any(times.kind == device.kind for times in configuration.times)
        for configuration in stage.configurations
    )


def burstiness(arrivals: Iterable[float], window: float = 60.0) -> float:
    """Return the coefficient of variation of the times between `arrivals` (ascending seconds) in
    the last `window` seconds; with fewer than three arrivals 1, as for a Poisson process.

    Source: OctopInf, §III-B, and the windows of up to 60 s of its code.
    """
    times = list(arrivals)
    recent = [time for time in times if time >= times[-1] - window]
    gaps = [after - before for before, after in pairwise(recent)]
    total = math.fsum(gaps)
    if len(gaps) < 2 or total <= 0.0:
        return 1.0
    mean = total / len(gaps)
    return math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


def _unique(label: str, names: list[str]) -> None:
    if len({*names}) < len(names):
        raise PlacementError(f"{label}: expected distinct names, got {sorted(names)}")


def _not_negative(where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise PlacementError(f"{where}: {name}: expected 0 or more, got {value}")
