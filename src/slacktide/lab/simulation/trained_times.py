"""Times of a recording's batches, and batch times drawn from them.

A machine has phases: for some seconds everything takes a tenth longer, or some batches five times
as long, because another process uses its caches or cores. Near capacity, a few such seconds decide
which requests are late; independent draws with the same mean would have no such phases. Therefore a
time is drawn from similar batches that ran around one moment, and these moments follow one another
in their recorded order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Batch, BatchFinished, Leaving, PoolId
from slacktide.engine import Engine
from slacktide.lab.replay import Watcher
from slacktide.lab.simulation.recorded_exits import ObservedExits, whole_passes
from slacktide.lab.simulation.world.hardware import scatter
from slacktide.profiles import BatchTimes, ShapedTimes, TimeDistribution
from slacktide.recording import Call

LATEST = 3_000
"""Number of latest batches of a pool that are used. Earlier ones may have run with another load;
far fewer could all fall into one phase of the machine."""
ENOUGH = 30
"""Minimum number of similar batches from which ratios are drawn."""
NEAR = 8
"""Number of ratios, nearest to a moment, of which one is drawn."""

Observation: TypeAlias = tuple[Batch, int, float]
"""(batch, cores, seconds)."""
Ratios = NDArray[np.float64]
Seconds = NDArray[np.float64]
Likeness: TypeAlias = tuple[object, ...]
"""(pool, rows, applications, octave of the longest hint); wider kinds ignore some of these."""


class Observations(Watcher):
    """The latest batches of a replay and their times; only batches whose cores did not change while
    they ran."""

    def __init__(self, latest: int | None = LATEST) -> None:
        """`latest`: number of batches kept per pool; None: all."""
        self._latest = latest
        self._batches: dict[PoolId, deque[Observation]] = {}
        self.exits: dict[PoolId, ObservedExits] = {}
        """By pool: observed early exits."""

    def before(self, call: Call, engine: Engine) -> None:
        for event in call.events:
            if not isinstance(event, BatchFinished):
                continue
            running = engine.snapshot().running(event.batch)
            if running is not None and running.steady:
                batch = running.batch
                if event.exits is not None:
                    observed = self.exits.setdefault(batch.replica.pool, ObservedExits())
                    took, times = call.now - batch.started, _whole_pass_times(engine, batch)
                    observed.note(batch, event.exits, took, times)
                if batch.leaving is Leaving.SHRINK and not batch.judged:
                    continue  # rows have left the batch, so its time is not that of a whole pass
                batches = self._batches.setdefault(batch.replica.pool, deque(maxlen=self._latest))
                batches.append((batch, running.cores, call.now - batch.started))

    def of(self, pool: PoolId) -> Iterable[Observation]:
        """Return the observations of one pool, oldest first."""
        return self._batches.get(pool, ())


def _whole_pass_times(engine: Engine, batch: Batch) -> BatchTimes | None:
    """Return times of whole passes if exits are built in (no batch is judged), else None."""
    pool = batch.replica.pool
    policy = next((exits for exits in engine.plan.exits if exits.pool == pool), None)
    if policy is None or policy.feedback > 0.0:
        return None
    return whole_passes(engine.snapshot().pools[pool].times)


class TrainedTimes:
    """An `Execution`: the expected time × a ratio (observed ÷ expected) of a recorded batch.

    The predictions of a pool are a distribution with two points learnt from its latest batches;
    hundreds of observed batches say more. Batches are alike if they have equally many rows, members
    of the same applications and about the same longest work hint. If too few are alike, rows are
    ignored, and then everything but the pool. So a slow application is known to be slow, even if
    the predictions have not learnt it yet. Without enough observed batches, times are drawn from
    the predictions.
    """

    def __init__(
        self,
        times: Mapping[PoolId, BatchTimes],
        observed: Observations,
        generator: np.random.Generator,
        *,
        at_once: bool = False,
    ) -> None:
        """`times` must not change any more: ratios are relative to them. `at_once`: draw from
        batches `observed` at the same moment of the recording; otherwise observations are repeated
        cyclically from a random moment on."""
        self._times = times
        self._generator = generator
        self.guessed = 0
        """Number of requests that ran with a shape for which no time was known."""
        samples: dict[Likeness, list[tuple[float, float]]] = {}
        for batch, cores, seconds in chain.from_iterable(map(observed.of, times)):
            if seconds > 0.0:
                ratio = seconds / self._forecast(batch, cores).expected
                for kind in _kinds(batch):
                    samples.setdefault(kind, []).append((batch.started, ratio))
        self._ratios: dict[Likeness, tuple[Seconds, Ratios]] = {}
        """By likeness: starts, ascending, and the ratios of the batches that started then."""
        for kind, pairs in samples.items():
            if len(pairs) >= ENOUGH:
                begun, ratios = np.array(sorted(pairs)).T
                self._ratios[kind] = begun, ratios
        self._first = min((begun[0] for begun, _ in self._ratios.values()), default=0.0)
        last = max((begun[-1] for begun, _ in self._ratios.values()), default=0.0)
        self._span = 0.0 if at_once else last - self._first
        self._shift = float(generator.random()) * self._span if self._span > 0.0 else 0.0

    def seconds(self, batch: Batch, cores: int) -> float:
        forecast = self._forecast(batch, cores)
        for kind in _kinds(batch):
            sample = self._ratios.get(kind)
            if sample is not None:
                begun, ratios = sample
                place = int(begun.searchsorted(self._moment(batch.started))) - NEAR // 2
                place = min(max(place, 0), ratios.size - NEAR)
                return forecast.expected * float(ratios[place + self._generator.integers(NEAR)])
        times = self._times[batch.replica.pool]
        if isinstance(times, ShapedTimes) and not times.measured(batch.members[0]):
            self.guessed += len(batch.members)
        return scatter(times, batch, cores).quantile(self._generator.random())

    def _moment(self, now: float) -> float:
        """Return the moment of the recording that stands for `now`."""
        if self._span <= 0.0:
            return now
        return self._first + (now - self._first + self._shift) % self._span

    def _forecast(self, batch: Batch, cores: int) -> TimeDistribution:
        times = self._times[batch.replica.pool]
        return times.of(batch.rows, cores, batch.members)


def _kinds(batch: Batch) -> tuple[Likeness, Likeness, Likeness]:
    """Return the kinds to which `batch` belongs, the narrowest first."""
    pool = batch.replica.pool
    applications = frozenset([member.application for member in batch.members])
    hints = [member.work_hint for member in batch.members if member.work_hint is not None]
    # Octaves: a longest hint of 100 is like one of 120, not like one of 130.
    octave = math.frexp(max(hints))[1] if hints else None
    return (pool, batch.rows, applications, octave), (pool, 0, applications, octave), (pool,)
