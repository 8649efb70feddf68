"""The fallback from an ONNX file: what it is given, what it gives, what it is not made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slacktide.client import ClientError, OnnxFallback


def write(path: Path, kind: int = TensorProto.UINT8, shape: tuple = ("n", "h", "w", 3)) -> Path:
    """A model that gives its image back."""
    given = helper.make_tensor_value_info("image", kind, shape)
    back = helper.make_tensor_value_info("back", kind, shape)
    nodes = [helper.make_node("Identity", ["image"], ["back"])]
    graph = helper.make_graph(nodes, "g", [given], [back])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize(
    ("shape", "size", "resized"),
    [(("n", "h", "w", 3), 64, (64, 64)), ((1, 48, 96, 3), 64, (48, 96))],
)
def test_it_gets_the_size_of_its_model_and_red_first(tmp_path, shape, size, resized):
    path = write(tmp_path / "m.onnx", shape=shape)
    frame = np.zeros((240, 320, 3), np.uint8)
    frame[..., 0] = 200  # blue, as OpenCV has it
    (back,) = OnnxFallback(path, size=size)(frame).values()
    assert back.shape == (1, *resized, 3)
    assert back[0, 0, 0].tolist() == [0, 0, 200]
    (back,) = OnnxFallback(path, size=size, rgb=True)(frame).values()
    assert back[0, 0, 0].tolist() == [200, 0, 0]


def test_a_file_that_is_no_such_model_is_named(tmp_path, monkeypatch):
    with pytest.raises(ClientError, match=r"nowhere.onnx"):
        OnnxFallback(tmp_path / "nowhere.onnx")
    path = write(tmp_path / "float.onnx", TensorProto.FLOAT)
    with pytest.raises(ClientError, match=r"float.onnx: expected one input, uint8"):
        OnnxFallback(path)
    monkeypatch.setattr("slacktide.client.fallback.find_spec", lambda name: None)
    with pytest.raises(ClientError, match="pip install onnxruntime"):
        OnnxFallback(path)
