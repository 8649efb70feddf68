"""`InputCheck`: checks a call's inputs against its model, and names the field of an error.

It also computes a request's work hint, and its signature, which decides which requests may share a
batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from slacktide.domain import Reason, Signature
from slacktide.domain.crops import (
    BOX_BYTES,
    QUAD_BYTES,
    Glue,
    crop_aspects,
    crop_extent,
    crop_width,
    quad_sides,
)
from slacktide.domain.padding import BATCH_BYTES, Padding
from slacktide.domain.read_only import read_only
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, crop_input, image_input
from slacktide.executors.jpeg_elements import is_bare
from slacktide.models.image_inputs import ImageInput
from slacktide.models.repository.settings import ModelSettings, WorkHint
from slacktide.wire.calls import Buffer, InputTensor
from slacktide.wire.errors import BadField
from slacktide.wire.raw_tensors import check_utf8, walk_strings

MOST_FORMS = 256
MOST_BATCHES = 32
"""Maximum batches of one request, if `limits.rows` is not stated."""
_SEVERAL_BATCHES = 64 << 20
"""Maximum bytes of a request of several batches, if `limits.rows` is not stated."""

_NO_GLUE = Glue()
LEFT_OUT: Buffer = memoryview(b"")
"""Data of a mask that the client omitted: the worker makes it."""


class PaddedInputs:
    """Checks the padded inputs of one loaded version."""

    def __init__(
        self, padding: Padding, settings: ModelSettings, interface: ModelInterface
    ) -> None:
        """`padding` must fit the model (`Padding.fitting`)."""
        names = [spec.name for spec in interface.inputs]
        self._axes = {
            index: padding.inputs[name].axis
            for index, name in enumerate(names)
            if name in padding.inputs
        }
        self._names = names
        self._masks = {
            pad.mask: (name, pad.axis)
            for name, section in settings.inputs.items()
            if (pad := section.pad) is not None and pad.mask is not None and name in padding.inputs
        }
        self._first = next(iter(self._axes))
        self._longest = settings.limits.length
        self._row_bytes = BATCH_BYTES // interface.max_batch

    def left_out(self, spec: TensorSpec, sent: Mapping[str, InputTensor]) -> InputTensor | None:
        """Return the mask that a client left out, with the length of its input; None if `spec` is
        no mask. An input without elements gets no mask: its length would cost the client
        nothing."""
        masked = self._masks.get(spec.name)
        of = None if masked is None else sent.get(masked[0])
        if masked is None or of is None or len(of.shape) <= masked[1]:
            return None
        shape = (of.shape[0], of.shape[masked[1]])
        if math.prod(shape) > math.prod(of.shape):
            return None
        return InputTensor(spec.name, spec.datatype, shape, LEFT_OUT)

    def signature(self, tensors: Sequence[InputTensor], rows: int, nbytes: int) -> Signature:
        """Return the shapes without rows and padded axes. Raises BadField if lengths are unequal or
        too long. If a full batch of such rows would be too large, the padded axes stay, so that the
        request shares batches only with requests of the same shapes."""
        axes = self._axes
        length = tensors[self._first].shape[axes[self._first]]
        if self._longest is not None and length > self._longest:
            raise self._wrong(self._first, f"at most {self._longest}", length)
        for index, axis in axes.items():
            if tensors[index].shape[axis] != length:
                expected = f"{length} as in {self._names[self._first]!r}"
                raise self._wrong(index, expected, tensors[index].shape[axis])
        shapes = [tensor.shape[1:] for tensor in tensors]
        if self._masks:  # masks made by the worker take memory, too
            nbytes += sum(_mask_bytes(tensor) for tensor in tensors if tensor.data is LEFT_OUT)
        if nbytes <= self._row_bytes * rows:
            for index, axis in axes.items():
                shapes[index] = shapes[index][: axis - 1] + shapes[index][axis:]
        return tuple(shapes)

    def _wrong(self, index: int, expected: str, got: int) -> BadField:
        return BadField(f"input {self._names[index]!r} shape[{self._axes[index]}]", expected, got)


def _mask_bytes(mask: InputTensor) -> int:
    """Return the bytes of a mask that the worker makes."""
    return math.prod(mask.shape) * mask.datatype.itemsize


class HintReader:
    """Reads the declared work hint from a request."""

    def __init__(self, hint: WorkHint, names: Sequence[str]) -> None:
        """`names`: names of the model's inputs, in order."""
        self._unit = hint.of
        self._index = names.index(hint.input) if hint.input in names else None
        self._axis = 1 if hint.axis is None else hint.axis

    def read(self, tensors: Sequence[InputTensor], rows: int, nbytes: int) -> float | None:
        """Return the hint; None if the request has no such input or axis."""
        if self._unit is not None:
            return float(rows if self._unit == "rows" else nbytes)
        if self._index is None or self._axis >= len(tensors[self._index].shape):
            return None
        return float(tensors[self._index].shape[self._axis])


@read_only
class CheckedInputs:
    """Inputs that fit their model."""

    tensors: Sequence[InputTensor]
    """Tensors in the model's order."""
    rows: int
    signature: Signature
    nbytes: int
    work_hint: float | None = None
    """Size on which the run time depends; None if the model declares none."""
    image_size: int = 0
    """Longer side of an image that will be resized, in pixels; 0 if there is none."""
    decoding: float = 0.0
    """Lower bound, in seconds, on decoding its pictures beyond what the profile includes."""


class InputCheck:
    """Checks the inputs of one loaded version."""

    def __init__(
        self,
        interface: ModelInterface,
        settings: ModelSettings,
        *,
        any_image: bool = False,
        client_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        """`any_image`: its image input takes pixels of any size. `client_shapes`: see
        `ModelDefinition`; used for inputs without free axes."""
        self._batches = interface.batches
        self._specs = interface.inputs
        self._names = [spec.name for spec in interface.inputs]
        self.output_places = {spec.name: i for i, spec in enumerate(interface.outputs)}
        """Indices of the outputs, by name."""
        self._all_outputs = tuple(range(len(interface.outputs)))
        self._batch_rows = max(1, interface.max_batch)
        self._limit_rows = settings.limits.rows
        most_rows = self._limit_rows or self._batch_rows * MOST_BATCHES
        self.most_rows = most_rows if interface.batches else 1
        """Maximum rows in a request. A request with more than `max_batch` rows is split."""
        self._payload_limit = settings.limits.payload
        self._finite = {name for name, section in settings.inputs.items() if section.finite}
        self._by_form = not self._finite and all(
            spec.datatype is not Datatype.BYTES for spec in interface.inputs
        )
        """Whether the check depends only on names, datatypes, shapes and sizes: then results are
        cached for `MOST_FORMS` combinations."""
        self._checked_forms: dict[object, tuple[int, Signature, int, float | None, int]] = {}
        self._tails = [self._tail(spec) for spec in interface.inputs]
        self._client_tails = {
            spec.name: (client_shapes[spec.name], tail)
            for spec, tail in zip(interface.inputs, self._tails, strict=True)
            if spec.name in client_shapes and min(tail, default=0) >= 0
        }
        self._hint = HintReader(settings.work_hint, self._names) if settings.work_hint else None
        padding = None if settings.pads is None else settings.pads.fitting(interface)
        self._padded = None if padding is None else PaddedInputs(padding, settings, interface)
        fixed = all(min(tail, default=0) >= 0 for tail in self._tails)
        self._fixed_signature: Signature | None = tuple(self._tails) if fixed else None
        self._crop_index = crop_input(interface)
        self._crops: dict[int, CheckedInputs] = {}
        """Checked crops by number of crops, cached if crops of all frames have one size."""
        self._image: ImageInput | None = None
        index = image_input(interface)
        if index is not None and (padding is None or self._names[index] not in padding.inputs):
            self._image = ImageInput(interface, settings, index, any_size=any_image)
        tail = () if self._crop_index is None else self._tails[self._crop_index]
        self.takes_any_width = -1 in tail
        """Whether crops differ in width after resizing."""
        if self._image is not None and self._image.any_size:
            self.takes_any_width &= self._image.resizing is not None

        self.of_rows = self
        """Check of the rows that edges of a pipeline bring, without the frame's picture."""
        if (frame := settings.frame_input) in self._names:
            inputs = tuple(spec for spec in interface.inputs if spec.name != frame)
            self.of_rows = InputCheck(replace(interface, inputs=inputs), settings)
        self.largest = self._largest()
        """Maximum bytes of one request's inputs; 0 if their shapes set no bound."""

    def _largest(self) -> int:
        row, image = 0, self._image
        for index, (spec, tail) in enumerate(zip(self._specs, self._tails, strict=True)):
            free = min(tail, default=0) < 0
            if image is not None and image.index == index and (free or image.any_size):
                row += image.most_bytes
            elif free or not spec.datatype.itemsize:
                return self._payload_limit or 0
            else:
                row += math.prod(tail) * spec.datatype.itemsize
        largest = row * self.most_rows
        if self._limit_rows is None:
            largest = max(row * self._batch_rows, min(largest, _SEVERAL_BATCHES))
        return largest if self._payload_limit is None else min(largest, self._payload_limit)

    def _tail(self, spec: TensorSpec) -> tuple[int, ...]:
        return spec.shape[1:] if self._batches else spec.shape

    def check(self, inputs: Sequence[InputTensor]) -> CheckedInputs:
        """Check inputs. Raises BadField."""
        if not self._by_form:
            return self._check(inputs)
        form = tuple(
            [(tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) for tensor in inputs]
        )
        checked_before = self._checked_forms.get(form)
        if checked_before is None:
            checked = self._check(inputs)
            # Cacheable: nothing was made or reordered, and no JPEG was read.
            if checked.tensors is inputs and (
                self._image is None or inputs[self._image.index].datatype is not Datatype.BYTES
            ):
                if len(self._checked_forms) == MOST_FORMS:
                    self._checked_forms.clear()
                self._checked_forms[form] = (
                    checked.rows,
                    checked.signature,
                    checked.nbytes,
                    checked.work_hint,
                    checked.image_size,
                )  # fmt: skip
            return checked
        return CheckedInputs(inputs, *checked_before)

    def _check(self, inputs: Sequence[InputTensor]) -> CheckedInputs:
        if len(inputs) == 1 and inputs[0].name == "":
            inputs = [self._raw(inputs[0])]
        if self._client_tails:
            inputs = [self._as_model(tensor) for tensor in inputs]
        ordered, image = self._in_order(inputs), self._image
        rows = None
        nbytes = 0
        decoding = 0.0
        for spec, tail, tensor in zip(self._specs, self._tails, ordered, strict=True):
            if image is not None and spec.name == image.name and image.takes(tensor):
                decoding = image.check(tensor)
                rows = self._check_rows(spec.name, tensor.shape[0], rows)
            else:
                rows = self._check_one(spec, tail, tensor, rows)
            nbytes += len(tensor.data)
        if self._payload_limit is not None and nbytes > self._payload_limit:
            raise BadField(
                "inputs", f"at most {self._payload_limit} bytes", nbytes, Reason.TOO_LARGE
            )
        signature = self._fixed_signature
        if self._padded is not None:
            signature = self._padded.signature(ordered, rows or 1, nbytes)
        elif signature is None:
            skip = 1 if self._batches else 0
            signature = tuple([tensor.shape[skip:] for tensor in ordered])
            if image is not None:
                signature = image.signature(signature, ordered[image.index])
        hint = None if self._hint is None else self._hint.read(ordered, rows or 1, nbytes)
        size = 0 if image is None else image.size(ordered[image.index])
        return CheckedInputs(ordered, rows or 1, signature, nbytes, hint, size, decoding)

    def crops(
        self, boxes: bytes, height: int, width: int, glue: Glue = _NO_GLUE, *, quads: bool = False
    ) -> CheckedInputs:
        """Check crops that a worker will cut from a frame of this size along `boxes`, [rows, 4] of
        float32, or [rows, 4, 2] if they are `quads`. The result has no tensors. Raises BadField,
        and TypeError if the model takes no crops (`crop_input`)."""
        number = len(boxes) // (QUAD_BYTES if quads else BOX_BYTES)
        if number in self._crops:
            return self._crops[number]
        if self._crop_index is None:
            raise TypeError("the model has no input for images only")
        spec, tail = self._specs[self._crop_index], self._tails[self._crop_index]
        image = self._image
        rows = self._check_rows(spec.name, number, None) or 1
        free = self.takes_any_width
        if free:
            widest = int(np.argmax(crop_aspects(boxes, number, height, width)))
            extent = _crop_size(boxes, widest, height, width, glue, quads=quads)
            high = tail[0] if tail[0] > 0 else extent[0]
            across = crop_width((0, 0, extent[1], extent[0]), high, glue.max_aspect)
            tail = (high, across if tail[0] > 0 else extent[1], 3)
        tensor = InputTensor(spec.name, spec.datatype, (rows, *tail), LEFT_OUT)
        nbytes = rows * abs(math.prod(tail))
        signature: Signature = (tail,)
        hint = None
        if len(self._specs) == 1:  # other inputs of a join are unknown here
            if self._padded is not None:
                signature = self._padded.signature([tensor], rows, nbytes)
            elif image is not None:
                signature = image.signature(signature, tensor)
            hint = None if self._hint is None else self._hint.read([tensor], rows, nbytes)
        checked = CheckedInputs((), rows, signature, nbytes, hint)
        if not free:
            self._crops[number] = checked
        return checked

    def check_outputs(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the indices of the named outputs; all if none is named. Raises BadField."""
        if not names:
            return self._all_outputs
        for i, name in enumerate(names):
            if name not in self.output_places:
                raise BadField(f"outputs[{i}].name", f"one of {_listed(self.output_places)}", name)
        return tuple(self.output_places[name] for name in names)

    def _as_model(self, tensor: InputTensor) -> InputTensor:
        """Return `tensor`. If it has the shape that clients may send instead of the model's, it
        gets the model's."""
        client_tail, tail = self._client_tails.get(tensor.name, ((), ()))
        rows = len(tensor.shape) - len(client_tail)
        if client_tail == tail or rows != int(self._batches) or tensor.shape[rows:] != client_tail:
            return tensor
        shape = (*tensor.shape[:rows], *tail)
        return InputTensor(tensor.name, tensor.datatype, shape, tensor.data)

    def _in_order(self, inputs: Sequence[InputTensor]) -> Sequence[InputTensor]:
        names = [tensor.name for tensor in inputs]
        if names == self._names:
            return inputs
        by_name: Mapping[str, InputTensor] = {tensor.name: tensor for tensor in inputs}
        for i, name in enumerate(names):
            if name not in self._names:
                raise BadField(f"inputs[{i}].name", f"one of {_listed(self._names)}", name)
        if len(by_name) != len(inputs):
            raise BadField("inputs", "each input once", names)
        ordered = []
        for spec in self._specs:
            tensor = by_name.get(spec.name)
            if tensor is None and self._padded is not None:
                tensor = self._padded.left_out(spec, by_name)
            if tensor is None:
                raise BadField("inputs", f"the input {spec.name!r}", names)
            ordered.append(tensor)
        return ordered

    def _check_one(
        self, spec: TensorSpec, tail: tuple[int, ...], tensor: InputTensor, rows: int | None
    ) -> int | None:
        name, shape = spec.name, tensor.shape
        if tensor.datatype is not spec.datatype:
            raise BadField(
                f"input {name!r} datatype", spec.datatype.wire_name, tensor.datatype.wire_name
            )
        row_shape = shape[1:] if self._batches else shape
        if row_shape != tail and not _fits(row_shape, tail):
            raise BadField(f"input {name!r} shape", _shape_text(spec.shape), list(shape))
        if self._batches:
            if not shape or len(shape) != len(spec.shape):
                raise BadField(f"input {name!r} shape", _shape_text(spec.shape), list(shape))
            rows = self._check_rows(name, shape[0], rows)
        datatype = tensor.datatype
        if datatype is Datatype.BYTES:
            offsets = walk_strings(tensor.data, math.prod(shape), f"input {name!r}")
            check_utf8(tensor.data, offsets, f"input {name!r}")
        elif (
            tensor.data is not LEFT_OUT and len(tensor.data) != math.prod(shape) * datatype.itemsize
        ):
            expected = f"{math.prod(shape) * datatype.itemsize} bytes for shape {list(shape)}"
            raise BadField(f"input {name!r} data", expected, f"{len(tensor.data)} bytes")
        if name in self._finite and datatype.is_float and tensor.data is not LEFT_OUT:
            self._check_finite(name, tensor)
        return rows

    def _check_rows(self, name: str, count: int, rows: int | None) -> int:
        if not 1 <= count <= self.most_rows:
            most = self.most_rows
            expected = "1 row" if most == 1 else f"1 to {most} rows"
            raise BadField(f"input {name!r} shape[0]", expected, count)
        if rows is not None and rows != count:
            raise BadField(f"input {name!r} shape[0]", f"{rows} rows as in the other inputs", count)
        return count

    @staticmethod
    def _check_finite(name: str, tensor: InputTensor) -> None:
        values = np.frombuffer(tensor.data, tensor.datatype.dtype)
        if tensor.datatype is Datatype.BF16:  # all exponent bits set: infinity or NaN
            finite = bool(((values.view("<u2") & 0x7F80) != 0x7F80).all())
        else:
            finite = bool(np.isfinite(values).all())
        if not finite:
            raise BadField(f"input {name!r} data", "finite numbers", "NaN or infinity")

    def _raw(self, tensor: InputTensor) -> InputTensor:
        """Return the tensor of a raw binary request: one row of the model's only input."""
        if len(self._specs) != 1:
            raise BadField(
                "Inference-Header-Content-Length",
                f"a JSON header, because the model has {len(self._specs)} inputs",
                0,
            )
        spec, tail = self._specs[0], self._tails[0]
        if self._image is not None and is_bare(tensor.data):
            return InputTensor(spec.name, Datatype.BYTES, (1,), tensor.data)
        free = [i for i, size in enumerate(tail) if size < 0]
        size = spec.datatype.itemsize
        if self._image is not None and (free or len(tensor.data) != math.prod(tail)):
            raise self._image.no_jpeg(tensor)
        if len(free) > 1 or size == 0:
            raise BadField(
                "Inference-Header-Content-Length",
                "a JSON header, because the length does not determine the shape",
                0,
            )
        row_bytes = math.prod(n for n in tail if n >= 0) * size
        if free:
            shape = tuple(len(tensor.data) // (row_bytes or 1) if n < 0 else n for n in tail)
        else:
            shape = tail
        return InputTensor(
            spec.name, spec.datatype, (1, *shape) if self._batches else shape, tensor.data
        )


def _crop_size(
    boxes: bytes, index: int, height: int, width: int, glue: Glue, *, quads: bool
) -> tuple[int, int]:
    """Return height and width in pixels of one of these crops of a frame."""
    if quads:
        corners = np.frombuffer(boxes, np.float32, 8, QUAD_BYTES * index).reshape(4, 2)
        points = np.nan_to_num(corners).clip(0, 1) * (width, height)
        across, high = (1 + 2 * glue.margin) * quad_sides(points)
        return max(1, int(high)), max(1, int(across))
    box = np.frombuffer(boxes, np.float32, 4, BOX_BYTES * index)
    left, top, right, bottom = crop_extent(box, width, height, glue.margin) or (0, 0, 1, 1)
    return bottom - top, right - left


def _fits(shape: tuple[int, ...], pattern: tuple[int, ...]) -> bool:
    return len(shape) == len(pattern) and all(
        w in (n, -1) for n, w in zip(shape, pattern, strict=True)
    )


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"{list(shape)} (-1 is free)" if -1 in shape else str(list(shape))


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    return ", ".join(repr(name) for name in names)
