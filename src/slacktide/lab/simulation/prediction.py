"""Predicts outcomes from a recording: real arrivals, with batch times drawn from earlier knowledge.

The engine and the schedulers are the server's, arrivals and deadlines are recorded, and batch times
are drawn (`TrainedTimes`). Nothing is fitted to the predicted requests. The predictor knows only
the header and, with `after`, the batches of the recording's beginning, which is replayed but not
scored. `hindsight` predicts nothing: it uses the batch times of the very moments that are scored,
so any remaining difference is not due to the machine's speed.

The engine measures a batch from its start to the moment when the engine learns of its end; the next
batch starts at that moment. A live server's costs between batches (event loop, hand-over, arrivals
that interrupt a model) are therefore part of observed times, and no overhead is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Outcome, PoolId
from slacktide.domain.frames import PipelinesChanged
from slacktide.engine import Engine, EngineSettings
from slacktide.lab.load.report import Provenance, Report
from slacktide.lab.replay import RecordedPools, replay
from slacktide.lab.simulation.items import SimulationError, rng_for
from slacktide.lab.simulation.recorded_exits import RecordedExits
from slacktide.lab.simulation.recorded_frames import RecordedFrames
from slacktide.lab.simulation.recorded_inputs import RecordedInputs, recorded_inputs
from slacktide.lab.simulation.trained_times import Observations, TrainedTimes
from slacktide.lab.simulation.world.driver import Simulation
from slacktide.lab.simulation.world.hardware import ARRANGE_S
from slacktide.lab.simulation.world.results import Scorer
from slacktide.profiles import BatchTimes
from slacktide.recording import Call, Recording, RecordingError


@dataclass(frozen=True, slots=True)
class Prediction:
    """Outcomes of the same requests in the live run and in the simulator."""

    recorded: Report
    predicted: tuple[Report, ...]
    """Predicted outcomes, one report for each seed."""
    notes: tuple[str, ...]
    """Notes on omissions and assumptions."""

    @property
    def difference(self) -> float:
        """Predicted − recorded share of requests answered in time, mean over the seeds."""
        mean = sum(report.total.goodput for report in self.predicted) / len(self.predicted)
        return mean - self.recorded.total.goodput


def predict(
    recording: Recording,
    *,
    seeds: Sequence[int],
    provenance: Provenance,
    after: float = 0.0,
    hindsight: bool = False,
) -> Prediction:
    """Predict the outcomes of the requests that came more than `after` seconds into `recording`.
    If `after` > 0, batch times are learnt from a replay of the part before. With `hindsight`,
    batches take as long as recorded batches of the same moment. Raises RecordingError for an
    invalid recording, SimulationError if nothing is left to predict."""
    inputs = recorded_inputs(
        (line.record for line in recording.lines()), after=after, plan=recording.header.plan
    )
    if inputs.plan is None or not inputs.scored:
        raise SimulationError(f"{recording.path}: no request to predict after {after:g} s")
    observed = Observations()
    learnt = _learnt(recording, inputs.start, observed) if after > 0.0 else {}
    if hindsight:
        observed = _Later(inputs.start)
        _learnt(recording, math.inf, observed)
    scores = _Scores(inputs)
    for id in inputs.scored:
        scores.ended(id, inputs.ended[id])
    recorded = scores.report(f"recorded in {recording.path}", seeds[0], provenance)
    predicted, guessed = [], 0
    for seed in seeds:
        scores = _Scores(inputs)
        guessed = _run(inputs, learnt, observed, recording.header.settings, seed, scores)
        predicted.append(scores.report(f"predicted from {recording.path}", seed, provenance))
    notes = [*recording.warnings, *_notes(inputs, after, guessed, hindsight)]
    return Prediction(recorded, tuple(predicted), tuple(notes))


def _learnt(
    recording: Recording, until: float, observed: Observations
) -> Mapping[PoolId, BatchTimes]:
    """Return the predicted times as of `until`, and add the batches that had run to `observed`."""
    replayed = replay(recording, observed, until=until)
    if replayed.difference is not None:
        raise RecordingError(
            f"{replayed.difference.line.place}: the replay differs, so no times can be learnt"
        )
    return {id: pool.times for id, pool in replayed.engine.snapshot().pools.items()}


def _run(
    inputs: RecordedInputs,
    learnt: Mapping[PoolId, BatchTimes],
    observed: Observations,
    settings: EngineSettings,
    seed: int,
    scores: _Scores,
) -> int:
    """Run the engine once on the recorded inputs. Return how many requests ran for a guessed
    time."""
    assert inputs.plan is not None
    pools = RecordedPools(learnt)
    for opened in inputs.opened:
        pools.add(opened)
    truth = {pool: pools.times(pool) for pool in pools.opened}
    execution = TrainedTimes(
        truth, observed, rng_for(seed, "batch times"), at_once=isinstance(observed, _Later)
    )
    frames = RecordedFrames(inputs.frames, scores.ended, rng_for(seed, "frames"))
    # If the plan was in force before, its replicas must be up, with their models cut into stages,
    # when the first request comes.
    begin = inputs.start - 2.0 * (inputs.start_s + ARRANGE_S)
    simulation = Simulation(
        Engine(pools.parts, settings),
        inputs.plan,
        execution,
        answered=lambda request, outcome: scores.ended(request.id, outcome),
        begin=begin if inputs.plan_at is None else inputs.plan_at,
        start_s=inputs.start_s,
        resize_s=inputs.resize_s,
        exits=dict.fromkeys(
            (pool.model for pool in observed.exits),
            RecordedExits(observed.exits, truth, rng_for(seed, "exits")),
        ),
        frames=frames,
    )
    frames.put = simulation.put
    if inputs.frames.pipelines:
        simulation.put(inputs.start, PipelinesChanged(inputs.frames.pipelines))
    simulation.run(inputs.items)
    return execution.guessed


class _Later(Observations):
    """Observations of the batches that ended at `start` or later."""

    def __init__(self, start: float) -> None:
        super().__init__(None)
        self._start = start

    def before(self, call: Call, engine: Engine) -> None:
        if call.now >= self._start:
            super().before(call, engine)


class _Scores:
    """Scores the recorded requests, by recorded or predicted outcomes."""

    def __init__(self, inputs: RecordedInputs) -> None:
        self._requests = inputs.scored
        arrivals = [request.arrival for request in inputs.scored.values()]
        self._first = min(arrivals)
        self._scorer = Scorer(
            warmup_s=self._first, duration_s=math.nextafter(max(arrivals), math.inf) - self._first
        )

    def ended(self, id: int, outcome: Outcome) -> None:
        """Note the outcome of request `id`; ignored if the request is not scored."""
        request = self._requests.get(id)
        if request is not None:
            self._scorer.answered(request, outcome)

    def report(self, title: str, seed: int, provenance: Provenance) -> Report:
        report = self._scorer.report(
            title=title, seed=seed, configuration={}, provenance=provenance
        )
        return replace(report, warmup_s=0.0)


def _notes(inputs: RecordedInputs, after: float, guessed: int, hindsight: bool) -> Iterator[str]:
    if hindsight:
        yield "batch times are drawn from batches that ran at the same moment, not predicted"
    if after > 0.0:
        yield f"the first {after:g} s were replayed to learn batch times; they are not scored"
    if inputs.turned_away:
        yield f"{inputs.turned_away} requests that the server itself refused are not scored"
    if inputs.open:
        yield f"{inputs.open} requests had no outcome when the recording ended; they are left out"
    if guessed:
        yield (
            f"{guessed} requests have shapes without known times, which are guessed in proportion "
            "to their size; a larger --after learns them first"
        )
