"""`ImageSettings`: the section `inputs.NAME.image` of a slacktide.yaml. It declares that an input
takes pictures.

image: ultralytics                                  a named set of values
image: {size: 640, resize: letterbox, pad_value: 114}
image: {preset: imagenet, size: 384, crop: 1}       a set, and what differs from it
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from slacktide.domain.preprocessing import ANY, PRESETS, StatedPreprocessing
from slacktide.domain.suggestions import suggestion
from slacktide.models.repository.fields import Section


def short_image(value: Any) -> Any:
    """A name is short for a section that states `preset`."""
    return {"preset": value} if isinstance(value, str) else value


def _preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r:.100}; {suggestion(name, PRESETS)}")
    return name


def _scale(value: Any) -> Any:
    """A number, or a fraction as text: `1/255`."""
    if isinstance(value, str):
        above, slash, below = value.partition("/")
        try:
            value = float(above) / float(below) if slash else float(above)
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"expected a number or a fraction such as 1/255, got {value!r:.100}"
            ) from None
    return float(value) if type(value) is int else value


def _sides(value: Any) -> Any:
    return (value, value) if type(value) is int else value


AnyWidth = Literal["any"]


def _per_channel(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    return tuple(float(number) if type(number) is int else number for number in numbers)


Channels = Annotated[
    tuple[float, ...], BeforeValidator(_per_channel), Field(min_length=1, max_length=4)
]
MOST_SIDE = 8192
"""Largest side, in pixels."""
Side = Annotated[int, Field(ge=1, le=MOST_SIDE)]


class ImageSettings(Section):
    """How pictures become this input. Clients send JPEG, or pixels of any size as uint8 [rows,
    height, width, 3]. A name is short for `preset`."""

    preset: Annotated[str, BeforeValidator(_preset)] | None = None
    """Values of keys that are not stated: `ultralytics`, `imagenet`, `paddleocr`, `mobilenet` or
    `caffe`. Default: what the exporter wrote into the file's metadata, if anything."""
    size: (
        Annotated[tuple[Side, Side | AnyWidth], BeforeValidator(_sides), Field(strict=False)] | None
    ) = None
    """Height and width of the model's input in pixels: a number, `[height, width]` or, with
    `resize: height`, `[height, any]`. Default: the model's fixed axes, `imgsz` in its metadata, or
    the sizes of its family."""
    layout: Literal["chw", "hwc"] | None = None
    """Order of the model's axes, `chw` or `hwc`. Its shape decides by default."""
    colour: Literal["rgb", "bgr", "grey"] | None = None
    """Channels of the model: `rgb`, `bgr` or `grey`. Default: `grey` for one, otherwise `rgb`."""
    scale: Annotated[float, BeforeValidator(_scale), Field(gt=0)] | None = None
    """Factor for each sample, a number or a fraction: 1/255 by default, 1 if the model takes
    UINT8. A sample becomes (sample × scale − mean) / std."""
    mean: Channels | None = None
    """Subtracted after scaling: a number, or one for each channel in the model's order; 0 by
    default."""
    std: Channels | None = None
    """Divisor after the subtraction, like `mean`; 1 by default."""
    resize: Literal["squash", "letterbox", "cover", "short_side", "least_side", "height"] | None = (
        None
    )
    """How a picture is fitted: `squash` (default) scales both sides to the model's. `letterbox`
    keeps its shape and pads. `cover` keeps its shape and cuts off the excess. `short_side` scales
    the short side to `size`, and the model takes any length. `least_side` enlarges a picture whose
    short side is below `size`, and shrinks one whose long side exceeds 2,000 pixels; very long
    pictures are padded. `height` scales the height, keeps the shape up to the model's width, and
    pads on the right."""
    crop: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the resized picture's sides that the model sees, around the centre: 0.875 resizes to
    256 for a model of 224."""
    anchor: Literal["centre", "top_left"] | None = None
    """Where a padded picture lies: `centre` (default) or `top_left`."""
    pad_value: Annotated[int, Field(ge=0, le=255)] | None = None
    """Sample of the padding, before scaling; 114 by default."""
    multiple: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Height and width must be multiples of this, the network's stride; 1 by default."""
    interpolation: Literal["area", "linear", "cubic", "lanczos"] | None = None
    """How pixels are resized. `area` (default) averages the pixels that a new one covers, as Pillow
    does. `linear`, `cubic` and `lanczos` are OpenCV's, which skip pixels when a picture shrinks a
    lot; the last two need `slacktide[images]`."""

    def stated(self, name: str) -> StatedPreprocessing:
        """Return the settings of the input `name` as the worker reads them."""
        size = self.size
        if size is not None:
            size = (size[0], ANY if size[1] == "any" else size[1])
        stated = {**self.model_dump(), "preset": self.preset or "", "size": size}
        return StatedPreprocessing(name, **stated)


Image = Annotated[
    ImageSettings,
    BeforeValidator(short_image),
    PlainSerializer(lambda image: image.model_dump(exclude_none=True), when_used="json"),
]
