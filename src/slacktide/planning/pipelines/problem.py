"""Where the stages of pipelines are to run: the question and its answer, as data.

A device is any machine with lanes: the one that asks is none that is special. Stages of a pipeline
stand in topological order. Rows are what a stage works on: frames at the source, crops further on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

BATCHES = (1, 2, 4, 8, 16, 32, 64)


class PlacementError(ValueError):
    """A question that cannot be. The text names what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One machine. Its accelerators are alike; a CPU counts as one."""

    name: str
    kind: str
    """What times are told by (`FormTimes.kind`)."""
    accelerators: int = 1
    streams: int = 1
    """Lanes of each accelerator. One batch at a time runs on a lane."""
    memory: float = math.inf
    """Bytes of each accelerator."""
    utilisation: float = 1.0
    """Most that may run at once on each, as a sum of `StageForm.utilisation` (eq. 5)."""
    server: bool = False
    """Whether any pipeline may use it. Others serve the pipelines that begin on them."""

    @property
    def lanes(self) -> int:
        return self.accelerators * self.streams


@dataclass(frozen=True, slots=True)
class LinkView:
    """From one device to another, and back if no link is stated for that."""

    begin: str
    end: str
    bandwidth: float
    """Bytes per second; 0: nothing passes."""
    latency: float = 0.0
    burst: float = 0.0
    """Bytes that pass at once, whatever the bandwidth."""


@dataclass(frozen=True, slots=True)
class FormTimes:
    """Seconds of a batch of `PlacementQuestion.batches` rows, on devices of one kind. Fewer than
    there are batches: larger ones cannot run."""

    kind: str
    expected: tuple[float, ...]
    p99: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StageForm:
    """One way to run a stage: a variant of its model, on so many cores, with or without exits."""

    times: tuple[FormTimes, ...]
    """One for each kind of device that can run it."""
    name: str = ""
    accuracy: float = 1.0
    """What an answer is worth."""
    weights: float = 0.0
    """Bytes of each replica, always."""
    intermediate: float = 0.0
    """Bytes of each replica while it runs."""
    utilisation: float = 1.0
    """Share of an accelerator that a running batch takes."""
    row_share: float = 1.0
    """Share of a row's bytes that it needs: a smaller variant takes smaller images."""
    cores: int = 0
    """Most cores of each lane, where those of its model have a range; 0: as many as that says."""
    exits: bool = True
    """Whether rows may leave early, where its model has such exits."""


@dataclass(frozen=True, slots=True)
class Inflow:
    """What a stage gets from one that comes before it."""

    stage: int
    fan_out: float = 1.0
    """Rows for each row of that stage, on average."""


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage, and what is known of its rows."""

    name: str
    forms: tuple[StageForm, ...]
    inflows: tuple[Inflow, ...] = ()
    """None: the source."""
    model: str = ""
    """Stages of one model share its replicas on a device; empty: the pipeline's own."""
    row_bytes: float = 0.0
    """Bytes of one row of its input, as it crosses a link."""
    answer_bytes: float = 0.0
    """Bytes of one row of its output, where it is a sink."""
    burstiness: float = 1.0
    """Standard deviation of the time between rows, divided by the mean (see `burstiness`)."""
    devices: tuple[str, ...] = ()
    """Where it may run; empty: anywhere."""

    def model_in(self, pipeline: PipelineView) -> str:
        """The name of its model."""
        return self.model or f"{pipeline.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline whose frames come in on one device. Two devices: two of these."""

    name: str
    source: str
    """The device. Answers go there."""
    slo: float
    rate: float
    """Frames per second."""
    stages: tuple[StageView, ...]

    def rates(self) -> list[float]:
        """Rows per second by stage. A join has as many rows as the largest of its inflows."""
        rates = [self.rate]
        for stage in self.stages[1:]:
            rates.append(max(rates[inflow.stage] * inflow.fan_out for inflow in stage.inflows))
        return rates

    def downstream(self) -> list[list[int]]:
        """By stage: those it feeds."""
        return [
            [to for to, stage in enumerate(self.stages) if at in [i.stage for i in stage.inflows]]
            for at in range(len(self.stages))
        ]


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """All that is planned together. Raises PlacementError."""

    devices: tuple[DeviceView, ...]
    links: tuple[LinkView, ...]
    pipelines: tuple[PipelineView, ...]
    batches: tuple[int, ...] = BATCHES
    """Ascending, from 1."""

    def __post_init__(self) -> None:
        names = {device.name for device in self.devices}
        _unique("devices", [device.name for device in self.devices])
        _unique("pipelines", [pipeline.name for pipeline in self.pipelines])
        if self.batches[:1] != (1,) or list(self.batches) != sorted({*self.batches}):
            raise PlacementError(f"batches: expected 1 and larger ones, got {self.batches}")
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
            raise PlacementError(f"{where}: no stages")
        for at, stage in enumerate(pipeline.stages):
            label = f"{where}: stage {stage.name!r}"
            if bool(at) == (not stage.inflows) or any(not 0 <= i.stage < at for i in stage.inflows):
                raise PlacementError(f"{label}: expected the source first, and inflows from before")
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
        """Whether it fits some device: else which limit is in the way."""
        limits = []
        for device in self.devices:
            if not (device.server or device.name == pipeline.source):
                continue
            if stage.devices and device.name not in stage.devices:
                limits.append(f"{device.name}: not among its devices {list(stage.devices)}")
            elif not any(times.kind == device.kind for f in stage.forms for times in f.times):
                limits.append(f"{device.name}: no times for devices of kind {device.kind!r}")
            elif fits(stage, device):
                return
            else:
                least = min(form.weights + form.intermediate for form in stage.forms)
                limits.append(
                    f"{device.name}: memory of {device.memory:.0f} bytes, {least:.0f} needed, or "
                    f"utilisation limit of {device.utilisation}"
                )
        raise PlacementError(f"{label}: fits no device ({'; '.join(limits) or 'there is none'})")

    def device(self, name: str) -> DeviceView:
        return next(device for device in self.devices if device.name == name)

    def candidates(self, pipeline: PipelineView) -> list[DeviceView]:
        """Devices that its stages may run on: its source first."""
        source = self.device(pipeline.source)
        return [source, *(host for host in self.devices if host.server and host is not source)]


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """What is decided of one stage."""

    device: str
    batch: int = 1
    """Most rows in one batch."""
    replicas: int = 1
    """That its rows ask for; 0: those of another pipeline, with the same model, are for it, too."""
    form: int = 0


@dataclass(frozen=True, slots=True)
class PlacedPortion:
    """A part of a stream's cycle that belongs to one replica of a stage. Seconds."""

    device: str
    stream: int
    """Of the device: those of its first accelerator come first."""
    start: float
    end: float
    period: float
    """The stream's cycle."""
    pipeline: str
    stage: int
    replica: int


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica of a model, in one form, for all stages on its device that run it so."""

    device: str
    stream: int
    """Of the device: those of its first accelerator come first."""
    model: str
    form: int
    batch: int
    stages: tuple[tuple[str, int], ...]
    """(pipeline, stage) that it is for."""


@dataclass(frozen=True, slots=True)
class PlacementAnswer:
    """What is decided: by pipeline as asked, its stages."""

    pipelines: tuple[tuple[PlacedStage, ...], ...]
    portions: tuple[PlacedPortion, ...] = ()
    """None: there is no timetable."""
    unscheduled: tuple[tuple[str, int, int], ...] = ()
    """(pipeline, stage, replica) for which no portion is free: they run where a lane is."""


def fits(stage: StageView, device: DeviceView) -> bool:
    """Whether one replica in one of its forms fits one accelerator (eq. 4 and 5)."""
    return any(
        form.weights + form.intermediate <= device.memory
        and form.utilisation <= device.utilisation
        and any(times.kind == device.kind for times in form.times)
        for form in stage.forms
    )


def burstiness(arrivals: Iterable[float], window: float = 60.0) -> float:
    """Coefficient of variation of the times between `arrivals` (ascending seconds) within the last
    `window` seconds; 1, as of a Poisson process, where fewer than three are known.

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
        raise PlacementError(f"{label}: two share a name: {sorted(names)}")


def _not_negative(where: str, **values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise PlacementError(f"{where}: {name}: expected 0 or more, got {value}")
