"""Cells, run: repeatable, the same in another process, and honest in their means."""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slacktide.lab.load.report import Report
from slacktide.lab.simulation.scenario import (
    Cell,
    Sweep,
    build,
    collected,
    done_in_processes,
    run_cell,
    run_task,
    task_of,
)
from slacktide.lab.simulation.scenario.traffic import training
from slacktide.profiles import LatencyTable, ProfileRecord

Read = Callable[..., tuple[Cell, ...]]


def numbers(report: Report) -> Report:
    """What a report says, without when and where it was made."""
    return replace(report, provenance=replace(report.provenance, started="", commit=None))


def test_a_run_repeats_exactly_and_another_seed_does_not(read: Read) -> None:
    (cell,) = read()
    first = run_cell(cell, 3)
    assert numbers(first) == numbers(run_cell(cell, 3))
    assert first.total.latency != run_cell(cell, 4).total.latency


def test_plain_data_is_enough_for_another_process(read: Read) -> None:
    cells = read(
        "applications.web.hint=exact", "grid={scheduler: [slack, {name: edf, guarantee: p99}]}"
    )
    for cell in cells:
        task = json.loads(json.dumps(task_of(cell, 1)))
        document = run_task(task)
        assert numbers(Report.from_dict(document)) == numbers(run_cell(cell, 1))


def test_one_lone_request_takes_its_time_alone(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,length\n0.5,10\n")
    trace = ("applications.web.arrivals=trace:t.csv", "applications.web.lengths=trace:t.csv")
    report = run_cell(read(*trace)[0], 0)
    assert report.total.latency is not None
    assert report.total.latency.max == pytest.approx(0.005 + 0.0005 * 10)
    assert report.cores == pytest.approx(0.010 / 2.0)


def test_in_an_outage_requests_wait_or_expire_and_none_is_lost(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,bandwidth_mbps\n0,80\n0.5,0\n1,80\n3,80\n")
    cell = read(
        "applications.web.link={trace: t.csv, rtt: 2ms, payload: 10kB}",
        "applications.web.arrivals=constant:50",
        "applications.web.slo=100ms",
    )[0]
    report = run_cell(cell, 0)
    assert report.total.submitted == 100
    # Sent at 0.50, 0.52, … 0.98: those with time left when the link is back are served.
    assert report.total.outcomes["dropped"] == pytest.approx(21, abs=1)
    assert report.total.outcomes["served"] == 100 - report.total.outcomes["dropped"]


def test_warm_up_is_not_scored(read: Read) -> None:
    (cell,) = read("warmup=1s", "applications.web.arrivals=constant:10")
    report = run_cell(cell, 0)
    assert report.total.submitted == 20
    assert (report.warmup_s, report.duration_s) == (1.0, 2.0)


def test_learned_and_known_predictions_both_serve(read: Read) -> None:
    for predictions in ("known", "learned"):
        (cell,) = read(f"models.m.predictions={predictions}")
        assert run_cell(cell, 1).goodput > 0.5


def test_the_yardstick_is_told_every_length(read: Read) -> None:
    busy = ("applications.web.arrivals=poisson:150", "applications.web.lengths=exponential:10")
    oracle, *goodputs = (
        run_cell(read(f"scheduler={name}", *busy)[0], 1).goodput
        for name in ("oracle_slack", "slack", "fifo")
    )
    assert oracle > max(goodputs)


@pytest.mark.slow
def test_no_policy_is_ahead_of_the_yardstick_where_batches_hardly_pay(read: Read) -> None:
    """With c0 = 0.3 × the work of a mean request; `slack` knows lengths to within 30 %."""
    small = (
        "duration=12s",
        "models.m.padded.c0=1.5ms",
        "models.m.padded.sizes=[1, 2, 4, 8, 16]",
        "applications.web.arrivals=poisson:154",
        "applications.web.lengths=exponential:10",
        "applications.web.slo=120ms",
        "applications.web.hint={error: 0.3}",
    )

    def goodput(scheduler: str) -> float:
        return run_cell(read(f"scheduler={scheduler}", *small)[0], 1).goodput

    oracle = goodput("oracle_slack")
    assert oracle > goodput("slack") > goodput("{name: edf, guarantee: p99}")
    # With the patience of `slack` it would not be; the better of two counts unless one is stated.
    assert oracle > goodput("slack") > goodput("{name: oracle_slack, kappa: 0.9}")
    assert oracle == goodput("{name: oracle_slack, kappa: 0.6}")


def test_hints_are_known_by_bins(read: Read) -> None:
    (plain,), (hinted,) = read(), read("applications.web.hint=exact")
    for cell, edges in ((plain, ()), (hinted, (3.0, 17.0))):
        world = build(cell)
        model_training = training(world.streams, duration=2.0, seed=1)
        classes = world.models["m"].profile.times(model_training, 1).classes(1)
        assert classes is not None
        assert classes.hint_edges == edges
        assert len(classes) == 2


def test_profiles_are_read_from_files_of_either_form(read: Read, tmp_path: Path) -> None:
    record = ProfileRecord(LatencyTable.linear(0.005, 0.001, 8, cores=(1, 2)), {}).to_dict()
    (tmp_path / "printed.json").write_text(json.dumps({"1": record, "2": record}))
    (tmp_path / "stored.json").write_text(
        json.dumps({"schema": 1, "profile": {"record": record, "interface": {}}})
    )
    (tmp_path / "bare.json").write_text(json.dumps(record))
    for name in ("printed", "stored", "bare"):
        (cell,) = read(
            "models.m.padded=null",
            f"models.m.profile={name}.json",
            "applications.web.lengths=null",
            "cores=2",
        )
        world = build(cell)
        assert world.models["m"].max_batch == 8
        assert world.models["m"].cores == 2
        assert run_cell(cell, 0).goodput > 0.9


@pytest.mark.parametrize("predictions", ["known", "learned"])
def test_a_measured_profile_serves_requests_of_other_lengths(
    read: Read, tmp_path: Path, predictions: str
) -> None:
    """Measured with length 4: 5 ms and 2 ms a row, so 0.5 ms for each row and unit of length."""
    record = ProfileRecord(LatencyTable.linear(0.005, 0.002, 8), {}).to_dict()
    (tmp_path / "p.json").write_text(json.dumps(record))
    (tmp_path / "t.csv").write_text("time_s,length\n0.5,10\n")
    (cell,) = read(
        "models.m.padded=null",
        "models.m.profile=p.json",
        "models.m.profiled_length=4",
        f"models.m.predictions={predictions}",
        "applications.web.arrivals=trace:t.csv",
        "applications.web.lengths=trace:t.csv",
    )
    report = run_cell(cell, 0)
    assert report.total.latency is not None
    assert report.total.latency.max == pytest.approx(0.005 + 0.0005 * 10, rel=1e-6)


def test_a_profile_without_the_cores_asked_for_is_refused(read: Read, tmp_path: Path) -> None:
    record = ProfileRecord(LatencyTable.linear(0.005, 0.001, 8), {}).to_dict()
    (tmp_path / "p.json").write_text(json.dumps(record))
    (cell,) = read(
        "models.m.padded=null",
        "models.m.profile=p.json",
        "applications.web.lengths=null",
        "cores=2",
    )
    with pytest.raises(Exception, match=r"models\.m\.cores: the profile of 'm' was not measured"):
        build(cell)


def test_two_models_on_lanes_of_their_own_do_not_meet(read: Read) -> None:
    (cell,) = read(
        "cores=2",
        "models.m.cores=1",
        "models.n={padded: {c0: 1s, c1: 1s}, cores: 1}",
        "applications.slow={model: n, arrivals: 'constant:2', lengths: 'constant:1'}",
    )
    (alone,) = read()
    both, single = run_cell(cell, 1), run_cell(alone, 1)
    ours = [stream for stream in both.streams if stream.model == "m"]
    assert ours == list(single.streams)


def test_a_sweep_has_the_mean_and_its_standard_error(read: Read) -> None:
    cells = read("grid={scheduler: [slack, fifo]}", "seeds=[1, 2, 3]")
    reports = {
        (number, index): run_cell(cell, seed)
        for number, cell in enumerate(cells)
        for index, seed in enumerate(cell.scenario.seeds)
    }
    sweep = collected("s", [cell.labels for cell in cells], reports)
    values = [reports[0, index].goodput for index in range(3)]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    assert sweep.rows[0].goodput.mean == pytest.approx(mean)
    assert sweep.rows[0].goodput.se == pytest.approx(deviation / math.sqrt(3))
    assert sweep.keys == ("scheduler",)
    table = list(csv.DictReader(io.StringIO(sweep.to_csv())))
    assert [(line["scheduler"], line["stream"]) for line in table] == [
        (scheduler, stream)
        for scheduler in ("slack", "fifo")
        for stream in ("m/long", "m/short", "total")
    ]
    assert float(table[2]["goodput_mean"]) == pytest.approx(mean)
    document = json.loads(json.dumps(sweep.to_dict()))
    assert document["rows"][0]["seeds"] == [1, 2, 3]
    assert document["rows"][0]["streams"]["total"]["goodput"]["mean"] == pytest.approx(mean)


def test_missing_runs_are_left_out(read: Read) -> None:
    (cell,) = read()
    sweep = collected("s", [{"a": "1"}, {"a": "2"}], {(1, 0): run_cell(cell, 1)})
    assert [row.labels for row in sweep.rows] == [{"a": "2"}]
    assert sweep.rows[0].goodput.se is None
    assert Sweep("s", ()).to_csv().startswith("stream,seeds,submitted_mean")


def test_tasks_are_done_in_this_process_or_in_others() -> None:
    tasks = [(number, {"number": number}) for number in range(5)]
    for jobs in (1, 2):
        done = dict(done_in_processes(dict, tasks, jobs=jobs))
        assert done == dict(tasks)


def test_who_stops_early_leaves_no_process_behind() -> None:
    before = set(multiprocessing.active_children())
    done = done_in_processes(time.sleep, [("short", 0.0), ("for ever", 1e6)], jobs=2)
    assert next(done) == ("short", None)
    done.close()
    assert set(multiprocessing.active_children()) <= before
