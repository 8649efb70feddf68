"""Models, devices and load: the testbed of OctopInf §IV-A, as far as it is public.

Nine devices with a camera each, six of traffic and three of surveillance, and a server of four
accelerators. Times, memory and sizes of the models are not published: they are made up here, in the
proportions of common models, so that an edge device can run a detector but not all stages that
follow it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from slacktide.lab.load import read_bandwidths
from slacktide.lab.simulation import (
    EdgeRows,
    FrameScore,
    PipelineCamera,
    SimulatedDevices,
    StageRows,
    rng_for,
)
from slacktide.lab.workloads import (
    BandwidthTrace,
    ObjectCounts,
    WorkloadError,
    draw_5g,
    draw_object_counts,
    parse_object_counts,
)
from slacktide.pipelines import BOX, Edge, Pipeline, PipelineStage
from slacktide.planning.pipelines import (
    ConfigurationTimes,
    DevicePlans,
    DeviceView,
    Inflow,
    LinkView,
    PipelineView,
    PlacementQuestion,
    StageConfiguration,
    StageView,
)
from slacktide.profiles import LatencyTable
from slacktide_papers.harness.recorded import find_data_file
from slacktide_papers.harness.state import ReproduceError

COUNTS, BANDWIDTHS = "octopinf_object_counts.csv", "octopinf_5g_30s.csv"
"""Files below `--data`: object counts and 5G schedules from the paper's repository."""
VIDEOS = {
    "traffic": ("traffic1", "traffic2", "traffic3", "traffic4", "traffic5", "traffic6"),
    "surveillance": ("people2", "people3", "indoor1"),
}
MEANS = {
    "traffic": ((1.5, 0.8), (0.5, 6.5), (0.1, 6.1), (0.0, 8.6), (0.2, 14.9), (0.0, 11.3)),
    "surveillance": ((5.5, 0.0), (0.9, 0.0), (9.7, 0.0)),
}
"""Mean (persons, cars) on a frame of each video. Counts drawn without `--data` have these means."""
TRACES = (1, 2, 3, 4, 5, 6, 7, 8, 9)
"""Schedules that the nine links replay."""
SCHEDULE_BEGINS_S = 60.0
"""Each schedule begins with a minute of 50 Mbit/s that is no measurement; no link begins there."""
COUNTED_S, DRAWN_S, STEP_S = 60.0, 1_800.0, 30.0
"""Seconds of a video, of the trace of a drawn link, and of one step of that trace."""
DRAWN_SHARE = 0.75
"""Factor on drawn rates of 5G on the move, with which a drawn link has a mean of 50 Mbit/s, like
the paper's schedules."""

FPS = 15.0
SLOS = {"traffic": 0.2, "surveillance": 0.3}
KINDS = ("agx", "nx", "nx", "nx", "nx", "nx", "nano", "nano", "nano")
"""Kind of each device, in order: first the six with traffic cameras, then three of surveillance."""
SLOWER = {"server": 1.0, "agx": 1.5, "nx": 2.5, "nano": 2.0}
"""Batch times as multiples of those on one of the four streams of a server's accelerator. Xavier NX
21, Orin Nano 40 and AGX Xavier 32 TOPS, the last with twice the NX's memory bandwidth."""
MEMORY = {"server": 20e9, "agx": 16e9, "nx": 5e9, "nano": 5e9}
"""Bytes of each accelerator that models may use, by kind of device."""
FP32, FP32_SLOWER = " fp32", 3.0
"""Suffix of the kinds of edge devices whose engines compute in fp32, as the authors configured
them, and the factor on their batch times: the factors above follow from TOPS of INT8."""
for _kind in ("agx", "nx", "nano"):
    SLOWER[_kind + FP32] = FP32_SLOWER * SLOWER[_kind]
    MEMORY[_kind + FP32] = MEMORY[_kind]
ACCELERATORS, STREAMS = 4, 4
LATENCY_S = 0.005
"""Latency of a link, one way."""
KILOBYTES = (60, 250)
"""Smallest and largest frame size among the devices; the other sizes lie between in equal steps."""
SPREAD = 1.15
"""p99 of a batch, as a multiple of its median."""
BATCHES = (1, 2, 4, 8, 16, 32)
START_S = 0.5
"""Seconds to start a replica: its weights are already on the device and only have to be loaded."""
DAY_S = 13 * 3600.0
WARM_S = 60
"""Seconds before the scored part of a run; at most as long as that part."""


@dataclass(frozen=True, slots=True)
class ModelCost:
    """One model on an accelerator of the server."""

    fixed: float
    """Seconds that every batch takes in addition to the time of its rows."""
    row: float
    """Seconds of each row."""
    weights: float
    """Megabytes of weights."""
    intermediate: float
    """Megabytes that a running batch needs beside the weights."""
    utilisation: float
    """Share of an accelerator while it runs."""


MODELS: Mapping[str, ModelCost] = {
    "detector": ModelCost(0.004, 0.008, 160, 700, 0.5),
    "face": ModelCost(0.0024, 0.0016, 60, 250, 0.3),
    "recognition": ModelCost(0.002, 0.0012, 130, 250, 0.25),
    "brand": ModelCost(0.002, 0.0008, 90, 200, 0.25),
    "plate": ModelCost(0.0024, 0.0016, 60, 250, 0.3),
    "gender": ModelCost(0.0016, 0.0008, 45, 150, 0.2),
    "age": ModelCost(0.0016, 0.0008, 45, 150, 0.2),
    "pose": ModelCost(0.003, 0.002, 120, 350, 0.4),
}
GRAPHS: Mapping[str, Mapping[str, tuple[str, float, float]]] = {
    "traffic": {
        "detector": ("", 1.0, 0.0),
        "face": ("detector", 1.0, 3e3),
        "recognition": ("face", 0.6, 1e3),
        "brand": ("detector", 1.0, 3e3),
        "plate": ("detector", 1.0, 3e3),
    },
    "surveillance": {
        "detector": ("", 1.0, 0.0),
        "face": ("detector", 1.0, 3e3),
        "gender": ("face", 0.6, 1e3),
        "age": ("face", 0.6, 1e3),
        "pose": ("detector", 1.0, 3e3),
    },
}
"""By stage, named like its model: (stage before it, rows per row of that stage, bytes of a row).
Faces are found on six persons of ten. For rows from the detector, the counts apply instead of
1.0."""
SEES = {"face": "persons", "pose": "persons", "brand": "cars", "plate": "cars"}
ANSWER_BYTES = 100.0
SIZES = (
    (0.30, 0.12, 0.25),
    (0.40, 0.2, 0.64),
    (0.50, 0.3, 1.0),
    (0.55, 0.55, 1.0),
    (0.60, 1.0, 1.0),
)
"""Jellyfish's detectors: (accuracy, batch time, bytes of a frame), the last two as shares of the
largest detector's (YOLOv5 n at 320, 512 and 640, s and m, of OctopInf's code)."""
BEST_ACCURACY = SIZES[-1][0]


@dataclass(frozen=True, slots=True)
class OctopInfSetting:
    """One column of the evaluation."""

    name: str
    cameras: int = 1
    """Number of cameras on each device."""
    stricter: float = 0.0
    """Seconds by which SLOs are shorter."""
    surges: bool = False
    """Whether cameras see three times as many objects for two minutes in every eight, the first
    time four minutes into the scored part."""
    fp32: bool = False
    """The second setting: edge devices are slower by `FP32_SLOWER`, and every system whose policy
    chooses among variants may choose among Jellyfish's detectors."""


FIGURES = (
    OctopInfSetting("base"),
    OctopInfSetting("doubled", cameras=2),
    OctopInfSetting("slo-50", stricter=0.05),
    OctopInfSetting("slo-100", stricter=0.1),
)
SECOND = "fp32-"
SETTINGS: Mapping[str, OctopInfSetting] = {
    setting.name: setting
    for setting in (
        *FIGURES,
        OctopInfSetting("surges", surges=True),
        *(replace(setting, name=SECOND + setting.name, fp32=True) for setting in FIGURES),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class OctopInfData:
    """Objects that the cameras see, and bandwidths of the links."""

    counts: Mapping[str, tuple[ObjectCounts, ...]]
    """By kind of pipeline: a video for each device."""
    traces: tuple[BandwidthTrace, ...]
    """By device."""
    begins: float
    """Earliest point of each trace, in seconds, at which its link may begin."""

    @property
    def digest(self) -> str:
        """Equal for equal data."""
        sha = hashlib.sha256()
        for videos in self.counts.values():
            for video in videos:
                sha.update(repr(sorted(video.classes.items())).encode())
        for trace in self.traces:
            sha.update(trace.starts.tobytes() + trace.rates.tobytes())
        return sha.hexdigest()[:16]


@cache
def load_data(folder: Path | None) -> OctopInfData:
    """Load the data below `folder`. Without a folder, draw objects as M/G/∞ with the videos' means,
    and links like 5G on the move. Raises ReproduceError."""
    if folder is None:
        counts = {
            name: tuple(
                draw_object_counts(
                    {"persons": persons, "cars": cars},
                    COUNTED_S,
                    rng_for(0, f"objects {name} {at}"),
                )
                for at, (persons, cars) in enumerate(means)
            )
            for name, means in MEANS.items()
        }
        drawn = (draw_5g(DRAWN_S, rng_for(0, f"link {at}")) for at in range(len(KINDS)))
        return OctopInfData(counts, tuple(map(_schedule, drawn)), 0.0)
    path, links = find_data_file(folder, COUNTS), find_data_file(folder, BANDWIDTHS)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        read = {
            name: tuple(parse_object_counts(lines, path.name, only=video) for video in videos)
            for name, videos in VIDEOS.items()
        }
        traces = tuple(read_bandwidths(str(links), str(at), None) for at in TRACES)
    except (OSError, UnicodeDecodeError, WorkloadError) as error:
        raise ReproduceError(f"--data: {error}") from None
    return OctopInfData(read, traces, SCHEDULE_BEGINS_S)


def _schedule(trace: BandwidthTrace) -> BandwidthTrace:
    """Means of `trace` over each half minute, scaled; the paper's schedules are made like this."""
    starts = np.arange(0.0, trace.period, STEP_S)
    moved = np.diff(trace.moved(np.append(starts, trace.period - 1e-9)))
    return BandwidthTrace(starts, DRAWN_SHARE * moved / STEP_S, trace.period, "drawn")


def level(kind: str, second: float) -> float:
    """Factor of the counts, 0.6 to 1.2, at this second of the 13 hours from 7:00. Traffic peaks at
    8:30 and at 18:00, surveillance at 13:00."""
    hour = second / 3600.0
    if kind == "traffic":
        peaks = max(math.exp(-(((hour - at) / 2.0) ** 2)) for at in (1.5, 11.0))
    else:
        peaks = math.exp(-(((hour - 6.0) / 3.0) ** 2))
    return 0.6 + 0.6 * peaks


SEGMENTS_S = (0.5 * 3600.0, 6.0 * 3600.0, 10.5 * 3600.0)
"""Seconds from 7:00 at which runs of seeds 1, 2 and 3 begin; higher seeds repeat these times."""


class EdgeTestbed:
    """Cameras on edge devices, and their links to the server, in one run."""

    def __init__(self, seed: int) -> None:
        self._random = rng_for(seed, "where videos and links begin")
        self.traces: dict[str, tuple[BandwidthTrace, float]] = {}
        """By device: bandwidths of its link, for either direction, and their offset in seconds."""
        self.cameras: dict[str, list[PipelineCamera]] = {}
        """By device."""
        self.rows: dict[str, StageRows] = {}
        """By pipeline."""

    def add_link(self, device: str, trace: BandwidthTrace, earliest: float) -> None:
        """Add a link. It begins at a random place of `trace`, at least `earliest` seconds in."""
        begins = earliest + float(self._random.uniform(0.0, trace.period - earliest))
        self.traces[device] = trace, begins

    def add_camera(
        self,
        device: str,
        rows: StageRows,
        video: ObjectCounts,
        slo: float,
        nbytes: float,
        level: Callable[[float], float],
    ) -> None:
        """Add a camera. Its video begins at a random place."""
        self.rows[rows.pipeline.name] = rows
        sees = [(SEES[edge.downstream],) for edge in rows.pipeline.out_of["detector"]]
        start = float(self._random.uniform(0.0, 1.0 / FPS))
        offset = float(self._random.uniform(0.0, COUNTED_S))
        camera = PipelineCamera(
            rows, video, sees, slo, FPS, nbytes, start=start, offset=offset, level=level
        )
        self.cameras.setdefault(device, []).append(camera)

    def simulated(self, score: FrameScore) -> SimulatedDevices:
        """The simulation with all links and pipelines; devices and engines have yet to be added."""
        links = {
            ends: (trace, LATENCY_S, begins)
            for device, (trace, begins) in self.traces.items()
            for ends in _both_ways(device)
        }
        return SimulatedDevices([rows.pipeline for rows in self.rows.values()], links, score=score)

    def link_views(self, rates: Iterable[float]) -> list[LinkView]:
        """The links as planners see them; `rates`: bytes per second, by device."""
        return [
            LinkView(*ends, rate, LATENCY_S)
            for device, rate in zip(self.traces, rates, strict=True)
            for ends in _both_ways(device)
        ]

    def links(self, now: float) -> list[LinkView]:
        """The links with their bandwidths in the second before `now`."""
        rates = []
        for trace, begins in self.traces.values():
            at = begins + now
            moved = trace.moved(at) - trace.moved(at - 1.0) if at >= 1.0 else trace.rate(at)
            rates.append(moved)
        return self.link_views(rates)


def _both_ways(device: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (device, "server"), ("server", device)


def shrink_frames(devices: SimulatedDevices, plans: DevicePlans) -> None:
    """Make cameras send frames in the size that the placed variant of their detector takes."""
    spares = plans.answer.spares or ((),) * len(plans.answer.pipelines)
    for view, placed, spare in zip(
        plans.question.pipelines, plans.answer.pipelines, spares, strict=True
    ):
        sent = spare[0] if spare and placed[0].device == view.source else placed[0]
        configuration = view.stages[0].configurations[sent.configuration]
        frames = devices.devices[view.source].frames
        frames.shrunk = {**frames.shrunk, view.name: configuration.row_share}


class OctopInfTestbed(EdgeTestbed):
    """Devices, links, pipelines and cameras of one run."""

    def __init__(
        self,
        setting: OctopInfSetting,
        data: OctopInfData,
        seed: int,
        *,
        whole_day: bool = False,
        warm: float = WARM_S,
    ) -> None:
        """`warm`: seconds before the scored part of the run."""
        super().__init__(seed)
        self.setting, self.data, self.seed, self.warm = setting, data, seed, warm
        self.begins = 0.0 if whole_day else SEGMENTS_S[(seed - 1) % len(SEGMENTS_S)]
        names = ["traffic"] * 6 + ["surveillance"] * 3
        precision = FP32 if setting.fp32 else ""
        self.kinds = {f"{kind}-{at}": kind + precision for at, kind in enumerate(KINDS, start=1)}
        """Kinds of edge devices, by name."""
        low, high = KILOBYTES
        numbers: dict[str, int] = {}
        for at, (device, name) in enumerate(zip(self.kinds, names, strict=True)):
            self.add_link(device, data.traces[at], data.begins)
            number = numbers[name] = numbers.get(name, -1) + 1
            nbytes = 1e3 * (low + (high - low) * ((5 * at) % 9) / 8)
            for camera in range(setting.cameras):  # `traffic-1b` is the second camera of a device
                rows = _rows(f"{name}-{number + 1}{'b' if camera else ''}", name)
                slo = SLOS[name] - setting.stricter
                video = data.counts[name][number]
                self.add_camera(device, rows, video, slo, nbytes, self._level(name))

    def _level(self, kind: str) -> Callable[[float], float]:
        begins, surges, warm = self.begins, self.setting.surges, self.warm

        def of(at: float) -> float:
            usual = level(kind, begins + at)
            into = (at - warm) % 480.0
            return 3.0 * usual if surges and 240.0 <= into < 360.0 else usual

        return of

    def question(self, *, sizes: bool = False) -> PlacementQuestion:
        """Question before any measurement, from the means of the videos and the bandwidths at the
        start. `sizes`: with Jellyfish's detectors as configurations of the first stage."""
        devices = [
            DeviceView("server", "server", ACCELERATORS, STREAMS, MEMORY["server"], server=True),
            *(DeviceView(name, kind, memory=MEMORY[kind]) for name, kind in self.kinds.items()),
        ]
        pipelines = [
            self._view(device, camera, sizes)
            for device, cameras in self.cameras.items()
            for camera in cameras
        ]
        links = self.link_views(trace.rate(begins) for trace, begins in self.traces.values())
        return PlacementQuestion(tuple(devices), tuple(links), tuple(pipelines), BATCHES)

    def _view(self, device: str, camera: PipelineCamera, sizes: bool) -> PipelineView:
        name = camera.rows.pipeline.name
        kind = name.split("-")[0]
        order = list(GRAPHS[kind])
        stages = []
        for stage, (before, fan_out, nbytes) in GRAPHS[kind].items():
            if before == "detector":
                fan_out = camera.counts.mean(SEES[stage]) * camera.level(0.0)
            inflows = (Inflow(order.index(before), fan_out),) if before else ()
            choices = detectors() if sizes and not before else (configuration_of(stage),)
            size = nbytes or camera.nbytes
            together = max(1.0, fan_out) if before else 1.0
            bursts = math.sqrt(2.0 * together - 1.0) if before else 0.1
            stages.append(StageView(stage, choices, inflows, stage, size, ANSWER_BYTES, bursts))
        return PipelineView(name, device, camera.slo, camera.rate, tuple(stages))


def _rows(name: str, kind: str) -> StageRows:
    graph = GRAPHS[kind]
    edges = {(before, stage): (fan_out, size) for stage, (before, fan_out, size) in graph.items()}
    pipeline = Pipeline(
        name,
        tuple(PipelineStage(stage, stage) for stage in graph),
        tuple(Edge(*ends, BOX) for ends in edges if ends[0]),
    )
    handed = {ends: EdgeRows(size, fan_out) for ends, (fan_out, size) in edges.items() if ends[0]}
    return StageRows(pipeline, handed, dict.fromkeys(pipeline.sinks, ANSWER_BYTES))


def table_of(model: str, kind: str, share: float = 1.0) -> LatencyTable:
    """Batch times of a model on a kind of device, multiplied by `share`."""
    cost, factor = MODELS[model], share * SLOWER[kind]
    p50 = [[factor * (cost.fixed + cost.row * rows)] for rows in BATCHES]
    p99 = [[SPREAD * seconds for seconds in row] for row in p50]
    return LatencyTable.from_grid(BATCHES, (1,), p50, p99)


def configuration_of(
    model: str, share: float = 1.0, name: str = "", accuracy: float = 1.0, row_share: float = 1.0
) -> StageConfiguration:
    """A model as planners see it; `share` scales its times and its memory."""
    cost = MODELS[model]
    times = []
    for kind in SLOWER:
        table = table_of(model, kind, share)
        p50 = tuple(row[0] for row in table.p50_s)
        times.append(ConfigurationTimes(kind, p50, tuple(row[0] for row in table.p99_s)))
    memory = 1e6 * share * cost.weights, 1e6 * share * cost.intermediate
    return StageConfiguration(tuple(times), name, accuracy, *memory, cost.utilisation, row_share)


def detectors() -> tuple[StageConfiguration, ...]:
    """Jellyfish's detectors, smallest first."""
    return tuple(
        configuration_of("detector", share, f"{100 * accuracy:.0f}", accuracy, row_share)
        for accuracy, share, row_share in SIZES
    )


def accuracy_of(variant: str) -> float:
    """Accuracy of one of Jellyfish's detectors, relative to the largest's; 1 for others."""
    return int(variant) / (100.0 * BEST_ACCURACY) if variant else 1.0


def share_of(variant: str) -> float:
    """Batch time of one of Jellyfish's detectors, as a share of the largest's; 1 for others."""
    return next((share for accuracy, share, _ in SIZES if f"{100 * accuracy:.0f}" == variant), 1.0)
