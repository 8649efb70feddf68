"""Models and load: the settings, and the requests that are drawn for them.

A setting equals Figure 4's except for what it states. Batch times are the fit of the published
latencies (Sponge Eq. 2) times a factor: the profile of the paper's YOLOv5s is not public. With × 6,
eight cores sometimes fail and 16 suffice. In the paper, eight cores fail more often; here they do
so with 800 KB or × 7.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.load import read_bandwidths
from slacktide.lab.simulation import rng_for
from slacktide.lab.simulation.scenario import ClientLink
from slacktide.lab.workloads import (
    Arrivals,
    BandwidthTrace,
    Constant,
    OnOff,
    Poisson,
    TraceLink,
    WorkloadError,
    draw_4g,
    draw_5g,
)
from slacktide.profiles import AmdahlModel, LatencyTable, Timed
from slacktide_papers.harness.recorded import find_data_file
from slacktide_papers.harness.state import ReproduceError

GHENT, IRISH, POINTS = "ghent_4g*.csv", "irish_5g*.csv", "sponge_cpu_latency.csv"
"""Files below `--data`: the paper's 4G log of a bus, the 5G runs of Raca et al. (2020), and the
latencies in a notebook of the paper's repository."""
IRISH_RUN, IRISH_START = "4", 60.0
"""Run, and start in seconds: a drive of 49 minutes, at first without any download."""
SEED = 1
LENGTH = 600.0
"""Seconds of a drawn trace."""


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bandwidths of one run of the reproduction."""

    four_g: BandwidthTrace
    five_g: BandwidthTrace
    five_g_start: float = 0.0
    """Seconds into the 5G trace at which a run begins."""

    def of(self, name: str) -> tuple[BandwidthTrace, float]:
        """(trace, seconds into it at which to begin) of `4g` or `5g`."""
        return (self.four_g, 0.0) if name == "4g" else (self.five_g, self.five_g_start)

    @property
    def digest(self) -> str:
        """A hash of both traces."""
        sha = hashlib.sha256()
        for trace in (self.four_g, self.five_g):
            sha.update(trace.starts.tobytes() + trace.rates.tobytes())
        return sha.hexdigest()[:16]


def bandwidths(folder: Path | None) -> Bandwidths:
    """Bandwidths recorded below `folder`; without one, drawn from a seed in the shape of the
    recorded ones. Raises ReproduceError if a file is not there or cannot be read."""
    if folder is None:
        return Bandwidths(
            draw_4g(LENGTH, np.random.default_rng(SEED)),
            draw_5g(LENGTH, np.random.default_rng(SEED)),
        )
    four_g, five_g = find_data_file(folder, GHENT), find_data_file(folder, IRISH)
    try:
        return Bandwidths(
            read_bandwidths(str(four_g), None, None),
            read_bandwidths(str(five_g), IRISH_RUN, None),
            IRISH_START,
        )
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None


def measured_points(folder: Path) -> tuple[Timed, ...]:
    """The latencies (batch, cores, latency_ms) in a file below `folder`. Raises ReproduceError."""
    path = find_data_file(folder, POINTS)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(
                Timed(int(row["batch"]), int(row["cores"]), float(row["latency_ms"]) / 1e3)
                for row in csv.DictReader(file)
            )
    except (KeyError, ValueError) as error:
        raise ReproduceError(f"--data: {path.name}: {error}") from None


SLO = 1.0
"""Seconds from sending to the answer."""
CORES, BATCH = 16, 16
"""c_max and b_max of the paper: most cores and largest batch of one instance."""
DURATION = 600
"""Seconds of a full run."""
KILOBYTE = 1024
FIT = AmdahlModel(gamma=25.626e-3, epsilon=11.303e-3, delta=3.579e-3, eta=5.900e-3)
"""`fit_amdahl` of the 30 published latencies, to a microsecond. Figure 3 fits them again."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpongeSetting:
    """The setting of one comparison."""

    name: str
    title: str
    arrivals: Arrivals = Constant(20.0)
    factor: float = 6.0
    """Batch times, as a multiple of the fit."""
    payload_kb: int = 500
    link: str = "4g"
    models: tuple[str, ...] = ("model",)
    machine: int = CORES
    """Cores that all instances share."""
    replicas: int = 8
    """Maximum number of instances. One-core instances may be as many as there are cores."""
    start_s: float = 10.0
    """Seconds from the start of an instance until it serves (Sponge §4)."""
    settles_s: float = 0.0
    """Requests sent before this second, or before the middle of a short run, do not count: replicas
    may still be starting."""
    margin: float = 1.0
    """Percentage points by which violations may exceed those of the static comparison."""

    @property
    def outgrows(self) -> bool:
        """Whether the load is more than one instance can carry."""
        return self.settles_s > 0.0

    @property
    def random(self) -> bool:
        """Whether arrivals differ from seed to seed."""
        return not isinstance(self.arrivals, Constant)

    def seconds(self, rows: int, cores: int) -> float:
        """l(b, c) of this setting."""
        return self.factor * FIT.seconds(rows, cores)

    @property
    def steady_cores(self) -> int:
        """The fewest cores of one instance that sustain the mean rate λ: throughput h(b, c) ≥ λ for
        some batch size b (Sponge Eq. 3)."""
        rate = self.arrivals.mean_rate(DURATION)
        return next(
            cores
            for cores in range(1, CORES + 1)
            if cores == CORES or BATCH / self.seconds(BATCH, cores) >= rate
        )


_TIGHT = 0.1
SETTINGS: Mapping[str, SpongeSetting] = {
    setting.name: setting
    for setting in (
        SpongeSetting("figure-4", "Figure 4: 20/s, 500 KB, 4G", margin=_TIGHT),
        SpongeSetting("figure-4-poisson", "the same, Poisson", Poisson(20.0), margin=_TIGHT),
        SpongeSetting("x4", "times × 4", factor=4.0, margin=_TIGHT),
        SpongeSetting("x4-poisson", "times × 4, Poisson", Poisson(20.0), 4.0, margin=_TIGHT),
        SpongeSetting("x3", "times × 3", factor=3.0, margin=_TIGHT),
        SpongeSetting("x3-poisson", "times × 3, Poisson", Poisson(20.0), 3.0, margin=_TIGHT),
        SpongeSetting("200kb", "200 KB", payload_kb=200, margin=_TIGHT),
        SpongeSetting("200kb-poisson", "200 KB, Poisson", Poisson(20.0), 6.0, 200, margin=_TIGHT),
        SpongeSetting("800kb", "800 KB", payload_kb=800),
        SpongeSetting("x7", "times × 7", factor=7.0),
        SpongeSetting("100-per-second", "100/s, Poisson, times × 1", Poisson(100.0), 1.0),
        SpongeSetting(
            "bursts", "50/s for 2 s, 10/s for 6 s, × 3", OnOff(50.0, 10.0, 2.0, 6.0), 3.0
        ),
        SpongeSetting("5g", "5G, Poisson, times × 4", Poisson(20.0), 4.0, link="5g"),
        SpongeSetting(
            "two-models",
            "two models on 16 cores, Poisson, × 4",
            Poisson(20.0),
            4.0,
            models=("one", "other"),
        ),
        SpongeSetting(
            "4x-load",
            "80/s, Poisson, up to 64 cores",
            Poisson(80.0),
            machine=64,
            replicas=16,
            settles_s=60.0,
        ),
    )
}
"""All settings, by name."""
FIGURE_4 = ("figure-4", "figure-4-poisson")
VARIED = ("x4", "x4-poisson", "x3", "x3-poisson", "200kb", "200kb-poisson")
HARDER = ("800kb", "x7", "100-per-second", "bursts", "5g", "two-models", "4x-load")


@dataclass(frozen=True, slots=True, eq=False)
class SpongeRequests:
    """Requests of one model, in the order of sending; seconds, each of shape (n,)."""

    sent: Floats
    """Instant from which the deadline counts, and at which the server learns of the request."""
    ready: Floats
    """Instant at which the request's last byte arrives."""
    believed: Floats
    """Instant at which the server, on the first byte, expects the last byte."""

    @property
    def deadlines(self) -> Floats:
        return self.sent + SLO


def draw(
    setting: SpongeSetting, model: str, seed: int, begin: float, end: float, data: Bandwidths
) -> SpongeRequests:
    """The requests of `model` sent from `begin` to `end`; the same for equal arguments. Each
    request has the link to itself, as in the paper's own workload, where several clients together
    send 20/s."""
    trace, start = data.of(setting.link)
    generator = rng_for(seed, f"arrivals of {model}")
    sent = begin + setting.arrivals.times(end - begin, generator)
    way = ClientLink(TraceLink(trace, offset=start), setting.payload_kb * KILOBYTE)
    delays = way.delays()(sent)
    # An outage ends for many requests at the same instant: only rounding could reorder them.
    ready = np.maximum.accumulate(delays.complete)
    return SpongeRequests(sent, ready, np.maximum(delays.believed, sent))


def unavoidable(setting: SpongeSetting, requests: SpongeRequests) -> NDArray[np.bool_]:
    """Which requests would be late even alone on all cores: link time + l(1, 16) > SLO."""
    late = requests.ready + setting.seconds(1, CORES) > requests.deadlines
    return np.asarray(late, dtype=np.bool_)


def table(setting: SpongeSetting) -> LatencyTable:
    """The profile of the setting's models, exact at every batch size and number of cores."""
    sizes = tuple(range(1, BATCH + 1))
    cores = tuple(range(1, CORES + 1))
    seconds = tuple(tuple(setting.seconds(size, count) for count in cores) for size in sizes)
    return LatencyTable.from_grid(sizes, cores, seconds, seconds)
