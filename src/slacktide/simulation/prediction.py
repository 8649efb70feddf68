"""Predict: the outside of a recording, and an inside that is drawn from what was known before.

The engine and the schedulers are the server's; arrivals and deadlines are recorded; how long a
batch takes is drawn (`TrainedTimes`). Nothing is fitted to what is predicted: all that is known is
what the header states or, with `after`, that and what the batches of the recording's beginning
taught, which is replayed and not scored.

A batch's time, as the engine sees it, runs from its start to the moment the engine learns that it
has ended, and the next one starts in that same moment. So what a live server pays between batches
(its loop, the hand-over, arrivals that push a model aside) is inside the times that were observed,
and there is no overhead beside them to state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Batch, BatchFinished, Leaving, Outcome, PoolId
from slacktide.domain.frames import PipelinesChanged
from slacktide.engine import BatchTimes, Engine, EngineSettings
from slacktide.load.report import Provenance, Report
from slacktide.profiles import ShapedTimes, TimeDistribution
from slacktide.recording import Call, RecordedPools, Recording, RecordingError, Watcher, replay
from slacktide.simulation.driver import Simulation
from slacktide.simulation.hardware import ARRANGE_S, scatter
from slacktide.simulation.items import SimulationError, stream
from slacktide.simulation.recorded_exits import ObservedExits, RecordedExits, whole_passes
from slacktide.simulation.recorded_frames import RecordedFrames
from slacktide.simulation.recorded_inputs import RecordedInputs, recorded_inputs
from slacktide.simulation.results import Scorer

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
        self.exits: dict[PoolId, ObservedExits] = {}
        """Of pools whose ramps have said something."""

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
                kept = self._batches.setdefault(batch.replica.pool, deque(maxlen=LATEST))
                kept.append((batch, running.cores, call.now - batch.started))

    def of(self, pool: PoolId) -> Iterable[Observation]:
        """Those of one pool, oldest first."""
        return self._batches.get(pool, ())


def _own(engine: Engine, batch: Batch) -> BatchTimes | None:
    """Times of whole passes of a model with exits of its own: none of its batches is judged."""
    pool = batch.replica.pool
    policy = next((each for each in engine.plan.exits if each.pool == pool), None)
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
    ) -> None:
        """`times` are not to change any more: they are the measure of the ratios."""
        self._times = times
        self._generator = generator
        self.guessed = 0
        """Requests that ran whose shape nothing known before could judge."""
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
        forecast = self._forecast(batch, cores)
        for kind in _kinds(batch):
            ratios = self._ratios.get(kind)
            if ratios is not None:
                return forecast.expected * float(ratios[self._generator.integers(ratios.size)])
        times = self._times[batch.replica.pool]
        if isinstance(times, ShapedTimes) and not times.measured(batch.members[0]):
            self.guessed += len(batch.members)
        return scatter(times, batch, cores).quantile(self._generator.random())

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


@dataclass(frozen=True, slots=True)
class Prediction:
    """What became of the same requests, live and in the simulator."""

    recorded: Report
    predicted: tuple[Report, ...]
    """One for each seed."""
    notes: tuple[str, ...]
    """What was left out, or could not be known."""

    @property
    def difference(self) -> float:
        """Predicted − recorded share of requests answered in time, mean over the seeds."""
        mean = sum(report.total.goodput for report in self.predicted) / len(self.predicted)
        return mean - self.recorded.total.goodput


def predict(
    recording: Recording, *, seeds: Sequence[int], provenance: Provenance, after: float = 0.0
) -> Prediction:
    """Predict what became of the requests of `recording` that came more than `after` seconds in.
    With `after` > 0 the part before it is replayed, and teaches. Raises RecordingError for a
    recording that is not what it says, SimulationError if nothing is left to predict."""
    found = recorded_inputs(
        (line.record for line in recording.lines()), after=after, plan=recording.header.plan
    )
    if found.plan is None or not found.scored:
        raise SimulationError(f"{recording.path}: no request to predict after {after:g} s")
    observed = Observations()
    learnt = _learnt(recording, found.start, observed) if after > 0.0 else {}
    scores = _Scores(found)
    for id in found.scored:
        scores.ended(id, found.ended[id])
    recorded = scores.report(f"recorded in {recording.path}", seeds[0], provenance)
    predicted, guessed = [], 0
    for seed in seeds:
        scores = _Scores(found)
        guessed = _run(found, learnt, observed, recording.header.settings, seed, scores)
        predicted.append(scores.report(f"predicted from {recording.path}", seed, provenance))
    notes = [*recording.warnings, *_notes(found, after, guessed)]
    return Prediction(recorded, tuple(predicted), tuple(notes))


def _learnt(
    recording: Recording, until: float, observed: Observations
) -> Mapping[PoolId, BatchTimes]:
    """Predictions as they were at `until`; the batches that had run by then go to `observed`."""
    replayed = replay(recording, observed, until=until)
    if replayed.difference is not None:
        raise RecordingError(
            f"{replayed.difference.line.place}: the replay differs, so it teaches nothing"
        )
    return {id: pool.times for id, pool in replayed.engine.snapshot().pools.items()}


def _run(
    found: RecordedInputs,
    learnt: Mapping[PoolId, BatchTimes],
    observed: Observations,
    settings: EngineSettings,
    seed: int,
    scores: _Scores,
) -> int:
    """Run the engine once on what came from outside. Returns how many requests ran for a time that
    was guessed."""
    assert found.plan is not None
    pools = RecordedPools(learnt)
    for opened in found.opened:
        pools.add(opened)
    truth = {pool: pools.times(pool) for pool in pools.opened}
    execution = TrainedTimes(truth, observed, stream(seed, "batch times"))
    frames = RecordedFrames(found.frames, scores.ended, stream(seed, "frames"))
    # A plan that was in force already has its replicas up, and their models cut into stages, by the
    # time requests come.
    begin = found.start - 2.0 * (found.start_s + ARRANGE_S)
    simulation = Simulation(
        Engine(pools.parts, settings),
        found.plan,
        execution,
        answered=lambda request, outcome: scores.ended(request.id, outcome),
        begin=begin if found.plan_at is None else found.plan_at,
        start_s=found.start_s,
        resize_s=found.resize_s,
        exits=dict.fromkeys(
            (pool.model for pool in observed.exits),
            RecordedExits(observed.exits, truth, stream(seed, "exits")),
        ),
        frames=frames,
    )
    frames.put = simulation.put
    if found.frames.pipelines:
        simulation.put(found.start, PipelinesChanged(found.frames.pipelines))
    simulation.run(found.items)
    return execution.guessed


class _Scores:
    """Scores the same requests, whatever world they ended in."""

    def __init__(self, found: RecordedInputs) -> None:
        self._requests = found.scored
        arrivals = [request.arrival for request in found.scored.values()]
        self._first = min(arrivals)
        self._scorer = Scorer(
            warmup_s=self._first, duration_s=math.nextafter(max(arrivals), math.inf) - self._first
        )

    def ended(self, id: int, outcome: Outcome) -> None:
        """Request `id` has ended; it is passed over if it is not to be scored."""
        request = self._requests.get(id)
        if request is not None:
            self._scorer.answered(request, outcome)

    def report(self, title: str, seed: int, provenance: Provenance) -> Report:
        report = self._scorer.report(
            title=title, seed=seed, configuration={}, provenance=provenance
        )
        return replace(report, warmup_s=0.0)


def _notes(found: RecordedInputs, after: float, guessed: int) -> Iterator[str]:
    if after > 0.0:
        yield f"the first {after:g} s were replayed, and taught the times; they are not scored"
    if found.turned_away:
        yield f"{found.turned_away} requests that the server itself refused are not scored"
    if found.open:
        yield f"{found.open} requests had no outcome when the recording ended; they are left out"
    if guessed:
        yield (
            f"{guessed} requests have shapes that nothing known before can judge: their times are "
            "guessed, in proportion to their size; begin later (--after) to learn them first"
        )
