"""The demo: its traffic (pure), and one short run of all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slacktide.cli import output
from slacktide.cli.main import app
from slacktide.lab.cli.demo import policies
from slacktide.lab.cli.demo.traffic import (
    LOADS,
    DemoTraffic,
    MeasuredModel,
    QueueLimit,
    backlog,
    by_default,
)
from slacktide.lab.load.report import Provenance, StreamScore, Window
from slacktide.lab.load.request_log import ENDINGS
from slacktide.lab.load.server_process import ProcessError, serving, slacktide, split_cores
from slacktide.lab.load.spec import Target, Transport
from slacktide.lab.reports import Comparison, Report
from slacktide.lab.workloads import Fixed

Run = Any

TARGET = Target(Transport.HTTP, "127.0.0.1", 8000)
FAST = MeasuredModel("text", 0.003, 400.0, 16, 360.0)
SLOW = MeasuredModel("residual", 0.010, 100.0, 8, 90.0)
BOTH = DemoTraffic((FAST, SLOW), 4.0)


def test_each_model_is_offered_its_part_of_its_own_peak():
    spec = BOTH.spec(TARGET, 2.0, title="t")
    assert [stream.arrivals.mean_rate(4.0) for stream in spec.streams] == [360.0, 90.0]
    assert (spec.duration, spec.seed) == (4.0, 1)


def test_deadlines_follow_the_slowest_model():
    assert BOTH.deadlines.choices == (0.03, 0.06, 0.12)
    assert {stream.deadlines for stream in BOTH.spec(TARGET, 1.0, title="t").streams} == {
        BOTH.deadlines
    }


def test_the_limit_is_calibrated_on_other_arrivals_than_it_is_judged_by():
    judged, calibrated = (
        BOTH.spec(TARGET, 1.0, title="t", calibrate=calibrate) for calibrate in (False, True)
    )
    assert calibrated.seed != judged.seed
    assert calibrated.streams == judged.streams


def test_a_queue_limit_holds_what_its_model_does_in_that_time():
    settings = BOTH.fifo_limited(0.1)
    assert settings == {
        "text": "{name: fifo, max_queue: 18}",
        "residual": "{name: fifo, max_queue: 4}",
    }
    assert BOTH.fifo_limited(1e-6)["residual"].endswith("max_queue: 1}")


def test_the_limits_tried_reach_from_half_the_shortest_deadline_to_the_longest():
    assert BOTH.waits == pytest.approx((0.015, 0.03, 0.06, 0.12))


def test_a_backlog_is_there_at_once_and_has_time():
    spec = backlog(TARGET, FAST, 2.0)
    (stream,) = spec.streams
    assert stream.arrivals.mean_rate(2.0) == 400.0
    assert stream.deadlines == Fixed(60.0)


def test_policies_differ_in_nothing_but_the_scheduler():
    assert by_default("fifo", ["a"]) == {"a": "{name: fifo}"}
    assert by_default("slack", ["a"]) == {"a": "{name: slack}"}


def test_cores_are_split_and_never_empty():
    allowed = sorted(os.sched_getaffinity(0))
    assert split_cores(len(allowed)) == (tuple(allowed), tuple(allowed))
    server, client = split_cores(1)
    assert server == (allowed[0],)
    assert client == (tuple(allowed[1:]) or server)


def result(*on_time: int) -> dict[str, Any]:
    """Of a demo whose policies answered so many requests on time, each under one load."""

    def report(count: int) -> Report:
        records = np.zeros(count), np.full(count, 0.01), np.ones(count), np.zeros(count, int)
        score = StreamScore(ENDINGS, Window(0.0, 4.0))
        score.add(*records)
        streams = tuple(score.report(model.model, model.model) for model in BOTH.measured)
        provenance, total = Provenance("2026-01-01T00:00:00+00:00", {}, "m"), score.report("total")
        return Report("load", "t", 1, {}, provenance, 0.0, 4.0, total, streams, lateness=None)

    names = "fifo", "fifo + limit", "slack"
    runs = [(name, "2 × peak", report(n)) for name, n in zip(names, on_time, strict=True)]
    limit = QueueLimit(0.03, BOTH.fifo_limited(0.03), 0.5)
    comparison = Comparison.of("t", runs)
    return policies.document(BOTH, ((0,), (1,)), [limit], comparison)


def test_the_headline_says_what_was_gained():
    assert result(20, 100, 150)["headline"] == (
        "slack answered on time 7.5 times as many requests as dynamic batching (fifo), "
        "and 1.5 times as many requests as fifo with the best queue limit."
    )
    assert result(0, 1, 2)["headline"].startswith("Too few")


def test_there_is_no_headline_where_other_programs_held_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slacktide.executors.core_probe.cpu_share", lambda cores: 0.4)
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    monkeypatch.setattr(policies, "play_policies", lambda *arguments: result(20, 100, 150))
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    warning = "other programs used 60 % of these cores"
    assert warning in done.stdout
    assert "times as many" not in done.stdout
    document = json.loads((tmp_path / "demo-report.json").read_text())
    assert warning in document["headline"]
    assert document["cpu_share"] == 0.4


def test_without_matplotlib_there_is_a_table_and_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    monkeypatch.setattr(policies, "play_policies", lambda *arguments: result(20, 100, 150))
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 0, done.output
    assert "pip install 'slacktide[report]'" in done.stderr
    assert "slack answered on time 7.5 times" in done.stdout
    assert "written: demo-report.json" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["demo-report.json"]


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo-report.json").mkdir()
    monkeypatch.setattr(policies, "play_policies", lambda *arguments: result(20, 100, 150))
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 1
    assert f"error: {tmp_path}/demo-report.json: Is a directory" in done.stderr
    assert not done.stdout


def test_a_child_that_fails_is_quoted(tmp_path: Path):
    cores, _ = split_cores(1)
    with pytest.raises(ProcessError, match="no such file or folder"):
        slacktide(["models", "check", str(tmp_path / "nothing")], cores, tmp_path / "log")


def test_a_server_that_ends_is_quoted(tmp_path: Path):
    cores, _ = split_cores(1)
    with (
        pytest.raises(ProcessError, match="the server ended"),
        serving(tmp_path / "nothing", cores, tmp_path / "log"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes minutes
def test_the_whole_of_it(run: Run, tmp_path: Path):
    done = run("demo", "--models", "text", "--seconds", "0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "demo-report.json").read_text())
    comparison = Comparison.from_dict(document)
    assert comparison.policies == ("fifo", "fifo + limit", "slack")
    assert len(comparison.loads) == len(LOADS)
    for load in comparison.loads:
        reports = [comparison.get(policy, load) for policy in comparison.policies]
        submitted = {report.total.submitted for report in reports if report is not None}
        assert len(submitted) == 1, "the same arrivals for all"
        assert submitted.pop() > 0
    page = (tmp_path / "demo-report.html").read_text()
    assert document["headline"] in page
    assert document["headline"][:60] in done.stdout
    for note in document["notes"]:
        assert note.split(":")[0] in page
        assert note.split()[0] in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(number: signal.Signals, code: int, tmp_path: Path):
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "slacktide", "demo", "--models", "text", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = None
    while log is None or "ready:" not in log.read_text():
        assert child.poll() is None
        time.sleep(0.02)
        log = next(tmp_path.glob("slacktide-demo-*/server.log"), None)
    servers = _children(child.pid)
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert (child.returncode, output) == (code, b""), errors
    assert servers
    assert not list(tmp_path.iterdir())
    while any(map(_runs, servers)):  # workers see that their server has gone, and go
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process is there and not just waiting to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _children(pid: int) -> list[int]:
    """Every process below `pid`."""
    children: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listing.read_text().split()):
            children += [child, *_children(child)]
    return children
