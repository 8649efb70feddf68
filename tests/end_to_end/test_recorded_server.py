"""A real server is recorded while things go wrong, and a fresh engine does the same again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.engine import EngineSettings
from slacktide.lab.replay import replay
from slacktide.lab.replay.decisions import Decision, Notes, Ran
from slacktide.lab.replay.explain import lines
from slacktide.recording import Call, PoolOpened, Recording


def trouble(house: Any) -> None:
    """Load, overload, new shapes, a killed worker, a client that leaves, a reload, an unload."""
    waiting = [house.later("slow", house.slow_call(timeout=200_000)) for _ in range(60)]
    waiting += [house.later("matmul", house.matmul_call()) for _ in range(60)]
    # Lengths that were never measured; one of them does not fit.
    lengths = (8003, 8000, 16000, 8000, 32000, 8003) * 3
    waiting += [house.later("filter", house.filter_call(length)) for length in lengths]
    with house.hold():  # its client leaves
        held = [house.later("killed", house.spin_call(20_000)) for _ in range(3)]
        house.queued("killed", 3)
    house.running("killed")
    os.kill(house.worker("killed"), signal.SIGKILL)
    assert {answer.result().status for answer in held} == {200}
    again = [house.later("slow", house.slow_call()) for _ in range(10)]
    house.server.load("slow")
    again += [house.later("slow", house.slow_call()) for _ in range(10)]
    assert {answer.result().status for answer in again} == {200}
    for answer in waiting:
        answer.result()
    house.server.unload("matmul")
    assert house.infer("matmul", house.matmul_call()).status == 503


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Path:
    """The recording of a server that has been through all of it."""
    folder = tmp_path_factory.mktemp("recorded")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    zoo.slow(settings="max_batch: 1\n")
    zoo.spin(settings="max_batch: 8\n")
    zoo.spin("killed", settings="max_batch: 8\n")
    zoo.filter(settings="max_batch: 4\n")
    path: Path = folder / "server.rec"
    # What is taken to hang must be what the header says, so it is set before the engine is made.
    patient = EngineSettings(hang_floor=30.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slacktide.server.app.EngineSettings", lambda: patient)
        with serve(zoo, hang_floor=30.0, record=path, record_limit=1 << 20) as house:
            trouble(house)
            metrics = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
    assert "slacktide_recording 1" in metrics
    assert "slacktide_recording_stopped 0" in metrics
    return path


def test_the_same_commands_come_again(recorded: Path) -> None:
    recording = Recording(recorded)
    replayed = replay(recording)
    assert replayed.difference is None
    assert recording.warnings == []
    event_names = {
        type(event).__name__
        for line in recording.lines()
        if isinstance(line.record, Call)
        for event in line.record.events
    }
    assert {"Submitted", "BatchFinished", "ReplicaLost", "Cancelled", "PlanChanged"} <= event_names


def test_it_says_which_requests_ran_first_of_their_shape(recorded: Path) -> None:
    decisions: list[Decision] = []
    notes = Notes(decisions.append)
    assert replay(Recording(recorded), notes, pools=notes.pools).difference is None
    runs = [decision for decision in decisions if isinstance(decision, Ran) and decision.unmeasured]
    assert runs
    assert all(len(run.batch.members) == 1 for run in runs)
    text = [line for run in runs for line in lines(run, begin=0.0)]
    assert any("alone, to learn the time of its shape" in line for line in text)
    assert {run.batch.replica.pool.model for run in runs} == {"filter"}


def test_pools_that_were_opened_later_are_recorded_too(recorded: Path) -> None:
    records = [line.record for line in Recording(recorded).lines()]
    pools = [record.pool for record in records if isinstance(record, PoolOpened)]
    assert len([pool for pool in pools if pool.model == "slow"]) == 2


def test_the_command_line_says_that_it_is_identical(recorded: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", "--replay", str(recorded), "--decisions"])
    assert result.exit_code == 0
    assert "identical: " in result.stdout
    assert "after a crash" in result.stdout


def test_the_command_line_predicts(recorded: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", "--predict", str(recorded), "--seed", "3"])
    assert result.exit_code == 0, result.output
    assert "goodput recorded" in result.stdout


def test_a_difference_ends_in_1_and_shows_both_sides(recorded: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.rec"
    changed.write_bytes(
        recorded.read_bytes()
        .replace(b'"client_cancelled"', b'"no_body"')
        .replace(b'"disconnected"', b'"no_body"', 1)
    )
    result = CliRunner().invoke(app, ["simulate", "--replay", str(changed)])
    assert result.exit_code == 1
    assert "different after" in result.stdout
    assert "  > ['Answer'" in result.stdout


def test_impossible_recordings_and_replays_are_bad_usage(recorded: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    nowhere = run(app, ["simulate", "--replay", str(tmp_path / "none")])
    assert nowhere.exit_code == 2
    both = run(app, ["simulate", "--replay", str(recorded), "--predict", str(recorded)])
    assert both.exit_code == 2
    (tmp_path / "models").mkdir()
    serving = ["serve", str(tmp_path / "models"), "--record"]
    unwritable = run(app, [*serving, str(tmp_path / "no" / "folder"), "--http-port", "0"])
    assert unwritable.exit_code == 2
    assert "cannot be written" in unwritable.output
    small = run(app, [*serving, str(tmp_path / "x"), "--record-limit", "1kB"])
    assert small.exit_code == 2
    assert "--record-limit: expected at least 1MiB" in small.output
