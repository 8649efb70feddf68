"""`DeviceTimes`: how long batches take on a device whose lanes share its accelerators.

A batch alone takes the profile's median for its rows, times a lognormal factor that reproduces the
profile's p99. Batches on one accelerator slow one another only if their utilisations exceed its
capacity: a batch that starts at such a moment takes demand ÷ capacity times as long, times a factor
for further cost of interference (measured on CPUs, assumed for accelerators). Batches already
running keep their times, so the later of two overlapping batches pays for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slacktide.domain import Batch, PoolId
from slacktide.lab.simulation.items import SimulationError
from slacktide.profiles import LatencyTable

_P99 = 2.3263478740408408
"""Standard deviations of a normal distribution up to its 99th percentile."""
_DRAWN = 4_096
"""Numbers drawn at a time."""


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Batch times of a model that runs alone, and its share of an accelerator."""

    table: LatencyTable
    utilisation: float = 1.0
    """Share of an accelerator that a running batch takes."""


class DeviceTimes:
    """An `Execution` without a clock: the present is the start of the batch."""

    def __init__(
        self,
        pools: Mapping[PoolId, ModelTimes],
        accelerator_of: Mapping[str, int],
        random: np.random.Generator,
        *,
        contention: float = 1.0,
        utilisation: float = 1.0,
        slower: float = 1.0,
    ) -> None:
        """`accelerator_of`: number of each lane's accelerator. `utilisation`: capacity of each
        accelerator. `slower`: factor on all times. Raises SimulationError for invalid factors."""
        for name, value in (("contention", contention), ("slower", slower)):
            if not 0.0 < value < math.inf:
                raise SimulationError(f"{name}: expected more than 0, got {value}")
        self._random = random
        self._contention, self._most = contention, utilisation
        self._accelerator_of = accelerator_of
        self._medians: dict[PoolId, Sequence[float]] = {}
        self._sigmas: dict[PoolId, Sequence[float]] = {}
        self._shares = {pool: model.utilisation for pool, model in pools.items()}
        for pool, model in pools.items():
            table, rows = model.table, range(1, model.table.max_batch + 1)
            self._medians[pool] = medians = [slower * table.expected(n, 1) for n in rows]
            self._sigmas[pool] = [
                math.log(max(1.0, slower * table.p99(n, 1) / median)) / _P99
                for n, median in zip(rows, medians, strict=True)
            ]
        self._running: dict[int, list[tuple[float, str, float]]] = {}
        """By accelerator: (end, lane, share)."""
        self._normals: list[float] = []

    def seconds(self, batch: Batch, cores: int) -> float:
        replica = batch.replica
        pool, at = replica.pool, batch.rows - 1
        if not self._normals:
            self._normals = self._random.standard_normal(_DRAWN).tolist()
        factor = math.exp(self._sigmas[pool][at] * self._normals.pop())
        seconds = self._medians[pool][at] * factor
        share = self._shares[pool]
        accelerator = self._accelerator_of[replica.lane]
        now, demand = batch.started, share
        running = []
        for run in self._running.get(accelerator, ()):
            if run[0] > now and run[1] != replica.lane:
                running.append(run)
                demand += run[2]
        if demand > self._most + 1e-9:
            seconds *= self._contention * demand / self._most
        running.append((now + seconds, replica.lane, share))
        self._running[accelerator] = running
        return seconds
