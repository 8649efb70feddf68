"""Times of a recording's batches, and batch times drawn from them.

A machine has phases: for some seconds everything takes a tenth longer, or some batches five times
as long, since something else wants its caches or its cores. Near capacity a few such seconds decide
what is late; times drawn from all that was seen, with the same mean, have no such seconds. So a
time is drawn from what batches alike took about one moment, and moments follow each other as they
did.
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
"""Batches of a pool that teach, the latest: earlier ones may have had another load beside them. So
many because a few seconds may all be of one phase of the machine."""
ENOUGH = 30
"""Batches that are alike whose ratios speak for themselves."""
NEAR = 8
"""Number of these ratios that are drawn from: the ones nearest to a moment."""

Observation: TypeAlias = tuple[Batch, int, float]
"""(batch, cores, seconds)."""
Ratios = NDArray[np.float64]
Seconds = NDArray[np.float64]
Likeness: TypeAlias = tuple[object, ...]
"""Pool, rows, applications and octave of the longest hint, or a prefix of these."""


class Observations(Watcher):
    """The latest batches of a replay that finished on as many cores as they began with: what they
    were, and what they took."""

    def __init__(self, latest: int | None = LATEST) -> None:
        """`latest`: so many of each pool; None: all."""
        self._latest = latest
        self._batches: dict[PoolId, deque[Observation]] = {}
        self.exits: dict[PoolId, ObservedExits] = {}
        """Exits of the pools whose ramps have judged rows."""

    def before(self, call: Call, engine: Engine) -> None:
        for event in call.events:
            if not isinstance(event, BatchFinished):
                continue
            running = engine.snapshot().running(event.batch)
            if running is not None and running.steady:
                batch = running.batch
                if event.exits is not None:
                    observed = self.exits.setdefault(batch.replica.pool, ObservedExits())
                    observed.note(batch, event.exits, call.now - batch.started, _own(engine, batch))
                if batch.leaving is Leaving.SHRINK and not batch.judged:
                    continue  # rows have left it: no whole pass
                batches = self._batches.setdefault(batch.replica.pool, deque(maxlen=self._latest))
                batches.append((batch, running.cores, call.now - batch.started))

    def of(self, pool: PoolId) -> Iterable[Observation]:
        """Observations of one pool, oldest first."""
        return self._batches.get(pool, ())


def _own(engine: Engine, batch: Batch) -> BatchTimes | None:
    """Times of whole passes of a model with exits of its own: none of its batches is judged."""
    pool = batch.replica.pool
    policy = next((exits for exits in engine.plan.exits if exits.pool == pool), None)
    if policy is None or policy.feedback > 0.0:
        return None
    return whole_passes(engine.snapshot().pools[pool].times)


class TrainedTimes:
    """An `Execution`: expected time × a ratio observed ÷ expected that was seen.

    The predictions of a pool are a distribution with two measured points, learnt from its latest
    batches; hundreds of observed batches say more. Batches are alike if they have as many rows,
    members of the same applications and about the same longest work hint; where too few were seen,
    first the rows and then the rest is let go. So an application that takes longer than another is
    known to, even if the predictions had not learnt it yet. Without any batches, times are drawn
    from the predictions.
    """

    def __init__(
        self,
        times: Mapping[PoolId, BatchTimes],
        observed: Observations,
        generator: np.random.Generator,
        *,
        at_once: bool = False,
    ) -> None:
        """`times` are not to change any more: they are the measure of the ratios. `at_once`:
        batches run at the very moments at which others were `observed`; else what was observed
        comes again and again, from a moment on that is drawn."""
        self._times = times
        self._generator = generator
        self.guessed = 0
        """Requests that ran whose shape nothing known before could judge."""
        samples: dict[Likeness, list[tuple[float, float]]] = {}
        for batch, cores, seconds in chain.from_iterable(map(observed.of, times)):
            if seconds > 0.0:
                ratio = seconds / self._forecast(batch, cores).expected
                for kind in _kinds(batch):
                    samples.setdefault(kind, []).append((batch.started, ratio))
        self._seen: dict[Likeness, tuple[Seconds, Ratios]] = {}
        """By likeness: when, ascending, and the ratios."""
        for kind, pairs in samples.items():
            if len(pairs) >= ENOUGH:
                begun, ratios = np.array(sorted(pairs)).T
                self._seen[kind] = begun, ratios
        self._first = min((begun[0] for begun, _ in self._seen.values()), default=0.0)
        last = max((begun[-1] for begun, _ in self._seen.values()), default=0.0)
        self._span = 0.0 if at_once else last - self._first
        self._shift = float(generator.random()) * self._span if self._span > 0.0 else 0.0

    def seconds(self, batch: Batch, cores: int) -> float:
        forecast = self._forecast(batch, cores)
        for kind in _kinds(batch):
            sample = self._seen.get(kind)
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
        """The observed moment that stands for `now`."""
        if self._span <= 0.0:
            return now
        return self._first + (now - self._first + self._shift) % self._span

    def _forecast(self, batch: Batch, cores: int) -> TimeDistribution:
        times = self._times[batch.replica.pool]
        return times.of(batch.rows, cores, batch.members)


def _kinds(batch: Batch) -> tuple[Likeness, Likeness, Likeness]:
    """Kinds of `batch`, the narrowest first."""
    pool = batch.replica.pool
    applications = frozenset([member.application for member in batch.members])
    hints = [member.work_hint for member in batch.members if member.work_hint is not None]
    # Octaves: a longest hint of 100 is like one of 120, not like one of 130.
    octave = math.frexp(max(hints))[1] if hints else None
    return (pool, batch.rows, applications, octave), (pool, 0, applications, octave), (pool,)
