"""Crops: rows of a model's image input that are cut out of frames.

Each frame is stored once, in an arena that the workers of all stages of a pipeline map. A member of
a batch names its frame and boxes. Each crop is resized for the model. If only the width is free,
crops keep their aspect ratio and are padded on the right, like members of unequal length. A JPEG is
decoded once for all crops of a batch; a whole frame is decoded like the JPEG of any request.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import QUAD_BYTES, Glue, crop_extent, crop_width
from slacktide.domain.padding import Padding
from slacktide.domain.preprocessing import PicturePlacement, Preprocessing
from slacktide.domain.tensors import Datatype, ModelInterface, crop_input
from slacktide.executors.functions import load_function
from slacktide.executors.hand_over.tensor_io import InputGatherer, TensorError
from slacktide.executors.image_placing import Picture, rectified
from slacktide.executors.images import ImageGatherer
from slacktide.executors.jpeg_decoder import decode
from slacktide.executors.jpeg_elements import element_picture, jpeg_elements
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.pictures import Pixels
from slacktide.executors.ports import CropPayload, MemberFault, Payload, RowShapes, TensorRef

_PATIENCE = 5.0
"""Seconds that a batch waits for its arena, which was sent before it on another socket."""
_NO_JPEG = "expected a JPEG as the frame"
_MOST_GLUED = 64 << 20
"""Maximum bytes that a glue function may return for one crop."""
_MOST_KEPT = 64 << 20
"""Maximum bytes of pixels of a frame that is kept for the next batch."""
_ALONE = 64
"""Side of the crops of a batch without a valid box, if the model fixes no size."""


class FrameArena(NamedTuple):
    """A frame arena and the glue for crops from it."""

    arena: memoryview
    glue: Glue
    function: Callable[..., Any] | None
    import_error: str = ""
    """Why the glue function could not be imported."""

    def arguments(self, member: CropPayload) -> list[list[Any]]:
        """Arguments of the glue function after the crop, for each row of a member. Raises
        TensorError."""
        columns: list[list[Any]] = []
        datatypes = self.glue.datatypes
        if len(member.values) != len(datatypes):
            raise TensorError(f"{len(member.values)} values, expected {len(datatypes)}")
        for data, datatype in zip(member.values, datatypes, strict=True):
            rows = np.frombuffer(data, Datatype[datatype].dtype).reshape(member.rows, -1)
            columns.append([row[0] if len(row) == 1 else row for row in rows])
        return [list(row) for row in zip(*columns, strict=True)] or [[]] * member.rows


class FrameArenas:
    """The frame arenas of one replica. Arenas and batches arrive on different threads."""

    def __init__(self) -> None:
        self.by_number: dict[int, FrameArena] = {}
        self._changed = threading.Condition()

    def attach(self, number: int, arena: memoryview, glue: Glue) -> None:
        """Add an arena, and import the glue function, which the server's owner named."""
        function, import_error = None, ""
        if glue.function:
            try:
                cores = len(os.sched_getaffinity(0))
                function = load_function(glue.function, "glue function", cores)
            except (ModelError, MemoryError) as error:
                import_error = str(error) or "out of memory"
        with self._changed:
            self.by_number[number] = FrameArena(arena, glue, function, import_error)
            self._changed.notify_all()

    def detach(self, number: int) -> None:
        with self._changed:
            self.by_number.pop(number, None)

    def get(self, number: int) -> FrameArena:
        """Wait for the arena and return it. Raises TensorError if it does not arrive."""
        with self._changed:
            if not self._changed.wait_for(lambda: number in self.by_number, _PATIENCE):
                raise TensorError(f"frame arena {number} is not attached")
            return self.by_number[number]


class CropError(Exception):
    """A member cannot be turned into rows."""


class GlueError(CropError):
    """A glue function is at fault."""


class _Frame:
    """One frame, decoded when the first crop needs it."""

    def __init__(self, data: memoryview, shape: tuple[int, ...]) -> None:
        """Check the frame. Raises TensorError, or ValueError if the data are no JPEG."""
        self.jpeg: memoryview | bytes | None = None
        self._pixels: Pixels | None = None
        if len(shape) == 4:
            if shape[0] != 1 or shape[3] != 3 or len(data) != np.prod(shape):
                raise TensorError("the size of a frame does not match its shape")
            self._pixels = np.frombuffer(data, np.uint8).reshape(shape[1:])
            self.height, self.width = shape[1:3]
        else:
            picture = Picture.of(element_picture(next(jpeg_elements(data), b"")))
            self.height, self.width, self._pixels, self.jpeg = picture

    @property
    def pixels(self) -> Pixels:
        """The decoded frame. Raises ValueError if it cannot be decoded."""
        if self._pixels is None:
            assert self.jpeg is not None
            self._pixels = decode(self.jpeg)
        return self._pixels


class _Gathered(NamedTuple):
    """Rows of a member without crops."""

    rows: NDArray[Any]
    placements: list[PicturePlacement]


class CropGatherer:
    """Makes the image input of batches with crops among their members."""

    def __init__(
        self,
        frames: FrameArenas,
        interface: ModelInterface,
        gatherers: Sequence[Any],
        padding: Padding | None,
        stated: RowShapes,
        preprocessing: Preprocessing | None = None,
        whole: str = "",
    ) -> None:
        """`gatherers`: gather members without crops, by input. `stated`: configured row shapes.
        `preprocessing`: that of the image input, if declared. `whole`: the input that takes whole
        frames instead of crops."""
        self.frames = frames
        self.placements: list[PicturePlacement] = []
        """Where the picture lies in each row of the last batch."""
        names = [spec.name for spec in interface.inputs]
        index = names.index(whole) if whole else crop_input(interface)
        self._spec = None if index is None else interface.inputs[index]
        if index is None or self._spec is None:
            return
        self.index = index
        """Index of the input that is made from frames."""
        self._whole = bool(whole)
        self._plain = gatherers[index]
        self._buffer = InputGatherer(self._spec)
        padded = padding.inputs.get(self._spec.name) if padding else None
        self._fill = 0 if padded is None else int(padded.value)
        if preprocessing is not None:
            self._fill = preprocessing.pad_value
        self._preprocessing = preprocessing
        size = (0, 0) if preprocessing is None else preprocessing.size
        self._any_width = size[1] < 0 < size[0]
        self._last: tuple[bytes, _Frame] | None = None
        """The last encoded frame, for crops of any width."""
        self._default = stated.get(self._spec.name)

    def gather(
        self, members: Sequence[Payload], arena: memoryview, size: int
    ) -> tuple[NDArray[Any], list[Payload], dict[int, MemberFault]]:
        """Join the images. Returns the array, valid until the next call; the members with their
        new shapes; and the faults of members, whose rows are black. Whole frames are the elements
        of an array of objects. Raises TensorError."""
        if self._spec is None:
            raise TensorError("the model has no image input for crops")
        if self._whole:
            return self._frames(members)
        faults: dict[int, MemberFault] = {}
        cache: dict[tuple[int, TensorRef], _Frame] = {}
        pieces: list[list[Picture] | _Gathered | None] = []
        for place, member in enumerate(members):
            try:
                if isinstance(member, CropPayload):
                    pieces.append(self._cut(member, cache))
                else:
                    pieces.append(self._gathered(member, arena, size))
            except CropError as error:
                message = f"input {self._spec.name!r}: {error}"
                faults[place] = MemberFault(message, isinstance(error, GlueError))
                pieces.append(None)
        height, width = self._extent(pieces, size)
        rows = [member.rows for member in members]
        room = self._buffer.room(sum(rows) * height * width * 3)
        joined = room.reshape(sum(rows), height, width, 3)
        new_members: list[Payload] = []
        self.placements = []
        end = 0
        for place, (count, parts) in enumerate(zip(rows, pieces, strict=True)):
            start, end = end, end + count
            into, longest = joined[start:end], 1
            try:
                longest = self._place(parts, into)
            except ValueError as error:  # a JPEG that is damaged within
                into.fill(0)
                message = f"input {self._spec.name!r}: {_NO_JPEG}, got {error}"
                faults[place] = MemberFault(message)
            missing = end - len(self.placements)
            self.placements += [PicturePlacement(0, 0, longest, height)] * missing
            tensors = list(members[len(new_members)].tensors)
            tensors[self.index] = TensorRef(0, 0, (count, height, longest, 3))
            new_members.append(Payload(count, tuple(tensors)))
        return joined, new_members, faults

    def _frames(
        self, members: Sequence[Payload]
    ) -> tuple[NDArray[Any], list[Payload], dict[int, MemberFault]]:
        """The whole frame of each row, as `gather` returns rows."""
        assert self._spec is not None
        faults: dict[int, MemberFault] = {}
        cache: dict[tuple[int, TensorRef], _Frame] = {}
        pictures: list[Pixels] = []
        for place, member in enumerate(members):
            pixels = np.zeros((1, 1, 3), np.uint8)
            try:
                if not isinstance(member, CropPayload):
                    raise TensorError("frames of a pipeline cannot share a batch with others")
                pixels = self._frame(member, cache)[1].pixels
            except (CropError, ValueError) as error:
                faults[place] = MemberFault(f"input {self._spec.name!r}: {error}")
            pictures += [pixels] * member.rows
        joined = np.empty(len(pictures), object)
        joined[:] = pictures
        return joined, list(members), faults

    def _place(self, parts: list[Picture] | _Gathered | None, into: NDArray[np.uint8]) -> int:
        """Fill a member's rows. Returns the width of the widest row."""
        if parts is None:
            into.fill(0)
            return 1
        if isinstance(parts, _Gathered):
            down, across = parts.rows.shape[1:3]
            if (down, across) != into.shape[1:3]:
                into.fill(self._fill)
            into[:, :down, :across] = parts.rows
            self.placements += parts.placements
            return int(across)
        for piece, row in zip(parts, into, strict=True):
            if self._preprocessing is not None and not self._keeps_shape:
                self.placements.append(piece.place_into(row, self._preprocessing))
                continue
            across = piece.width if self._keeps_shape else row.shape[1]
            piece.resize_into(row[:, :across])
            row[:, across:] = self._fill
            self.placements.append(PicturePlacement(0, 0, across, row.shape[0]))
        return max(piece.width for piece in parts) if self._keeps_shape else into.shape[2]

    @property
    def _keeps_shape(self) -> bool:
        """Whether crops keep their aspect ratio, because only the width is free."""
        return self._spec is not None and self._spec.shape[1] > 0 > self._spec.shape[2]

    def _extent(
        self, pieces: Sequence[list[Picture] | _Gathered | None], size: int
    ) -> tuple[int, int]:
        """Height and width of the batch's rows."""
        assert self._spec is not None
        fixed = self._spec.shape[1:3]
        if size:
            return size, size
        if min(fixed) > 0:
            return fixed[0], fixed[1]
        shapes = set()
        for parts in pieces:
            if isinstance(parts, _Gathered):
                shapes.add(parts.rows.shape[1:3])
            elif parts is not None:
                shapes |= {(piece.height, piece.width) for piece in parts}
        if self._keeps_shape:
            return fixed[0], max((width for _, width in shapes), default=fixed[0])
        if self._preprocessing is not None:
            return self._preprocessing.common_extent(list(shapes))
        if self._default is not None:
            return self._default[0], self._default[1]
        if len(shapes) > 1:
            raise TensorError(f"input {self._spec.name!r}: different shapes in one batch")
        return shapes.pop() if shapes else (_ALONE, _ALONE)

    def _gathered(self, member: Payload, arena: memoryview, size: int) -> _Gathered:
        """A copy of the rows of a member without crops. Raises CropError."""
        plain = self._plain
        if isinstance(plain, ImageGatherer):
            plain.size = size
        rows: NDArray[Any] = plain.gather([member.tensors[self.index]], arena).copy()
        if not isinstance(plain, ImageGatherer):
            return _Gathered(rows, [])
        if plain.faults:
            raise CropError(plain.faults[0].detail.partition(": ")[2])
        return _Gathered(rows, plain.placements)

    def _cut(
        self, member: CropPayload, cache: dict[tuple[int, TensorRef], _Frame]
    ) -> list[Picture]:
        """Cut a member's rows out of its frame. Raises CropError."""
        arena, frame = self._frame(member, cache)
        if arena.import_error:
            raise GlueError(arena.import_error)
        quads = len(member.boxes) == QUAD_BYTES * member.rows
        boxes = np.frombuffer(member.boxes, np.float32).reshape(-1, *((4, 2) if quads else (4,)))
        if len(boxes) != member.rows:
            raise TensorError(f"{len(boxes)} boxes for {member.rows} rows")
        arguments = arena.arguments(member)
        piece = self._rectified if quads else self._piece
        try:
            return [piece(frame, arena, at, box, arguments[at]) for at, box in enumerate(boxes)]
        except ValueError as error:
            raise CropError(f"{_NO_JPEG}, got {error}") from None

    def _opened(self, data: memoryview, shape: tuple[int, ...]) -> _Frame:
        """A frame; the last frame again if its data are the same, because crops of different widths
        come in several batches. Raises TensorError and ValueError."""
        if len(shape) == 4 or not (self._any_width or self._keeps_shape):
            return _Frame(data, shape)
        content = bytes(data)
        if self._last is None or self._last[0] != content:
            self._last = None  # two would take more memory
            frame = _Frame(memoryview(content), shape)
            if 3 * frame.width * frame.height > _MOST_KEPT:
                return frame
            self._last = content, frame
        return self._last[1]

    def _frame(
        self, member: CropPayload, cache: dict[tuple[int, TensorRef], _Frame]
    ) -> tuple[FrameArena, _Frame]:
        """A member's frame. Raises CropError."""
        arena = self.frames.get(member.arena_number)
        tensor = member.tensors[self.index]
        if (frame := cache.get((member.arena_number, tensor))) is None:
            data = arena.arena[tensor.offset : tensor.offset + tensor.nbytes]
            if len(data) != tensor.nbytes:
                raise TensorError("a frame lies outside its arena")
            try:
                frame = self._opened(data, tensor.shape)
            except ValueError as error:
                raise CropError(f"{_NO_JPEG}, got {error}") from None
            cache[member.arena_number, tensor] = frame
        return arena, frame

    def _piece(
        self,
        frame: _Frame,
        arena: FrameArena,
        at: int,
        box: NDArray[np.float32],
        arguments: Sequence[Any] = (),
    ) -> Picture:
        assert self._spec is not None
        x0, y0, x1, y1 = box.tolist()
        pixels = None
        if frame.jpeg is None or arena.function or max(x0, y0, 1 - x1, 1 - y1) > 0:
            pixels = frame.pixels
        extent = crop_extent(box, frame.width, frame.height, arena.glue.margin)
        if extent is None:
            raise CropError(f"box {at} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) lies outside its frame")
        left, top, right, bottom = extent
        if pixels is not None:
            pixels = pixels[top:bottom, left:right]
            if arena.function is not None:
                pixels = _apply_glue(arena.function, pixels.copy(), arguments)
                extent = (0, 0, pixels.shape[1], pixels.shape[0])
        height, width = extent[3] - extent[1], extent[2] - extent[0]
        return self._sized(height, width, pixels, frame.jpeg, arena.glue)

    def _rectified(
        self,
        frame: _Frame,
        arena: FrameArena,
        at: int,
        quad: NDArray[np.float32],
        arguments: Sequence[Any] = (),
    ) -> Picture:
        """The crop of a quad; black if the quad has no area."""
        pixels = rectified(frame.pixels, quad, arena.glue.margin)
        if arena.function is not None:
            pixels = _apply_glue(arena.function, pixels, arguments)
        return self._sized(pixels.shape[0], pixels.shape[1], pixels, None, arena.glue)

    def _sized(
        self, height: int, width: int, pixels: Pixels | None, jpeg: Any, glue: Glue
    ) -> Picture:
        """A crop with its final size. If only the width is free, the height is that of the model's
        rows."""
        assert self._spec is not None
        if self._keeps_shape:
            extent = (0, 0, width, height)
            height = self._spec.shape[1]
            width = crop_width(extent, height, glue.max_aspect)
        elif self._any_width and glue.max_aspect is not None:
            width = min(width, max(1, math.ceil(glue.max_aspect * height)))
        return Picture(height, width, pixels, jpeg)


def _apply_glue(function: Callable[..., Any], crop: Pixels, arguments: Sequence[Any]) -> Pixels:
    """Call a glue function on a crop and the values that belong to it. Raises GlueError."""
    try:
        glued = function(crop, *arguments)
    except BaseException as error:  # foreign code, which may call sys.exit
        raise GlueError(f"its glue function raised {type(error).__name__}: {error}") from None
    description = type(glued).__name__
    if isinstance(glued, np.ndarray):
        pixels = glued.dtype == np.uint8 and glued.ndim == 3 and glued.shape[2] == 3
        if pixels and 0 < glued.size <= _MOST_GLUED:
            return glued
        description = f"{glued.dtype} {list(glued.shape)}"
    raise GlueError(f"its glue function returned {description}, expected uint8 [h, w, 3]")
