"""`Preprocessing`: how pictures of any size become an image input of a model.

To everything outside its worker, a model with preprocessing takes uint8 [rows, height, width, 3].
Pure: the worker resizes and converts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec

_LONGEST = 4
"""Largest ratio of a picture's sides under `short_side`; longer pictures are squeezed."""
_LONGEST_LINE = 64
"""Largest ratio of width and height under `height` if the model leaves the width free."""
_WIDEST, _HIGHEST = 8, 16
"""Largest ratios of width to height and of height to width under `least_side`. Longer pictures are
padded to 4 : 1."""
_MOST_SIDE = 2000
"""Maximum pixels of the long side under `least_side`, before a too short side is scaled up."""
ANY = -1
"""A width in `size` that each batch decides."""
_STEPS = 4
"""Number of steps in which a side doubles when pictures are grouped by extent."""
_LEAST_SIDE = 8
"""Smallest height or width, in pixels, of an input that looks like pictures."""


class Resize(Enum):
    """How a picture is fitted to the model's input."""

    SQUASH = "squash"
    """Height and width are each scaled to the input's; the aspect ratio may change."""
    LETTERBOX = "letterbox"
    """The whole picture is scaled to fit, and the rest is padded."""
    COVER = "cover"
    """The picture is scaled to cover the input, and what exceeds it is cut off."""
    SHORT_SIDE = "short_side"
    """The short side is scaled to the stated size, and the long side with it."""
    LEAST_SIDE = "least_side"
    """If the short side is below the stated size, it is scaled to that size, and the long side with
    it. Larger pictures keep their size up to a long side of 2,000 pixels. Both sides are rounded to
    multiples (`multiple`)."""
    HEIGHT = "height"
    """The picture gets the height of the input and, in proportion, at most its width; the rest is
    padded. Text recognisers are trained this way."""


@dataclass(frozen=True, slots=True)
class StatedPreprocessing:
    """The settings of an image input. None: the model's file or the default decides."""

    input: str
    """Name of the model's input; empty: its only one."""
    preset: str = ""
    """Key of `PRESETS`, which provides values that are not stated."""
    size: tuple[int, int] | None = None
    """Height and width of the model's input in pixels; `ANY`: each batch has its own width."""
    layout: str | None = None
    """`chw` or `hwc`."""
    colour: str | None = None
    """`rgb`, `bgr` or `grey`."""
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """A sample becomes (sample × scale − mean) / std; one number for all channels or one for each.
    """
    resize: str | None = None
    crop: float | None = None
    """Share of each side of the resized picture that is kept, around its centre."""
    anchor: str | None = None
    """`centre` or `top_left`: where a padded picture lies."""
    pad_value: int | None = None
    multiple: int | None = None
    """Height and width of the model's input are multiples of this."""
    interpolation: str | None = None
    """`area`, or how OpenCV resizes: `linear`, `cubic` or `lanczos`."""

    @property
    def keeps_shape(self) -> bool:
        """Whether pictures keep their aspect ratio under these settings, or may do so depending on
        the file's metadata."""
        return self._resize not in ("squash", "")

    @property
    def short_side(self) -> float:
        """Short side below which a picture loses detail, as a multiple of the model's size; 0: a
        long side of the model's size is enough."""
        if self._resize == "cover":
            preset = PRESETS[self.preset].crop if self.preset else None
            return 1.0 / (self.crop or preset or 1.0)
        return 1.0 if self._resize in ("short_side", "height") else 0.0

    @property
    def _resize(self) -> str:
        """How pictures are fitted; `letterbox` if only the file's metadata may state it."""
        if self.resize is not None or not self.preset:
            return self.resize or "letterbox"
        return PRESETS[self.preset].resize or ("height" if self.preset == "paddleocr" else "squash")


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DEFAULTS = StatedPreprocessing(
    "",
    "",
    None,
    None,
    None,
    1 / 255,
    (0.0,),
    (1.0,),
    "squash",
    1.0,
    "centre",
    114,
    1,
    "area",
)
PRESETS = {
    "ultralytics": StatedPreprocessing("", resize="letterbox"),
    "imagenet": StatedPreprocessing(
        "", mean=_IMAGENET_MEAN, std=_IMAGENET_STD, resize="cover", crop=0.875
    ),
    "paddleocr": StatedPreprocessing(
        "",
        colour="bgr",
        mean=(0.5,),
        std=(0.5,),
        anchor="top_left",
        pad_value=127,
        interpolation="linear",
    ),
    "mobilenet": StatedPreprocessing("", scale=1 / 127.5, mean=(1.0,), resize="cover", crop=0.875),
    "caffe": StatedPreprocessing(
        "", colour="bgr", scale=1.0, mean=(104.0, 117.0, 123.0), crop=0.875
    ),
}
"""Preprocessing that families of models were trained with. `paddleocr` is `least_side` (multiples
of 32) if the model leaves both sides free and `size` is square or unset; else it is `height`."""

_PAGES = StatedPreprocessing("", resize="least_side", multiple=32, size=(736, 736), pad_value=0)
"""Values of `paddleocr` that differ for pages."""


class PicturePlacement(NamedTuple):
    """The rectangle of the model's input, in pixels, that a whole picture covers."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The complete preprocessing of one image input."""

    input: str
    size: tuple[int, int]
    """Height and width of the model's input; −1: each batch has its own."""
    channels_first: bool
    colour: str
    factors: tuple[float, ...]
    """A sample becomes sample × factor + offset, by channel of the model."""
    offsets: tuple[float, ...]
    resize: Resize
    crop: float
    centred: bool
    pad_value: int
    multiple: int
    short_side: int
    """Length of the short side under `Resize.SHORT_SIDE` and `LEAST_SIDE`."""
    interpolation: str

    @property
    def typical(self) -> tuple[int, int] | None:
        """Height and width of a typical picture after resizing; None if the model's size is fixed,
        or depends on a family."""
        if self.short_side:
            return self.short_side, self.short_side
        rows, columns = self.size
        return (rows, _WIDEST * rows) if columns < 0 < rows else None

    def extent(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which a picture is resized if the batch decides the model's size."""
        if self.resize is Resize.HEIGHT and self.size[0] > 0:
            rows = self.size[0]
            return rows, min(
                _LONGEST_LINE * rows, max(_LEAST_SIDE, math.ceil(width * rows / height))
            )
        if self.resize is Resize.LEAST_SIDE:
            return self._least_side(height, width)[0]
        if self.resize is not Resize.SHORT_SIDE:
            return height, width
        scale = self.short_side / min(height, width)
        most = _LONGEST * self.short_side
        sides = (min(most, max(1, round(side * scale))) for side in (height, width))
        rows, columns = (-(-side // self.multiple) * self.multiple for side in sides)
        return rows, columns

    def _least_side(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width under `LEAST_SIDE`, with and without padding."""
        sides = [height, width]
        if width > _WIDEST * height or height > _HIGHEST * width:
            least = 2 * (max(sides) // _WIDEST)
            sides = [side + max(0, least - side) // 2 * 2 for side in sides]
        scale = max(min(1.0, _MOST_SIDE / max(sides)), self.short_side / min(sides))
        rows, columns = (
            max(1, round(int(side * scale) / self.multiple)) * self.multiple for side in sides
        )
        shown = round(rows * height / sides[0]), round(columns * width / sides[1])
        return (rows, columns), (max(1, shown[0]), max(1, shown[1]))

    def common_extent(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Height and width of a batch with pictures of these sizes."""
        extents = [self.extent(height, width) for height, width in sizes] or [(_LEAST_SIDE,) * 2]
        return max(rows for rows, _ in extents), max(columns for _, columns in extents)

    def place(self, height: int, width: int, extent: tuple[int, int]) -> PicturePlacement:
        """Where a picture of `height` × `width` lies in an input of `extent`, in whole pixels."""
        rows, columns = extent
        if self.resize is Resize.LEAST_SIDE:
            full_extent, shown = self._least_side(height, width)
            left, top = (full_extent[1] - shown[1]) // 2, (full_extent[0] - shown[0]) // 2
            return PicturePlacement(left, top, shown[1], shown[0])
        if self.resize is Resize.SHORT_SIDE:
            rows, columns = self.extent(height, width)
            return PicturePlacement(0, 0, min(columns, extent[1]), min(rows, extent[0]))
        if self.resize is Resize.HEIGHT:
            columns = min(columns, max(1, math.ceil(width * rows / height)))
        rows, columns = round(rows / self.crop), round(columns / self.crop)
        if self.resize in (Resize.LETTERBOX, Resize.COVER):
            least = self.resize is Resize.LETTERBOX
            scale = (min if least else max)(rows / height, columns / width)
            rows, columns = max(1, round(height * scale)), max(1, round(width * scale))
        left, top = extent[1] - columns, extent[0] - rows
        if not self.centred and min(left, top) >= 0:
            return PicturePlacement(0, 0, columns, rows)
        # An odd pixel is padded, or cut off, at the right and at the bottom.
        return PicturePlacement(math.trunc(left / 2), math.trunc(top / 2), columns, rows)


def complete(
    stated: StatedPreprocessing,
    interface: ModelInterface,
    metadata: dict[str, str],
    sizes: Sequence[int],
) -> Preprocessing:
    """Return the complete preprocessing for a model. `metadata` is that of the model's file;
    `sizes` are the sides of a family's variants. Raises ValueError, which names the key."""
    field = _field(stated)
    spec, layout = _image_input(stated, interface)
    first = layout == "chw"
    channels = spec.shape[1 if first else 3]
    axes = spec.shape[2:] if first else spec.shape[1:3]
    preset = _preset(stated, metadata, axes, spec)
    defaults = replace(_DEFAULTS, colour="grey" if channels == 1 else "rgb")
    stated = _merged(_merged(stated, preset), defaults)
    assert stated.scale is not None
    assert stated.resize is not None
    assert stated.crop is not None
    assert stated.colour is not None
    if (stated.colour == "grey") != (channels == 1):
        expected = "'grey'" if channels == 1 else "'rgb' or 'bgr'"
        raise ValueError(
            f"{field}.colour: expected {expected} for {channels} channels, got {stated.colour!r}"
        )
    means, stds = (
        _by_channel(f"{field}.{key}", getattr(stated, key), channels) for key in ("mean", "std")
    )
    resize = Resize(stated.resize)
    size, short_side = _size(stated, field, axes, metadata, sizes, resize)
    return Preprocessing(
        spec.name,
        size,
        first,
        stated.colour,
        tuple(stated.scale / std for std in stds),
        tuple(-mean / std for mean, std in zip(means, stds, strict=True)),
        resize,
        stated.crop,
        stated.anchor == "centre",
        stated.pad_value or 0,
        stated.multiple or 1,
        short_side,
        stated.interpolation or "area",
    )


def _image_input(stated: StatedPreprocessing, interface: ModelInterface) -> tuple[TensorSpec, str]:
    """The declared input and its layout. Raises ValueError."""
    spec = next((spec for spec in interface.inputs if spec.name == stated.input), None)
    if not stated.input and len(interface.inputs) == 1:
        spec = interface.inputs[0]
    if spec is None:
        names = ", ".join(repr(spec.name) for spec in interface.inputs)
        if not stated.input:
            raise ValueError(f"image: expected a model with one input, it has {names}")
        raise ValueError(f"inputs.{stated.input}: the model has no such input; it has {names}")
    layout = _layout(stated.layout, spec)
    if layout is None:
        expected = f"{stated.layout or 'chw or hwc'} with 1 or 3 channels"
        shape = f"{spec.datatype.wire_name} {list(spec.shape)}"
        raise ValueError(
            f"{_field(stated)}: expected an input of pictures ({expected}), got {shape}"
        )
    return spec, layout


def _field(stated: StatedPreprocessing) -> str:
    """The key of these settings, for messages."""
    return f"inputs.{stated.input}.image" if stated.input else "image"


def _layout(stated: str | None, spec: TensorSpec) -> str | None:
    """The layout of an input that can take pictures; None if it cannot."""
    shape = spec.shape
    if len(shape) != 4 or not (spec.datatype.is_float or spec.datatype is Datatype.UINT8):
        return None
    fitting = [
        layout
        for layout, channels, sides in (("chw", shape[1], shape[2:]), ("hwc", shape[3], shape[1:3]))
        if channels in (1, 3) and all(side < 0 or side >= _LEAST_SIDE for side in sides)
    ]
    if stated is None:
        return fitting[0] if fitting else None
    return stated if stated in fitting else None


def looks_like_pictures(spec: TensorSpec) -> bool:
    """Whether an input seems to take pictures, but as floats or channels first, which clients do
    not send."""
    layout = _layout(None, spec)
    return layout is not None and (layout == "chw" or spec.datatype.is_float)


def preset_for(metadata: dict[str, str]) -> str:
    """The preset that fits a file's metadata; empty if no preset does."""
    return "ultralytics" if {"stride", "task", "imgsz"} <= metadata.keys() else ""


def _preset(
    stated: StatedPreprocessing, metadata: dict[str, str], axes: Sequence[int], spec: TensorSpec
) -> StatedPreprocessing:
    name = stated.preset or preset_for(metadata)
    if not name:
        plain = 1.0 if spec.datatype is Datatype.UINT8 else 1 / 255
        return StatedPreprocessing("", scale=plain)
    preset = PRESETS[name]
    if name == "paddleocr":
        if max(axes) < 0 and (stated.size is None or stated.size[0] == stated.size[1]):
            return _merged(_PAGES, preset)
        preset = replace(preset, resize="height", multiple=1)
    if name == "ultralytics":
        stride = metadata.get("stride", "32")
        multiple = int(stride) if stride.isdecimal() and 0 < int(stride) <= 1024 else 32
        preset = replace(preset, multiple=multiple)
    return preset


def _merged(stated: StatedPreprocessing, defaults: StatedPreprocessing) -> StatedPreprocessing:
    missing = {
        field.name: getattr(defaults, field.name)
        for field in fields(StatedPreprocessing)
        if getattr(stated, field.name) is None
    }
    return replace(stated, **missing)


def _by_channel(field: str, numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    if len(numbers) not in (1, channels):
        expected = f"one number, or one for each of {channels} channels"
        raise ValueError(f"{field}: expected {expected}, got {len(numbers)}")
    return numbers * (channels // len(numbers))


def _size(
    stated: StatedPreprocessing,
    field: str,
    axes: Sequence[int],
    metadata: dict[str, str],
    sizes: Sequence[int],
    resize: Resize,
) -> tuple[tuple[int, int], int]:
    """Height and width of the model's input, −1 where batches decide; and the short side."""
    by_side = resize in (Resize.SHORT_SIDE, Resize.LEAST_SIDE)
    if stated.size is not None:
        _check_size(stated.size, field, axes, resize)
    if by_side and (sizes or min(axes) > 0):
        problem = "needs a model with free height and width"
        problem = "is not allowed with 'variants.sizes'" if sizes else problem
        raise ValueError(f"{field}.resize: {resize.value!r} {problem}")
    if min(axes) > 0:
        return (axes[0], axes[1]), 0
    size, multiple = stated.size, stated.multiple or 1
    wrong = [side for side in (*sizes, *(size or ())) if side > 0 and side % multiple]
    if wrong:
        raise ValueError(
            f"{field}: expected sizes that are multiples of {multiple}, got {wrong[0]}"
        )
    if sizes:
        return (-1, -1), 0
    size = size or _stated_by_file(metadata.get("imgsz", ""))
    if size is None:
        if resize is Resize.HEIGHT and axes[0] > 0:
            return (axes[0], ANY), 0
        raise ValueError(
            f"{field}.size: expected the height and width to resize to, since the model leaves "
            "them free"
        )
    return ((-1, -1), min(size)) if by_side else (size, 0)


def _check_size(size: tuple[int, int], field: str, axes: Sequence[int], resize: Resize) -> None:
    """Raise ValueError unless the stated size fits the model's axes."""
    if any(axis not in (-1, side) for axis, side in zip(axes, size, strict=True)):
        raise ValueError(f"{field}.size: the model's pictures are always {axes[0]} × {axes[1]}")
    if ANY in size and resize is not Resize.HEIGHT:
        raise ValueError(f"{field}.size: expected a width, since only 'resize: height' takes any")


def _stated_by_file(imgsz: str) -> tuple[int, int] | None:
    """Height and width in metadata such as `[640, 640]`."""
    numbers = [int(part) for part in imgsz.strip("[] ").split(",") if part.strip().isdecimal()]
    fits = len(numbers) == 2 and all(_LEAST_SIDE <= number <= 8192 for number in numbers)
    return (numbers[0], numbers[1]) if fits else None


@lru_cache(maxsize=256)
def stated_resize(stated: StatedPreprocessing) -> Preprocessing | None:
    """Return how these settings resize pictures of any size, if batches decide the model's size;
    None if the settings do not say. Only the sizes in the result are meaningful."""
    interface = ModelInterface((TensorSpec("", Datatype.FP32, (-1, 3, -1, -1)),), (), 1)
    keys = ("preset", "size", "resize", "multiple")
    stated = StatedPreprocessing("", **{key: getattr(stated, key) for key in keys})
    try:
        about = complete(stated, interface, {}, ())
    except ValueError:
        return None
    return about if about.typical else None


def rounded_extent(about: Preprocessing, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the extent of pictures of these sizes, rounded up to a few values. Only pictures with
    equal results share a batch, so little of a batch is padding."""
    rows, columns = (
        round(
            _LEAST_SIDE * 2 ** (math.ceil(_STEPS * math.log2(max(1, side / _LEAST_SIDE))) / _STEPS)
        )
        for side in about.common_extent(sizes)
    )
    return rows, columns


def as_pictures(interface: ModelInterface, preprocessing: Preprocessing) -> ModelInterface:
    """Return a file's interface as clients see it: the image input takes uint8 pictures."""
    size = preprocessing.size if min(preprocessing.size) > 0 else (-1, -1)
    inputs = tuple(
        replace(spec, datatype=Datatype.UINT8, shape=(spec.shape[0], *size, 3))
        if spec.name == preprocessing.input
        else spec
        for spec in interface.inputs
    )
    return replace(interface, inputs=inputs)
