"""Crops of quads of any width, which a second stage turns and hands on: tiny models whose answers
are known by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.end_to_end.streets import HEIGHT, WIDTH, ask_frame, frame, outputs, pipeline, value

PARTS = WIDTH // 2
READ = """
slo: 20s
stages:
  find: lines
  side: {model: side, classes: [left, right]}
  read: {model: read, crop: {max_aspect: none}}
edges:
  - {from: find, to: side, each: box, quads: quads, when: {most: 30}}
  - {from: side, to: read, each: crop, turn: {class: right}, when: {score: 0.5}}
"""


def lines(zoo: Any) -> None:
    """Quads are written in the first line of an image: six bytes each, of which four are a box and
    the fifth is the score."""
    zoo.save(
        "lines",
        [
            helper.make_node("Slice", ["image", "zero", "one", "one"], ["line"]),
            helper.make_node("Cast", ["line"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["x", "parts"], ["said"]),
            helper.make_node("Div", ["said", "most"], ["shares"]),
            helper.make_node("Gather", ["shares", "corners"], ["flat"], axis=2),
            helper.make_node("Reshape", ["flat", "square"], ["quads"]),
            helper.make_node("Gather", ["shares", "fifth"], ["scores"], axis=2),
        ],
        [value("image", TensorProto.UINT8, ["n", HEIGHT, WIDTH, 3])],
        [
            value("quads", TensorProto.FLOAT, ["n", PARTS, 4, 2]),
            value("scores", TensorProto.FLOAT, ["n", PARTS]),
        ],
        [
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([-1, PARTS, 6]), "parts"),
            numpy_helper.from_array(np.array([-1, PARTS, 4, 2]), "square"),
            numpy_helper.from_array(np.array([0, 1, 2, 1, 2, 3, 0, 3]), "corners"),
            numpy_helper.from_array(np.int64(4), "fifth"),
            numpy_helper.from_array(np.float32(255), "most"),
        ],
    )


def side(zoo: Any) -> None:
    """Whether the bright half of a crop is the left (0) or the right one (1), best first."""
    zoo.save(
        "side",
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["columns"], axes=[1, 3], keepdims=0),
            helper.make_node("Reshape", ["columns", "halves"], ["split"]),
            helper.make_node("ReduceMean", ["split"], ["logits"], axes=[2], keepdims=0),
        ],
        [value("image", TensorProto.UINT8, ["n", 8, 16, 3])],
        [value("logits", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([-1, 2, 8]), "halves")],
        settings="max_batch: 4\ndecode: softmax\n",
    )


def read(zoo: Any) -> None:
    """The mean of the two columns on the left, and the width with its padding."""
    zoo.save(
        "read",
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Slice", ["x", "zero", "two", "axis"], ["part"]),
            helper.make_node("ReduceMean", ["part"], ["start"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("ReduceMean", ["x"], ["columns"], axes=[1, 3], keepdims=0),
            helper.make_node("Mul", ["columns", "none"], ["zeros"]),
            helper.make_node("Add", ["zeros", "each"], ["ones"]),
            helper.make_node("ReduceSum", ["ones", "along"], ["width"], keepdims=0),
        ],
        [value("image", TensorProto.UINT8, ["n", 8, "w", 3])],
        [value("start", TensorProto.FLOAT, ["n"]), value("width", TensorProto.FLOAT, ["n"])],
        [
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([2]), "two"),
            numpy_helper.from_array(np.array([2]), "axis"),
            numpy_helper.from_array(np.array([1]), "along"),
            numpy_helper.from_array(np.float32(0), "none"),
            numpy_helper.from_array(np.float32(1), "each"),
        ],
        settings="inputs: {image: {shape: [8, 64, 3]}}\n",
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("quads") / "repository")
    for make in (lines, side, read):
        make(zoo)
    pipeline(zoo, "reader", READ)
    with serve(zoo) as house:
        yield house


def picture(*boxes: tuple[int, int, int, int, int, int]) -> Any:
    """A dark picture with these boxes, of which the bright half is on the right if the last number
    is 1."""
    image = frame(*boxes)
    image[1:] = 0
    for x0, y0, x1, y1, _, right in boxes:
        left, middle, end = (round(x * WIDTH / 255) for x in (x0, (x0 + x1) / 2, x1))
        top, bottom = (round(y * HEIGHT / 255) for y in (y0, y1))
        image[max(1, top) : bottom, middle if right else left : end if right else middle] = 200
    return image


WIDE, SHORT, OTHER = (4, 32, 251, 64, 250, 0), (4, 96, 68, 160, 240, 1), (132, 96, 196, 160, 230, 0)
FAINT = (4, 192, 251, 224, 100, 1)


def test_lines_are_turned_and_read_at_their_own_width(server: Any) -> None:
    answer = outputs(ask_frame(server, picture(WIDE, SHORT, OTHER, FAINT), "reader"))
    assert sorted(answer["side.rows"].tolist()) == [0, 1, 2, 3]
    by_box = dict(zip(answer["side.rows"].tolist(), answer["side.classes"][:, 0], strict=True))
    assert by_box == {0: 0, 1: 1, 2: 0, 3: 1}
    rows = answer["read.rows"].tolist()
    assert sorted(rows) == [0, 1, 2, 3]
    starts = dict(zip(rows, answer["read.start"].tolist(), strict=True))
    assert all(abs(start - 200) < 40 for start in starts.values()), starts
    widths = dict(zip(rows, answer["read.width"].tolist(), strict=True))
    assert widths[1] == widths[2] <= 12 < 64 < widths[0]


def test_a_frame_without_lines_is_complete(server: Any) -> None:
    answer = outputs(ask_frame(server, picture(), "reader"))
    assert answer["read.start"].shape == (0,)


def test_degenerate_lines_are_dropped(server: Any) -> None:
    image = picture(WIDE, (50, 60, 50, 90, 250, 0), (90, 90, 20, 40, 250, 1))
    answer = outputs(ask_frame(server, image, "reader"))
    assert 0 in answer["read.rows"]
    assert 1 not in answer["read.rows"]
