"""`DecodeSettings`: the section `decode` of a slacktide.yaml, which turns raw outputs into answers.

decode: softmax                                        short for {as: softmax}
decode: {as: yolo, from: output0, confidence: 0.25, iou: 0.45, max_detections: 100}
decode: {as: ssd, from: [loc, conf], strides: [8, 16], anchors: [[16, 32], [64, [128, 64]]]}
decode: {as: my_function, gives: {map: {datatype: FP32, shape: [-1, 64]}}}
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from slacktide.domain.options import OptionError
from slacktide.domain.suggestions import shown, suggestion
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.ports import DecodeSource, FunctionSource
from slacktide.models.plugins import glue_names, glue_target
from slacktide.models.repository.fields import Section
from slacktide.models.repository.function import FunctionTensor, TensorName

_BOX_KEYS: Final = ("version", "confidence", "iou", "max_detections", "per_class", "classes")
_CLASS_KEYS: Final = ("top", "probabilities")
_ANCHOR_KEYS: Final = ("anchors", "strides", "variance", "probabilities")
_LINE_KEYS: Final = ("confidence", "max_detections", "threshold", "unclip", "dilate")
_KEYS: Final = {
    "yolo": _BOX_KEYS,
    "ssd": (*_ANCHOR_KEYS, *_BOX_KEYS[1:]),
    "softmax": _CLASS_KEYS,
    "sigmoid": _CLASS_KEYS,
    "db": _LINE_KEYS,
    "ctc": ("blank",),
}
"""Keys of the built-in decoders, besides `as` and `from`."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


def _pair(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (value, value) if number else value


_Side = Annotated[float, Field(gt=0, le=65_536)]
_Anchor = Annotated[tuple[_Side, _Side], BeforeValidator(_pair), Field(strict=False)]
_Anchors = Annotated[tuple[_Anchor, ...], Field(strict=False, min_length=1, max_length=64)]
_Variance = Annotated[float, Field(gt=0, le=10)]


class DecodeSettings(Section):
    """Decoder of the model's outputs, run in the worker. A name is short for `decode.as`."""

    name: str = Field(alias="as")
    """`yolo`, `ssd`, `softmax`, `sigmoid`, `db`, `ctc`, or the name that
    [`serve --glue`](extending.md) or an entry point gave a function of your own."""
    outputs: Annotated[
        tuple[TensorName, ...],
        BeforeValidator(_listed),
        Field(strict=False, alias="from", max_length=64),
    ] = ()
    """The model's output to decode; a function may take a list. `ssd` needs two: the boxes, and
    their scores. Default: the output whose shape fits; for a function, all."""
    version: Literal["v5", "v8"] | None = None
    """`yolo`: the kind of head, `v5` [rows, anchors, 5 + classes] (also of version 7) or `v8`
    [rows, 4 + classes, anchors] (also of 9, 11 and 12). Needed only if both fit the shape."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.25
    """`yolo`, `ssd`, `db`: lowest score of a box."""
    iou: Annotated[float, Field(ge=0, le=1)] = 0.45
    """`yolo`, `ssd`: if two boxes overlap by more than this share of their union, the better one
    stays."""
    max_detections: Annotated[int, Field(ge=1, le=4096)] = 100
    """`yolo`, `ssd`, `db`: number of boxes in an answer, best first; places without a box have a
    score of 0."""
    per_class: bool = True
    """`yolo`, `ssd`: whether only boxes of the same class suppress each other."""
    classes: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...],
        BeforeValidator(_listed),
        Field(strict=False, max_length=1024),
    ] = ()
    """`yolo`, `ssd`: numbers of the classes to return. Default: all."""
    top: Annotated[int, Field(ge=1, le=4096)] = 5
    """`softmax`, `sigmoid`: number of classes in an answer, best first."""
    probabilities: bool = False
    """`softmax`, `sigmoid`, `ssd`: true if the output already holds probabilities, not logits."""
    strides: Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(strict=False, max_length=16)
    ] = ()
    """`ssd`: pixels between the cells of each grid."""
    anchors: Annotated[tuple[_Anchors, ...], Field(strict=False, max_length=16)] = ()
    """`ssd`: for each grid, the sizes of a cell's boxes in pixels, in the model's order: the side
    of a square, or [width, height]."""
    variance: Annotated[tuple[_Variance, _Variance], Field(strict=False)] = (0.1, 0.2)
    """`ssd`: factors of a box's offset and of its size."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """`db`: lowest probability of a pixel of text."""
    unclip: Annotated[float, Field(gt=0, le=10)] = 1.6
    """`db`: how much lines grow, relative to area ÷ perimeter."""
    dilate: bool = True
    """`db`: whether text first grows by a pixel, which closes small gaps."""
    blank: Literal["first", "last"] = "first"
    """`ctc`: the class that stands for no character."""
    gives: Annotated[dict[TensorName, FunctionTensor], Field(max_length=64)] = {}  # noqa: RUF012  (pydantic copies it)
    """For a function: its results."""

    @model_validator(mode="after")
    def _fits_its_decoder(self) -> DecodeSettings:
        keys = _KEYS.get(self.name, ("gives",))
        stated = self.model_fields_set - {"name", "outputs", *keys}
        if stated:
            raise OptionError((min(stated), f"not allowed with 'as: {self.name}'"))
        if self.name == "ssd":
            if len(self.outputs) != 2:
                expected = "expected the outputs of boxes and of scores, such as [loc, conf]"
                raise OptionError(("from", f"{expected}, got {shown(list(self.outputs))}"))
            if not self.anchors or len(self.anchors) != len(self.strides):
                counts = f"{len(self.strides)} and {len(self.anchors)}"
                raise OptionError(("anchors", f"expected a list for each of strides, got {counts}"))
        if self.name in _KEYS:
            if len(self.outputs) > 1 and self.name != "ssd":
                raise OptionError(("from", f"expected one output for {self.name!r}"))
            return self
        try:
            glue_target(self.name)
        except OptionError:
            hint = suggestion(self.name, [*_KEYS, *glue_names()])
            expected = f"expected {', '.join(_KEYS)} or the name of a glue function"
            raise OptionError(("as", f"{expected}, got {self.name!r}; {hint}")) from None
        if not self.gives:
            raise OptionError(("gives", "expected the results of the function"))
        return self

    @property
    def spells(self) -> bool:
        """Whether labels are characters."""
        return self.name == "ctc"

    @property
    def source(self) -> DecodeSource:
        """The settings, for workers."""
        function = None
        if self.name not in _KEYS:
            results = tuple(
                TensorSpec(name, Datatype[spec.datatype], spec.shape)
                for name, spec in self.gives.items()
            )
            interface = ModelInterface((), results, 0).to_dict()
            function = FunctionSource(glue_target(self.name), interface)
        return DecodeSource(**self.model_dump(exclude={"gives"}), function=function)
