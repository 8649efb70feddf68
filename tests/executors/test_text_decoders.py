"""Lines of text from maps, and text from steps, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.decoders import lines as lines_module
from slacktide.executors.decoders.decoder import make_decoder
from slacktide.executors.decoders.labels import find_labels, parse_characters
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

DB = DecodeSource("db", confidence=0.5, unclip=1.5, dilate=False, max_detections=50)
EXTENT = (96, 128)
WHOLE = np.array([[0.0, 0.0, 128.0, 96.0]])


def decoder(source: DecodeSource, *shape: int, labels: tuple[str, ...] = ()) -> Any:
    spec = TensorSpec("out", Datatype.FP32, shape)
    return make_decoder(source, ModelInterface((), (spec,), 8), labels)


def core_map(*cores: tuple[tuple[float, float], tuple[float, float], float, float]) -> Any:
    """A map with a core for each (centre, size, angle, probability)."""
    drawn = np.zeros(EXTENT, np.float32)
    for centre, size, angle, probability in cores:
        corners = cv2.boxPoints((centre, size, angle)).astype(np.int32)
        cv2.fillPoly(drawn, [corners], probability)
    return drawn[None, None]


def decoded(maps: NDArray[Any], placements: Any = WHOLE, source: DecodeSource = DB) -> Any:
    boxes, quads, scores = decoder(source, -1, 1, -1, -1).decode([maps], placements, EXTENT)
    assert np.allclose(boxes, np.concatenate((quads.min(2), quads.max(2)), axis=2))
    return quads, scores


def test_a_line_grows_by_area_over_perimeter() -> None:
    quads, scores = decoded(core_map(((60, 40), (60, 10), 0, 0.9)))
    grown = 1.5 * 60 * 10 / 140
    corners = [(30, 35), (90, 35), (90, 45), (30, 45)]
    away = grown * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    assert np.abs(quads[0, 0] * (128, 96) - (np.array(corners) + away)).max() < 1.5
    assert scores[0, 0] == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize("angle", [20, -35, 90])
def test_corners_are_clockwise_from_the_upper_left(angle: float) -> None:
    quads, _ = decoded(core_map(((60, 48), (50, 10), angle, 0.8)))
    corners = quads[0, 0] * (128, 96)
    (across, rise), (back, down) = corners[1] - corners[0], corners[2] - corners[1]
    assert across * down - rise * back > 0
    assert corners[[0, 3], 0].max() <= corners[[1, 2], 0].min()
    assert corners[0, 1] <= corners[3, 1]
    expected = cv2.boxPoints(((60, 48), (50, 10), angle)).mean(0)
    assert np.abs(corners.mean(0) - expected).max() < 1.5


def test_faint_small_and_surplus_lines_are_dropped() -> None:
    cores = [
        ((30, 20), (40, 8), 0, 0.9),
        ((30, 50), (40, 8), 0, 0.4),  # below the confidence
        ((90, 50), (40, 8), 0, 0.2),  # below the threshold
        ((90, 70), (40, 1), 0, 0.9),  # too low
        ((90, 20), (40, 8), 0, 0.7),
    ]
    _, scores = decoded(core_map(*cores))
    assert np.allclose(scores, [[0.9, 0.7]])
    source = DecodeSource("db", confidence=0.5, dilate=False, max_detections=1)
    assert decoded(core_map(*cores), source=source)[1].shape == (1, 1)


def test_a_page_of_dots_costs_no_more_than_a_page_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    dots = np.zeros((1, 1, 480, 480), np.float32)
    dots.reshape(60, 8, 60, 8)[:, :5, :, :5] = 0.9  # 3600
    dots[0, 0, 200:220, 100:300] = 1
    examined = []
    enclose = cv2.minAreaRect
    monkeypatch.setattr(cv2, "minAreaRect", lambda points: examined.append(0) or enclose(points))
    boxes, _, scores = decoder(DB, -1, 1, -1, -1).decode([dots], [[0, 0, 480, 480]], (480, 480))
    assert len(examined) <= 2000
    assert boxes.shape[1] == 50
    assert scores.max() > 0.95


def test_lines_come_in_reading_order_and_rows_are_filled_up() -> None:
    three = core_map(
        ((90, 20), (30, 8), 0, 0.6), ((30, 24), (30, 8), 0, 0.7), ((60, 60), (30, 8), 0, 0.8)
    )
    none = np.zeros_like(three)
    _, scores = decoded(np.concatenate((three, none)), np.repeat(WHOLE, 2, 0))
    assert np.allclose(scores, [[0.7, 0.6, 0.8], [0, 0, 0]])
    quads, scores = decoded(none)
    assert (quads.shape, scores.shape) == ((1, 0, 4, 2), (1, 0))


def test_lines_are_fractions_of_the_picture_and_not_of_its_margins() -> None:
    maps = core_map(((60, 40), (60, 10), 0, 0.9))
    whole = decoded(maps)[0][0, 0] * (128, 96)
    inside = decoded(maps, np.array([[20.0, 10.0, 100.0, 50.0]]))[0][0, 0]
    assert np.abs(inside * (100, 50) + (20, 10) - whole).max() < 1e-3


@pytest.mark.parametrize("shape", [(-1, 2, -1, -1), (-1, 96, 128)])
def test_an_output_that_is_no_map_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"decode\.as: expected the map of a text detector"):
        decoder(DB, *shape)


def test_without_opencv_there_are_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "load_opencv", lambda: None)
    with pytest.raises(ModelError, match="'db' needs OpenCV: pip install"):
        decoder(DB, -1, 1, -1, -1)


# ── text ─────────────────────────────────────────────────────────────────────────────────────

CTC = DecodeSource("ctc")
ALPHABET = ("a", "b", "ä")


def steps(*classes: int, count: int = 4, score: float = 0.8) -> Any:
    values = np.zeros((1, len(classes), count), np.float32)
    values[0, np.arange(len(classes)), classes] = score
    return values


def read(values: Any, source: DecodeSource = CTC, labels: tuple[str, ...] = ALPHABET) -> Any:
    texts, scores = decoder(source, -1, -1, values.shape[2], labels=labels).decode(
        [values], WHOLE, EXTENT
    )
    return texts.tolist(), scores.tolist()


def test_equal_neighbours_count_once_and_blanks_divide_them() -> None:
    assert read(steps(0, 1, 1, 0, 1, 2, 3, 3))[0] == ["aabä"]
    assert read(steps(0, 0)) == ([""], [0.0])
    assert read(steps(1, 2), labels=("a", "b"))[0] == ["ab"]
    assert read(steps(1, 3, 2), labels=("a", "b"))[0] == ["a b"]  # a space may be the last
    assert read(steps(3, 0, 1, 3), DecodeSource("ctc", blank="last"))[0] == ["ab"]
    assert read(steps(1, 1, 2, score=0.5))[1] == [0.5]


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4))
def test_a_batch_is_read_as_a_loop_over_steps_does(rows: list[list[int]]) -> None:
    values = np.concatenate([steps(*row) for row in rows])
    expected = []
    for row in rows:
        text, before = "", 0
        for place in row:
            text += ALPHABET[place - 1] if place and place != before else ""
            before = place
        expected.append(text)
    assert read(values)[0] == expected


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_dictionary_of_another_length_names_its_key(count: int) -> None:
    expected = rf"labels: expected 4 characters, or one less .* for 'out', got {count}"
    with pytest.raises(ModelError, match=expected):
        decoder(CTC, -1, -1, 5, labels=("a",) * count)
    late = decoder(CTC, -1, -1, -1, labels=("a",) * count)
    with pytest.raises(ModelError, match=expected):
        late.decode([np.zeros((1, 3, 5), np.float32)], WHOLE, EXTENT)


def test_a_model_without_characters_or_steps_is_refused() -> None:
    with pytest.raises(ModelError, match="labels: expected a file with a character in each line"):
        decoder(CTC, -1, -1, 5)
    with pytest.raises(ModelError, match=r"decode\.as: expected the steps of a recogniser"):
        decoder(CTC, -1, 5, labels=ALPHABET)


def test_characters_are_those_of_the_file_or_else_of_the_model(tmp_path: Path) -> None:
    assert parse_characters("a\n\u3000\n \nab\n".encode()) == ("a", "\u3000", " ", "ab")
    metadata = {"character": "a\nb"}
    assert find_labels(None, metadata, decodes=True, spells=True) == ("a", "b")
    assert find_labels(None, {}, decodes=True, spells=True) == ()
    (tmp_path / "characters.txt").write_bytes(b"x\r\ny\r\n")
    path = tmp_path / "characters.txt"
    assert find_labels(path, metadata, decodes=True, spells=True) == ("x", "y")
    path.write_bytes(b"x\n\ny")
    with pytest.raises(ModelError, match="labels: line 2: expected a character, got ''"):
        find_labels(path, metadata, decodes=True, spells=True)
    path.write_bytes(b"\xff")
    with pytest.raises(ModelError, match="labels: expected UTF-8"):
        find_labels(path, metadata, decodes=True, spells=True)
