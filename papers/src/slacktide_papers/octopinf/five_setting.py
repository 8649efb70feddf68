"""The experiment `all-five`: models, devices and load. The paper has no such experiment.

Two boxes with two traffic cameras each, and a server; all three have CPU cores in lanes of two.
The pipeline is a heavier version of the example `traffic`: its detector is the family `street`, its
brand classifier is as deep as the example `chained` and has ramps for early exits, and its plate
reader takes longer for wider plates.

The figures were chosen once. With the usual variant, all cores together are half busy on average
and overloaded by a burst at the day's peak. A box alone suffices for its cameras only at night, and
a link carries all frames only while its bandwidth is high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slacktide.domain import LaneSpec, Signature
from slacktide.lab.simulation import EdgeRows, ExitTable, StageRows, read_exit_table
from slacktide.lab.workloads import BandwidthTrace
from slacktide.pipelines import BOX, Edge, Pipeline, PipelineStage
from slacktide.planning.pipelines import (
    ConfigurationTimes,
    DeviceView,
    Inflow,
    PipelineView,
    PlacementQuestion,
    StageConfiguration,
    StageView,
)
from slacktide.planning.variants import FamilyVariant
from slacktide.profiles import LatencyTable, SizeTime
from slacktide_papers.octopinf.setting import ANSWER_BYTES, FPS, EdgeTestbed, OctopInfData

SETTING = "all-five"
"""Name of the setting."""
MECHANISMS = ("variants", "exits", "distribution", "cores", "placement")
DETECTOR, BRAND, PLATE = "detector", "brand", "plate"
SLO = 0.2

VARIANTS = ((192, 0.556, 1.9), (288, 0.798, 6.9), (416, 0.921, 13.1), (576, 0.963, 29.0))
"""Variants of the family `street`: side in pixels, mean average precision (its slacktide.yaml),
and ms of a picture on one core (the least of nine runs, 2026-11-23)."""
FIXED = 416
"""The usual variant: the most accurate one with which all cores together are half busy."""
FRAME_BYTES, CROP_BYTES = 100e3, 3e3
"""Bytes of a frame for the largest variant, and of a crop. A smaller variant's frames follow the
law of planning/variants/demand.py: pixels to the power of 0.83."""
WIDTHS = ((48, 0.55), (112, 1.0), (208, 1.8))
"""(pixels, relative time) of plate widths, all equally frequent (example `plate`, 2026-11-23)."""
PLATE_MS = 5.0
"""Milliseconds for a plate 112 pixels wide on one core: twelve times the time of the example
`plate`, which is a toy."""
FIXED_MS = 0.5
"""Milliseconds that every batch takes in addition to the time of its rows."""
PARALLEL = 0.9
"""Share of a batch's time that is divided among its cores (Amdahl)."""
SPREAD = 1.15
"""p99 of a batch, as a multiple of its median."""
BATCHES = (1, 2, 4, 8)

CORES = {"box": 4, "server": 6}
"""Cores of a device, by kind; each lane has `LANE_CORES` unless `cores` is on and moves them."""
LANE_CORES = 2
SLOWER = {"box": 4.0, "server": 2.0}
"""Batch times relative to the core they were measured on: an embedded processor, a busy VM."""
BOXES = ("box-1", "box-2")
ALL_CORES = CORES["server"] + len(BOXES) * CORES["box"]
CAMERAS = 2
"""Number of cameras on each box."""
MEGABITS = 20.0
"""Bandwidth of a link, on average."""

CARS = 2.0
"""Mean number of cars on a frame at level 1; each car has one brand and one plate."""
DAY_S = 240.0
"""A day takes four minutes."""
NIGHT, NOON = 0.5, 1.3
BURST_EVERY_S, BURST_S, BURST = 60.0, 15.0, 3.0
"""For a quarter of each minute there are three times as many cars."""
MEAN_LEVEL = 0.5 * (NIGHT + NOON) * (1.0 + (BURST - 1.0) * BURST_S / BURST_EVERY_S)

TABLE = Path(__file__).with_name("chained_day.npz")
"""The exit table of `chained` on its stream `day` (`slacktide reproduce apparate` made it: 2,000
frames, ramps learnt from the 2,880 before), thinned out to four of its eleven positions."""


@dataclass(frozen=True, slots=True)
class FiveSwitches:
    """Which mechanisms are on. Substitutes for mechanisms that are off, in the same order: the
    variant `FIXED`; answers at the model's end only; one time for all plates, learnt during the
    run; equal cores for all lanes; one placement by the same search, for mean objects and links."""

    variants: bool = False
    exits: bool = False
    distribution: bool = False
    cores: bool = False
    placement: bool = False


WARM_S = 20.0
"""Seconds before the scored part of a run; at most as long as that part."""


def day_begins(seconds: float) -> float:
    """Seconds into the day at which a run begins; a run shorter than a day is centred on noon."""
    return max(0.0, 0.5 * (DAY_S - seconds))


def level(at: float) -> float:
    """Factor of the counts at this second of the day."""
    day = NIGHT + (NOON - NIGHT) * 0.5 * (1.0 - math.cos(2.0 * math.pi * at / DAY_S))
    return day * (BURST if (at + 20.0) % BURST_EVERY_S < BURST_S else 1.0)


def variant_of(side: int) -> str:
    """Name of the variant with this side."""
    return str(side)


def family() -> tuple[FamilyVariant, ...]:
    """The variants of the detector, smallest first."""
    return tuple(FamilyVariant(variant_of(side), exact, side) for side, exact, _ in VARIANTS)


def bytes_share(side: int) -> float:
    """Share of a frame's bytes that a variant needs."""
    return float((side / VARIANTS[-1][0]) ** (2.0 * 0.83))


def signature(width: int) -> Signature:
    """Signature of plates of this width."""
    return ((64, width, 3),)


@cache
def exit_table() -> ExitTable:
    """Exit table of the brand classifier."""
    return read_exit_table(TABLE)


def _share(cores: int) -> float:
    return 1.0 - PARALLEL + PARALLEL / cores


def _table(row_ms: float, kind: str) -> LatencyTable:
    cores = range(1, CORES[kind] + 1)
    p50 = [
        [1e-3 * SLOWER[kind] * (FIXED_MS + row_ms * rows) * _share(count) for count in cores]
        for rows in BATCHES
    ]
    p99 = [[SPREAD * seconds for seconds in row] for row in p50]
    return LatencyTable.from_grid(BATCHES, tuple(cores), p50, p99)


@cache
def table_of(model: str, variant: str, kind: str) -> LatencyTable:
    """Batch times by rows and cores on a kind of device. For `PLATE`: plates 112 pixels wide."""
    if model == DETECTOR:
        return _table(next(ms for side, _, ms in VARIANTS if variant_of(side) == variant), kind)
    if model == BRAND:
        return _table(1e3 * float(exit_table().whole[0]), kind)
    return _table(PLATE_MS, kind)


@cache
def mean_plate_table(kind: str) -> LatencyTable:
    """Batch times of plates if all widths count as one: the mean over `WIDTHS`."""
    return _table(PLATE_MS * sum(work for _, work in WIDTHS) / len(WIDTHS), kind)


def plate_sizes(kind: str) -> tuple[SizeTime, ...]:
    """Times of the plate widths other than 112 pixels, on one core."""
    table = table_of(PLATE, "", kind)
    return tuple(
        SizeTime(rows, 1, width / 112, work * table.expected(rows, 1), signature(width))
        for width, work in WIDTHS
        if width != 112
        for rows in (1, 4)
    )


def lanes_on(kind: str) -> tuple[LaneSpec, ...]:
    """The lanes of a kind of device, with `LANE_CORES` cores each."""
    return tuple(
        LaneSpec(f"0.{at}", tuple(range(LANE_CORES * at, LANE_CORES * (at + 1))))
        for at in range(CORES[kind] // LANE_CORES)
    )


def _choice(
    model: str, name: str = "", accuracy: float = 1.0, row_share: float = 1.0
) -> StageConfiguration:
    times = []
    for kind in CORES:
        table = mean_plate_table(kind) if model == PLATE else table_of(model, name, kind)
        times.append(
            ConfigurationTimes(
                kind,
                tuple(table.expected(rows, LANE_CORES) for rows in BATCHES),
                tuple(table.p99(rows, LANE_CORES) for rows in BATCHES),
            )
        )
    return StageConfiguration(tuple(times), name, accuracy, row_share=row_share)


def _pipeline(name: str) -> StageRows:
    stages = tuple(PipelineStage(model, model) for model in (DETECTOR, BRAND, PLATE))
    edges = Edge(DETECTOR, BRAND, BOX), Edge(DETECTOR, PLATE, BOX)
    shapes = tuple(signature(width) for width, _ in WIDTHS)
    crops, plates = EdgeRows(CROP_BYTES), EdgeRows(CROP_BYTES, shapes=shapes)
    handed = {(DETECTOR, BRAND): crops, (DETECTOR, PLATE): plates}
    answers = dict.fromkeys((BRAND, PLATE), ANSWER_BYTES)
    return StageRows(Pipeline(name, stages, edges), handed, answers)


class FiveTestbed(EdgeTestbed):
    """Devices, links, pipelines and cameras of one run."""

    def __init__(self, data: OctopInfData, seed: int, begins: float = 0.0) -> None:
        """`begins`: seconds into the day."""
        super().__init__(seed)
        self.kinds = {"server": "server", **dict.fromkeys(BOXES, "box")}
        videos = [clip for clip in data.counts["traffic"] if clip.mean("cars") >= 1.0]
        for number, box in enumerate(BOXES):
            trace = data.traces[number]
            scaled = trace.rates * (MEGABITS * 1e6 / 8.0 / trace.mean)
            self.add_link(box, BandwidthTrace(trace.starts, scaled, trace.period), data.begins)
            for camera in range(CAMERAS):
                rows = _pipeline(f"traffic-{number + 1}{'ab'[camera]}")
                video = videos[(CAMERAS * number + camera) % len(videos)]
                cars = CARS / video.mean("cars")
                self.add_camera(
                    box,
                    rows,
                    video,
                    SLO,
                    FRAME_BYTES,
                    lambda at, cars=cars: cars * level(begins + at),  # type: ignore[misc]
                )

    def question(self) -> PlacementQuestion:
        """Question for mean objects and mean links, with the usual variant only. If offered
        all variants, planners place a small one wherever later stages might miss the deadline."""
        devices = []
        for name, kind in self.kinds.items():
            lanes, server = CORES[kind] // LANE_CORES, kind == "server"
            view = DeviceView(name, kind, streams=lanes, utilisation=float(lanes), server=server)
            devices.append(view)
        links = self.link_views(trace.mean for trace, _ in self.traces.values())
        exact = next(exact for side, exact, _ in VARIANTS if side == FIXED)
        configurations = (_choice(DETECTOR, variant_of(FIXED), exact, bytes_share(FIXED)),)
        together = max(1.0, CARS * MEAN_LEVEL)
        sizes = CROP_BYTES, ANSWER_BYTES, math.sqrt(2.0 * together - 1.0)
        inflows = (Inflow(0, CARS * MEAN_LEVEL),)
        behind = [
            StageView(model, (_choice(model),), inflows, model, *sizes) for model in (BRAND, PLATE)
        ]
        source = StageView(DETECTOR, configurations, (), DETECTOR, FRAME_BYTES, burstiness=0.1)
        pipelines = [
            PipelineView(camera.rows.pipeline.name, box, SLO, FPS, (source, *behind))
            for box, cameras in self.cameras.items()
            for camera in cameras
        ]
        return PlacementQuestion(tuple(devices), tuple(links), tuple(pipelines), BATCHES)
