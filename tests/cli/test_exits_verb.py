"""`slacktide exits add`: ramps from samples, run by a worker, stored beside the model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.exits.manifest import read_manifest
from slacktide.lab.examples import make_inputs
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import Repository

Run = Any


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "signals.npz"
    make_inputs("mlp", 400, 3).write(path)
    return path


@pytest.fixture
def mlp(example_models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(example_models / "mlp", tmp_path / "mlp"))


@pytest.mark.slow
def test_ramps_are_learnt_stored_and_shown(run: Run, mlp: Path, samples: Path) -> None:
    (mlp / "slacktide.yaml").write_text("early_exit: 2%\n")
    done = run("exits", "add", mlp, "--data", samples)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "mlp version 1" in text
    assert "learnt from 400 rows, tested on the last 50; revision 1" in text
    assert "and 2.0 % of the answers could change" in text
    assert re.search(r"0 │ \S+ │ [\d.]+ % │ \d+ │ [\d.]+ % │ [\d.]+ %", text)
    (definition,) = Repository(mlp.parent).read("mlp")
    manifest = read_manifest(mlp / "1" / "exits", model_sha256=model_hash(definition))
    assert (manifest.rows, manifest.source, manifest.revision) == (400, "samples", 1)
    assert manifest.ramps[-1].agreement > 0.8
    again = run("exits", "add", mlp, "--data", samples, "--json", "--loss", "0")
    shown = json.loads(again.stdout)["1"]
    assert (shown["revision"], shown["rows"], shown["accuracy_loss"]) == (2, 400, 0.0)
    for ramp, stored in zip(shown["ramps"], manifest.ramps, strict=True):
        assert ramp["tensor"] == stored.tensor
        assert ramp["features"] == len(stored.weights)
        assert ramp["agreement"] == pytest.approx(stored.agreement, abs=0.03)
        assert 0.0 <= ramp["may_leave"] <= 1.0


def test_a_model_that_states_no_early_exit_says_how(run: Run, mlp: Path, samples: Path) -> None:
    done = run("exits", "add", mlp, "--data", samples)
    assert "set early_exit in slacktide.yaml" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_ramps_of_before_that_cannot_be_used_are_replaced(
    run: Run, mlp: Path, samples: Path
) -> None:
    (mlp / "1" / "exits").mkdir()
    (mlp / "1" / "exits" / "manifest.json").write_text("{}")
    done = run("exits", "add", mlp, "--data", samples)
    assert done.returncode == 0
    assert "replacing the previous ramps: manifest.json: manifest: missing schema" in done.stderr
    assert read_manifest(mlp / "1" / "exits").revision == 1


def bad_rows(path: Path, case: str) -> None:
    rows = make_inputs("mlp", 300, 3).batch()["features"]
    arrays = {
        "few": {"features": rows[:100]},
        "one class": {"features": np.concatenate([np.repeat(rows[:1], 300, axis=0), rows])},
        "nan": {"features": np.where(np.arange(300)[:, None] % 2, rows, np.nan).astype(rows.dtype)},
        "missing": {"labels": np.zeros(3)},
        "other": {"features": rows, "more": rows},
    }
    np.savez(path, **arrays[case])


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("few", "ramps need at least 256 rows, got 100"),
        pytest.param(
            "one class",
            r"the model answers the first 300 rows equally \(class \d\)",
            marks=pytest.mark.slow,
        ),
        pytest.param("nan", r"infinite values in 150 of 300 rows", marks=pytest.mark.slow),
        pytest.param("missing", "rows.npz has no array 'features'", marks=pytest.mark.slow),
        ("other", "no such input; the model has features"),
    ],
)
def test_samples_that_do_not_do_are_refused_in_a_sentence(
    run: Run, mlp: Path, tmp_path: Path, case: str, sentence: str
) -> None:
    bad_rows(tmp_path / "rows.npz", case)
    done = run("exits", "add", mlp, "--data", tmp_path / "rows.npz")
    assert done.returncode == 1
    assert re.fullmatch(rf"error: .*{sentence}\n", done.stderr)
    assert not (mlp / "1" / "exits").exists()


def test_a_model_without_a_position_is_refused(run: Run, tmp_path: Path, samples: Path) -> None:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 4])],
    )
    (tmp_path / "flat" / "1").mkdir(parents=True)
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    save(onnx_model, str(tmp_path / "flat" / "1" / "model.onnx"))
    done = run("exits", "add", tmp_path / "flat", "--data", samples)
    assert done.returncode == 1
    assert "no position for an early exit" in done.stderr


@pytest.mark.slow
def test_pictures_may_have_any_size(run: Run, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    generator = np.random.default_rng(3)
    weights = {"w": generator.standard_normal((4, 3, 3, 3)), "m": generator.normal(size=(4, 4))}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w"], ["c"]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalMaxPool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "m"], ["l"]),
            helper.make_node("Softmax", ["l"], ["classes"]),
        ],
        "pictures",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(part.astype(np.float32), name) for name, part in weights.items()],
    )
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "pictures" / "1").mkdir(parents=True)
    save(onnx_model, str(tmp_path / "pictures" / "1" / "model.onnx"))
    settings = "inputs: {image: {image: {preset: mobilenet, resize: squash, crop: 1}}}\n"
    (tmp_path / "pictures" / "slacktide.yaml").write_text(settings)
    colours = generator.integers(256, size=(300, 1, 1, 3), dtype=np.uint8)
    np.savez(tmp_path / "frames.npz", image=np.tile(colours, (1, 24, 40, 1)))
    done = run("exits", "add", tmp_path / "pictures", "--data", tmp_path / "frames.npz")
    assert done.returncode == 0, done.stderr
    assert "learnt from 300 rows" in " ".join(done.stdout.split())
