"""`slacktide models` and `slacktide profile`, on real models."""

from __future__ import annotations

import json
import re
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console

from slacktide.cli.profile import _print
from slacktide.lab.examples import MODELS
from slacktide.profiles import ENOUGH_SAMPLES, LatencyTable, ProfileRecord

Run = Any


def test_make_says_what_it_made(run: Run, tmp_path: Path):
    done = run("models", "make", tmp_path / "m", "--only", "mlp", "--only", "text", "--json")
    assert done.returncode == 0
    paths = [Path(path) for path in json.loads(done.stdout)]
    assert [path.name for path in paths] == ["mlp", "text"]
    assert all((path / "1" / "model.onnx").is_file() for path in paths)
    assert set(MODELS) > {path.name for path in paths}


def test_make_writes_labelled_pictures_for_models_that_take_them(run: Run, tmp_path: Path):
    done = run("models", "make", tmp_path, "--only", "vehicles", "--only", "mlp", "--samples", "10")
    assert done.returncode == 0, done.stderr
    labels = (tmp_path / "vehicles" / "data" / "labels.jsonl").read_text().splitlines()
    assert len(labels) == 10
    assert not (tmp_path / "mlp" / "data").exists()
    done = run("models", "make", tmp_path, "--only", "mlp", "--samples", "10")
    assert done.returncode != 0
    assert "expected a model that takes pictures" in done.stderr


def test_check_finds_nothing_wrong_with_the_examples(run: Run, example_models: Path):
    done = run("models", "check", example_models)
    assert (done.returncode, done.stdout) == (0, "1 model checked, no problems\n")


def test_check_names_the_folder_where_no_model_is_to_blame(run: Run, example_models: Path):
    done = run("models", "check", example_models / "mlp")
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {example_models / 'mlp'}: this is a model's folder")


def test_check_exits_1_and_names_the_key(run: Run, example_models: Path, tmp_path: Path):
    shutil.copytree(example_models, tmp_path / "m")
    settings = tmp_path / "m" / "mlp" / "slacktide.yaml"
    settings.write_text(settings.read_text() + "max_bach: 3\n")
    done = run("models", "check", tmp_path / "m", "--json")
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)
    assert (finding["model"], finding["severity"]) == ("mlp", "error")
    assert "max_bach" in finding["message"]
    assert "max_batch" in finding["message"]


def test_profile_measures_and_stores_beside_the_model(
    run: Run, example_models: Path, tmp_path: Path
):
    shutil.copytree(example_models, tmp_path / "m")
    folder = tmp_path / "m" / "mlp"
    # Thorough: however slow the machine is just now, no size is left out.
    done = run("profile", folder, "--thorough", "--cores", "1", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["1"]
    fit = printed.pop("fit")
    assert set(fit) == {"p50", "p99"}
    assert len(fit["p99"]["points"]) == 7
    record = ProfileRecord.from_dict(printed)
    assert record.table.cores == (1,)
    assert record.table.max_batch == 64
    assert (record.skipped, len(record.table.samples)) == ((), 7)
    assert all(count >= ENOUGH_SAMPLES for row in record.table.samples for count in row)
    # A server that used the examples before may have left what it learnt.
    (stored,) = set(folder.glob("1/profile.*.json")) - set(folder.glob("1/*.learnt.json"))
    assert json.loads(stored.read_text())["profile"]["record"] == record.to_dict()


def test_profile_prints_tables_and_draws_a_page(run: Run, example_models: Path, tmp_path: Path):
    shutil.copytree(example_models, tmp_path / "m")
    flags = ("--budget", "100ms", "--cores", "1", "--plot", tmp_path / "page.html")
    done = run("profile", tmp_path / "m" / "mlp", *flags)
    assert done.returncode == 0, done.stderr
    assert "mlp version 1" in done.stdout
    if "other programs used" not in done.stdout:
        assert "1 core: capacity" in done.stdout
        assert "p99: l(b, c) = " in done.stdout
        assert "measured on one core count only" in done.stdout
        assert "█" in done.stdout
    assert re.search(r"memory of a replica's sessions: \d+ MiB \(threads: 1\)", done.stdout)
    assert (tmp_path / "page.html").read_text().count("<svg") == 2


def test_times_of_a_busy_machine_are_printed_without_conclusions() -> None:
    def text_of(cpu_share: float) -> str:
        out = Console(width=120, record=True, file=StringIO())
        table = LatencyTable.linear(0.010, 0.002, 4, cores=(1, 2), spread=1.3)
        _print(out, "net version 1", ProfileRecord(table, {}, cpu_share=cpu_share))
        return out.export_text()

    quiet, busy = text_of(0.9), text_of(0.4)
    for conclusion in ("1 core: capacity", "p99: l(b, c) = ", "█"):
        assert conclusion in quiet
        assert conclusion not in busy
    assert "12.0 ms" in busy


@pytest.mark.slow
def test_profile_says_what_it_assumed(run: Run, tmp_path: Path):
    add = onnx.helper.make_node("Add", ["ids", "ids"], ["y"])
    axes = {"ids": ["n", "length"], "y": ["n", "length"]}
    ids, y = (onnx.helper.make_tensor_value_info(k, 7, shape) for k, shape in axes.items())
    graph = onnx.helper.make_graph([add], "g", [ids], [y])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (tmp_path / "m" / "1").mkdir(parents=True)
    onnx.save(model, str(tmp_path / "m" / "1" / "model.onnx"))
    done = run("profile", tmp_path / "m", "--budget", "50ms", "--cores", "1")
    assert done.returncode == 0, done.stderr
    assert "assumed: input 'ids' is [-1, -1] (free axes: 1): rows of" in done.stdout
    (tmp_path / "m" / "slacktide.yaml").write_text("inputs: {ids: {shape: [3]}}")
    assert "assumed" not in run("profile", tmp_path / "m", "--cores", "1").stdout


@pytest.mark.slow
def test_profile_warns_of_rows_that_influence_each_other_and_keeps_the_form_of_a_stage(
    run: Run, tmp_path: Path
):
    """A pipeline counts rows, so its stages are served with a batch axis."""
    softmax = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=0)
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xy")
    graph = onnx.helper.make_graph([softmax], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    onnx.save(model, str(folder / "model.onnx"))

    def batches() -> bool:
        done = run("profile", tmp_path / "m", "--budget", "50ms", "--cores", "1", "--json")
        assert "warning: m:1: requests run one at a time" in done.stderr
        (stored,) = folder.glob("profile*.json")
        return re.search(r'"max_batch":\s*0\b', stored.read_text()) is None

    assert not batches()
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "pipeline.yaml").write_text(
        "stages: {a: m, b: m}\nedges: [{from: a, to: b, tensors: {y: x}}]\n"
    )
    assert batches()


def test_profile_fails_before_it_measures_if_the_page_has_no_place(
    run: Run, example_models: Path, tmp_path: Path
):
    done = run("profile", example_models / "mlp", "--plot", tmp_path / "no" / "page.html")
    assert done.returncode == 2
    assert "--plot: no such folder" in done.stderr


def test_profile_of_what_is_no_model(run: Run, tmp_path: Path):
    done = run("profile", tmp_path / "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


@pytest.mark.slow
def test_a_single_file_is_checked_and_profiled_like_a_model(
    run: Run, example_models: Path, tmp_path: Path
):
    net = tmp_path / "net.onnx"
    shutil.copy(example_models / "mlp" / "1" / "model.onnx", net)
    assert run("models", "check", net).stdout == "1 model checked, no problems\n"
    state = tmp_path / "state"
    done = run("profile", net, "--budget", "50ms", "--cores", "1", "--state-dir", state)
    assert done.returncode == 0, done.stderr
    assert "net version 1" in done.stdout
    (stored,) = state.rglob("profile.*.json")
    assert stored.parent.name == "1"
    assert run("models", "check", tmp_path / "gone.onnx").stderr.startswith("error: ")


def test_a_folder_one_level_too_high_is_told_so(run: Run, example_models: Path):
    done = run("profile", example_models)
    assert done.returncode == 2
    name = example_models.name
    assert f"found none; {name} contains models itself, such as '{name}/mlp'" in done.stderr


SHIFT = """
function:
  name: shift
  takes: {x: {datatype: INT32, shape: [3]}}
  gives: {y: {datatype: INT32, shape: [3]}}
"""


@pytest.mark.slow
def test_check_and_profile_know_the_functions_that_they_are_given(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "my_functions.py").write_text("def shift(x):\n    return x + 1\n")
    (tmp_path / "m" / "shift").mkdir(parents=True)
    (tmp_path / "m" / "shift" / "slacktide.yaml").write_text(SHIFT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    glue = ("--glue", "shift=my_functions:shift")
    done = run("models", "check", tmp_path / "m")
    assert done.returncode == 1
    assert "shift" in done.stdout
    done = run("models", "check", tmp_path / "m", *glue)
    assert (done.returncode, done.stdout) == (0, "1 model checked, no problems\n")
    done = run("profile", tmp_path / "m" / "shift", "--budget", "0.5s", *glue)
    assert done.returncode == 0, done.stderr
    for wrong, complaint in (("shift", "KEY=VALUE"), ("shift=my_functions:turn", "cannot be used")):
        done = run("models", "check", tmp_path / "m", "--glue", wrong)
        assert done.returncode != 0
        assert f"--glue: {'expected ' if 'KEY' in complaint else ''}" in done.stderr
        assert complaint in done.stderr
