"""Images in real workers: decoded, resized, batched of all sizes; damaged ones alone fail."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slacktide.domain import BatchFailed, BatchFinished
from slacktide.executors import pictures as pictures_module
from slacktide.executors.cores import available_cores
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.image_placing import Picture
from slacktide.executors.images import made_up_image
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import measure
from slacktide.executors.pictures import encode_jpeg, resize_into
from slacktide.executors.ports import BatchOrder, Executor, PicturesDamaged
from slacktide.executors.process import ProcessExecutor

GENERATOR = np.random.default_rng(7)
DAMAGED = encode_jpeg(made_up_image(50, 50, GENERATOR)).replace(b"\xff\xda", b"\xff\xfe")
"""Its header is as it should be, but there is nothing to decode."""


@pytest.fixture(params=[ProcessExecutor, InProcessExecutor])
def kind(request: pytest.FixtureRequest) -> Callable[[], Executor]:
    """Makes an executor."""
    return request.param


def sent(*jpegs: bytes) -> tuple[tuple[int, ...], bytes]:
    """The shape and bytes of a BYTES tensor with a JPEG for each row."""
    return (len(jpegs),), encode_strings(np.array(jpegs, object))


def one_colour(height: int, width: int, *colour: int) -> Any:
    return np.full((height, width, 3), colour, np.uint8)


def answer(case: Any, member: int) -> Any:
    """A row for each of the member's: mean colour, and pixels."""
    return np.frombuffer(case.results[member][0], np.float32).reshape(-1, 4)


async def test_jpeg_and_pixels_of_all_sizes_share_a_batch_at_a_size(
    models, kit, arena, kind
) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.mean(), arena)
        await case.ready()
        jpegs = [encode_jpeg(one_colour(h, w, 200, 100, 20)) for h, w in [(90, 700), (16, 16)]]
        members = [
            kit.put(arena, sent(jpegs[0])),
            kit.put(arena, one_colour(30, 20, 10, 20, 30)[None]),
            kit.put(arena, sent(*jpegs)),
            kit.put(arena, np.stack([one_colour(64, 64, 1, 2, 3)] * 2)),
        ]
        for number, size in enumerate([64, 32, 160, 64]):
            report = await case.run(number, *members, size=size)
            assert isinstance(report, BatchFinished), report
            assert report.timing.input_s > 0
            assert [len(answer(case, member)) for member in range(4)] == [1, 1, 2, 2]
            for member in range(4):
                assert np.allclose(answer(case, member)[:, 3], size * size, rtol=1e-3)
            for row in (answer(case, 0)[0], *answer(case, 2)):
                assert np.allclose(row[:3], [200, 100, 20], atol=3)  # red first
            assert np.allclose(answer(case, 1)[0, :3], [10, 20, 30], atol=0.01)
            assert np.allclose(answer(case, 3)[:, :3], [1, 2, 3], atol=0.01)
        assert not case.faults


async def test_a_damaged_image_fails_alone(models, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.mean(), arena)
        await case.ready()
        good = encode_jpeg(one_colour(40, 40, 50, 60, 70))
        members = [kit.put(arena, sent(*images)) for images in ([good], [good, DAMAGED], [good])]
        members.append(kit.put(arena, ((1,), good)))  # bare, as a whole body is
        members.append(kit.put(arena, sent(b64encode(good))))
        members.append(kit.put(arena, sent(b64encode(good)[:-8] + b"_-+/ ==")))
        assert isinstance(await case.run(1, *members, size=32), BatchFinished)
        expected = "input 'image': expected a JPEG as element 1, got a damaged one"
        assert case.faults[1] == expected
        assert "element 0, got base64 with white space" in case.faults[5]
        for member in (0, 2, 3, 4):
            assert np.allclose(answer(case, member)[0, :3], [50, 60, 70], atol=2)
        assert isinstance(await case.run(2, members[0], size=32), BatchFinished)
        assert not case.faults


async def test_images_that_look_damaged_are_answered_and_counted(models, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        case = kit.Case(executor, models.mean(), arena)
        await case.ready()
        good = encode_jpeg(one_colour(40, 40, 50, 60, 70))
        stray = good[:-2] + b"\x5a" * 8 + good[-2:]
        members = [kit.put(arena, sent(*images)) for images in ([stray], [good, stray], [good])]
        assert await case.run(7, *members, size=32) == PicturesDamaged(7, 2)
        assert isinstance(await case.next(), BatchFinished)
        assert np.allclose(answer(case, 0)[0, :3], [50, 60, 70], atol=2)
        assert isinstance(await case.run(8, members[2], size=32), BatchFinished)


async def test_a_fixed_or_stated_size_needs_none_of_the_batch(models, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        jpeg = kit.put(arena, sent(encode_jpeg(one_colour(50, 90, 9, 99, 199))))
        fixed = kit.Case(executor, models.mean(24, 40), arena)
        stated = kit.Case(executor, models.mean(), arena, warmup_shapes={"image": (24, 40, 3)})
        for case in (fixed, stated):
            await case.ready()
            raw = kit.put(arena, one_colour(24, 40, 9, 99, 199)[None])
            assert isinstance(await case.run(1, raw, jpeg), BatchFinished)
            assert np.allclose(answer(case, 0)[0], [9, 99, 199, 24 * 40], rtol=1e-3)
            assert np.allclose(answer(case, 1), answer(case, 0), atol=3)
        own = kit.put(arena, one_colour(10, 12, 1, 2, 3)[None])
        assert isinstance(await stated.run(2, own), BatchFinished)
        assert np.allclose(answer(stated, 0)[0, 3], 120, rtol=1e-3)
        assert isinstance(await fixed.run(2, own), BatchFinished)
        assert np.allclose(answer(fixed, 0)[0, 3], 24 * 40, rtol=1e-3)
        unknown = kit.Case(executor, models.mean("a", "b"), arena)
        await unknown.ready()
        report = await unknown.run(1, jpeg)
        assert report == BatchFailed(1, "input 'image': unlike shapes in one batch")


class Noting:
    """A replica that notes of each batch the shapes of its members' images, and its size."""

    def __init__(self, handle: Any, ran: set[Any]) -> None:
        self._handle = handle
        self._ran = ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def run(self, order: BatchOrder) -> None:
        self._ran |= {(member.tensors[0].shape, order.size) for member in order.members}
        self._handle.run(order)


class Watched(ProcessExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.ran: set[Any] = set()

    def start(self, *args: Any) -> Any:
        return Noting(super().start(*args), self.ran)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (True, {((1,), 64), ((1,), 32)}),
        (False, {((1, 64, 64, 3), 0), ((1, 32, 32, 3), 0)}),
    ],
)
async def test_a_profile_of_images_decodes_and_resizes_them(images, expected, models, kit) -> None:
    executor = Watched()
    shapes = {"warmup_shapes": {"image": (64, 64, 3)}, "more_shapes": ({"image": (32, 32, 3)},)}
    source = kit.source(models.mean(), images=images, max_batch=2, **shapes)
    profile = await measure(executor, source, cores=[available_cores()[:1]], budget_s=0.1)
    assert not profile.guess
    assert executor.ran == expected
    assert {size.signature for size in profile.record.sizes} == {((32, 32, 3),)}
    await executor.close()


def test_images_that_are_made_up_are_as_large_as_photographs() -> None:
    image = made_up_image(200, 300, np.random.default_rng(0))
    bits = 8 * len(encode_jpeg(image)) / (200 * 300)
    assert 0.5 < bits < 3
    assert image.std() > 20


@pytest.mark.parametrize("size", [64, 300])
def test_a_reduced_decoding_is_what_area_means_of_the_whole_are(size: int) -> None:
    image = made_up_image(700, 1300, np.random.default_rng(3))
    jpeg, out = encode_jpeg(image), np.empty((size, size, 3), np.uint8)
    Picture(0, 0, None, jpeg).resize_into(out)
    whole = cv2.cvtColor(cv2.imdecode(np.frombuffer(jpeg, np.uint8), 1), cv2.COLOR_BGR2RGB)
    expected = cv2.resize(whole, (size, size), interpolation=cv2.INTER_AREA)
    assert np.abs(out.astype(int) - expected).mean() < 1.0


@pytest.mark.parametrize("size", [90, 40, 20])
def test_an_image_is_turned_as_its_exif_data_say(size: int) -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[:, :100] = 250
    jpeg, out = encode_jpeg(image), np.empty((size, size, 3), np.uint8)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    Picture(0, 0, None, jpeg[:2] + segment + jpeg[2:]).resize_into(
        out
    )  # a quarter turn: what was left is above
    assert out[: size // 3].min() > 240
    assert out[-(size // 3) :].max() < 10


SIDES = st.integers(1, 96)


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(0, 99))
@example((64, 64), (32, 32), 0)  # means of whole blocks
@example((60, 87), (88, 72), 1)  # it grows and shrinks, and borders lie on pixels
@example((1, 96), (96, 1), 2)
def test_without_opencv_pixels_are_resized_alike(
    before: tuple[int, int], after: tuple[int, int], seed: int
) -> None:
    frame = np.random.default_rng(seed).integers(256, size=(99, 99, 3), dtype=np.uint8)
    image = frame[: before[0], : before[1]]
    with_opencv, with_numpy = np.empty((*after, 3), np.uint8), np.empty((*after, 3), np.uint8)
    resize_into(image, with_opencv)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures_module, "load_opencv", lambda: None)
        resize_into(image, with_numpy)
    assert np.abs(with_numpy.astype(int) - with_opencv).max() <= 1


def test_without_opencv_jpegs_are_decoded_and_resized_alike() -> None:
    jpeg = encode_jpeg(made_up_image(90, 160, np.random.default_rng(3)))
    with_opencv, with_numpy = np.empty((50, 60, 3), np.uint8), np.empty((50, 60, 3), np.uint8)
    Picture(0, 0, None, jpeg).resize_into(with_opencv)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures_module, "load_opencv", lambda: None)
        Picture(0, 0, None, jpeg).resize_into(with_numpy)
    assert np.abs(with_numpy.astype(int) - with_opencv).max() <= 1
