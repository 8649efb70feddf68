"""Rows for models of others, and ramps of three styles that are learnt from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bench import exits_of_others, others_rows
from slacktide.examples import example
from slacktide.exits.positions import Position, find_positions


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
    found = exits_of_others._grid(tensor, position)
    assert found.shape == (2, 8)
    np.testing.assert_allclose(found[:, 2:4], tensor[:, :, :2, 3:].mean(axis=(2, 3)))


def test_ramps_of_every_style_are_learnt_and_tried_on_rows_they_have_not_seen() -> None:
    model = onnx.load_from_string(example("mlp").onnx())
    rows = example("mlp").draw(800, np.random.default_rng(3)).batch()["features"]
    learnt = exits_of_others._learnt(model, find_positions(model), rows, 500)
    assert set(learnt) == {"mean", "grid", "hidden"}
    for one in learnt.values():
        assert one.agrees.shape == one.uncertainty.shape == (300, 2)
        assert one.agrees[:, 1].mean() > 0.9
        assert 0 <= one.leaving(0) <= 1
    chosen = learnt["mean"].chosen()
    agreement, left, saved = learnt["mean"].tried(chosen)
    assert agreement > 0.95
    assert saved <= left <= 1
