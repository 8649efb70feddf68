"""Models, links and clients: the settings of Jellyfish §7."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from slacktide.lab.load import read_bandwidths
from slacktide.lab.simulation import rng_for
from slacktide.lab.workloads import MBIT, BandwidthTrace, WorkloadError, draw_4g
from slacktide.planning.variants import Variant
from slacktide_papers.harness.recorded import find_data_file
from slacktide_papers.harness.state import ReproduceError

PROFILE = "jellyfish_yolov4_synthetic.csv"
FRAMES = "jellyfish_frame_sizes.csv"
TRACES = {"lte": "jellyfish_lte_upload.csv", "wifi": "jellyfish_wifi.csv"}
KBIT = 128.0
"""Bytes of a kilobit of 1,024 bits, the published code's unit of frame sizes."""
SIDES = tuple(range(128, 609, 32))
MIDDLE = SIDES.index(352)
"""Index of the size that stands for the paper's 354 × 354."""
SYNTHETIC = (20.0, 15.0, 10.0, 7.5, 10.0, 15.0)
"""Steps of the bandwidth in Mbit/s, 20 s each (§7.2): down and up again, as in the published
file."""

_ALONE = (
    "23 23.04 23.23 23.6 24.19 25.03 26.14 27.53 29.23 31.25 33.61 36.32 39.39 42.84 46.68 50.92"
)
_ROW = "3.07 3.71 4.5 5.43 6.5 7.71 9.07 10.57 12.21 14 15.93 18 20.21 22.57 25.07 27.71"
_ACCURACY = ".185 .259 .315 .356 .387 .411 .429 .442 .452 .459 .465 .469 .472 .475 .477 .478"
_KBITS = "80 117 161 208 266 317 373 443 510 583 657 728 811 896 976 1066"
"""By size: milliseconds of a batch of one, and of each further row; mean average precision; kbit of
a JPEG frame. Made up to yield every number that the paper states; its profile is not public."""
BATCHES = 12
DRAWN_S = 199.0
"""Seconds of a drawn trace: the length of the recorded LTE trace."""


@dataclass(frozen=True, slots=True, eq=False)
class JellyfishData:
    """Profile, frame sizes and networks."""

    variants: tuple[Variant, ...]
    frame_bytes: Mapping[int, float]
    """By side, in pixels."""
    traces: Mapping[str, BandwidthTrace]

    @property
    def digest(self) -> str:
        sha = hashlib.sha256(repr((self.variants, sorted(self.frame_bytes.items()))).encode())
        for name in sorted(self.traces):
            sha.update(self.traces[name].rates.tobytes())
        return sha.hexdigest()[:16]


@cache
def load_data(folder: Path | None) -> JellyfishData:
    """Data below `folder`; without one, all of it is drawn or computed. Raises ReproduceError."""
    steps = np.array(SYNTHETIC) * MBIT
    traces = {"synthetic": BandwidthTrace(20.0 * np.arange(len(steps)), steps, source="synthetic")}
    if folder is None:
        columns = (map(float, text.split()) for text in (_ALONE, _ROW, _ACCURACY))
        rows = zip(SIDES, *columns, strict=True)
        variants = tuple(
            Variant(str(s), a, tuple((alone + row * b) / 1e3 for b in range(BATCHES)))
            for s, alone, row, a in rows
        )
        for name, factor in (("lte", 0.5), ("wifi", 2.0)):
            drawn = draw_4g(DRAWN_S, rng_for(0, f"trace {name}"))
            traces[name] = BandwidthTrace(drawn.starts, drawn.rates * factor, DRAWN_S, name)
        sizes = dict(zip(SIDES, (KBIT * float(text) for text in _KBITS.split()), strict=True))
        return JellyfishData(variants, sizes, traces)
    try:
        for name, file in TRACES.items():
            path = str(find_data_file(folder, file))
            traces[name] = read_bandwidths(path, None, None)
        profile = _rows(find_data_file(folder, PROFILE))
        sizes = {
            int(row["input_size"]): KBIT * float(row["frame_kbit"])
            for row in _rows(find_data_file(folder, FRAMES))
        }
        variants = tuple(
            Variant(
                str(side),
                float(side_rows[0]["accuracy_map"]),
                tuple(float(row["latency_p99_ms"]) / 1e3 for row in side_rows),
            )
            for side in SIDES
            if (side_rows := [row for row in profile if row["input_size"] == str(side)])
        )
    except (WorkloadError, KeyError, ValueError) as error:
        raise ReproduceError(f"--data: {error!r}") from None
    if len(variants) < len(SIDES) or not sizes.keys() >= set(SIDES):
        raise ReproduceError(f"--data: {PROFILE}, {FRAMES}: expected sizes 128, 160, ..., 608")
    return JellyfishData(variants, sizes, traces)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True)
class JellyfishSetting:
    """Workers, clients and a network."""

    network: str
    clients: int
    rates: tuple[float, ...]
    """Frames per second; if there are several, each client draws one."""
    slos: tuple[float, ...]
    """Seconds; if there are several, each client draws one."""
    workers: int = 2
    variants: int = len(SIDES)
    """Number of variants that are used, from the smallest."""
    scatter: float = 1.0
    """P99 of a batch's time ÷ its median, which is the profile's time; 1: batches take exactly
    that."""
    bursts: bool = False
    """Whether all batches are slower for a second now and then."""

    @property
    def name(self) -> str:
        rates = "/".join(f"{number:g}" for number in self.rates)
        slos = "/".join(f"{1e3 * number:g}" for number in self.slos)
        workers = f"{self.workers} x " if self.workers != 2 else ""
        scatter = f", p99 {self.scatter:g} x p50" if self.scatter > 1.0 else ""
        bursts = " and bursts" if self.bursts else ""
        return f"{self.network} {workers}{self.clients} at {rates} fps, {slos} ms{scatter}{bursts}"


RATES, SLOS = (15.0, 25.0), (0.075, 0.1, 0.15)


def _by_name(settings: Iterable[JellyfishSetting]) -> dict[str, JellyfishSetting]:
    return {setting.name: setting for setting in settings}


HOMOGENEOUS = _by_name(
    JellyfishSetting(network, count, (rate,), (slo,))
    for network in ("synthetic", "wifi", "lte")
    for slo in SLOS
    for rate in RATES
    for count in (1, 2, 4, 8)
)
"""The 24 settings of Figure 12, on three networks each."""
MIXED = _by_name(
    JellyfishSetting(network, count, RATES, SLOS)
    for network in ("synthetic", "lte", "wifi")
    for count in (4, 8)
)
"""Settings of Table 2."""
LARGE = _by_name(
    JellyfishSetting("lte", count, (15.0,), (slo,), workers=8, variants=10)
    for slo in (0.1, 0.15)
    for count in (8, 16, 24, 32)
)
"""Settings of Figure 17."""
ALONE = _by_name(
    JellyfishSetting("wifi", count, (rate,), (slo,), workers=1)
    for slo in (0.05, 0.1, 0.15)
    for rate in (15.0, 30.0)
    for count in (1, 2, 4)
)
"""Settings of Figure 21."""
SCATTERED = _by_name(
    replace(base, scatter=scatter, bursts=bursts)
    for base in (
        JellyfishSetting("lte", 4, (10.0,), (0.15,), workers=1),
        JellyfishSetting("lte", 4, (15.0,), (0.1,)),
        JellyfishSetting("wifi", 8, (15.0,), (0.15,)),
    )
    for scatter, bursts in ((1.2, False), (2.0, False), (3.0, False), (1.2, True))
)
"""Settings in which batch times scatter, which the paper does not have. The first is like `demo
clients`."""
SETTINGS: Mapping[str, JellyfishSetting] = HOMOGENEOUS | MIXED | LARGE | ALONE | SCATTERED
