"""`FramePayloads`: the inputs of one frame's stages: crops of the frame, or rows of outputs.

The payload of a frame is in one slot. Stages that take crops get that slot and boxes. Outputs that
go to another stage are written into its arena as soon as they exist. Everything written for a frame
is freed with it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from slacktide.domain import Reason, Signature
from slacktide.domain.crops import QUAD_BYTES, crop_aspects, part_ends
from slacktide.domain.frames import Feed, PreparePayload, Yield, YieldPart
from slacktide.domain.pipelines import CROP, Edge
from slacktide.domain.tensors import Datatype, TensorSpec, fits
from slacktide.executors.hand_over.arena import ALIGNMENT, Arena, Slot
from slacktide.executors.hand_over.tensor_io import split_elements
from slacktide.executors.jpeg_elements import element_header, jpeg_elements
from slacktide.executors.ports import CropPayload, OutputTensor, Payload, TensorRef
from slacktide.models.calls.input_check import LEFT_OUT, CheckedInputs
from slacktide.models.pipeline_version import PipelineVersion
from slacktide.models.versions import LoadedVersion
from slacktide.server.stage_outputs import (
    Chosen,
    StageArrays,
    chained,
    chosen_boxes,
    chosen_crops,
    chosen_rows,
    look_like_pixels,
    rows_of,
)
from slacktide.wire.calls import Buffer, InputTensor
from slacktide.wire.errors import WireError

log = logging.getLogger("slacktide.models")

_PIXEL_FRAMES = 20
"""Number of frames, all with boxes that look like pixels, after which the log warns."""


class UpstreamRequest(Protocol):
    """A stage's request with a result."""

    id: int
    rows: int
    feeds: tuple[Feed, ...]


Offsets = dict[str, list[int]]
"""Offsets at which rows of BYTES tensors begin, and their ends, by name of the tensor."""


class HandedOn:
    """Rows or boxes that one request handed on along one edge."""

    __slots__ = ("chosen", "offsets", "tensors", "values")

    def __init__(self, chosen: Chosen, tensors: dict[str, TensorRef] | None = None) -> None:
        self.chosen = chosen
        self.tensors = tensors or {}
        """Tensors in the downstream stage's arena, by input; empty for crops."""
        self.values: dict[str, bytes] = {}
        """Arguments of the downstream stage's crop function, by name: a value for each row."""
        self.offsets: Offsets = {}


class FramePayloads:
    """Payloads of one frame's stages, until the frame is freed."""

    __slots__ = ("_extent", "_slots", "handed", "version")

    def __init__(self, version: PipelineVersion) -> None:
        self.version = version
        self.handed: dict[tuple[int, int], HandedOn] = {}
        """Rows or boxes handed on, by number of the edge and id of the request."""
        self._slots: list[tuple[Arena, Slot]] = []
        self._extent: tuple[int, int] | None = None

    def free(self) -> None:
        """Free everything written for the frame."""
        slots, self._slots = self._slots, []
        for arena, slot in slots:
            arena.free(slot)

    # ── outputs of a stage ───────────────────────────────────────────────────────────────────

    def hand_on(
        self,
        edge: Edge,
        child: UpstreamRequest,
        outputs: Sequence[OutputTensor | None],
        frame: Payload | None,
    ) -> Yield:
        """Hand on outputs of a `child` along an edge. `frame`: the frame's payload. Raises
        MemoryLimitExceeded, and WireError or ValueError if the outputs do not fit."""
        number = self.version.numbers[edge.upstream, edge.downstream]
        request = child.id
        rows = row_count(self.version.stages[edge.upstream], outputs, child.rows)
        if edge.each == CROP:
            chosen = self._crops_of(child)
            handed = HandedOn(chosen_crops(edge, self._arrays(edge.upstream, outputs), chosen))
            handed_yield, handed = self._boxes(number, edge, handed, frame)
        elif edge.each:
            # Several stages often get the same boxes.
            chosen_before = self.handed.get((self.version.first_alike[number], request))
            if chosen_before is None:
                arrays = self._arrays(edge.upstream, outputs)
                chosen_before = HandedOn(chosen_boxes(edge, arrays)._replace(request=request))
                if self.version.pixel_frames.get(number, 0) is not None:
                    self._warn_of_pixels(number, edge, arrays)
            handed_yield, handed = self._boxes(number, edge, chosen_before, frame)
        else:
            version = self.version.stages[edge.downstream]
            arrays = self._arrays(edge.upstream, outputs)
            handed_yield, handed = self._rows(version, edge, arrays, rows)
        self.handed[number, request] = handed
        return handed_yield

    def _warn_of_pixels(self, number: int, edge: Edge, arrays: StageArrays) -> None:
        """Warn once if boxes are in pixels frame after frame: no crop can be cut with them."""
        boxes, frames = arrays.get(edge.quads or edge.boxes), self.version.pixel_frames
        if boxes is None:
            return
        boxes = boxes.reshape(*boxes.shape[: 2 if edge.quads else -1], -1)
        if (pixels := look_like_pixels(boxes)) is None:
            return
        frames[number] = (frames.get(number) or 0) + 1 if pixels else None
        if frames[number] == _PIXEL_FRAMES:
            frames[number] = None
            log.warning(
                "pipeline %s: boxes of %s look like pixels, such as %s; expected fractions of the "
                "frame, 0 to 1. Have the model divide x by the width and y by the height of its "
                "input; until then %s gets no crops",
                self.version.name,
                edge.upstream,
                boxes.reshape(-1, boxes.shape[-1])[0].round().tolist(),
                edge.downstream,
            )

    def _crops_of(self, child: UpstreamRequest) -> Chosen:
        """Return the crops that a request of a stage was made of."""
        edges = self.version.pipeline.edges
        parts = [
            self.handed[feed.edge, feed.request].chosen.of(range(feed.first, feed.end))
            for feed in child.feeds
            if feed.edge is not None and edges[feed.edge].each
        ]
        return parts[0] if len(parts) == 1 else chained(parts)

    def _boxes(
        self, number: int, edge: Edge, handed: HandedOn, frame: Payload | None
    ) -> tuple[Yield, HandedOn]:
        """Return the `Yield` for these boxes, and the boxes themselves. They are sorted by aspect
        ratio if a stage that gets them takes crops of any width."""
        chosen, rows = handed.chosen, len(handed.chosen.rows)
        if not rows:
            return Yield(0), handed
        check = self.version.stages[edge.downstream].check
        glue = self.version.pipeline.by_name[edge.downstream].glue
        if self._extent is None:
            self._extent = self._size_of(self._frame(frame))
        size = len(chosen.boxes) // rows
        quads = size == QUAD_BYTES
        if not self.version.sorts[number]:
            boxes = chosen.boxes[: size * check.most_rows]
            checked = check.crops(boxes, *self._extent, glue, quads=quads)
            return Yield(rows, checked.signature, checked.work_hint), handed
        aspects = crop_aspects(chosen.boxes, rows, *self._extent)
        order = np.argsort(-aspects, kind="stable").tolist()
        handed = HandedOn(chosen := chosen.of(order))
        ends = part_ends(aspects[order].tolist()) if check.takes_any_width else [rows]
        parts = []
        for first, end in pairwise((0, *ends)):
            # The widest come first.
            boxes = chosen.boxes[size * first : size * min(end, first + check.most_rows)]
            checked = check.crops(boxes, *self._extent, glue, quads=quads)
            parts.append(YieldPart(end - first, checked.signature, checked.work_hint))
        several = tuple(parts) if len(parts) > 1 else ()
        return Yield(rows, parts[0].signature, parts[0].work_hint, parts=several), handed

    def _rows(
        self, version: LoadedVersion, edge: Edge, arrays: StageArrays, rows: int
    ) -> tuple[Yield, HandedOn]:
        chosen = chosen_rows(edge, arrays, rows)
        count = len(chosen.rows)
        if not count:
            return Yield(0), HandedOn(chosen)
        cut = self.version.cut_inputs.get(edge.downstream)
        arguments = self.version.pipeline.by_name[edge.downstream].glue.takes
        names = [spec.name for spec in version.interface.inputs if spec.name != cut]
        names += arguments
        inputs, values = [], {}
        for output, name in edge.tensors or zip(names, names, strict=True):
            if (output_tensor := arrays.tensor(output)) is not None:
                spec, tensor = output_tensor
                shape, data = rows_of(spec, tensor, chosen.rows)
                if name in arguments:
                    values[name] = bytes(data)
                else:
                    inputs.append(InputTensor(name, spec.datatype, shape, data))
        if len(self.version.pipeline.into[edge.downstream]) == 1:
            checked = _checked(version, inputs, count)
            signature, hint = checked.signature, checked.work_hint
            masks = [tensor for tensor in checked.tensors if tensor.data is LEFT_OUT]
        else:
            signature, hint, masks = _checked_alone(version, inputs), None, []
        slot = self._slot(version, sum(_aligned_size(tensor.data) for tensor in inputs))
        at, tensors = slot.offset, {}
        for row_tensor in inputs:
            version.arena.write(at, row_tensor.data)
            tensors[row_tensor.name] = TensorRef(at, len(row_tensor.data), row_tensor.shape)
            at += _aligned_size(row_tensor.data)
        for row_tensor in masks:
            tensors[row_tensor.name] = TensorRef(0, 0, (count, *row_tensor.shape[1:]))
        handed = HandedOn(chosen, tensors)
        handed.values = values
        return Yield(count, signature, hint), handed

    def _arrays(self, stage: str, outputs: Sequence[OutputTensor | None]) -> StageArrays:
        version = self.version.stages[stage]
        return StageArrays(version.interface.outputs, version.check.output_places, outputs)

    # ── inputs of a stage ────────────────────────────────────────────────────────────────────

    def payload(self, command: PreparePayload, frame: Payload | None) -> Payload:
        """Return the payload of a stage's request. `frame`: the frame's payload. Raises
        MemoryLimitExceeded."""
        rows, feeds = command.request.rows, command.feeds
        first = feeds[0]
        if first.edge is None:
            assert frame is not None
            specs = self.version.front.interface.inputs
            return rows_of_payload(specs, self.version.arena, frame, first.first, first.end)
        if len(feeds) == 1:
            chosen = self.handed[first.edge, first.request].chosen
            if chosen.boxes:  # crops alone, the usual case
                number = self.version.arena_numbers[command.stage]
                crops = _rows_of_bytes(chosen.boxes, len(chosen.rows), first)
                return CropPayload(rows, (self._frame(frame),), number, crops)
        fed = [
            (self.handed[feed.edge, feed.request], feed) for feed in feeds if feed.edge is not None
        ]
        stage, cut = self.version.stages[command.stage], self.version.cut_inputs.get(command.stage)
        tensors = []
        for spec in stage.interface.inputs:
            if spec.name == cut:
                tensors.append(self._frame(frame))
                continue
            parts = [
                _part(
                    *(spec, stage.arena, handed.tensors[spec.name], feed.first, feed.end),
                    handed.offsets,
                )
                for handed, feed in fed
                if spec.name in handed.tensors
            ]
            tensors.append(parts[0] if len(parts) == 1 else self._joined(stage, parts))
        if cut is None:
            return Payload(rows, tuple(tensors))
        boxes = [
            _rows_of_bytes(handed.chosen.boxes, len(handed.chosen.rows), feed)
            for handed, feed in fed
            if not handed.tensors
        ]
        values = [
            b"".join(
                [
                    _rows_of_bytes(handed.values[argument], len(handed.chosen.rows), feed)
                    for handed, feed in fed
                    if argument in handed.values
                ]
            )
            for argument in self.version.pipeline.by_name[command.stage].glue.takes
        ]
        number = self.version.arena_numbers[command.stage]
        return CropPayload(rows, tuple(tensors), number, b"".join(boxes), tuple(values))

    def _joined(self, stage: LoadedVersion, parts: Sequence[TensorRef]) -> TensorRef:
        """Write rows of several requests as one tensor."""
        slot = self._slot(stage, sum(part.nbytes for part in parts))
        at = slot.offset
        for part in parts:
            stage.arena.write(at, stage.arena.view(Slot(part.offset, part.nbytes)))
            at += part.nbytes
        rows = sum(part.shape[0] for part in parts)
        return TensorRef(slot.offset, slot.nbytes, (rows, *parts[0].shape[1:]))

    def _slot(self, version: LoadedVersion, nbytes: int) -> Slot:
        slot = version.arena.allocate(nbytes)
        self._slots.append((version.arena, slot))
        return slot

    def _frame(self, frame: Payload | None) -> TensorRef:
        """Return the frame's picture. Raises ValueError if it has none."""
        index = self.version.picture
        if index is None or frame is None:
            raise ValueError("the frame has no image to cut crops from")
        return frame.tensors[index]

    def _size_of(self, frame: TensorRef) -> tuple[int, int]:
        """Return height and width in pixels."""
        if len(frame.shape) == 4:
            return frame.shape[1], frame.shape[2]
        view = self.version.arena.view(Slot(frame.offset, frame.nbytes))
        header = element_header(next(jpeg_elements(view)))
        return header.height, header.width


def row_count(
    version: LoadedVersion, outputs: Sequence[OutputTensor | None] | None, rows: int
) -> int:
    """Return the number of rows in outputs of a request of `rows` rows."""
    expands = outputs and version.definition.settings.expands
    return outputs[-1][0][0] if expands and outputs and outputs[-1] is not None else rows


def _rows_of_bytes(data: bytes, rows: int, feed: Feed) -> bytes:
    size = len(data) // rows
    return data[size * feed.first : size * feed.end]


def no_payload(version: LoadedVersion, rows: int) -> Payload:
    """Return the placeholder payload of a withdrawn request whose input could not be made."""
    shapes = [(rows, *(max(1, n) for n in spec.shape[1:])) for spec in version.interface.inputs]
    return Payload(rows, tuple([TensorRef(0, 0, shape) for shape in shapes]))


def _checked(version: LoadedVersion, inputs: Sequence[InputTensor], rows: int) -> CheckedInputs:
    """Check all inputs of a stage in parts of as many rows as it takes at a time, and return the
    first part. Raises WireError if they do not fit."""
    most, offsets = version.check.most_rows, Offsets()
    cuts = [
        [_cut(tensor, first, min(rows, first + most), offsets) for tensor in inputs]
        for first in range(0, rows, most)
    ]
    checked = [version.check.of_rows.check(cut) for cut in cuts]
    return checked[0]


def _checked_alone(version: LoadedVersion, inputs: Sequence[InputTensor]) -> Signature:
    """Check the inputs that a join gets from one upstream, and return their signature."""
    specs = {spec.name: spec for spec in version.interface.inputs}
    for tensor in inputs:
        if not fits(tensor.shape, specs[tensor.name].shape):
            shapes = f"{list(specs[tensor.name].shape)}, got {list(tensor.shape)}"
            raise WireError(Reason.BAD_INPUT, f"input {tensor.name!r} shape: expected {shapes}")
    return tuple([tensor.shape[1:] for tensor in inputs])


def _aligned_size(data: Buffer) -> int:
    return -(-len(data) // ALIGNMENT) * ALIGNMENT


def rows_of_payload(
    specs: Sequence[TensorSpec], arena: Arena, payload: Payload, first: int, end: int
) -> Payload:
    """Return rows `first` to `end` of a payload, as parts of its tensors. `specs`: its inputs."""
    if end - first == payload.rows:
        return payload
    tensors = zip(specs, payload.tensors, strict=True)
    return Payload(
        end - first, tuple([_part(spec, arena, ref, first, end) for spec, ref in tensors])
    )


def _part(
    spec: TensorSpec,
    arena: Arena,
    ref: TensorRef,
    first: int,
    end: int,
    offsets: Offsets | None = None,
) -> TensorRef:
    """Return rows of an input's tensor. A tensor with fewer axes than `spec` holds encoded
    images."""
    rows = end - first
    if rows == ref.shape[0]:
        return ref
    low, high = first * ref.nbytes // ref.shape[0], end * ref.nbytes // ref.shape[0]
    if spec.datatype is Datatype.BYTES or len(ref.shape) < len(spec.shape):
        offsets = {} if offsets is None else offsets
        if spec.name not in offsets:
            view = arena.view(Slot(ref.offset, ref.nbytes))
            offsets[spec.name] = _row_offsets(view, ref.shape)
        low, high = offsets[spec.name][first], offsets[spec.name][end]
    return TensorRef(ref.offset + low, high - low, (rows, *ref.shape[1:]))


def _cut(tensor: InputTensor, first: int, end: int, offsets: Offsets) -> InputTensor:
    """Return rows of a tensor that is not in an arena."""
    rows, data = tensor.shape[0], memoryview(tensor.data)
    if end - first == rows:
        return tensor
    if tensor.datatype is Datatype.BYTES:
        if tensor.name not in offsets:
            offsets[tensor.name] = _row_offsets(data, tensor.shape)
        low, high = offsets[tensor.name][first], offsets[tensor.name][end]
    else:
        low, high = first * len(data) // rows, end * len(data) // rows
    return replace(tensor, shape=(end - first, *tensor.shape[1:]), data=data[low:high])


def _row_offsets(data: memoryview, shape: Sequence[int]) -> list[int]:
    """Return the offsets at which rows of a BYTES tensor begin, and its end."""
    ends = np.cumsum([0, *(4 + len(element) for element in split_elements(data))])
    offsets: list[int] = ends[np.arange(shape[0] + 1) * int(np.prod(shape[1:]))].tolist()
    return offsets
