"""`slacktide load` against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slacktide
from slacktide.lab.reports import Report

Run = Any


@pytest.fixture(scope="module")
def server(example_models: Path) -> Iterator[slacktide.Server]:
    with slacktide.Server(example_models, profile_budget_s=0.2) as server:
        yield server


def test_the_report_as_json(run: Run, server: slacktide.Server):
    done = run(
        *("load", f"127.0.0.1:{server.http_port}", "--model", "mlp", "--arrivals", "constant:50"),
        *("--deadline", "5s", "--duration", "400ms", "--seed", "7", "--json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = Report.from_json(done.stdout)
    assert (report.seed, report.total.submitted, report.goodput) == (7, 20, 1.0)


def test_several_streams_over_grpc_as_a_table_and_a_page(
    run: Run, server: slacktide.Server, tmp_path: Path
):
    done = run(
        *("load", f"grpc://127.0.0.1:{server.grpc_port}", "--deadline", "5s"),
        *("--duration", "300ms", "--html", tmp_path / "page.html"),
        *("--stream", "model=mlp arrivals=constant:20 application=a"),
        *("--stream", "model=mlp arrivals=constant:10 application=b rows=2,4 priority=1"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "goodput 100.0 %" in done.stdout
    assert "mlp/a" in done.stdout
    assert "mlp/b" in (tmp_path / "page.html").read_text()


def test_falling_short_exits_1_after_the_report(run: Run, server: slacktide.Server):
    done = run(
        *("load", f"127.0.0.1:{server.http_port}", "--model", "mlp", "--arrivals", "constant:20"),
        *("--deadline", "1us", "--duration", "300ms", "--json", "--min-goodput", "50%"),
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["total"]["goodput"] == 0.0
    assert "goodput 0.0 % is below --min-goodput 50.0 %" in done.stderr


def test_a_server_that_is_not_there_is_bad_usage(run: Run, server: slacktide.Server):
    done = run("load", f"127.0.0.1:{server.http_port}", "--model", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing" in done.stderr


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_the_models_are_named_where_none_is(run: Run, server: slacktide.Server, scheme: str):
    port = server.http_port if scheme == "http" else server.grpc_port
    done = run("load", f"{scheme}://127.0.0.1:{port}", "--stream", "rows=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --stream 1, model: expected the name of a model, one of: mlp\n"


def test_ctrl_c_reports_what_was_done(server: slacktide.Server):
    before = _answered(server)
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "slacktide", "load", f"127.0.0.1:{server.http_port}"),
            *("--model", "mlp", "--arrivals", "constant:100", "--duration", "10m", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while _answered(server) < before + 5:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, b"")
    report = Report.from_json(output)
    assert report.interrupted
    assert report.total.submitted >= 5


def _answered(server: slacktide.Server) -> int:
    """Requests with a result since the server started."""
    (version,) = server.app.catalog.all()
    return version.counters.end_to_end_s.count
