"""What stages' outputs hand on, and what several requests of one stage come to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.crops import PLAIN, BoxChoice
from slacktide.domain.frames import Feed
from slacktide.domain.pipelines import Edge
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.ports import Payload, TensorRef
from slacktide.server import frame_payloads
from slacktide.server.frame_payloads import FramePayloads, HandedOn, _cut, rows_of_payload
from slacktide.server.stage_outputs import (
    Chosen,
    StageArrays,
    chained,
    chosen_boxes,
    chosen_crops,
    chosen_rows,
    joined,
    look_like_pixels,
    origins,
    rows_of,
)
from slacktide.wire.calls import InputTensor

FLOATS = TensorSpec("x", Datatype.FP32, (-1, -1))
STRINGS = TensorSpec("x", Datatype.BYTES, (-1, -1))
BOXES = [[0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9], [0.2, 0.2, 0.3, 0.3]]


def tensor(array: Any) -> Any:
    array = np.asarray(array)
    strings = array.dtype == object
    return array.shape, encode_strings(array) if strings else array.tobytes()


def back(spec: TensorSpec, result: Any) -> Any:
    shape, data = result
    if spec.datatype is Datatype.BYTES:
        elements, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            elements.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)
    return np.frombuffer(data, spec.datatype.dtype).reshape(shape)


def found(**arrays: Any) -> StageArrays:
    types = {"f": Datatype.FP32, "i": Datatype.INT64, "O": Datatype.BYTES}
    sized = {"i4": Datatype.INT32}
    arrays_ = {name: np.asarray(values) for name, values in arrays.items()}
    specs = [
        TensorSpec(
            name, sized.get(array.dtype.str[1:], types[array.dtype.kind]), (-1, *array.shape[1:])
        )
        for name, array in arrays_.items()
    ]
    values = [
        array.astype("f4") if array.dtype.kind == "f" else array for array in arrays_.values()
    ]
    places = {spec.name: place for place, spec in enumerate(specs)}
    return StageArrays(specs, places, [tensor(value) for value in values])


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=5), st.booleans())
def test_requests_are_joined_row_by_row_and_filled_up(sizes: Any, strings: bool) -> None:
    spec = STRINGS if strings else FLOATS
    parts = []
    for number, (rows, width) in enumerate(sizes):
        array = np.arange(1, rows * width + 1).reshape(rows, width) + 100 * number
        if strings:
            texts = np.empty(array.shape, object)
            texts[:] = [[str(element).encode() for element in row] for row in array.tolist()]
            parts.append(texts)
        else:
            parts.append(array.astype(np.float32))
    whole = back(spec, joined(spec, [tensor(part) for part in parts]))
    assert len(whole) == sum(rows for rows, _ in sizes)
    at = 0
    for part in parts:
        rows = whole[at : at + len(part)]
        assert rows[:, : part.shape[1]].tolist() == part.tolist()
        assert not rows[:, part.shape[1] :].any()
        at += len(part)


@given(st.lists(st.integers(0, 5), unique=True), st.booleans())
def test_rows_are_taken_as_they_are_named(rows: list[int], strings: bool) -> None:
    array = np.arange(12, dtype=np.float32).reshape(6, 2)
    if strings:
        array = array.astype(str).astype(object)
        array[:] = [[text.encode() for text in row] for row in array]
    spec, rows = (STRINGS if strings else FLOATS), sorted(rows)
    rows_taken = rows_of(spec, tensor(array), rows)
    assert back(spec, rows_taken).tolist() == array[rows].tolist()


@given(st.data())
def test_part_of_a_tensor_is_these_rows_wherever_it_lies(data: Any) -> None:
    texts = data.draw(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), min_size=1))
    first = data.draw(st.integers(0, len(texts) - 1))
    end = data.draw(st.integers(first + 1, len(texts)))
    array = np.empty((len(texts), 2), object)
    array[:] = texts
    shape, content = tensor(array)
    arena = Arena(1 << 16)
    slot = arena.allocate(len(content))
    arena.write(slot.offset, content)
    payload = Payload(len(texts), (TensorRef(slot.offset, slot.nbytes, shape),))
    (ref,) = rows_of_payload([STRINGS], arena, payload, first, end).tensors
    lies = (ref.shape, bytes(arena.view(slot)[ref.offset - slot.offset :][: ref.nbytes]))
    assert back(STRINGS, lies).tolist() == array[first:end].tolist()
    cut = _cut(InputTensor("x", Datatype.BYTES, shape, content), first, end, {})
    assert back(STRINGS, (cut.shape, bytes(cut.data))).tolist() == array[first:end].tolist()
    arena.close()
    floats = np.arange(2 * len(texts), dtype=np.float32).reshape(-1, 2)
    shape, content = tensor(floats)
    payload = Payload(len(texts), (TensorRef(64, len(content), shape),))
    (ref,) = rows_of_payload([FLOATS], arena, payload, first, end).tensors
    assert (ref.offset - 64, ref.nbytes, ref.shape) == (
        8 * first,
        8 * (end - first),
        (end - first, 2),
    )
    cut = _cut(InputTensor("x", Datatype.FP32, shape, content), first, end, {})
    assert back(FLOATS, (cut.shape, bytes(cut.data))).tolist() == floats[first:end].tolist()


def test_texts_of_many_requests_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, reads = Arena(1 << 20), []
    split = frame_payloads.split_elements
    monkeypatch.setattr(
        frame_payloads, "split_elements", lambda data: reads.append(1) or split(data)
    )
    shape, data = tensor(np.array([["a" * row, "b"] for row in range(50)], object))
    slot = arena.allocate(len(data))
    arena.write(slot.offset, data)
    handed = HandedOn(Chosen(range(50)), {"x": TensorRef(slot.offset, len(data), shape)})
    stage = SimpleNamespace(
        arena=arena, interface=SimpleNamespace(inputs=[replace(STRINGS, name="x")])
    )
    version = SimpleNamespace(stages={"s": stage}, cut_inputs={})
    payloads = FramePayloads(version)  # type: ignore[arg-type]
    payloads.handed[0, 7] = handed
    for row in range(50):
        command = SimpleNamespace(
            request=SimpleNamespace(rows=1), stage="s", feeds=(Feed(0, 7, row, row + 1),)
        )
        (ref,) = payloads.payload(command, None).tensors  # type: ignore[arg-type]
        part = bytes(arena.view(Slot(ref.offset, ref.nbytes)))
        assert back(STRINGS, (ref.shape, part)).tolist() == [[b"a" * row, b"b"]]
    assert len(reads) == 1


def test_boxes_of_several_rows_say_where_they_come_from() -> None:
    edge = Edge("a", "b", "box", BoxChoice(classes=(1,), score=0.5))
    outputs = found(
        boxes=[BOXES, BOXES[::-1]],
        scores=[[0.6, 0.9, 0.4], [0.7, 0.1, 0.9]],
        classes=[[1, 1, 1], [1, 1, 2]],
    )
    chosen = chosen_boxes(edge, outputs)
    assert chosen.rows == [0, 0, 1]
    assert chosen.places == [1, 0, 0]
    assert chosen.boxes == np.array([BOXES[1], BOXES[0], BOXES[2]], np.float32).tobytes()
    made_of = back(TensorSpec("r", Datatype.INT64, (-1,)), origins([(chosen, 0, 3, 0)]))
    assert made_of.tolist() == [1, 0, 3]
    later = back(TensorSpec("r", Datatype.INT64, (-1,)), origins([(chosen, 1, 3, 4)]))
    assert later.tolist() == [4 * 3 + 0, 5 * 3 + 0]


def test_scores_of_each_class_name_the_class() -> None:
    edge = Edge("a", "b", "box", BoxChoice(classes=(2,), score=0.5))
    scores = [[[0.1, 0.2, 0.9], [0.8, 0.1, 0.1], [0.0, 0.1, 0.4]]]
    chosen = chosen_boxes(edge, found(boxes=[BOXES], scores=scores))
    assert chosen.places == [0]


ODD = st.floats(-2, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0])
SCORES = st.floats(0, 1, width=32) | st.sampled_from([float(np.float32(0.7)), np.nan, 0.5])
FOUND = st.lists(st.tuples(ODD, ODD, ODD, ODD, SCORES, st.integers(0, 2)), max_size=20)
CHOICES = st.builds(
    BoxChoice,
    st.sampled_from([(), (1,), (0, 2)]),
    st.sampled_from([0.0, 0.1, 0.7, 2.0]),
    st.sampled_from([1.0, 0.5, 0.0]),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.1, 0.5]),
)


@given(FOUND, CHOICES, st.booleans(), st.booleans(), st.sampled_from(["i4", "i8", "f4"]))
def test_few_boxes_are_read_as_arrays_are(
    rows: Any, choice: BoxChoice, scored: bool, classed: bool, datatype: str
) -> None:
    array = np.array(rows, np.float32).reshape(1, -1, 6)
    outputs: dict[str, Any] = {"boxes": array[..., :4]}
    if scored:
        outputs["scores"] = array[..., 4]
    if classed:
        outputs["classes"] = array[..., 5].astype(datatype)
    edge, far = Edge("a", "b", "box", choice), np.zeros((1, PLAIN, 4))
    few = chosen_boxes(edge, found(**outputs))
    # As many that are no boxes behind them: then these are read as arrays.
    outputs["boxes"] = np.concatenate([array[..., :4], far], 1)
    for name in ("scores", "classes"):
        if name in outputs:
            more = np.zeros((1, PLAIN), outputs[name].dtype)
            outputs[name] = np.concatenate([outputs[name], more], 1)
    many = chosen_boxes(edge, found(**outputs))
    assert (few.rows, few.places, few.boxes) == (many.rows, many.places, many.boxes)


@pytest.mark.parametrize(
    "outputs",
    [
        {"scores": [[0.5]]},
        {"boxes": [BOXES], "scores": [[0.5, 0.5]]},
        {"boxes": [[0.1, 0.2]]},
        {"boxes": [BOXES], "classes": [[1, 2, 3, 4]]},
        {"boxes": np.array([[b"no"]], object)},
    ],
)
def test_boxes_that_are_nonsense_are_refused(outputs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|no output|not of numbers"):
        chosen_boxes(Edge("a", "b", "box"), found(**outputs))


def test_rows_go_on_by_class_and_score_the_best_if_there_are_many() -> None:
    outputs = found(scores=[0.1, 0.9, 0.6, 0.8], classes=[0, 1, 1, 1])
    assert [*chosen_rows(Edge("a", "b"), outputs, 4).rows] == [0, 1, 2, 3]
    some = Edge("a", "b", when=BoxChoice(classes=(1,), score=0.5, most=2))
    assert chosen_rows(some, outputs, 4).rows == [1, 3]
    of_classes = found(scores=[[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.3, 0.7]])
    second = Edge("a", "b", when=BoxChoice(classes=(1,), score=0.5))
    assert chosen_rows(second, of_classes, 4).rows == [1, 3]
    with pytest.raises(ValueError, match="expected \\[4\\]"):
        chosen_rows(some, found(scores=[0.1, 0.9]), 4)


PIXELS = [[[412.0, 88.0, 500.0, 120.0], [0.0, 0.0, 0.0, 0.0], [0.0, 10.0, 600.0, 480.0]]]


@pytest.mark.parametrize(
    ("boxes", "pixels"),
    [
        (PIXELS, True),
        ([[[3, 4, 9, 8]]], True),
        ([BOXES], False),
        ([[[-0.1, -0.2, 1.3, 1.1]]], False),
        ([[*BOXES, [9.0, 9.0, 12.0, 30.0]]], False),  # one that went wrong
        ([[[0.0] * 4] * 5], None),
        ([[[-1.0] * 4] * 5], None),
        ([[*PIXELS[0], *[[-1.0] * 4] * 5]], True),  # filled up
        (np.zeros((1, 0, 4)), None),
        ([[[float("nan")] * 4]], None),
    ],
)
def test_boxes_in_pixels_are_told_from_fractions(boxes, pixels) -> None:
    assert look_like_pixels(np.asarray(boxes)) is pixels


def test_boxes_in_pixels_are_said_once_after_twenty_frames(caplog) -> None:
    version = SimpleNamespace(name="traffic", pixel_frames={})
    payloads = FramePayloads(version)  # type: ignore[arg-type]  # it asks for nothing else here
    edge = Edge("detect", "plate", each="box")

    def look(number: int, boxes: Any, times: int) -> int:
        for _ in range(times):
            if version.pixel_frames.get(number, 0) is not None:
                payloads._warn_of_pixels(number, edge, found(boxes=np.asarray(boxes, np.float32)))
        return len(caplog.records)

    assert look(0, PIXELS, 19) == 0
    assert look(0, [[[0.0] * 4]], 5) == 0
    assert look(1, [BOXES], 1) == look(1, PIXELS, 40) == 0  # it has been seen to give fractions
    assert look(0, PIXELS, 1) == 1
    message = caplog.records[0].getMessage()
    assert "pipeline traffic: boxes of detect look like pixels, such as [412.0, 88.0" in message
    assert look(0, PIXELS, 50) == 1


QUADS = np.array(
    [
        [[0.1, 0.1], [0.4, 0.1], [0.4, 0.4], [0.1, 0.4]],
        [[0.0, 0.0]] * 4,
        [[0.5, 0.5], [0.9, 0.6], [0.9, 0.9], [0.5, 0.8]],
    ],
    np.float32,
)
CROPS = Edge("a", "b", "crop", turn=BoxChoice((1,), 0.9))


def test_quads_are_chosen_by_their_bounds() -> None:
    edge = Edge("a", "b", "box", BoxChoice(score=0.3), quads="lines")
    arrays = found(lines=QUADS[None], scores=[[0.5, 0.9, 0.7]], boxes=[[[0.0] * 4]])
    chosen = chosen_boxes(edge, arrays)
    assert (chosen.rows, chosen.places, chosen.width) == ([0, 0], [2, 0], 3)
    assert chosen.boxes == QUADS[[2, 0]].tobytes()
    assert chosen_boxes(edge, found(lines=QUADS[None, :0])).boxes == b""
    with pytest.raises(ValueError, match=r"expected \[rows, n, 4, 2\] as output 'lines', got"):
        chosen_boxes(edge, found(lines=QUADS))


def test_crops_go_on_to_another_stage_and_some_are_turned() -> None:
    quads = QUADS[[2, 0]]
    crops = Chosen([0, 0], [2, 0], quads.tobytes(), 3)
    scores, classes = [[0.95, 0.05], [0.8, 0.2]], [[1, 0], [1, 0]]  # of classes, best first
    chosen = chosen_crops(CROPS, found(scores=scores, classes=classes), crops)
    assert (chosen.rows, chosen.places) == ([0, 0], [2, 0])
    turned = np.stack([quads[0][[2, 3, 0, 1]], quads[1]])
    assert chosen.boxes == turned.tobytes()
    some = replace(CROPS, when=BoxChoice(score=0.9), turn=None)
    chosen = chosen_crops(some, found(scores=[0.95, 0.8], classes=[1, 0]), crops)
    assert (chosen.places, chosen.boxes) == ([2], quads[:1].tobytes())
    with pytest.raises(ValueError, match=r"expected \[2\] scores and classes, got \[3\]"):
        chosen_crops(CROPS, found(scores=[0.95, 0.8, 1]), crops)


def test_boxes_are_taken_in_any_order_and_chained() -> None:
    crops = Chosen([0, 0], [2, 0], QUADS[[2, 0]].tobytes(), 3)
    back = crops.of([1, 0])
    assert (back.places, back.boxes) == ([0, 2], QUADS[[0, 2]].tobytes())
    assert chained([crops.of([0]), crops.of([1])]) == crops
