"""`SyntheticRows`: rows with which a model is warmed up and timed before its first request.

An input's content is a configured constant (`values`), sample rows (`samples`), or else random. Its
shape is the configured one, or that of its samples. Other free axes are 1 here, unless a
row of another size is known to run (`row_candidates`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import pad_element
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, fits, image_input
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.images import made_up_image
from slacktide.executors.jpeg_decoder import decodes_jpeg
from slacktide.executors.pictures import encode_jpeg, load_opencv
from slacktide.executors.ports import Constant, ModelSource, Payload, RowShapes, TensorRef
from slacktide.executors.sample_rows import read_archive, read_row

_WORDS = ("slack", "tide", "ebb", "flow")
_MOST_ROWS = 16
_MOST_BYTES = 64 << 20
MOST_ROW_BYTES = 1 << 30
_ELEMENT_BYTES = 64
"""Approximate size of a BYTES element as a Python object."""


class SyntheticRows:
    """Makes rows for a model, as its source configures them."""

    def __init__(self, interface: ModelInterface, source: ModelSource) -> None:
        """Reads the samples. Raises ValueError, which names the key, if the configuration does not
        fit: an impossible shape or value, an input with both a value and samples, samples of
        another type or shape, or a row of more than a gibibyte."""
        self._interface = interface
        self._source = source
        padding = None if source.padding is None else source.padding.fitting(interface)
        self._padded = {} if padding is None else padding.inputs
        self._typical_length = None if padding is None else padding.typical
        index = image_input(interface) if source.images else None
        self._image = None if index is None else interface.inputs[index]
        self._stated = {
            spec.name: self._merged(spec, source.warmup_shapes[spec.name])
            for spec in interface.inputs
            if spec.name in source.warmup_shapes
        }
        self._tokens = {} if source.tokens is None else source.tokens.ranges
        self._values = {
            spec.name: _element(spec, source.values[spec.name])
            for spec in interface.inputs
            if spec.name in source.values
        }
        self._samples = self._read()
        self.shapes()
        for further_shapes in source.more_shapes:
            for spec in interface.inputs:
                if spec.name in further_shapes:
                    self._fitting(spec, further_shapes[spec.name], "shapes")
            self.shapes(further_shapes)

    @property
    def sample_count(self) -> int:
        """Number of sample rows; 0 if there are none."""
        return max(map(len, self._samples.values()), default=0)

    def open_axes(self) -> dict[str, tuple[int, ...]]:
        """Axes of a row of each input; −1: free in the model and not configured."""
        axes = {spec.name: self._axes(spec) for spec in self._interface.inputs}
        if length := self._stated_length() or self._typical_length:
            self._lengthen(axes, length)
        return axes

    def _lengthen(self, shapes: dict[str, tuple[int, ...]], length: int) -> None:
        for name, pad in self._padded.items():
            shapes[name] = (*shapes[name][: pad.axis - 1], length, *shapes[name][pad.axis :])

    def _stated_length(self, over: RowShapes | None = None) -> int | None:
        named = {**self._stated, **(over or {})}
        sizes = (named[name][pad.axis - 1] for name, pad in self._padded.items() if name in named)
        return next((size for size in sizes if size > 0), None)

    def shapes(
        self, over: RowShapes | None = None, length: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Shape of each input without the batch axis; `over` replaces configured shapes by input.

        All padded axes get `length`, or else the configured length of one of them, or the typical
        one. Raises ValueError if a row is empty or exceeds a gibibyte.
        """
        over = over or {}
        shapes = {}
        for spec in self._interface.inputs:
            axes = over.get(spec.name, self._axes(spec))
            shapes[spec.name] = tuple(1 if axis < 0 else axis for axis in axes)
        self._lengthen(shapes, length or self._stated_length(over) or self._typical_length or 1)
        sizes = {spec.name: row_bytes(spec, shapes[spec.name]) for spec in self._interface.inputs}
        always_empty = {spec.name for spec in self._interface.inputs if 0 in spec.shape}
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            row = f"input {name!r}: a row of shape {list(shapes[name])}"
            if sum(sizes.values()) > MOST_ROW_BYTES:
                problem = f"takes {sizes[name]} bytes, above {MOST_ROW_BYTES} with all inputs"
                raise ValueError(f"{row} {problem}")
            if not sizes[name] and (name not in always_empty or not any(sizes.values())):
                raise ValueError(f"{row} is empty")
        return shapes

    def arrays(
        self, shapes: RowShapes, rows: int, generator: np.random.Generator, *, first: int = 0
    ) -> dict[str, NDArray[Any]]:
        """Rows of each input, [rows, *shape]. Samples are used in turn, beginning with number
        `first`; inputs of another shape than their samples are random."""
        return {
            spec.name: self._content(spec, (rows, *shapes[spec.name]), generator, first)
            for spec in self._interface.inputs
        }

    def assumptions(self, shapes: RowShapes, guess: str = "") -> list[str]:
        """Assumptions behind rows of these `shapes`: a sentence for each input concerned, with the
        key to configure. If no row runs, for the reason `guess`: a single sentence."""
        fixed = self._values.keys() | self._samples.keys()
        axes = self.open_axes()
        free = {name: [i for i, size in enumerate(dims) if size < 0] for name, dims in axes.items()}
        specs = self._interface.inputs
        single = {s.name for s in specs if s.shape == () or axes[s.name] == s.shape == (1,)} - fixed
        if guess:
            open_ended = [s.name for s in specs if -1 in self._interface.row_axes(s)]
            keys = [f"inputs.{name}.shape" for name in open_ended]  # even if one is configured
            picky = single | {s.name for s in specs if not s.datatype.is_float} - fixed
            keys += [f"inputs.{name}.value" for name in free if name in picky]
            keys = [*keys[:6], "samples"]
            stated = self._stated and not any(free.values())
            row = "the stated row does not run" if stated else "no generated row runs"
            return [
                f"{row} ({guess}): until run times are known, requests are served one "
                f"at a time; state inputs that run as {' or '.join(keys)}"
            ]
        sentences = []
        for spec in specs:
            name = spec.name
            if free[name]:
                lead = len(spec.shape) - len(axes[name])
                listed = ", ".join(str(axis + lead) for axis in free[name])
                sentences.append(
                    f"input {name!r} is {list(spec.shape)} (free axes: {listed}): rows of "
                    f"{list(shapes[name])} run and are assumed; state a typical shape as "
                    f"inputs.{name}.shape"
                )
            elif name in single and len(axes) > 1:
                sentences.append(
                    f"input {name!r} is a single number, and random values are assumed; "
                    f"state a typical value as inputs.{name}.value"
                )
        function = self._source.function or self._source.before
        made_up = [spec.name for spec in specs if spec.name not in fixed and -1 in spec.shape[1:]]
        if function is not None and made_up:
            sentences.append(
                f"the function {function.name!r} is timed with random content, which may take far "
                f"more or less time than real content; state real rows as samples, or a value as "
                f"inputs.{made_up[0]}.value"
            )
        return sentences

    def image_size(self, shapes: RowShapes) -> int:
        """Side of the square to which images of these `shapes` are resized; 0: none."""
        image = self._image
        if image is None or image.shape[1] > 0:
            return 0
        height, width = shapes[image.name][:2]
        return height if height == width else 0

    def _jpeg_input(self, shapes: RowShapes) -> str | None:
        image = self._image
        if image is None or not (image.shape[1] > 0 or self.image_size(shapes)):
            return None
        return image.name if decodes_jpeg() and load_opencv() is not None else None

    def payloads(
        self, shapes: RowShapes, arena: Arena, *, generator: np.random.Generator
    ) -> list[Payload]:
        """Write requests of one row each to `arena`: at most 16 requests, at most 64 MiB in all,
        and at least one request. Images are JPEGs of their shape if these can be decoded.

        The requests differ, so that a batch reads as much memory as a live one. Their slots are not
        freed. Raises MemoryLimitExceeded if not even one fits.
        """
        payloads: list[Payload] = []
        used = 0
        while len(payloads) < _MOST_ROWS:
            arrays = self.arrays(shapes, 1, generator, first=len(payloads))
            payloads.append(self.payload(arrays, shapes, arena))
            nbytes = sum(tensor.nbytes for tensor in payloads[-1].tensors)
            used += nbytes
            if used + nbytes > _MOST_BYTES:  # the next one is about as large
                break
        return payloads

    def payload(
        self, arrays: Mapping[str, NDArray[Any]], shapes: RowShapes, arena: Arena
    ) -> Payload:
        """Write a request of one row, with this content, to `arena`. Raises MemoryLimitExceeded."""
        lead, jpeg = (1,) if self._interface.batches else (), self._jpeg_input(shapes)
        refs = []
        for spec in self._interface.inputs:
            array, axes = arrays[spec.name], (*lead, *shapes[spec.name])
            if spec.name == jpeg:
                array, axes = np.array([encode_jpeg(array[0])], object), (1,)
            data = array.tobytes() if array.dtype != object else encode_strings(array)
            slot = arena.allocate(len(data))
            arena.view(slot)[:] = data
            refs.append(TensorRef(slot.offset, len(data), axes))
        return Payload(1, tuple(refs))

    def is_stated(self, spec: TensorSpec) -> bool:
        """Whether the model may refuse content that does not come from `arrays`. True for
        constants, masks, and whole numbers from samples."""
        padded = self._padded.get(spec.name)
        mask = (padded is not None and bool(padded.mask)) or spec.name in self._tokens
        sampled = spec.name in self._samples and not spec.datatype.is_float
        return spec.name in self._values or mask or sampled

    def _axes(self, spec: TensorSpec) -> tuple[int, ...]:
        return self._stated.get(spec.name, self._interface.row_axes(spec))

    def _merged(self, spec: TensorSpec, stated: tuple[int, ...]) -> tuple[int, ...]:
        """The configured axes of a row; axes that the configuration leaves open are the model's."""
        axes = self._interface.row_axes(spec)
        if -1 in stated and len(stated) == len(axes):
            stated = tuple([axis if n < 0 else n for n, axis in zip(stated, axes, strict=True)])
        return self._fitting(spec, stated, "shape")

    def _fitting(self, spec: TensorSpec, shape: tuple[int, ...], key: str) -> tuple[int, ...]:
        axes = self._interface.row_axes(spec)
        if not fits(shape, axes):
            expected = f"expected a shape that fits {list(axes)}"
            raise ValueError(f"inputs.{spec.name}.{key}: {expected}, got {list(shape)}")
        return shape

    def _read(self) -> dict[str, NDArray[Any]]:
        source, interface = self._source, self._interface
        rows = {} if source.samples is None else read_archive(source.samples, interface)
        for spec in interface.inputs:
            path = source.sample_rows.get(spec.name)
            if path is not None and -1 in self._axes(spec):
                raise ValueError(
                    f"samples.rows.{spec.name}: state inputs.{spec.name}.shape as well"
                )
            if path is not None:
                rows[spec.name] = read_row(path, spec, self._axes(spec))
        for name, array in rows.items():
            if name in self._values:
                raise ValueError(f"inputs.{name}.value: not allowed with its samples")
            shape = array.shape[1:]
            if not fits(shape, self._stated.get(name, shape)):
                stated = f"inputs.{name}.shape is {list(self._stated[name])}"
                raise ValueError(
                    f"samples: rows of {name!r} have shape {list(shape)}, but {stated}"
                )
            self._stated[name] = shape
        padded = self._padded.items()
        lengths = {name: rows[name].shape[pad.axis] for name, pad in padded if name in rows}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"samples: expected one length for all padded inputs, got {lengths}")
        return rows

    def _content(
        self, spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, first: int
    ) -> NDArray[Any]:
        rows = self._samples.get(spec.name)
        if rows is not None and rows.shape[1:] == shape[1:]:
            return rows[np.arange(first, first + shape[0]) % len(rows)]
        padded = self._padded.get(spec.name)
        if spec.name in self._tokens and spec.name not in self._values:
            lowest, highest = self._tokens[spec.name]
            content = generator.integers(lowest, highest, size=shape, endpoint=True)
            content[..., :1] = highest  # a model of fewer tokens refuses it
            return content.astype(spec.datatype.dtype)
        if spec is self._image and spec.name not in self._values:
            return np.stack([made_up_image(shape[1], shape[2], generator) for _ in range(shape[0])])
        if spec.name in self._values:
            return np.full(shape, self._values[spec.name], spec.datatype.dtype)
        if padded is not None and padded.mask:
            return np.full(shape, pad_element(spec.datatype, 1), spec.datatype.dtype)
        return _random(spec.datatype, shape, generator)


def assumptions_of(
    source: ModelSource, interface: ModelInterface, shapes: RowShapes, guess: str = ""
) -> list[str]:
    """`SyntheticRows.assumptions`, for the log. Empty if the configuration does not fit, which is
    reported elsewhere. Reads the samples."""
    try:
        return SyntheticRows(interface, source).assumptions(shapes, guess)
    except ValueError:
        return []


def closed_shapes(source: ModelSource) -> RowShapes:
    """The configured shapes without an open axis."""
    return {name: shape for name, shape in source.warmup_shapes.items() if -1 not in shape}


def row_bytes(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    """Approximate bytes of an input of this shape."""
    return math.prod(shape) * (spec.datatype.itemsize or _ELEMENT_BYTES)


def batch_of(rows: int, singles: Sequence[Payload]) -> list[Payload]:
    """A batch of `rows` members of one row each, which repeats `singles` if necessary."""
    return [singles[index % len(singles)] for index in range(rows)]


def _element(spec: TensorSpec, value: Constant) -> Any:
    """`value` as an element of the input. Raises ValueError."""
    datatype = spec.datatype
    element: Any = None
    if datatype is Datatype.BYTES:
        element = value if isinstance(value, str) else None
    elif not isinstance(value, str) and (datatype is Datatype.BOOL or not isinstance(value, bool)):
        try:
            with np.errstate(over="ignore"):
                wide = datatype is not Datatype.BF16 or np.isfinite(np.float32(value))
                element = pad_element(datatype, value) if wide else None
        except OverflowError:
            element = None
    if element is None:
        expected = "text" if datatype is Datatype.BYTES else datatype.wire_name
        raise ValueError(f"inputs.{spec.name}.value: expected {expected}, got {value!r:.40}")
    return element


def _random(
    datatype: Datatype, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[Any]:
    """Standard normal floats, words, or bits for whole numbers, which may be indices or masks."""
    if datatype is Datatype.BYTES:
        return np.array(_WORDS, object)[generator.integers(len(_WORDS), size=shape)]
    if datatype is Datatype.BF16:
        # The upper half of a float32 is a bfloat16, rounded towards zero.
        wide = generator.standard_normal(shape, np.float32).view("<u4")
        return (wide >> 16).astype("<u2")
    if datatype.is_float:
        return generator.standard_normal(shape, np.float32).astype(datatype.dtype, copy=False)
    return generator.integers(2, size=shape, dtype=np.uint8).astype(datatype.dtype)
