"""Where pictures lie in a model's input, and how stated settings are completed by its file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.preprocessing import (
    Preprocessing,
    Resize,
    StatedPreprocessing,
    as_pictures,
    complete,
    looks_like_pictures,
    rounded_extent,
    stated_resize,
)
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec

SIDES = st.integers(1, 4000)
EXPORTED = {"task": "detect", "stride": "32", "imgsz": "[320, 640]"}


def model(*shape: int, datatype: Datatype = Datatype.FP32) -> ModelInterface:
    return ModelInterface((TensorSpec("x", datatype, shape),), (), 8)


def completed(
    interface: ModelInterface, *sizes: int, metadata: dict[str, str] | None = None, **stated: Any
) -> Preprocessing:
    return complete(StatedPreprocessing("x", **stated), interface, metadata or {}, sizes)


def test_a_file_that_ultralytics_exported_states_its_own_preprocessing() -> None:
    about = completed(model(-1, 3, -1, -1), metadata=EXPORTED)
    assert (about.size, about.resize, about.pad_value) == ((320, 640), Resize.LETTERBOX, 114)
    assert (about.multiple, about.colour, about.factors) == (32, "rgb", (1 / 255,) * 3)


def test_stated_keys_override_preset_and_metadata() -> None:
    about = completed(
        model(-1, 3, -1, -1), metadata=EXPORTED, size=(64, 96), resize="squash", colour="bgr"
    )
    assert (about.size, about.resize, about.colour) == ((64, 96), Resize.SQUASH, "bgr")


def test_a_sample_is_scaled_then_shifted_then_divided() -> None:
    about = completed(model(-1, 3, 8, 8), scale=0.5, mean=(1.0, 2.0, 3.0), std=(2.0,))
    assert about.factors == (0.25,) * 3
    assert about.offsets == (-0.5, -1.0, -1.5)


@pytest.mark.parametrize(
    ("shape", "channels_first", "colour"),
    [
        ((-1, 3, 64, 64), True, "rgb"),
        ((1, 64, 64, 3), False, "rgb"),
        ((-1, 1, 28, 28), True, "grey"),
    ],
)
def test_the_shape_tells_the_layout(
    shape: tuple[int, ...], channels_first: bool, colour: str
) -> None:
    interface = model(*shape)
    about = completed(interface)
    assert (about.channels_first, about.colour) == (channels_first, colour)
    outer = as_pictures(interface, about).inputs[0]
    assert (outer.datatype, outer.shape) == (Datatype.UINT8, (shape[0], *about.size, 3))


@pytest.mark.parametrize(
    ("shape", "stated", "expected"),
    [
        (
            (-1, 3, 64, 64),
            {"mean": (0.0,) * 4},
            "inputs.x.image.mean: .* each of 3 channels, got 4",
        ),
        ((-1, 3, 64, 64), {"size": (32, 32)}, "inputs.x.image.size: .* always 64 × 64"),
        ((-1, 3, 64, 64), {"layout": "hwc"}, "inputs.x.image: expected an input of pictures .hwc"),
        ((-1, 3, 64, 64), {"colour": "grey"}, "inputs.x.image.colour: expected 'rgb' or 'bgr'"),
        ((-1, 1, 64, 64), {"colour": "rgb"}, "inputs.x.image.colour: expected 'grey'"),
        ((-1, 3, -1, -1), {}, "inputs.x.image.size: expected the height and width"),
        ((-1, 3, 64, 64), {"resize": "short_side"}, "image.resize: 'short_side' needs"),
        ((-1, 3, 64, 64), {"resize": "least_side"}, "image.resize: 'least_side' needs"),
        ((-1, 3, -1, -1), {"size": (48, -1)}, "image.size: expected a width, since only"),
        ((-1, 3, 48, 320), {"size": (48, -1), "resize": "height"}, "image.size: .* 48 × 320"),
        ((-1, 3, -1, -1), {"size": (100, 64), "multiple": 32}, "multiples of 32, got 100"),
        ((-1, 128), {}, r"inputs.x.image: expected an input of pictures .*got FP32 \[-1, 128\]"),
        ((-1, 4, 64, 64), {"preset": "imagenet"}, "with 1 or 3 channels"),
        ((-1, 3, 64, 64), {"input": "y"}, "inputs.y: the model has no such input; it has 'x'"),
    ],
)
def test_settings_that_do_not_fit_the_file_are_refused(
    shape: tuple[int, ...], stated: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        complete(StatedPreprocessing(**{"input": "x", **stated}), model(*shape), {}, ())


def test_a_family_decides_the_size_itself() -> None:
    assert completed(model(-1, 3, -1, -1), 128, 256, resize="letterbox").size == (-1, -1)
    with pytest.raises(ValueError, match="multiples of 32, got 100"):
        completed(model(-1, 3, -1, -1), 100, 256, multiple=32)
    for stated in ({"resize": "short_side"}, {"preset": "paddleocr"}):
        with pytest.raises(ValueError, match="_side' is not allowed with 'variants"):
            completed(model(-1, 3, -1, -1), 128, 256, **stated)


def test_paddleocr_keeps_the_height_of_lines_and_the_shape_of_pages() -> None:
    lines = completed(model(-1, 3, 48, 192), preset="paddleocr")
    assert lines.resize is Resize.HEIGHT
    assert lines.place(24, 48, (48, 192)) == (0, 0, 96, 48)
    assert lines.place(24, 480, (48, 192)) == (0, 0, 192, 48)
    sized = completed(model(-1, 3, -1, -1), preset="paddleocr", size=(48, 192))
    assert (sized.resize, sized.size, sized.multiple) == (Resize.HEIGHT, (48, 192), 1)
    pages = completed(model(-1, 3, -1, -1), preset="paddleocr")
    assert pages.extent(1000, 1400) == (992, 1408)  # the nearest multiples of 32
    assert pages.extent(500, 700) == (736, 1024)  # 1,030.4 wide
    assert pages.extent(3000, 2000) == (1984, 1344)
    assert pages.place(500, 700, (800, 1100)) == (0, 0, 1024, 736)


def test_very_long_pages_are_padded_in_their_middle() -> None:
    about = completed(model(-1, 3, -1, -1), preset="paddleocr")
    assert about.extent(50, 400) == (736, 5888)  # 8 : 1 is kept
    assert about.extent(40, 400) == (736, 2944)  # 10 : 1 becomes 4 : 1
    assert about.place(40, 400, (736, 2944)) == (0, 221, 2944, 294)
    assert about.place(20, 400, about.extent(20, 400)) == (0, 294, 2944, 147)
    assert about.place(400, 20, about.extent(400, 20)) == (294, 0, 147, 2944)
    assert about.place(1, 100_000, about.extent(1, 100_000)).height == 1


def test_a_line_may_have_any_width() -> None:
    about = completed(model(-1, 3, -1, -1), preset="paddleocr", size=(48, -1))
    assert (about.resize, about.size, about.typical) == (Resize.HEIGHT, (48, -1), (48, 384))
    assert about.common_extent([(24, 48), (30, 1000)]) == (48, 1600)
    assert as_pictures(model(-1, 3, -1, -1), about).inputs[0].shape == (-1, -1, -1, 3)


def test_imagenet_keeps_the_middle_of_a_picture_of_256_pixels() -> None:
    about = completed(model(-1, 3, 224, 224), preset="imagenet")
    assert about.place(512, 1024, (224, 224)) == (-144, -16, 512, 256)


def test_a_batch_is_as_wide_as_its_longest_line_if_the_model_allows() -> None:
    about = completed(model(-1, 3, 48, -1), preset="paddleocr")
    assert about.common_extent([(24, 48), (30, 100), (1, 4000)]) == (48, 64 * 48)
    assert about.common_extent([(24, 48), (30, 100)]) == (48, 160)


@pytest.mark.parametrize("sides", [(375, 500), (501, 400), (257, 256), (333, 1000)])
def test_the_middle_is_cut_out_as_by_others(sides: tuple[int, int]) -> None:
    """The short side has 256 pixels exactly; what cannot be halved is cut off at the end."""
    about = completed(model(-1, 3, 224, 224), preset="imagenet")
    scale = 256 / min(sides)
    height, width = (round(side * scale) for side in sides)
    expected = (-((width - 224) // 2), -((height - 224) // 2), width, height)
    assert about.place(*sides, (224, 224)) == expected


@given(SIDES, SIDES, st.tuples(st.integers(8, 700), st.integers(8, 700)))
def test_a_letterboxed_picture_touches_two_sides_and_keeps_its_shape(
    height: int, width: int, extent: tuple[int, int]
) -> None:
    about = completed(model(-1, 3, *extent), resize="letterbox")
    left, top, columns, rows = about.place(height, width, extent)
    assert columns == extent[1] or rows == extent[0]
    assert 0 <= left <= extent[1] - columns
    assert 0 <= top <= extent[0] - rows
    assert abs(left - (extent[1] - columns - left)) <= 1
    if min(columns, rows) > 1:
        scale = min(extent[0] / height, extent[1] / width)
        assert abs(columns - width * scale) <= 0.5
        assert abs(rows - height * scale) <= 0.5


@given(SIDES, SIDES, st.sampled_from(["cover", "squash"]), st.sampled_from([1.0, 0.875, 0.5]))
def test_a_covering_picture_leaves_no_pixel_free(
    height: int, width: int, resize: str, crop: float
) -> None:
    about = completed(model(-1, 3, 64, 96), resize=resize, crop=crop)
    left, top, columns, rows = about.place(height, width, (64, 96))
    assert left <= 0 <= left + columns - 96
    assert top <= 0 <= top + rows - 64


@given(SIDES, SIDES)
def test_short_sides_are_multiples_and_bounded(height: int, width: int) -> None:
    about = completed(model(-1, 3, -1, -1), size=(64, 64), resize="short_side", multiple=32)
    rows, columns = about.extent(height, width)
    assert min(rows, columns) >= 64
    assert max(rows, columns) <= 4 * 64
    assert rows % 32 == columns % 32 == 0
    assert about.place(height, width, (512, 512)) == (0, 0, columns, rows)


def test_pictures_are_sorted_by_what_the_settings_tell_of_their_size() -> None:
    lines = stated_resize(StatedPreprocessing("x", preset="paddleocr", size=(48, -1), std=(2.0,)))
    pages = stated_resize(StatedPreprocessing("y", preset="paddleocr"))
    assert lines is not None
    assert pages is not None
    assert rounded_extent(lines, [(24, 100), (10, 60)]) == (54, 304)  # 48 by 288, rounded up
    assert rounded_extent(lines, [(24, 140)]) == rounded_extent(lines, [(24, 150)])
    assert rounded_extent(lines, [(24, 140)]) != rounded_extent(lines, [(24, 190)])
    assert rounded_extent(pages, [(500, 700)]) == (861, 1024)
    fixed = ({"preset": "imagenet"}, {"size": (64, 64)}, {"resize": "short_side"}, {})
    assert [stated_resize(StatedPreprocessing("x", **keys)) for keys in fixed] == [None] * 4


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TensorSpec("x", Datatype.FP32, (-1, 3, 224, 224)), True),
        (TensorSpec("x", Datatype.FP16, (-1, -1, -1, 3)), True),
        (TensorSpec("x", Datatype.UINT8, (-1, 3, -1, -1)), True),
        (TensorSpec("x", Datatype.UINT8, (-1, -1, -1, 3)), False),
        (TensorSpec("x", Datatype.FP32, (-1, 512)), False),
        (TensorSpec("x", Datatype.INT64, (-1, 3, 64, 64)), False),
        (TensorSpec("x", Datatype.FP32, (2, -1, 128, 3)), True),
        (TensorSpec("x", Datatype.FP32, (-1, 3, 4, 4)), False),
    ],
)
def test_inputs_that_look_like_pictures_are_recognised(spec: TensorSpec, expected: bool) -> None:
    assert looks_like_pictures(spec) == expected
