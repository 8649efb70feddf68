"""A scheduler of one's own in a server: it serves, and if it breaks its contract only its model
fails."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import slacktide
from slacktide.domain.registry import Registered
from slacktide.lab.examples import make_repository
from slacktide.planning.scaling import ModelView, ScalingPolicy, ScalingTarget
from slacktide.planning.scaling.baselines import StaticOptions
from slacktide.scheduling import POLICIES, FifoOptions
from slacktide.scheduling.fifo import Fifo

ROOT = Path(__file__).parents[2]


class Lazy(Fifo):
    """Raises as soon as it has to choose."""

    def propose(self, replica, *, now):
        raise RuntimeError("not today")


class Own(ScalingPolicy):
    """Leaves everything at its least, and says so in its own word."""

    Options = StaticOptions

    def __init__(self, options: StaticOptions) -> None:
        self._batch = options.batch or 1

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        limits = view.limits
        return ScalingTarget(limits.replicas_min, limits.cores_min, self._batch, reason="own word")


def ask(server: slacktide.Server, path: str, body: object = None) -> tuple[int, dict]:
    """Status and JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/v2/{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def infer(server: slacktide.Server, model: str) -> tuple[int, dict]:
    _, metadata = ask(server, f"models/{model}")
    shape = [1, *metadata["inputs"][0]["shape"][1:]]
    tensor = {
        "name": metadata["inputs"][0]["name"],
        "datatype": metadata["inputs"][0]["datatype"],
        "shape": shape,
        "data": np.zeros(shape).ravel().tolist(),
    }
    return ask(server, f"models/{model}/infer", {"inputs": [tensor]})


def test_only_the_model_of_a_broken_scheduler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "lazy", Registered("lazy", FifoOptions, Lazy, built_in=False))
    make_repository(tmp_path, models=["mlp"])
    shutil.copytree(tmp_path / "mlp", tmp_path / "other")
    settings = tmp_path / "mlp" / "slacktide.yaml"
    settings.write_text(settings.read_text() + "\nscheduler: lazy\n")
    with slacktide.Server(tmp_path, profile_budget_s=0.2) as server:
        assert infer(server, "mlp")[0] == 503
        _, index = ask(server, "repository/index", {})
        (entry,) = [listed for listed in index if listed["name"] == "mlp"]
        assert entry["state"] == "UNAVAILABLE"
        assert "propose raised RuntimeError: not today" in entry["reason"]
        assert infer(server, "other")[0] == 200
        assert infer(server, "mlp")[0] == 503


def test_the_example_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    make_repository(tmp_path, models=["mlp"])
    own = "examples.policies.deadline_first:DeadlineFirst"
    with slacktide.Server(tmp_path, profile_budget_s=0.2, scheduler=own) as server:
        assert infer(server, "mlp")[0] == 200


@pytest.mark.slow
def test_a_scaling_policy_of_ones_own_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    make_repository(tmp_path, models=["dense"])
    settings = tmp_path / "dense" / "slacktide.yaml"
    settings.write_text(settings.read_text() + "\ncores: {min: 1, max: 2}\n")
    with slacktide.Server(
        tmp_path,
        profile_budget_s=0.2,
        allow_fewer_cores=True,
        scaling_policy="tests.end_to_end.test_own_policies:Own",
        scaling_policy_options={"batch": 2},
    ) as server:
        assert infer(server, "dense")[0] == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
            text = page.read().decode()
    assert 'slacktide_plan_reason{model="dense",reason="own word"} 1' in text
