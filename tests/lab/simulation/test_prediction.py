"""A prediction from what was known before agrees with what came, and uses nothing else."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from slacktide.domain import (
    Announced,
    Batch,
    BatchFinished,
    Cancelled,
    Deployment,
    LaneSpec,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Refused,
    Replica,
    Request,
    Route,
    Submitted,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.load.report import Provenance
from slacktide.lab.reports.twin import prediction_document, render_prediction
from slacktide.lab.simulation import (
    ByProfile,
    Execution,
    Item,
    Prediction,
    SimulatedUpload,
    Simulation,
    SimulationError,
    predict,
)
from slacktide.lab.simulation.items import ExternalEvent, Failure
from slacktide.lab.simulation.recorded_inputs import recorded_inputs
from slacktide.lab.simulation.trained_times import (
    ENOUGH,
    LATEST,
    NEAR,
    Observations,
    TrainedTimes,
)
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import Call, Recorder, Recording, RecordingError
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

POOL = PoolId("m", "1")
PLAN = Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", 8),), (Route("m", POOL),))
RECIPE = PoolRecipe("slack")
TABLE = LatencyTable.linear(0.004, 0.002, 8, spread=1.4)
SLOWER = LatencyTable.linear(0.005, 0.0025, 8, spread=1.4)
NOBODY = Provenance("", {}, "")


class Phases:
    """Hardware that takes longer by spells of two seconds: twice as long in every third."""

    def __init__(self, seed: int, begin: float) -> None:
        self._usual = ByProfile(CorrectedTimes(TABLE), np.random.default_rng(seed))
        self._begin = begin

    def seconds(self, batch: Batch, cores: int) -> float:
        slow = batch.started >= self._begin and batch.started // 2.0 % 3.0 == 1.0
        return (2.0 if slow else 1.0) * self._usual.seconds(batch, cores)


def record(
    path: Path,
    items: list[Item],
    truth: LatencyTable,
    *,
    seed: int = 0,
    limit: int = 1 << 30,
    phases: float = math.inf,
) -> Recording:
    """Record a simulation whose batches take as long as `truth` says; TABLE is what it thinks.
    `phases`: when these begin to slow the hardware down."""
    recorder = Recorder(path, EngineSettings(), limit=limit)

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(TABLE)
        recorder.opened(pool, max_batch, RECIPE, lambda: export_times(times))
        return RECIPE.parts(times, max_batch=max_batch, view=view)

    def watch(events: Any, now: float, commands: Any) -> None:
        recorder.called(events, now, commands)
        recorder.encode()

    execution: Execution = ByProfile(CorrectedTimes(truth), np.random.default_rng(seed))
    if phases < math.inf:
        execution = Phases(seed, phases)
    engine = Engine(parts, EngineSettings())
    Simulation(engine, PLAN, execution, watch=watch, start_s=0.01).run(items)
    recorder.close()
    return Recording(path)


def poisson(rate: float, count: int, *, seed: int = 7) -> list[Item]:
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, count)
    arrivals = np.cumsum(gaps) + 0.1
    return [
        Request(id, "m", float(at), float(at) + 0.04, application="ab"[id % 2])
        for id, at in enumerate(arrivals)
    ]


def predicted(recording: Recording, **options: Any) -> Prediction:
    return predict(recording, seeds=(1, 2), provenance=NOBODY, **options)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    return tmp_path / "run.rec"


@pytest.mark.parametrize("rate", [200.0, 400.0, 800.0])
def test_it_agrees_where_the_profile_is_right(rate: float, path: Path) -> None:
    prediction = predicted(record(path, poisson(rate, 1500), TABLE))
    assert prediction.recorded.total.submitted == 1500
    assert abs(prediction.difference) < 0.02
    recorded, drawn = prediction.recorded.total, prediction.predicted[0].total
    assert recorded.latency is not None
    assert drawn.latency is not None
    assert drawn.latency.p50 == pytest.approx(recorded.latency.p50, rel=0.05)
    assert [stream.name for stream in prediction.recorded.streams] == ["m/a", "m/b"]


def test_a_beginning_makes_up_for_a_wrong_profile(path: Path) -> None:
    recording = record(path, poisson(500.0, 2500, seed=9), SLOWER)
    untaught, taught = predicted(recording), predicted(recording, after=2.0)
    assert untaught.difference > 0.05
    assert abs(taught.difference) < 0.02
    assert 1400 < taught.recorded.total.submitted < 1700
    assert taught.notes == (
        "the first 2 s were replayed to learn batch times; they are not scored",
    )


def test_phases_of_the_machine_come_as_they_did(path: Path) -> None:
    """A third of the time everything takes twice as long: too long, then, and else not."""
    recording = record(path, poisson(450.0, 13_500), TABLE, phases=0.0)
    prediction = predict(recording, seeds=range(4), provenance=NOBODY, after=12.0)
    assert 0.6 < prediction.recorded.total.goodput < 0.9
    assert abs(prediction.difference) < 0.03


def test_hindsight_tells_a_machine_that_changed_from_a_simulation_that_is_wrong(
    path: Path,
) -> None:
    recording = record(path, poisson(450.0, 6_000), TABLE, phases=6.0)
    assert predicted(recording, after=6.0).difference > 0.05
    prediction = predicted(recording, after=6.0, hindsight=True)
    assert abs(prediction.difference) < 0.02
    assert (
        prediction.notes[0]
        == "batch times are drawn from batches that ran at the same moment, not predicted"
    )


def test_the_predicted_part_is_not_looked_at(path: Path) -> None:
    """Other batch times after the beginning make the same prediction."""
    items = poisson(500.0, 1500)
    prediction = predicted(record(path, items, SLOWER, seed=1), after=2.0)
    lines = path.read_bytes().splitlines(keepends=True)
    second = record(path.with_name("other"), items, TABLE, seed=2)
    start = next(i for i, line in enumerate(Recording(path).lines()) if _now(line.record) >= 2.0)
    again = second.path.read_bytes().splitlines(keepends=True)
    later = next(i for i, line in enumerate(second.lines()) if _now(line.record) >= 2.0)
    # The answers after it are those of a faster machine: only what is scored may differ.
    path.write_bytes(b"".join(lines[: start + 1] + again[later + 1 :]))
    mixed = predicted(Recording(path), after=2.0)
    assert mixed.recorded.goodput > prediction.recorded.goodput
    assert [report.total for report in mixed.predicted] == [
        report.total for report in prediction.predicted
    ]


def _now(record: Any) -> float:
    return record.now if isinstance(record, Call) else -1.0


def test_everything_from_outside_comes_again(path: Path) -> None:
    items: list[Item] = list(poisson(300.0, 300))
    request = Request(1000, "m", 0.3, 0.9)
    notice = Notice(1000, "m", 0.3, 0.9, 10, 0.301)
    items += [
        SimulatedUpload(notice, request, 0.31),
        SimulatedUpload(Notice(1001, "m", 0.4, 0.41, 10, 0.405), None, 0.4),
        ExternalEvent(0.5, Refused(1002, "m", Reason.BAD_INPUT)),
        ExternalEvent(0.301, Cancelled(1000, Reason.DISCONNECTED)),
        Failure(0.6, "lane", detail="killed"),
        ExternalEvent(0.7, PlanChanged(PLAN)),
    ]
    items.sort(key=lambda item: item.arrival)
    recording = record(path, items, TABLE)
    inputs = recorded_inputs(line.record for line in recording.lines())
    assert inputs.plan == PLAN
    assert inputs.plan_at == 0.0
    assert inputs.start_s == pytest.approx(0.01)
    assert inputs.turned_away == 1
    assert len(inputs.scored) == 302
    kinds = [type(item.event if isinstance(item, ExternalEvent) else item) for item in inputs.items]
    assert {Submitted, SimulatedUpload, Refused, Cancelled, Failure, PlanChanged} == set(kinds)
    whole = predicted(recording)
    assert whole.notes == ("1 requests that the server itself refused are not scored",)
    assert whole.predicted[0].total.submitted == 302


def test_a_body_that_was_never_read_is_made_up_only_if_nobody_wanted_it() -> None:
    def calls(*commands: list[Any]) -> list[Call]:
        notice = Notice(1, "m", 1.0, 1.5, 10, 1.1)
        like = Request(2, "m", 0.5, 1.0, signature=((3,),))
        served = ["Answer", 0, 2, "on_time", 0.0, 0.1, 1, 0.1, "", None, None, None]
        refused = ["Answer", 1, 1, "behind_work", 0.0, 0.0, 0, 0.1, "", 0.2, 0.3, None]
        late = "its body did not come in time"
        expired = ["Answer", 2, 1, "expired", 0.5, 0.0, 0, 0.0, late, None, None, None]
        first = Call(0.0, (PlanChanged(PLAN), Submitted(like)), (served,))
        if not commands:
            return [first, Call(1.02, (Announced(notice),), (refused,))]
        return [first, Call(1.02, (Announced(notice),)), Call(1.5, (), (expired,))]

    (_, upload) = recorded_inputs(calls()).items
    assert isinstance(upload, SimulatedUpload)
    assert upload.request is not None
    assert (upload.request.id, upload.request.signature) == (1, ((3,),))
    assert (upload.arrival, upload.complete_at) == (1.02, 1.1)
    (_, upload) = recorded_inputs(calls([])).items
    assert isinstance(upload, SimulatedUpload)
    assert upload.request is None


def test_parts_whose_beginning_is_gone_are_predicted_with_what_they_state(path: Path) -> None:
    recording = record(path, poisson(500.0, 3000), SLOWER, limit=160_000)
    assert not recording.whole
    prediction = predicted(recording)
    assert 500 < prediction.recorded.total.submitted < 1500
    assert abs(prediction.difference) < 0.03
    with pytest.raises(RecordingError, match="expected all parts of the recording"):
        predicted(recording, after=0.1)


def test_who_was_still_waiting_as_the_recording_ended_is_left_out(path: Path) -> None:
    recording = record(path, poisson(300.0, 200), TABLE)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    prediction = predicted(Recording(path))
    assert prediction.recorded.total.submitted < 200
    assert any("had no outcome when the recording ended" in note for note in prediction.notes)
    del recording


def test_nothing_to_predict_is_an_error(path: Path) -> None:
    recording = record(path, poisson(300.0, 20), TABLE)
    with pytest.raises(SimulationError, match="no request to predict after 60 s"):
        predicted(recording, after=60.0)


def test_it_is_shown_beside_what_was_recorded(path: Path) -> None:
    prediction = predicted(record(path, poisson(400.0, 300), TABLE))
    console = Console(width=100, file=io.StringIO())
    console.print(render_prediction(prediction))
    text = console.file.getvalue()
    assert "goodput recorded" in text
    assert "latency p99" in text
    document = prediction_document(prediction)
    assert document["difference"] == prediction.difference
    assert len(document["predicted"]) == 2


# ── batch times ──────────────────────────────────────────────────────────────────────────────


def batch_of(id: int, rows: int, application: str = "", hint: float | None = None) -> Batch:
    member = Request(id, "m", 0.0, 1.0, rows=rows, application=application, work_hint=hint)
    return Batch(id, Replica(0, POOL, "lane", (0,), 8), (member,), rows, float(id), 1e9)


def taught_by(batches: list[tuple[Batch, float]], *, steady: bool = True) -> TrainedTimes:
    """An execution that has seen these batches take so many times what is expected of them."""
    times = CorrectedTimes(TABLE)
    lessons = Observations()
    for batch, ratio in batches:
        ends = batch.started + ratio * times.of(batch.rows, 1).expected
        running = {batch.id: SimpleNamespace(batch=batch, cores=1, steady=steady)}
        engine = SimpleNamespace(snapshot=partial(SimpleNamespace, running=running.get))
        lessons.before(Call(ends, (BatchFinished(batch.id),)), engine)  # type: ignore[arg-type]
    return TrainedTimes({POOL: times}, lessons, np.random.default_rng(0))


def ratios(taught: TrainedTimes, batch: Batch) -> set[float]:
    expected = CorrectedTimes(TABLE).of(batch.rows, 1).expected
    return {round(taught.seconds(batch, 1) / expected, 6) for _ in range(100)}


def test_ratios_are_drawn_from_similar_batches() -> None:
    samples = [(batch_of(i, 1, "short"), 0.5) for i in range(ENOUGH)]
    samples += [(batch_of(100 + i, 2, "short"), 0.6) for i in range(ENOUGH)]
    samples += [(batch_of(200 + i, 1, "long"), 4.0) for i in range(ENOUGH)]
    samples += [(batch_of(300 + i, 1, "hinted", 100.0), 2.0 + i % 2) for i in range(ENOUGH)]
    samples += [(batch_of(400, 1, "rare"), 9.0)]
    taught = taught_by(samples)
    assert ratios(taught, batch_of(1, 1, "short")) == {0.5}
    assert ratios(taught, batch_of(1, 2, "short")) == {0.6}
    assert ratios(taught, batch_of(1, 3, "short")) <= {0.5, 0.6}  # no batch had as many rows
    assert ratios(taught, batch_of(1, 5, "long")) == {4.0}
    assert ratios(taught, batch_of(1, 1, "hinted", 120.0)) == {2.0, 3.0}
    assert ratios(taught, batch_of(1, 1, "rare")) <= {0.5, 0.6, 2.0, 3.0, 4.0, 9.0}


def test_ratios_are_drawn_from_one_moment_and_moments_follow_each_other() -> None:
    taught = taught_by([(batch_of(i, 1), 1.0 + i // 100) for i in range(400)])
    at = np.arange(0.0, 800.0)
    drawn = [ratios(taught, replace(batch_of(1, 1), started=float(moment))) for moment in at]
    assert all(
        max(ratio_set) - min(ratio_set) <= 1.0 or {1.0, 4.0} >= ratio_set for ratio_set in drawn
    )
    assert sum(len(ratio_set) > 1 for ratio_set in drawn) <= 8 * NEAR  # two moments meet
    assert all({ratio} <= set.union(*drawn) for ratio in (1.0, 2.0, 3.0, 4.0))
    changes = [
        a
        for a, b in pairwise(max(ratio_set) for ratio_set in drawn if len(ratio_set) == 1)
        if a != b
    ]
    assert 7 <= len(changes) <= 9


def test_only_the_latest_batches_teach() -> None:
    samples = [(batch_of(i, 1), 3.0) for i in range(100)]
    samples += [(batch_of(100 + i, 1), 1.0) for i in range(LATEST)]
    assert ratios(taught_by(samples), batch_of(1, 1)) == {1.0}


def test_batches_whose_lane_was_resized_teach_nothing() -> None:
    samples = [(batch_of(i, 1), 3.0) for i in range(100)]
    drawn = [taught_by(samples, steady=False).seconds(batch_of(1, 1), 1) for _ in range(20)]
    assert max(drawn) < 3.0 * TABLE.expected(1, 1)


def test_without_enough_batches_times_are_drawn_from_the_predictions() -> None:
    taught = taught_by([(batch_of(i, 1), 3.0) for i in range(ENOUGH - 1)])
    drawn = [taught.seconds(batch_of(1, 1), 1) for _ in range(2000)]
    assert np.median(drawn) == pytest.approx(TABLE.expected(1, 1), rel=0.05)
