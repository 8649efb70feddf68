"""`Decoder`, the contract of all decoders, and `make_decoder`, which chooses one by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.executors.decoders.classes import ClassDecoder
from slacktide.executors.decoders.function import FunctionDecoder
from slacktide.executors.decoders.heads import Arrays, Extent, Placements, extent_of, head_of
from slacktide.executors.decoders.lines import LineDecoder
from slacktide.executors.decoders.ssd import SsdDecoder
from slacktide.executors.decoders.text import TextDecoder
from slacktide.executors.decoders.yolo import YoloDecoder
from slacktide.executors.ports import DecodeSource


class Decoder(Protocol):
    """Turns the outputs of a batch into answers."""

    outputs: tuple[TensorSpec, ...]
    """Outputs for clients, instead of the model's."""

    @property
    def reads(self) -> Sequence[int]:
        """Indices of the model's outputs that `decode` needs."""
        ...

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """An array for each of `outputs`, with the rows of the batch along axis 0.

        `arrays`: the model's outputs, in the file's order. `placements` [rows, 4]: left, top, width
        and height of each client's picture, in pixels of the model's input. `extent`: height and
        width of that input in pixels; (0, 0) if the model takes no pictures. Raises ModelError if
        the arrays have a shape that the decoder cannot read.
        """
        ...


def make_decoder(
    source: DecodeSource, model: ModelInterface, labels: Sequence[str] = ()
) -> Decoder:
    """The decoder for a model, as its file declares it. Raises ModelError, naming the key, if it
    does not fit the model or the labels."""
    outputs, count = model.outputs, len(labels) or None
    if source.function is not None:
        return FunctionDecoder(source, outputs)
    if source.name == "yolo":
        extent = extent_of(spec.shape for spec in model.inputs)
        return YoloDecoder(source, *head_of(source, outputs, rank=3), count, extent)
    if source.name == "ssd":
        return SsdDecoder(source, outputs, count, extent_of(spec.shape for spec in model.inputs))
    if source.name == "db":
        return LineDecoder(source, *head_of(source, outputs, rank=4))
    if source.name == "ctc":
        return TextDecoder(source, *head_of(source, outputs, rank=3), labels)
    return ClassDecoder(source, *head_of(source, outputs, rank=2), count)
