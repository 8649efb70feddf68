"""Rows for models of others, and ramps of three styles that are learnt from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exits.classifiers import find_positions

from bench import exits_of_others, others_rows
from slacktide.exits.positions import Position


def test_rows_are_as_the_models_take_them() -> None:
    pages = others_rows.pages(3, np.random.default_rng(1))
    lines = others_rows.lines(3, np.random.default_rng(1))
    assert (pages.shape, pages.dtype) == ((3, 3, 224, 224), np.float32)
    assert (lines.shape, lines.dtype) == ((3, 3, 48, 192), np.float32)
    assert np.array_equal(pages, others_rows.pages(3, np.random.default_rng(1)))
    assert abs(lines).max() < 2
    assert len({page.tobytes() for page in pages}) == 3


def test_files_give_their_beginnings_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others_rows, "_ROOTS", (str(tmp_path),))
    (tmp_path / "long.txt").write_bytes(b"  " + b"a" * 5000 + b"b" * 10 + b"\n")
    (tmp_path / "short.py").write_bytes(b"c" * 100)
    (tmp_path / "tiny.py").write_bytes(b"d")
    rows = others_rows.files(9, np.random.default_rng(1))
    by_first = {chr(row[0]): row for row in rows}
    assert sorted(by_first) == ["a", "c"]
    assert by_first["a"][1023] == ord("a")
    assert by_first["a"][-11:].tolist() == [ord("a"), *[ord("b")] * 10]
    assert by_first["c"][99:101].tolist() == [ord("c"), 256]
    assert by_first["c"][-101:-99].tolist() == [256, ord("c")]


def test_a_grid_is_made_of_quarters() -> None:
    position = Position(0, "t", False, 2, (4, 6), False, 0.5, 1)
    tensor = np.arange(2 * 2 * 4 * 6, dtype=np.float32).reshape(2, 2, 4, 6)
    quarters = exits_of_others._grid(tensor, position)
    assert quarters.shape == (2, 8)
    np.testing.assert_allclose(quarters[:, 2:4], tensor[:, :, :2, 3:].mean(axis=(2, 3)))


def network() -> onnx.ModelProto:
    """Two convolutions, [n, 3, 12, 12] to four classes."""
    random = np.random.default_rng(7)
    shapes = {"k": (8, 3, 3, 3), "l": (8, 8, 3, 3), "w": (8, 4)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "l"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["logits"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 12])
    y = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])
    graph = helper.make_graph(nodes, "graph", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_ramps_of_every_style_are_learnt_and_tried_on_rows_they_have_not_seen() -> None:
    random = np.random.default_rng(3)
    rows = random.standard_normal((800, 3, 12, 12)).astype(np.float32)
    rows += random.standard_normal((800, 3, 1, 1)).astype(np.float32)
    learnt = exits_of_others._learnt(network(), find_positions(network()), rows, 500)
    assert set(learnt) == {exits_of_others.SERVED, "mean", "grid", "hidden"}
    widths = {
        style: len(ramps_of_style.ramps[0].weights) for style, ramps_of_style in learnt.items()
    }
    assert widths == {exits_of_others.SERVED: 16, "mean": 8, "grid": 32, "hidden": 8 + 256}
    for ramps_of_style in learnt.values():
        assert ramps_of_style.agrees.shape == ramps_of_style.uncertainty.shape == (300, 2)
        assert ramps_of_style.agrees[:, 1].mean() > 0.9
        assert 0 <= ramps_of_style.leaving(0) <= 1
    chosen = learnt[exits_of_others.SERVED].chosen()
    agreement, left, saved = learnt[exits_of_others.SERVED].tried(chosen)
    assert agreement > 0.95
    assert saved <= left <= 1
