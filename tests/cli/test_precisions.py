"""Backends and precisions as users see them: the table, the check, a family that serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient as Client
from tritonclient.http import InferInput

from slacktide import Server

Run = Any
FAST = ("--budget", "300ms", "--cores", "1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """The example `residual`, with its samples."""
    folder = tmp_path_factory.mktemp("precisions") / "models"
    made = run("models", "make", folder, "--only", "residual")
    assert made.returncode == 0, made.stderr
    model = folder / "residual"
    (model / "config.pbtxt").unlink()
    shutil.copy(model / "inputs" / "samples.npz", model / "rows.npz")
    (model / "slacktide.yaml").write_text("max_batch: 4\n")
    return folder


def state(models: Path, settings: str) -> Path:
    (models / "residual" / "slacktide.yaml").write_text(settings)
    return models / "residual"


def client_of(server: Server) -> Client:
    return Client(f"127.0.0.1:{server.http_port}")


@pytest.mark.slow
def test_the_table_has_every_way_that_runs_and_a_reason_for_the_others(
    run: Run, models: Path
) -> None:
    model = state(models, "max_batch: 4\n")
    done = run("profile", model, "--precisions", *FAST)
    assert done.returncode == 0, done.stderr
    assert "Answers were compared on random rows; state real ones as 'samples'." in done.stdout
    reason = "int8 with onnxruntime is not used: precision: int8 needs the model's own rows"
    assert reason in done.stdout
    model = state(models, "max_batch: 4\nsamples: rows.npz\n")
    done = run("profile", model, "--precisions", "--json", *FAST)
    assert done.returncode == 0, done.stderr
    ways = json.loads(done.stdout)["residual version 1"]
    first, *others = ways
    assert (first["precision"], first["backend"], first["agreement"]) == (
        "fp32",
        "onnxruntime",
        None,
    )
    measured = [way for way in others if not way["reason"]]
    assert {"fp32", "int8"} <= {way["precision"] for way in measured}
    for way in measured:
        assert way["rows_per_s"] > 0.0
        assert way["agreement"]["sampled"]
        assert way["agreement"]["top1"] >= 0.9


@pytest.mark.slow
def test_the_check_says_which_backend_auto_would_use(run: Run, models: Path) -> None:
    state(models, "max_batch: 4\nbackend: auto\n")
    done = run("models", "check", models)
    assert done.returncode == 0, done.stderr
    assert "residual/1/model.onnx: backend: " in done.stdout
    state(models, "max_batch: 4\nprecision: int8\n")
    done = run("models", "check", models)
    assert done.returncode == 1
    assert "precision: int8 needs the model's own rows; state them as 'samples'" in done.stdout


@pytest.mark.slow
def test_a_family_of_precisions_answers_in_the_precision_that_is_asked_for(models: Path) -> None:
    settings = """
        max_batch: 4
        samples: rows.npz
        backend: openvino
        variants:
          precisions: [int8, fp32]
          accuracy: {int8: 0.9, fp32: 1.0}
          planner: none
    """
    state(models, settings)
    frame = np.load(models / "residual" / "rows.npz")["frames"][:1]
    logits = []
    with Server(models, profile_budget_s=0.5) as server, client_of(server) as client:
        tensor = InferInput("frames", frame.shape, "UINT8")
        tensor.set_data_from_numpy(frame)
        for name in ("fp32", "int8"):
            answer = client.infer("residual", [tensor], parameters={"variant": name})
            assert answer.get_response()["parameters"]["variant"] == name
            logits.append(answer.as_numpy("logits"))
    assert not np.array_equal(*logits)
    np.testing.assert_allclose(*logits, atol=0.3)
