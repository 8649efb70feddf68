"""`DeviceTimes`: how long batches take on a device whose lanes share its accelerators.

A batch alone takes a median that its rows tell, times a factor that is lognormal: its 99th
percentile is that of the profile. Batches of one accelerator slow one another only where they want
more of it together than there is: then a batch that begins takes as much longer as too much is
wanted, times a factor for what interference costs beside (measured on CPUs, an assumption for
accelerators). What runs already keeps its time, so of two that overlap the later pays for both.
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
    """Time and share of a device that a model takes, alone."""

    table: LatencyTable
    utilisation: float = 1.0
    """Share of an accelerator that a running batch takes."""


class DeviceTimes:
    """An `Execution`. `now` is that of batches' starts."""

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
        """`accelerator_of`: by lane. `utilisation`: what there is of each accelerator. `slower`:
        all batches take so much longer. Raises SimulationError for factors that cannot be."""
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
