"""Crops of frames in real workers and in process: the same pixels, and bad ones fail alone."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from slacktide.domain import BatchFinished, ReplicaLost
from slacktide.domain.crops import Glue, crop_extent, crop_width
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.executors import crops as crops_module
from slacktide.executors import pictures as pictures_module
from slacktide.executors.crops import FrameArenas
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.tensor_io import TensorError, encode_strings
from slacktide.executors.image_placing import rectified
from slacktide.executors.images import made_up_image
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.pictures import encode_jpeg, resize_into
from slacktide.executors.ports import BatchOrder, CropPayload, Payload
from slacktide.executors.process import ProcessExecutor

EXECUTORS = [ProcessExecutor, InProcessExecutor]
FRAME = made_up_image(90, 120, np.random.default_rng(3))
WHOLE = (0.0, 0.0, 1.0, 1.0)
BOXES = [WHOLE, (0.1, 0.2, 0.6, 0.5), (-1.0, 0.5, 0.31, 7.0), (0.5, 0.5, 0.501, 0.501)]


@pytest.fixture
def frames() -> Any:
    arena = Arena(1 << 22, name="frames")
    yield arena
    arena.close()


def crops(frame: Any, *boxes: tuple[float, ...], number: int = 4) -> CropPayload:
    array = np.array(boxes, np.float32)
    return CropPayload(len(boxes), frame.tensors, number, array.tobytes())


def tensor_bytes(arena: Arena, payload: Payload) -> bytes:
    """The bytes of its first tensor."""
    tensor = payload.tensors[0]
    return bytes(arena.view(Slot(tensor.offset, tensor.nbytes)))


def expected(
    frame: Any, box: tuple[float, ...], height: int, width: int, margin: float = 0.0
) -> Any:
    extent = crop_extent(np.array(box, np.float32), frame.shape[1], frame.shape[0], margin)
    assert extent is not None
    left, top, right, bottom = extent
    out = np.empty((height, width or crop_width(extent, height), 3), np.uint8)
    resize_into(frame[top:bottom, left:right], out)
    return out


def pixels(case: Any, member: int) -> Any:
    return np.frombuffer(case.results[member][0], np.uint8).reshape(case.shapes[member][0])


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_crops_are_cut_out_of_one_frame_and_resized(models, kit, arena, frames, kind) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (20, 30, 3)), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        plain = kit.put(arena, made_up_image(20, 30, np.random.default_rng(1))[None])
        report = await case.run(1, crops(frame, *BOXES), plain, crops(frame, BOXES[1]))
        assert isinstance(report, BatchFinished), report
        assert not case.faults
        assert report.timing.input_s > 0
        for box, crop in zip(BOXES, pixels(case, 0), strict=True):
            assert np.array_equal(crop, expected(FRAME, box, 20, 30))
        assert pixels(case, 1).tobytes() == tensor_bytes(arena, plain)
        assert np.array_equal(pixels(case, 2)[0], expected(FRAME, BOXES[1], 20, 30))
        # Attached to one that runs, with other glue; plain batches go on as before.
        case.handle.attach(9, frames, Glue(margin=0.25))
        assert isinstance(await case.run(2, crops(frame, BOXES[1], number=9)), BatchFinished)
        assert np.array_equal(pixels(case, 0)[0], expected(FRAME, BOXES[1], 20, 30, 0.25))
        assert isinstance(await case.run(3, plain), BatchFinished)
        thousand = [(x / 100, y / 20, x / 100 + 0.01, 1.0) for x in range(100) for y in range(10)]
        assert isinstance(await case.run(4, crops(frame, *thousand)), BatchFinished)
        assert np.array_equal(pixels(case, 0)[-1], expected(FRAME, thousand[-1], 20, 30))


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_crops_keep_their_shape_where_the_width_is_free(
    models, kit, arena, frames, kind
) -> None:
    async with kit.serving(kind()) as executor:
        padding = Padding({"x": PaddedInput(2, value=7)}, {"y": PaddedOutput(2)}, (16, 64))
        path = models.identity(TensorProto.UINT8, (16, "width", 3))
        case = kit.Case(executor, path, arena, padding=padding)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        plain = kit.put(arena, np.full((2, 16, 5, 3), 200, np.uint8))
        members = [crops(frame, BOXES[1], BOXES[3]), plain, crops(frame, WHOLE)]
        assert isinstance(await case.run(1, *members), BatchFinished)
        wide, narrow, whole = (expected(FRAME, b, 16, 0) for b in (BOXES[1], BOXES[3], WHOLE))
        assert wide.shape[1] > whole.shape[1] > narrow.shape[1]
        cut = pixels(case, 0)
        assert cut.shape == (2, *wide.shape)
        assert np.array_equal(cut[0], wide)
        assert np.array_equal(cut[1, :, : narrow.shape[1]], narrow)
        assert (cut[1, :, narrow.shape[1] :] == 7).all()
        assert pixels(case, 1).shape == (2, 16, 5, 3)
        assert (pixels(case, 1) == 200).all()
        assert np.array_equal(pixels(case, 2)[0], whole)


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_a_jpeg_is_decoded_once_for_all_of_its_crops(
    models, kit, arena, frames, kind
) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.mean(), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        jpegs = [encode_jpeg(np.full((60, 80, 3), colour, np.uint8)) for colour in (50, 90)]
        damaged = jpegs[0].replace(b"\xff\xda", b"\xff\xfe")
        first, second, bad, none = (
            kit.put(frames, ((1,), encode_strings(np.array([data], object))))
            for data in (*jpegs, damaged, b"no jpeg")
        )
        members = [
            crops(first, *BOXES),
            crops(bad, BOXES[1]),
            crops(second, WHOLE),
            crops(none, WHOLE),
            crops(bad, WHOLE),
        ]
        assert isinstance(await case.run(1, *members, size=32), BatchFinished)
        damage = "input 'image': expected a JPEG as the frame, got a damaged one"
        assert case.faults[1] == case.faults[4] == damage
        assert case.faults[3] == "input 'image': expected a JPEG as the frame, got something else"
        rows = [np.frombuffer(case.results[at][0], np.float32).reshape(-1, 4) for at in (0, 2)]
        assert np.allclose(rows[0][:, :3], 50, atol=2)
        assert np.allclose(rows[1][:, :3], 90, atol=2)


BAD = {
    "not a number": (math.nan, 0.0, 1.0, 1.0),
    "without end": (0.0, 0.0, math.inf, 1.0),
    "outside": (1.5, 0.0, 2.0, 1.0),
    "turned over": (0.6, 0.0, 0.4, 1.0),
    "empty": (0.5, 0.5, 0.5, 1.0),
}


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_a_bad_box_costs_its_request_alone(models, kit, arena, frames, kind) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (8, 8, 3)), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        members = [crops(frame, WHOLE, box) for box in BAD.values()]
        assert isinstance(await case.run(1, crops(frame, WHOLE), *members), BatchFinished)
        assert sorted(case.faults) == [1, 2, 3, 4, 5]
        assert not case.glue_faults
        message = "input 'x': box 1 (1.5, 0, 2, 1) lies outside its frame"
        assert case.faults[3] == message
        assert np.array_equal(pixels(case, 0)[0], expected(FRAME, WHOLE, 8, 8))


async def test_a_batch_waits_for_an_arena_that_is_on_its_way_and_no_longer(
    models, kit, arena, frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas = FrameArenas()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arenas.get, 3)
        arenas.attach(3, memoryview(b"abc"), Glue(0.5))
        assert waiting.result() == (b"abc", Glue(0.5), None, "")
    arenas.detach(3)
    monkeypatch.setattr(crops_module, "_PATIENCE", 0.0)
    with pytest.raises(TensorError, match="frame arena 3 is not attached"):
        arenas.get(3)

    async with kit.serving(InProcessExecutor()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (8, 8, 3)), arena)
        for number in (4, 5):
            case.handle.attach(number, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        case.handle.detach(4)
        report = await case.run(1, crops(frame, WHOLE))
        assert "frame arena 4 is not attached" in report.detail
        assert isinstance(await case.run(2, crops(frame, WHOLE, number=5)), BatchFinished)


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_glue_of_a_user_costs_its_request_alone(
    models, kit, arena, frames, kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slack_glue.py").write_text(
        "import numpy as np\n"
        "def mirrored(crop):\n"
        "    crop[:, :1] = 0\n"
        "    return crop[:, ::-1]\n"
        "def picky(crop):\n"
        "    if crop.shape[0] < 50: raise RuntimeError('too small')\n"
        "    return crop\n"
        "def nonsense(crop):\n"
        "    return crop.astype(float) if crop.shape[0] < 50 else 'a picture'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (20, 30, 3)), arena)
        for number, name in enumerate(["mirrored", "picky", "nonsense", "missing"]):
            case.handle.attach(number, frames, Glue(function=f"slack_glue:{name}"))
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        members = [
            crops(frame, BOXES[1], number=0),
            crops(frame, BOXES[1], number=1),
            crops(frame, BOXES[1], number=2),
            crops(frame, BOXES[1], number=3),
            crops(frame, WHOLE, number=1),
            crops(frame, WHOLE, number=2),
        ]
        assert isinstance(await case.run(1, *members), BatchFinished)
        assert case.faults == {
            1: "input 'x': its glue function raised RuntimeError: too small",
            2: "input 'x': its glue function returned float64 [27, 60, 3], expected uint8 "
            "[h, w, 3]",
            3: "input 'x': the glue function cannot be used: AttributeError: "
            "module 'slack_glue' has no "
            "attribute 'missing'",
            5: ("input 'x': its glue function returned str, expected uint8 [h, w, 3]"),
        }
        assert case.glue_faults == [1, 2, 3, 5]  # not what their clients sent
        cut = FRAME[18:45, 12:72].copy()
        cut[:, :1] = 0
        want = np.empty((20, 30, 3), np.uint8)
        resize_into(np.ascontiguousarray(cut[:, ::-1]), want)
        assert np.array_equal(pixels(case, 0)[0], want)
        assert np.array_equal(pixels(case, 4)[0], expected(FRAME, WHOLE, 20, 30))
        assert tensor_bytes(frames, frame) == FRAME.tobytes()


async def test_glue_that_hangs_ends_with_its_worker(
    models, kit, arena, frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model that hangs does: the driver kills what exceeds the batch's hang limit."""
    (tmp_path / "hanging_glue.py").write_text("import time\ndef wait(crop): time.sleep(600)\n")
    monkeypatch.chdir(tmp_path)

    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (20, 30, 3)), arena)
        case.handle.attach(4, frames, Glue(function="hanging_glue:wait"))
        await case.ready()
        case.handle.run(BatchOrder(1, [crops(kit.put(frames, FRAME[None]), WHOLE)]))
        case.handle.abort(1)
        case.handle.kill()
        assert isinstance(await case.next(), ReplicaLost)


async def test_without_opencv_crops_are_nearly_the_same(
    models, kit, arena, frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kit.serving(InProcessExecutor()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (20, 30, 3)), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        exact = [expected(FRAME, box, 20, 30) for box in BOXES]
        with monkeypatch.context() as patch:
            patch.setattr(pictures_module, "load_opencv", lambda: None)
            assert isinstance(await case.run(1, crops(frame, *BOXES)), BatchFinished)
        for want, crop in zip(exact, pixels(case, 0), strict=True):
            assert np.abs(want.astype(int) - crop).mean() < 6


async def test_models_without_an_image_input_take_no_crops(models, kit, arena, frames) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        report = await case.run(1, crops(kit.put(frames, FRAME[None]), WHOLE))
        assert "no image input for crops" in report.detail


QUAD = [(0.3, 0.1), (0.8, 0.5), (0.6, 0.8), (0.1, 0.4)]


def quads(frame: Any, *corners: Any, number: int = 4) -> CropPayload:
    array = np.array(corners, np.float32)
    return CropPayload(len(corners), frame.tensors, number, array.tobytes())


@pytest.mark.parametrize("kind", EXECUTORS)
async def test_quads_are_rectified_and_bad_ones_are_black(models, kit, arena, frames, kind) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.UINT8, (20, 30, 3)), arena)
        case.handle.attach(4, frames, Glue())
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        far = [(-1e30, -1e30), (1e30, -1e30), (1e30, 1e30), (-1e30, 1e30)]
        bad = [[(0.5, 0.5)] * 4, [(math.nan, 0), (1, 0), (1, 1), (0, 1)], far]
        assert isinstance(await case.run(1, quads(frame, QUAD, *bad)), BatchFinished)
        assert not case.faults
        crops = pixels(case, 0)
        want = np.empty((20, 30, 3), np.uint8)
        resize_into(rectified(FRAME, np.array(QUAD, np.float32)), want)
        assert np.array_equal(crops[0], want)
        assert not crops[1].any()
        assert crops.shape == (4, 20, 30, 3)


@pytest.mark.parametrize(("most", "width"), [(None, 112), (2.0, 32)])
async def test_the_widest_crops_are_squeezed_where_that_is_stated(
    models, kit, arena, frames, most: float | None, width: int
) -> None:
    async with kit.serving(InProcessExecutor()) as executor:
        padding = Padding({"x": PaddedInput(2)}, {"y": PaddedOutput(2)}, (16, 64))
        path = models.identity(TensorProto.UINT8, (16, "width", 3))
        case = kit.Case(executor, path, arena, padding=padding)
        case.handle.attach(4, frames, Glue(max_aspect=most))
        await case.ready()
        frame = kit.put(frames, FRAME[None])
        line = [(0.0, 0.5), (1.0, 0.5), (1.0, 0.688), (0.0, 0.688)]  # 119 by 16 pixels
        assert isinstance(await case.run(1, quads(frame, line)), BatchFinished)
        assert abs(pixels(case, 0).shape[2] - width) <= 1


async def test_the_last_frame_is_decoded_once_for_lines_of_any_width(
    models, kit, arena, frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []
    decode = crops_module.decode
    monkeypatch.setattr(crops_module, "decode", lambda jpeg: decoded.append(1) or decode(jpeg))
    async with kit.serving(InProcessExecutor()) as executor:
        padding = Padding({"x": PaddedInput(2)}, {"y": PaddedOutput(2)}, (16, 64))
        case = kit.Case(
            executor, models.identity(TensorProto.UINT8, (16, "width", 3)), arena, padding=padding
        )
        case.handle.attach(4, frames, Glue())
        await case.ready()
        plain = {c: encode_jpeg(np.full((60, 80, 3), c, np.uint8)) for c in range(50, 90)}
        other = next(c for c in range(89, 50, -1) if len(plain[c]) == len(plain[50]))
        frame = kit.put(frames, ((1,), encode_strings(np.array([plain[50]], object))))
        for number, colour in enumerate((50, 50, other, other), 1):
            data = encode_strings(np.array([plain[colour]], object))
            frames.write(frame.tensors[0].offset, data)  # another frame in the same place
            assert isinstance(await case.run(number, quads(frame, QUAD)), BatchFinished)
            assert np.allclose(pixels(case, 0), colour, atol=3)
        assert len(decoded) == 2


def test_acute_and_crossed_quads_have_few_more_pixels_than_their_frame() -> None:
    frame = np.zeros((20, 2000, 3), np.uint8)
    acute, crossed = [(0, 0), (1, 0), (0.51, 1), (0.5, 1)], [(0, 0), (1, 1), (0, 0.9), (1, 0)]
    for corners in (acute, crossed):
        part = rectified(frame, np.array(corners, np.float32))
        assert part.size <= 2 * frame.size
        assert min(part.shape[:2]) > 100


def test_a_turned_square_becomes_upright() -> None:
    picture = made_up_image(100, 100, np.random.default_rng(5))
    upright = [(0.2, 0.3), (0.7, 0.3), (0.7, 0.6), (0.2, 0.6)]
    part = rectified(picture, np.array(upright, np.float32))
    assert np.array_equal(part, picture[30:60, 20:70])
    half = rectified(picture, np.array(upright[2:] + upright[:2], np.float32))
    assert np.array_equal(half, picture[30:60, 20:70][::-1, ::-1])
    high = [(0.3, 0.1), (0.5, 0.1), (0.5, 0.9), (0.3, 0.9)]
    assert np.array_equal(
        rectified(picture, np.array(high, np.float32)), np.rot90(picture[10:90, 30:50])
    )
    wider = rectified(picture, np.array(upright, np.float32), 0.1)
    assert np.array_equal(wider, picture[27:63, 15:75])
    assert rectified(picture, np.array(upright, np.float32), 4.0).shape == (99, 99, 3)
