"""Declared image inputs: pictures of any size become the floats that a file takes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from slacktide.client.images import encode
from slacktide.domain.crops import Glue
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.executors.crops import FrameArenas
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.pictures import encode_jpeg
from slacktide.executors.ports import CropPayload, ModelSource, Payload, TensorRef
from slacktide.executors.session import ModelSession, RunResult

ULTRALYTICS = {"task": "detect", "stride": "32", "imgsz": "[64, 64]"}


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Opens a model that answers with its input, of these axes, as a declared image input."""

    def open_model(
        *axes: Any,
        element: int = TensorProto.FLOAT,
        metadata: dict[str, str] | None = None,
        sizes: tuple[int, ...] = (),
        **stated: Any,
    ) -> ModelSession:
        info = [helper.make_tensor_value_info(name, element, axes) for name in "xy"]
        node = helper.make_node("Identity", ["x"], ["y"])
        graph = helper.make_graph([node], "echo", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        helper.set_model_props(model, metadata or {})
        onnx.save(model, tmp_path / "model.onnx")
        image = StatedPreprocessing("x", **stated)
        source = ModelSource("echo", "1", tmp_path / "model.onnx", tmp_path, images=True)
        source = ModelSource(
            "echo", "1", source.path, tmp_path, images=True, image=image, image_sizes=sizes
        )
        session = ModelSession.open(source, threads=1)
        session.warm_up()
        return session

    return open_model


def run(session: ModelSession, *pictures: NDArray[np.uint8] | bytes, size: int = 0) -> RunResult:
    """Run a batch with a member for each picture: pixels, or a JPEG."""
    members, arena = [], bytearray()
    for picture in pictures:
        data = picture if isinstance(picture, bytes) else picture.tobytes()
        shape = (1,) if isinstance(picture, bytes) else (1, *picture.shape)
        members.append(Payload(1, (TensorRef(len(arena), len(data), shape),)))
        arena += data
    return session.run(members, memoryview(arena), size=size)


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    soft = np.random.default_rng(seed).integers(256, size=(5, 6, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(soft, (width, height), interpolation=cv2.INTER_CUBIC), np.uint8)


def test_a_letterboxed_picture_is_what_ultralytics_feeds_its_networks(opened: Any) -> None:
    session = opened("n", 3, "h", "w", metadata=ULTRALYTICS)
    assert session.interface.inputs[0].shape == (-1, 64, 64, 3)
    frame = picture(90, 160)
    result = run(session, frame)
    expected = np.full((64, 64, 3), 114, np.uint8)
    expected[14:50] = cv2.resize(frame, (64, 36), interpolation=cv2.INTER_AREA)
    assert np.allclose(result.arrays[0][0], expected.transpose(2, 0, 1) / 255, atol=1e-6)
    assert result.inputs.placements == [(0, 14, 64, 36)]


def test_imagenet_cuts_the_middle_out_of_the_resized_picture(opened: Any) -> None:
    session = opened("n", 3, 224, 224, preset="imagenet")
    frame = picture(512, 1024)
    answer = run(session, frame).arrays[0][0]
    middle = cv2.resize(frame, (512, 256), interpolation=cv2.INTER_AREA)[16:240, 144:368]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    assert np.allclose(answer, ((middle / 255 - mean) / std).transpose(2, 0, 1), atol=0.02)


@pytest.mark.parametrize(
    ("interpolation", "way"),
    [("linear", cv2.INTER_LINEAR), ("cubic", cv2.INTER_CUBIC), ("lanczos", cv2.INTER_LANCZOS4)],
)
@pytest.mark.parametrize("kind", [np.asarray, encode_jpeg])
def test_pictures_are_resized_as_a_package_resized_them(
    opened: Any, interpolation: str, way: int, kind: Any
) -> None:
    """The whole picture is resized, then cut, and JPEGs are not reduced before."""
    session = opened("n", 3, 32, 32, resize="cover", crop=0.8, interpolation=interpolation)
    frame = np.random.default_rng(1).integers(256, size=(90, 161, 3), dtype=np.uint8)
    sent = kind(frame)
    if isinstance(sent, bytes):
        frame = cv2.imdecode(np.frombuffer(sent, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    expected = cv2.resize(np.ascontiguousarray(frame), (72, 40), interpolation=way)[4:36, 20:52]
    answer = run(session, sent).arrays[0][0]
    assert np.abs(answer - expected.transpose(2, 0, 1) / 255).max() < 0.02


def test_ways_of_opencv_need_it(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = picture(50, 70)
    expected = run(opened("n", 3, 16, 16, interpolation="linear"), frame).arrays[0].copy()
    monkeypatch.setattr("slacktide.executors.pictures.load_opencv", lambda: None)
    answer = run(opened("n", 3, 16, 16, interpolation="linear"), frame).arrays[0]
    assert np.abs(answer - expected).max() <= 1.01 / 255
    monkeypatch.setattr("slacktide.executors.onnx_file.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"image.interpolation: 'lanczos' needs OpenCV"):
        opened("n", 3, 16, 16, interpolation="lanczos")


def test_caffe_takes_blue_first_and_channels_last(opened: Any) -> None:
    session = opened("n", 16, 16, 3, preset="caffe", crop=1.0)
    frame = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    assert np.allclose(run(session, frame).arrays[0][0], [50 - 104, 100 - 117, 200 - 123])


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8])
def test_files_take_other_types_than_single_floats(opened: Any, element: int) -> None:
    session = opened("n", 3, 8, 8, element=element)
    answer = run(session, np.full((8, 8, 3), 255, np.uint8)).arrays[0]
    assert answer.dtype == helper.tensor_dtype_to_np_dtype(element)
    assert (answer == (255 if element == TensorProto.UINT8 else 1)).all()


def test_grey_networks_see_the_brightness_of_colours(opened: Any) -> None:
    session = opened("n", 1, 28, 28)
    answer = run(session, np.full((28, 28, 3), (255, 0, 0), np.uint8)).arrays[0]
    assert np.allclose(answer, 0.299)


def test_jpeg_and_pixels_of_all_shapes_share_a_batch(opened: Any) -> None:
    session = opened("n", 3, 64, 64, resize="letterbox")
    frames = [picture(40, 100), picture(100, 40, 1)]
    alone = [run(session, frame).arrays[0][0].copy() for frame in frames]
    jpegs = [encode_jpeg(frame, 98) for frame in frames]
    result = run(session, frames[0], jpegs[1], jpegs[0], frames[1])
    answers = result.arrays[0]
    assert (answers[0] == alone[0]).all()
    assert (answers[3] == alone[1]).all()
    assert np.abs(answers[2] - alone[0]).mean() < 0.02
    assert np.abs(answers[1] - alone[1]).mean() < 0.02
    assert result.inputs.placements == [(0, 19, 64, 26), (19, 0, 26, 64)] * 2


def test_a_damaged_picture_fails_alone(opened: Any) -> None:
    session = opened("n", 3, 64, 64, resize="letterbox")
    damaged = encode_jpeg(picture(50, 50)).replace(b"\xff\xda", b"\xff\xfe")
    result = run(session, picture(20, 20), damaged, b"\x08\0\0\0no image")
    assert sorted(result.inputs.faults) == [1, 2]
    assert "expected a JPEG as element 0" in result.inputs.faults[1].detail
    assert result.arrays[0].shape == (3, 3, 64, 64)


@pytest.mark.parametrize("sides", [(1, 1), (1, 4000), (4000, 1), (5, 3)])
@pytest.mark.parametrize("resize", ["squash", "letterbox", "cover", "height"])
@pytest.mark.parametrize("kind", [np.asarray, encode_jpeg])
def test_pictures_of_any_shape_fill_a_row(
    opened: Any, sides: tuple[int, int], resize: str, kind: Any
) -> None:
    session = opened("n", 3, 32, 64, resize=resize, pad_value=0)
    result = run(session, kind(np.full((*sides, 3), 250, np.uint8)))
    assert not result.inputs.faults
    assert result.arrays[0].max() > 0.97
    if resize in ("squash", "cover"):
        assert result.arrays[0].min() > 0.97


@pytest.mark.parametrize(("mode", "colour"), [("L", 121), ("CMYK", 200), ("RGB", 200)])
def test_grey_and_cmyk_jpegs_become_colours(opened: Any, mode: str, colour: int) -> None:
    session = opened("n", 3, 16, 16)
    file = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 100, 20)).convert(mode).save(file, "JPEG")
    red = run(session, file.getvalue()).arrays[0][0, 0]
    assert np.allclose(red, colour / 255, atol=0.01)


def test_a_file_for_one_row_is_served_a_picture_at_a_time(opened: Any) -> None:
    session = opened(1, 3, 32, 32)
    assert session.interface.max_batch == 1
    assert session.interface.inputs[0].shape == (1, 32, 32, 3)
    assert run(session, picture(10, 10)).arrays[0].shape == (1, 3, 32, 32)


def test_short_sides_of_a_batch_are_padded_to_the_largest(opened: Any) -> None:
    session = opened("n", 3, "h", "w", resize="short_side", size=(32, 32), multiple=32)
    result = run(session, picture(20, 40), picture(60, 60))
    assert result.arrays[0].shape == (2, 3, 32, 64)
    assert result.inputs.placements == [(0, 0, 64, 32), (0, 0, 32, 32)]
    assert np.allclose(result.arrays[0][1, :, :, 32:], 114 / 255)


def test_a_family_resizes_to_the_size_of_the_batch(opened: Any) -> None:
    session = opened("n", 3, "h", "w", preset="ultralytics", sizes=(64, 96))
    assert session.interface.inputs[0].shape == (-1, -1, -1, 3)
    for size in (64, 96):
        result = run(session, picture(90, 160), size=size)
        assert result.arrays[0].shape == (1, 3, size, size)
        assert result.inputs.placements[0].height == size * 9 // 16


@pytest.mark.parametrize(
    "stated",
    [
        {"resize": "letterbox"},
        {"resize": "cover"},
        {"resize": "cover", "crop": 0.8},
        {"resize": "height", "anchor": "top_left"},
        {"resize": "squash"},
    ],
)
@pytest.mark.parametrize("sides", [(400, 720), (720, 400)])
def test_a_shrunk_frame_is_placed_like_the_whole_frame(
    opened: Any, stated: dict[str, Any], sides: tuple[int, int]
) -> None:
    session = opened("n", 3, "h", "w", sizes=(64, 96), **stated)
    frame, image = picture(*sides), StatedPreprocessing("x", **stated)
    fit: Any = {"keeps_shape": image.keeps_shape, "short_side": image.short_side}
    sent = encode(frame, 96, quality=95, rgb=True, pixels=False, **fit)
    assert min(sent.width, sent.height) < 200
    expected, result = (run(session, picture, size=96) for picture in (frame, sent.data))
    boxes, sent_boxes = (
        np.array([[left, top, left + width, top + height]]) / 96
        for left, top, width, height in (run.inputs.placements[0] for run in (expected, result))
    )
    assert np.abs(boxes - sent_boxes).max() <= 1.5 / 96  # so boxes are mapped back alike
    assert np.abs(expected.arrays[0] - result.arrays[0]).mean() < 0.02


def test_crops_are_placed_like_whole_pictures(opened: Any) -> None:
    session = opened("n", 3, 64, 64, resize="letterbox")
    frame = picture(100, 200)
    frames = FrameArenas()
    frames.attach(3, memoryview(frame.tobytes()), Glue())
    session.read_frames(frames)
    ref = TensorRef(0, frame.nbytes, (1, *frame.shape))
    boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1]], np.float32).tobytes()
    crops = CropPayload(2, (ref,), 3, boxes)
    whole = Payload(1, (TensorRef(0, frame.nbytes, (1, *frame.shape)),))
    result = session.run([crops, whole], memoryview(frame.tobytes()))
    assert result.inputs.placements == [(0, 16, 64, 32)] * 3
    assert (result.arrays[0][1] == result.arrays[0][2]).all()
    part = run(session, np.ascontiguousarray(frame[:50, :100])).arrays[0][0]
    assert (result.arrays[0][0] == part).all()


@pytest.mark.parametrize("resize", ["letterbox", "cover", "squash"])
def test_boxes_of_a_detector_are_mapped_back_to_the_picture(tmp_path: Path, resize: str) -> None:
    box = np.array([[[0.25, 0.375, 0.75, 0.625], [0, 0, 0, 0]]], np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])
    boxes = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 2, 4])
    nodes = [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Mul", ["least", "zero"], ["nothing"]),
        helper.make_node("Add", ["box", "nothing"], ["boxes"]),
    ]
    weights = [numpy_helper.from_array(box, "box"), numpy_helper.from_array(np.float32(0), "zero")]
    graph = helper.make_graph(nodes, "g", [x], [boxes], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    image = StatedPreprocessing("x", resize=resize)
    source = ModelSource("m", "1", tmp_path / "model.onnx", tmp_path, images=True, image=image)
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    mapped, empty = run(session, picture(32, 64)).arrays[0][0]
    expected = {
        "letterbox": [0.25, 0.25, 0.75, 0.75],  # 16 rows of padding above and below
        "cover": [0.375, 0.375, 0.625, 0.625],  # a quarter cut off at each side
        "squash": [0.25, 0.375, 0.75, 0.625],
    }
    assert mapped == pytest.approx(expected[resize])
    assert empty[0] == empty[2]


@pytest.mark.parametrize(
    ("axes", "stated", "expected"),
    [
        (("n", 4, 32, 32), {}, "inputs.x.image: expected an input of pictures"),
        ((2, 3, 32, 32), {}, "expected a model whose first axes are all free, or all 1"),
        (("n", 3, "h", "w"), {}, "inputs.x.image.size: expected"),
    ],
)
def test_files_that_do_not_fit_say_which_key(
    opened: Any, axes: Any, stated: Any, expected: str
) -> None:
    with pytest.raises(ModelError, match=expected):
        opened(*axes, **stated)
