"""What the clients' links carry, second by second: recorded where somebody has it, else drawn."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slacktide.load.traces import read_bandwidths
from slacktide.profiles.amdahl import Timed
from slacktide.reproduce.harness.state import ReproduceError, found_below
from slacktide.workloads import BandwidthTrace, WorkloadError, draw_4g, draw_5g

GHENT, IRISH, POINTS = "ghent_4g*.csv", "irish_5g*.csv", "sponge_cpu_latency.csv"
"""Files below `--data`: the 4G log of a bus that the paper uses, the 5G runs of Raca et al. (2020),
and the measured latencies of a notebook in the paper's repository."""
IRISH_RUN, IRISH_START = "4", 60.0
"""A drive of 49 minutes; its first seconds carry next to nothing, the download has not begun."""
SEED = 1
LENGTH = 600.0
"""Seconds of a drawn trace."""


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Of one run of the reproduction."""

    four_g: BandwidthTrace
    five_g: BandwidthTrace
    five_g_start: float = 0.0
    """Seconds into it at which a run begins."""

    def of(self, name: str) -> tuple[BandwidthTrace, float]:
        """(trace, where to begin) of `4g` or `5g`."""
        return (self.four_g, 0.0) if name == "4g" else (self.five_g, self.five_g_start)

    @property
    def digest(self) -> str:
        """Equal for equal bandwidths."""
        made = hashlib.sha256()
        for trace in (self.four_g, self.five_g):
            made.update(trace.starts.tobytes() + trace.rates.tobytes())
        return made.hexdigest()[:16]


def bandwidths(folder: Path | None) -> Bandwidths:
    """Those recorded below `folder`; without one, drawn from a seed in the shape of the recorded.

    Raises ReproduceError if a file is not there or cannot be read.
    """
    if folder is None:
        return Bandwidths(
            draw_4g(LENGTH, np.random.default_rng(SEED)),
            draw_5g(LENGTH, np.random.default_rng(SEED)),
        )
    four_g, five_g = found_below(folder, GHENT), found_below(folder, IRISH)
    try:
        return Bandwidths(
            read_bandwidths(str(four_g), None, None),
            read_bandwidths(str(five_g), IRISH_RUN, None),
            IRISH_START,
        )
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None


def measured_points(folder: Path) -> tuple[Timed, ...]:
    """The measured latencies below `folder`: columns batch, cores, latency_ms. Raises as above."""
    path = found_below(folder, POINTS)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(
                Timed(int(row["batch"]), int(row["cores"]), float(row["latency_ms"]) / 1e3)
                for row in csv.DictReader(file)
            )
    except (KeyError, ValueError) as error:
        raise ReproduceError(f"--data: {path.name}: {error}") from None
