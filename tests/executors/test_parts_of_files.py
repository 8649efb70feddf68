"""The part of an ONNX file that some of its outputs need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError


def chain(folder: Path, *, external: bool = False) -> Path:
    """y = 2 x, and late = y + 5."""
    two, more = np.full(300, 2, np.float32), np.full(300, 5, np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("Add", ["y", "more"], ["late"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 300])
        for name in ("x", "y", "late")
    ]
    weights = [numpy_helper.from_array(two, "two"), numpy_helper.from_array(more, "more")]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="imgsz", value="[32, 32]")
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=external, location="w", size_threshold=0)
    return path


def test_a_part_holds_what_its_outputs_need_under_their_new_names(tmp_path: Path) -> None:
    file = OnnxFile(chain(tmp_path), tmp_path, {"y": "late"})
    assert file.content is not None
    file.check_rules()
    assert file.image_sizes() == [(32, 32)]
    assert [tensor.name for tensor in file.model.graph.initializer] == ["two"]
    session = onnxruntime.InferenceSession(file.content, providers=["CPUExecutionProvider"])
    x = np.ones((2, 300), np.float32)
    (late,) = session.run(None, {"x": x})
    assert [output.name for output in session.get_outputs()] == ["late"]
    np.testing.assert_array_equal(late, 2 * x)


def test_a_whole_file_has_no_part(tmp_path: Path) -> None:
    assert OnnxFile(chain(tmp_path), tmp_path).content is None


def test_impossible_parts_are_refused(tmp_path: Path) -> None:
    path = chain(tmp_path)
    with pytest.raises(ModelError, match="no output 'early'; it has y, late"):
        OnnxFile(path, tmp_path, {"early": "y"})
    with pytest.raises(ModelError, match="'late' cannot take the name of 'y', its input"):
        OnnxFile(path, tmp_path, {"late": "y"})
    apart = tmp_path / "apart"
    apart.mkdir()
    with pytest.raises(ModelError, match="needs all of its weights in that file"):
        OnnxFile(chain(apart, external=True), apart, {"y": "y"})
