"""`TrainedTimes`: batch times of a machine of which a beginning was seen.

What is predicted of a batch is a distribution with two measured points, learnt from the latest
batches. Who has seen hundreds of batches can do better: draw one of the ratios observed ÷ expected
that they had. Batches are alike if they have as many rows, members of the same applications and
about the same longest work hint; where too few were seen, first the rows and then the rest is let
go. So it is known that one application takes longer than another even if the predictions had not
learnt it yet. Without any batches, times are drawn from the predictions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Batch, BatchFinished, PoolId
from slacktide.engine import BatchTimes, Engine
from slacktide.profiles import TimeDistribution
from slacktide.recording import Call, Watcher

LATEST = 500
"""Batches of a pool that teach, the latest: earlier ones may have had another load beside them."""
ENOUGH = 30
"""Batches that are alike whose ratios speak for themselves."""

Observation: TypeAlias = tuple[Batch, int, float]
"""(batch, cores, seconds)."""
Ratios = NDArray[np.float64]
Likeness: TypeAlias = tuple[object, ...]
"""Pool, rows, applications and octave of the longest hint, or less of it."""


class Observations(Watcher):
    """The latest batches of a replay that finished on as many cores as they began with: what they
    were, and what they took."""

    def __init__(self) -> None:
        self._batches: dict[PoolId, deque[Observation]] = {}

    def before(self, call: Call, engine: Engine) -> None:
        for event in call.events:
            running = None
            if isinstance(event, BatchFinished):
                running = engine.snapshot().running(event.batch)
            if running is not None and running.steady:
                batch = running.batch
                kept = self._batches.setdefault(batch.replica.pool, deque(maxlen=LATEST))
                kept.append((batch, running.cores, call.now - batch.started))

    def of(self, pool: PoolId) -> Iterable[Observation]:
        """Those of one pool, oldest first."""
        return self._batches.get(pool, ())


class TrainedTimes:
    """An `Execution`: expected time × a ratio that was seen."""

    def __init__(
        self,
        times: Mapping[PoolId, BatchTimes],
        observed: Observations,
        generator: np.random.Generator,
    ) -> None:
        """`times` are not to change any more: they are the measure of the ratios."""
        self._times = times
        self._generator = generator
        seen: dict[Likeness, list[float]] = {}
        for batch, cores, seconds in chain.from_iterable(map(observed.of, times)):
            if seconds > 0.0:
                ratio = seconds / self._forecast(batch, cores).expected
                for kind in _kinds(batch):
                    seen.setdefault(kind, []).append(ratio)
        self._ratios: dict[Likeness, Ratios] = {
            kind: np.array(ratios) for kind, ratios in seen.items() if len(ratios) >= ENOUGH
        }

    def seconds(self, batch: Batch, cores: int) -> float:
        """See `Execution.seconds`."""
        forecast = self._forecast(batch, cores)
        for kind in _kinds(batch):
            ratios = self._ratios.get(kind)
            if ratios is not None:
                return forecast.expected * float(ratios[self._generator.integers(ratios.size)])
        return forecast.quantile(self._generator.random())

    def _forecast(self, batch: Batch, cores: int) -> TimeDistribution:
        times = self._times[batch.replica.pool]
        return times.of(batch.rows, cores, batch.members)


def _kinds(batch: Batch) -> tuple[Likeness, Likeness, Likeness]:
    """What `batch` is like, most narrowly first."""
    pool = batch.replica.pool
    applications = frozenset([member.application for member in batch.members])
    hints = [member.work_hint for member in batch.members if member.work_hint is not None]
    # Octaves: a longest hint of 100 is like one of 120, not like one of 130.
    octave = math.frexp(max(hints))[1] if hints else None
    return (pool, batch.rows, applications, octave), (pool, 0, applications, octave), (pool,)
