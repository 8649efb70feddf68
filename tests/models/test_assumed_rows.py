"""What is assumed of a model's rows is said, with the key that states it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.executors.cores import available_cores
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import GUESS_S, Measurement, measure
from slacktide.executors.ports import ModelSource
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.check import Severity, check_repository, try_loading
from slacktide.models.plugins import offer_glue
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository

value = helper.make_tensor_value_info


def write(
    root: Path,
    name: str,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    yaml: str = "",
) -> Path:
    """Add a model of these nodes to a repository; its file."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (root / name / "slacktide.yaml").write_text(yaml)
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def voice(root: Path, yaml: str = "") -> Path:
    """Keeps a state and takes a rate, as voice detectors do; only 16000 fits its table."""
    least, zero = (
        numpy_helper.from_array(np.array(n), name) for n, name in ((15999, "a"), ([0], "z"))
    )
    floats, whole = TensorProto.FLOAT, TensorProto.INT64
    return write(
        root,
        "voice",
        [
            helper.make_node("Sub", ["rate", "a"], ["index"]),
            helper.make_node("Gather", ["table", "index"], ["gain"]),
            helper.make_node("Mul", ["sound", "gain"], ["louder"]),
            helper.make_node("ReduceMean", ["louder"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Unsqueeze", ["mean", "z"], ["one"]),
            helper.make_node("Concat", ["one", "one"], ["both"], axis=0),
            helper.make_node("Concat", ["state", "both"], ["next"], axis=2),
        ],
        [
            value("sound", floats, [None, None]),
            value("state", floats, [2, None, 4]),
            value("rate", whole, []),
        ],
        [value("next", floats, [2, None, 5])],
        [least, zero, numpy_helper.from_array(np.array([1, 2], np.float32), "table")],
        yaml,
    )


def image(
    root: Path, name: str = "image", batch: Any = "n", yaml: str = "", height: int | None = 48
) -> Path:
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    shapes = [batch, 3, height, None], [batch, 3, 1, 1]
    x, y = (value(n, TensorProto.FLOAT, shape) for n, shape in zip("xy", shapes, strict=True))
    return write(root, name, [node], [x], [y], yaml=yaml)


def findings(root: Path) -> list[str]:
    cores = available_cores()[:1]
    findings_made = [*check_repository(root), *asyncio.run(try_loading(root, cores))]
    findings_made = [finding for finding in findings_made if finding.severity is not Severity.NOTE]
    assert all(finding.severity is Severity.WARNING for finding in findings_made)
    return [finding.message for finding in findings_made]


def measured(path: Path, **stated: Any) -> Measurement:
    async def body() -> Measurement:
        executor = InProcessExecutor()
        try:
            source = ModelSource("m", "1", path, path.parent, **stated)
            cores = [tuple(available_cores()[:1])]
            return await measure(executor, source, cores=cores, budget_s=0.01)
        finally:
            await executor.close()

    return asyncio.run(body())


def test_free_axes_are_named_with_their_key(tmp_path: Path) -> None:
    image(tmp_path, yaml="max_batch: 2")
    assert findings(tmp_path) == [
        "image/1/model.onnx: input 'x' is [-1, 3, 48, -1] (free axes: 3): rows of [3, 48, 320] run "
        "and are assumed; state a typical shape as inputs.x.shape"
    ]


@pytest.mark.parametrize("place", ["config.pbtxt", "slacktide.yaml"])
def test_sizes_that_are_stated_are_kept_and_the_open_ones_assumed(
    tmp_path: Path, place: str
) -> None:
    own = place == "slacktide.yaml"
    yaml = "max_batch: 2\ninputs: {x: {shape: [3, 64, -1]}}" if own else ""
    image(tmp_path, yaml=yaml, height=None)
    if not own:
        text = 'max_batch_size: 2 input { name: "x" dims: [3, 64, -1] }'
        (tmp_path / "image" / place).write_text(text)
    assert findings(tmp_path) == [
        "image/1/model.onnx: input 'x' is [-1, 3, -1, -1] (free axes: 3): rows of [3, 64, 320] run "
        "and are assumed; state a typical shape as inputs.x.shape"
    ]


def test_samples_fit_what_is_stated_of_their_shape(tmp_path: Path) -> None:
    path, samples = image(tmp_path, height=None), tmp_path / "x.npz"
    np.savez(samples, x=np.ones((1, 3, 64, 9), np.float32))
    stated = {"warmup_shapes": {"x": (3, 64, -1)}, "samples": samples}
    assert measured(path, **stated).record.shapes == {"x": (3, 64, 9)}
    np.savez(samples, x=np.ones((1, 3, 32, 9), np.float32))
    with pytest.raises(MeasuringError, match=r"shape \[3, 32, 9\], but .* is \[3, 64, -1\]"):
        measured(path, **stated)


def test_a_function_says_that_its_content_is_random_until_samples_are_stated(
    tmp_path: Path,
) -> None:
    offer_glue("assumed_minus", "numpy:negative")
    spec = "{datatype: FP32, shape: [-1, -1]}"
    tensors = f"takes: {{x: {spec}}}, gives: {{y: {spec}}}"
    (tmp_path / "minus").mkdir()
    text = f"function: {{name: assumed_minus, {tensors}}}\ninputs: {{x: {{shape: [3]}}}}\n"
    (tmp_path / "minus" / "slacktide.yaml").write_text(text)
    assert findings(tmp_path) == [
        "minus/slacktide.yaml: the function 'assumed_minus' is timed with random content, which "
        "may take far more or less time than real content; state real rows as samples, or a value "
        "as inputs.x.value"
    ]
    np.savez(tmp_path / "minus" / "x.npz", x=np.ones((1, 3), np.float32))
    (tmp_path / "minus" / "slacktide.yaml").write_text(text + "samples: x.npz\n")
    assert findings(tmp_path) == []


def test_nothing_is_said_where_all_is_stated(tmp_path: Path) -> None:
    image(tmp_path, "shape", yaml="max_batch: 2\ninputs: {x: {shape: [3, 48, 8]}}")
    image(tmp_path, "shapes", yaml="max_batch: 2\ninputs: {x: {shapes: [[3, 48, 8]]}}")
    image(tmp_path, "samples", yaml="max_batch: 2\nsamples: x.npz")
    np.savez(tmp_path / "samples" / "x.npz", x=np.ones((1, 3, 48, 5), np.float32))
    assert findings(tmp_path) == []


def test_a_fixed_batch_is_told_how_to_be_exported(tmp_path: Path) -> None:
    image(tmp_path, "one", batch=1, yaml="inputs: {x: {shape: [1, 3, 48, 8]}}")
    image(tmp_path, "meant", batch=1, yaml="max_batch: 0\ninputs: {x: {shape: [1, 3, 48, 8]}}")
    assert findings(tmp_path) == [
        "one/1/model.onnx: the first axis of all inputs and outputs is always 1, so requests never "
        "share a batch; export the model with a free axis (torch.onnx.export: dynamic_axes={'x': "
        "{0: 'batch'}, …}), or state 'max_batch: 0' if this is intended"
    ]


def test_a_model_of_which_no_row_runs_loads_and_names_the_keys(tmp_path: Path) -> None:
    path = voice(tmp_path)
    (message,) = findings(tmp_path)
    assert message.startswith("voice/1/model.onnx: no generated row runs (")
    assert message.endswith(
        "): until run times are known, requests are served one at a time; state inputs that run as "
        "inputs.sound.shape or inputs.state.shape or inputs.rate.value or samples"
    )
    profile = measured(path)
    assert "Gather" in profile.guess
    assert profile.record.table.expected(1, 1) == pytest.approx(GUESS_S)
    assert not profile.interface.batches


def test_with_its_value_the_model_runs(tmp_path: Path) -> None:
    voice(tmp_path, "inputs: {rate: {value: 16000}}")
    assert findings(tmp_path) == [
        "voice/1/model.onnx: input 'sound' is [-1, -1] (free axes: 0, 1): rows of [1, 128] run "
        "and are assumed; state a typical shape as inputs.sound.shape",
        "voice/1/model.onnx: input 'state' is [2, -1, 4] (free axes: 1): rows of [2, 1, 4] run "
        "and are assumed; state a typical shape as inputs.state.shape",
    ]


def test_a_single_number_is_named(tmp_path: Path) -> None:
    x, y = (value(name, TensorProto.FLOAT, [4]) for name in "xy")
    scale = value("scale", TensorProto.FLOAT, [])
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    write(tmp_path, "m", [node], [x, scale], [y], yaml="max_batch: 0")
    assert findings(tmp_path) == [
        "m/1/model.onnx: input 'scale' is a single number, and random values are assumed; "
        "state a typical value as inputs.scale.value"
    ]


def test_a_guess_is_not_stored(tmp_path: Path) -> None:
    voice(tmp_path)
    (definition,) = Repository(tmp_path).read("voice")
    cache = ProfileCache(ProfileStore(), budget_s=0.01)

    async def known() -> str:
        executor = InProcessExecutor()
        try:
            cores = [tuple(available_cores()[:1])]
            profile = await cache.find_or_measure(
                definition, source_of(definition), executor, cores
            )
            return profile.guess
        finally:
            await executor.close()

    assert "Gather" in asyncio.run(known())
    assert cache.find(definition, [1]) is None
    assert list(definition.folder.glob("profile*")) == []


@pytest.mark.parametrize("stated", [{"values": {"rate": 5}}, {"warmup_shapes": {"sound": (1, 9)}}])
def test_stated_rows_that_do_not_run_give_a_guess_as_well(tmp_path: Path, stated: Any) -> None:
    assert measured(voice(tmp_path), **stated).guess


def test_check_names_rows_that_influence_each_other(tmp_path: Path) -> None:
    x, y = (value(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    write(tmp_path, "mixing", [node], [x], [y])
    write(tmp_path, "silenced", [node], [x], [y], yaml="max_batch: 0\ninputs: {x: {shape: [2, 4]}}")
    (message,) = findings(tmp_path)
    assert message.startswith("mixing/1/model.onnx: requests run one at a time")
    assert "max_batch: 0" in message
