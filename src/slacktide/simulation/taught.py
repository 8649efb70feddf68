"""`Taught`: batch times of a machine of which a beginning was seen.

What is predicted of a batch is a distribution with two measured points, learnt from the latest
batches. Who has seen hundreds of batches can do better: draw one of the ratios observed ÷ expected
that they had, from batches of as many rows where there were enough of them. Without any, times are
drawn from the predictions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Batch, BatchFinished, Command, PoolId, RunBatch
from slacktide.engine import BatchTimes, Engine
from slacktide.engine.ports import Forecast
from slacktide.recording import Call, Watcher

ENOUGH = 30
"""Batches of one size whose ratios speak for themselves; fewer, and those of all sizes do."""

_STEPS = 60
"""Halvings in which a time is found from its probability: to the last bit of a float, nearly."""

Ratios = NDArray[np.float64]


class Lessons(Watcher):
    """Every batch of a replay that finished: what it was, and what it took."""

    def __init__(self) -> None:
        self.batches: list[tuple[Batch, int, float]] = []
        """(batch, cores, seconds)."""
        self._running: dict[int, tuple[Batch, int]] = {}

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        for event in call.events:
            if isinstance(event, BatchFinished) and event.batch in self._running:
                batch, cores = self._running.pop(event.batch)
                self.batches.append((batch, cores, call.now - batch.started))
        for command in commands:
            if isinstance(command, RunBatch):
                lane = engine.state.lanes[command.batch.replica.lane]
                self._running[command.batch.id] = (command.batch, lane.size)


class Taught:
    """An `Execution`: expected time × a ratio that was seen."""

    def __init__(
        self,
        times: Mapping[PoolId, BatchTimes],
        lessons: Lessons,
        generator: np.random.Generator,
    ) -> None:
        """`times` are not to change any more: they are the measure of the ratios."""
        self._times = times
        self._generator = generator
        seen: dict[tuple[PoolId, int], list[float]] = {}
        for batch, cores, seconds in lessons.batches:
            pool = batch.replica.pool
            if pool in times and seconds > 0.0:
                expected = self._forecast(batch, cores).expected
                for rows in (batch.rows, 0):
                    seen.setdefault((pool, rows), []).append(seconds / expected)
        self._ratios: dict[tuple[PoolId, int], Ratios] = {
            key: np.array(ratios) for key, ratios in seen.items() if len(ratios) >= ENOUGH
        }
        """By pool and rows; 0: of all sizes."""

    def seconds(self, batch: Batch, cores: int) -> float:
        """See `Execution.seconds`."""
        pool = batch.replica.pool
        ratios = self._ratios.get((pool, batch.rows), self._ratios.get((pool, 0)))
        forecast = self._forecast(batch, cores)
        if ratios is None:
            return time_at(forecast, self._generator.random())
        return forecast.expected * float(ratios[self._generator.integers(ratios.size)])

    def _forecast(self, batch: Batch, cores: int) -> Forecast:
        times = self._times[batch.replica.pool]
        return times.forecast(batch.members, batch.rows, cores)


def time_at(forecast: Forecast, level: float) -> float:
    """The time that a share `level` (0 to 1, exclusive) of batches so forecast stays within."""
    low, high = 0.0, forecast.p99
    for _ in range(_STEPS):
        if forecast.on_time(high) >= level:
            break
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if forecast.on_time(middle) < level:
            low = middle
        else:
            high = middle
    return high
