"""Models on two GPUs that are not there (tests/stand_ins): lanes, memory, failures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STAND_INS = Path(__file__).parents[1] / "stand_ins"
SECRETS = ("gpu-node-17", "hostname", "/onnxruntime_src", "expr=")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("gpus") / "repository")
    zoo.matmul()
    zoo.matmul("twice", settings="device: cuda\nreplicas: 2\n")
    zoo.matmul("first", settings="device: cuda:0\n")
    zoo.matmul("second", settings="providers: [cuda]\ndevice: cuda:1\n")
    zoo.matmul("tight", settings="providers: [cuda]\n")
    zoo.matmul("huge", settings="device: cuda:1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)
        with serve(zoo) as house:
            yield house


@pytest.fixture
def gpus(shared: Any) -> Iterator[Any]:
    yield shared
    shared.settle()


def row(house: Any, number: float, rows: int = 1) -> dict[str, Any]:
    return dict(house.call_of({"x": ("FP32", [rows, 4], [number] * 4 * rows)}))


def least(answer: Any) -> float:
    assert answer.status == 200, answer
    return min(answer.json["outputs"][0]["data"])


def test_each_model_computes_on_its_own_gpu_and_each_gpu_is_one_lane(gpus: Any) -> None:
    assert least(gpus.infer("twice", row(gpus, 0))) == 0
    assert least(gpus.infer("first", row(gpus, 0))) == 0
    assert least(gpus.infer("second", row(gpus, 0))) == 1000
    gpus.good()

    def placed(app: Any) -> Any:
        lanes = app.engine.state.lanes.values()
        return {
            lane.name: (lane.device, sorted(p.pool.id.model for p in lane.placements))
            for lane in lanes
        }

    assert gpus.look(placed) == {
        "cuda:0": ("cuda:0", ["first", "tight", "twice"]),
        "cuda:1": ("cuda:1", ["second"]),
        "shared": ("cpu", ["matmul"]),
    }
    page = gpus.ask(gpus.server.metrics_port, "GET", "/metrics").body.decode()
    assert 'slacktide_lane_busy{lane="cuda:1"}' in page


def test_memory_limits_batches_and_requests_and_a_model_without_room_says_so(gpus: Any) -> None:
    assert gpus.get("/v2/models/tight/config").json["max_batch_size"] == 8
    assert least(gpus.infer("tight", row(gpus, 0, rows=8))) == 0
    assert least(gpus.infer("tight", row(gpus, 0, rows=9))) == 0  # in two batches
    assert gpus.get("/v2/models/huge/ready").status == 400
    entry = gpus.index()["huge"]
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "out of memory")

    def capped(app: Any) -> list[int]:
        pools = app.engine.state.pools.items()
        return [
            p.replica.max_batch
            for id, pool in pools
            if id.model == "tight"
            for p in pool.placements
        ]

    assert gpus.look(capped) == [8]
    gpus.server.load("tight")  # with the profile that is stored now
    assert gpus.get("/v2/models/tight/config").json["max_batch_size"] == 8


@pytest.mark.parametrize("number", [700, 11])
def test_a_gpu_that_fails_costs_its_worker_and_clients_read_nothing_of_the_host(
    gpus: Any, number: int
) -> None:
    before = gpus.worker("second")
    answer = gpus.infer("second", row(gpus, number))
    assert answer.status >= 500
    assert not any(secret in answer.error for secret in SECRETS)
    assert least(gpus.infer("second", row(gpus, 0))) == 1000
    assert gpus.worker("second") != before


def test_an_input_or_memory_at_fault_costs_one_request(gpus: Any) -> None:
    before = gpus.worker("first")
    wrong, short = gpus.infer("first", row(gpus, 9)), gpus.infer("first", row(gpus, 2))
    assert "invalid configuration argument" in wrong.error
    assert "out of memory" in short.error
    assert not any(secret in wrong.error + short.error for secret in SECRETS)
    assert least(gpus.infer("first", row(gpus, 0))) == 0
    assert gpus.worker("first") == before
