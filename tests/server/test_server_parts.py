"""Objects of the program around a server, called as their contracts say."""

from __future__ import annotations

import json
import logging
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from slacktide import Server, __version__
from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.plugins import warn_of_mismatches
from slacktide.testing import FakeExecutor

ROW = TensorSpec("x", Datatype.FP32, (-1, 2))
INTERFACE = ModelInterface((ROW,), (TensorSpec("y", Datatype.FP32, (-1, 3)),), 4)
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [0, 1, 2, 3]}]}


class Observer:
    def __init__(self, *, fails: bool = False) -> None:
        self.reasons: list[tuple[str, int, Reason]] = []
        self.fails = fails

    def answered(self, request: Any) -> None:
        self.reasons.append((request.model, request.rows, request.outcome.reason))
        if self.fails:
            raise RuntimeError("no disk left")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(b"opened by nobody")
    return tmp_path


def ask(server: Server) -> Any:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/m/infer"
    with urllib.request.urlopen(url, json.dumps(BODY).encode()) as answer:
        return json.load(answer)["outputs"]


def test_an_executor_takes_the_place_of_worker_processes(repository: Path) -> None:
    executor = FakeExecutor(INTERFACE)
    with Server(repository, executors={"worker": executor}, profile_budget_s=0.1) as server:
        (output,) = ask(server)
        assert (output["name"], output["shape"], output["data"]) == ("y", [2, 3], [0.0] * 6)
        assert executor.batches[-1][0] == 2
        assert executor.replicas[-1].state == "running"
        url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        assert b"slacktide" in urllib.request.urlopen(url).read()
    assert executor.closed
    assert {source.name for source in executor.sources} == {"m"}


def test_observers_hear_of_every_answer_and_one_that_raises_is_removed(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observer, broken = Observer(), Observer(fails=True)
    executors = {"worker": FakeExecutor(INTERFACE)}
    with (
        caplog.at_level(logging.ERROR, "slacktide.server"),
        Server(
            repository, executors=executors, observers=[broken, observer], profile_budget_s=0.1
        ) as server,
    ):
        ask(server)
        ask(server)
    assert observer.reasons == [("m", 2, Reason.ON_TIME)] * 2
    assert broken.reasons == [("m", 2, Reason.ON_TIME)]
    assert "failed, and will no longer be notified of requests" in caplog.text


@pytest.mark.parametrize(
    ("parts", "error", "complaint"),
    [
        (
            {"executors": {"gpu": FakeExecutor(INTERFACE)}},
            ValueError,
            "executors: expected worker or in_process or profiled, got 'gpu'",
        ),
        (
            {"executors": {"worker": 3}},
            TypeError,
            "executors: worker: expected an Executor, got int without start, close",
        ),
        (
            {"cpu_allocator": Observer()},
            TypeError,
            "cpu_allocator: expected a CpuAllocator, got Observer without grant, forget",
        ),
        (
            {"observers": ["log"]},
            TypeError,
            "observers: expected a RequestObserver, got str without answered",
        ),
        ({"cpu_allocator": "psychic"}, ValueError, "cpu_allocator: expected affinity or cgroup"),
    ],
)
def test_parts_of_a_wrong_type_are_named(
    repository: Path, parts: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error) as refusal:
        Server(repository, **parts)
    assert complaint in str(refusal.value)


def test_papers_of_another_version_are_mentioned_at_the_start(
    repository: Path, install: Any, caplog: pytest.LogCaptureFixture
) -> None:
    install("slacktide-papers", "0.0.9", "schedulers")
    warn_of_mismatches.cache_clear()
    executors = {"worker": FakeExecutor(INTERFACE)}
    try:
        with Server(repository, executors=executors, profile_budget_s=0.1) as server:
            assert ask(server)
    finally:
        warn_of_mismatches.cache_clear()
    messages = [record.getMessage() for record in caplog.records if "papers" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith(
        f"slacktide-papers 0.0.9 does not match slacktide {__version__}; "
    )
