"""What `slacktide demo clients` runs: cameras, and links whose rates change. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.workloads import BandwidthTrace, TraceLink
from slacktide.lab.workloads.bandwidth import MBIT

Picture: TypeAlias = NDArray[np.uint8]
"""[height, width, 3], red first."""

SLOWEST, FASTEST = 1.5 * MBIT, 25.0 * MBIT
"""Rates of links are drawn between these, evenly by their logarithm."""
RTT = 0.01


@dataclass(frozen=True, slots=True)
class ClientsRun:
    """What is run. `model` of `repository` is a family of sizes of one file."""

    repository: Path
    model: str
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    """The server's, and the clients' with their links."""
    clients: int = 4
    seconds: float = 60.0
    rate: float = 10.0
    """Frames per second of each."""
    slo: float = 0.15
    """Seconds from capture to answer."""
    change_s: float = 6.0
    """From one rate of a link to the next."""
    seed: int = 1

    @property
    def links(self) -> list[TraceLink]:
        """One for each client; they change one after the other."""
        found = []
        for number in range(self.clients):
            draw = np.random.default_rng((self.seed, number))
            first = self.change_s * (number + 1) / self.clients
            later = np.arange(first, self.seconds + 2.0 * self.change_s, self.change_s)
            rates = np.exp(draw.uniform(np.log(SLOWEST), np.log(FASTEST), len(later) + 1))
            found.append(TraceLink(BandwidthTrace([0.0, *later], rates), RTT))
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """A link at one moment, `at` seconds from its start; bytes per second."""

    at: float
    rate: float
    estimate: float
    """What the server believes."""
    size: int
    """That it advises."""
