"""Reads stage outputs: chooses boxes or rows for an edge, and joins the outputs of a stage's
requests for the answer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from struct import unpack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import BOX_BYTES, PLAIN, BoxChoice, bounds
from slacktide.domain.pipelines import Edge
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.hand_over.tensor_io import encode_strings, split_elements
from slacktide.executors.ports import OutputTensor

_ALL = BoxChoice()
_FAR = 2.0
_CLASSES = {Datatype.FP32: "f", Datatype.INT64: "q", Datatype.INT32: "i"}
"""Datatypes read without arrays, with their `struct` codes."""


class Chosen(NamedTuple):
    """Rows or boxes of one request that an edge hands on."""

    rows: Sequence[int]
    """Upstream row of each chosen row or box."""
    places: Sequence[int] | None = None
    """Index of each box among the boxes of its row."""
    boxes: bytes = b""
    """[n, 4] float32, or [n, 4, 2] of quads."""
    width: int = 1
    """Boxes per row, chosen or not."""
    request: int | None = None
    """Request whose outputs the boxes come from; None for rows."""

    def of(self, indices: Sequence[int]) -> Chosen:
        """Return some of these boxes, in this order."""
        size = len(self.boxes) // max(1, len(self.rows))
        return Chosen(
            [self.rows[index] for index in indices],
            None if self.places is None else [self.places[index] for index in indices],
            b"".join([self.boxes[size * index : size * (index + 1)] for index in indices]),
            *self[3:],
        )


class StageArrays:
    """One request's outputs as arrays, made on demand."""

    __slots__ = ("_outputs", "_places", "_specs")

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        places: Mapping[str, int],
        outputs: Sequence[OutputTensor | None],
    ) -> None:
        """`places`: index in `specs` by name."""
        self._specs = specs
        self._places = places
        self._outputs = outputs

    def get(self, name: str) -> NDArray[Any] | None:
        """Return an output as array; None if the model lacks it. Raises ValueError if it is not
        numeric."""
        output = self.tensor(name)
        if output is None:
            return None
        spec, (shape, data) = output
        if spec.datatype in (Datatype.BYTES, Datatype.BF16):
            raise ValueError(f"output {name!r} : expected numbers, got {spec.datatype.wire_name}")
        return np.frombuffer(data, spec.datatype.dtype).reshape(shape)

    def tensor(self, name: str) -> tuple[TensorSpec, OutputTensor] | None:
        """Return an output as it came; None if the model lacks it."""
        index = self._places.get(name)
        if index is None:
            return None
        tensor = self._outputs[index]
        assert tensor is not None  # only outputs of pipelines may be None
        return self._specs[index], tensor


def look_like_pixels(boxes: NDArray[Any]) -> bool | None:
    """Return whether most boxes lie far outside a frame of height and width 1. None: all boxes are
    empty, such as the zeros or -1 that models pad with."""
    boxes = boxes.reshape(-1, boxes.shape[-1])
    boxes = boxes[boxes.min(1) < boxes.max(1)]
    return None if not len(boxes) else bool((np.abs(boxes).max(1) > _FAR).mean() > 0.5)


def chosen_boxes(edge: Edge, arrays: StageArrays) -> Chosen:
    """Return the boxes or quads that `edge` hands on. Raises ValueError if the outputs do not fit
    together."""
    if not edge.quads:
        return _of_few(edge, arrays) or _of_arrays(edge, arrays, arrays.get(edge.boxes))
    quads = arrays.get(edge.quads)
    if quads is None or quads.ndim != 4 or quads.shape[2:] != (4, 2):
        shape = None if quads is None else list(quads.shape)
        raise ValueError(f"expected [rows, n, 4, 2] as output {edge.quads!r}, got {shape}")
    quads = quads.astype(np.float32, copy=False)
    chosen = _of_arrays(edge, arrays, bounds(quads))
    corners = quads[list(chosen.rows), list(chosen.places or ())]
    return chosen._replace(boxes=corners.tobytes())


def chained(parts: Sequence[Chosen]) -> Chosen:
    """Return the boxes of all parts, one after the other."""
    rows = [row for part in parts for row in part.rows]
    places = [place for part in parts for place in part.places or ()]
    return Chosen(rows, places, b"".join([part.boxes for part in parts]), *parts[0][3:])


def chosen_crops(edge: Edge, arrays: StageArrays, crops: Chosen) -> Chosen:
    """Return the crops among a stage's `crops` that `edge` hands on, turned where the edge says so.
    Raises ValueError as `chosen_boxes` does."""
    count = len(crops.rows)
    rows = chosen_rows(edge, arrays, count).rows
    boxes = crops.boxes
    if edge.turn is not None:
        quads = np.frombuffer(boxes, np.float32).reshape(count, 4, 2)
        is_turned = _matching(edge.turn, count, *_row_columns(edge, arrays, count))
        boxes = np.where(is_turned[:, None, None], np.roll(quads, 2, axis=1), quads).tobytes()
    return crops._replace(boxes=boxes).of(rows)


def _of_few(edge: Edge, arrays: StageArrays) -> Chosen | None:
    """Choose without arrays among few boxes of one frame, the usual case; None in other cases."""
    output = arrays.tensor(edge.boxes)
    if output is None:
        return None
    spec, (shape, data) = output
    if len(shape) != 3 or shape[0] != 1 or shape[1] > PLAIN or shape[2] != 4:
        return None
    if spec.datatype is not Datatype.FP32:
        return None
    choice, scores, classes = edge.when or _ALL, None, None
    if (output := arrays.tensor(edge.scores)) is not None:
        spec, (its_shape, values) = output
        if spec.datatype is not Datatype.FP32 or its_shape != shape[:2]:
            return None
        scores = unpack(f"{shape[1]}f", values)
    if (output := arrays.tensor(edge.classes)) is not None:
        spec, (its_shape, values) = output
        code = _CLASSES.get(spec.datatype)
        if code is None or its_shape != shape[:2]:
            return None
        if choice.classes or choice.overlap < 1:
            classes = unpack(f"{shape[1]}{code}", values)
    places = choice.choose_plain(data, scores, classes)
    if places is None:
        return None
    boxes = b"".join([data[BOX_BYTES * at : BOX_BYTES * (at + 1)] for at in places])
    return Chosen([0] * len(places), places, boxes, shape[1])


def _of_arrays(edge: Edge, arrays: StageArrays, boxes: NDArray[Any] | None) -> Chosen:
    if boxes is None:
        raise ValueError(f"no output {edge.boxes!r}")
    scores, classes = arrays.get(edge.scores), arrays.get(edge.classes)
    if scores is not None and scores.ndim == boxes.ndim:  # one score per class
        classes = scores.argmax(-1) if classes is None else classes
        scores = scores.max(-1)
    if boxes.ndim == 2:  # a model without batch axis
        boxes = boxes[None]
        scores = None if scores is None else scores[None]
        classes = None if classes is None else classes[None]
    columns = [column for column in (scores, classes) if column is not None]
    if boxes.ndim != 3 or any(column.shape != boxes.shape[:2] for column in columns):
        shapes = " and ".join(str(list(array.shape)) for array in (boxes, *columns))
        raise ValueError(f"expected [rows, boxes, 4] and [rows, boxes], got {shapes}")
    boxes = boxes.astype(np.float32, copy=False)
    choice = edge.when or _ALL
    rows: list[int] = []
    places: list[int] = []
    for row, row_boxes in enumerate(boxes):
        chosen = choice.choose(
            row_boxes,
            None if scores is None else scores[row],
            None if classes is None else classes[row],
        )
        rows += [row] * len(chosen)
        places += chosen.tolist()
    return Chosen(rows, places, boxes[rows, places].tobytes(), boxes.shape[1])


def chosen_rows(edge: Edge, arrays: StageArrays, rows: int) -> Chosen:
    """Return the rows that `edge` hands on, in order. Raises ValueError as `chosen_boxes` does."""
    choice = edge.when
    if choice is None:
        return Chosen(range(rows))
    scores, classes = _row_columns(edge, arrays, rows)
    chosen = np.flatnonzero(_matching(choice, rows, scores, classes))
    if len(chosen) > choice.most:
        if scores is not None:
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        chosen = np.sort(chosen[: choice.most])
    return Chosen(chosen.tolist())


def _row_columns(
    edge: Edge, arrays: StageArrays, rows: int
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return the score and the class of each row; None if there is no such output."""
    scores, classes = arrays.get(edge.scores), arrays.get(edge.classes)
    if scores is not None and scores.ndim == 2:
        classes = scores.argmax(1) if classes is None else classes
        scores = scores.max(1)
    if classes is not None and classes.ndim == 2:
        classes = classes[:, 0]
    for column in (scores, classes):
        if column is not None and column.shape != (rows,):
            raise ValueError(f"expected [{rows}] scores and classes, got {list(column.shape)}")
    return scores, classes


def _matching(
    choice: BoxChoice, rows: int, scores: NDArray[Any] | None, classes: NDArray[Any] | None
) -> NDArray[np.bool_]:
    """Return which rows have one of the classes and at least the score of `choice`."""
    good = np.ones(rows, np.bool_)
    if scores is not None:
        good &= scores >= choice.score
    if classes is not None and choice.classes:
        good &= np.isin(classes, choice.classes)
    return good


def rows_of(spec: TensorSpec, tensor: OutputTensor, rows: Sequence[int]) -> OutputTensor:
    """Return these rows of an output."""
    shape, data = tensor
    if len(rows) == shape[0]:
        return tensor
    sizes = (len(rows), *shape[1:])
    if spec.datatype is Datatype.BYTES:
        return sizes, encode_strings(_strings(tensor)[list(rows)])
    return sizes, np.frombuffer(data, spec.datatype.dtype).reshape(shape)[list(rows)].tobytes()


def joined(spec: TensorSpec, parts: Sequence[OutputTensor]) -> OutputTensor:
    """Join outputs of a stage's requests along rows; shorter rows get zeros or empty strings."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return (0, *(max(0, size) for size in spec.shape[1:])), b""
    rows = sum(shape[0] for shape, _ in parts)
    tails = {shape[1:] for shape, _ in parts}
    if len(tails) == 1:
        return (rows, *tails.pop()), b"".join(data for _, data in parts)
    tail = tuple(max(sizes) for sizes in zip(*tails, strict=True))
    strings = spec.datatype is Datatype.BYTES
    whole = np.full((rows, *tail), b"", object)
    if not strings:
        whole = np.zeros((rows, *tail), spec.datatype.dtype)
    at = 0
    for shape, data in parts:
        if strings:
            array = _strings((shape, data))
        else:
            array = np.frombuffer(data, spec.datatype.dtype).reshape(shape)
        whole[(slice(at, at + shape[0]), *(slice(size) for size in shape[1:]))] = array
        at += shape[0]
    return whole.shape, encode_strings(whole) if strings else whole.tobytes()


def origins(chosen: Sequence[tuple[Chosen, int, int, int]]) -> OutputTensor:
    """Return the `rows` output of a stage: each row's index in the upstream outputs. `chosen` has
    (choice of an upstream request, first, end, upstream rows before that request)."""
    width = max([handed_on.width for handed_on, _, _, _ in chosen], default=1)
    flat: list[int] = []  # few: see `BoxChoice`
    for parent, first, end, before in chosen:
        rows = parent.rows[first:end]
        if parent.places is None:
            flat += [before + row for row in rows]
        else:
            places = parent.places[first:end]
            flat += [(before + row) * width + at for row, at in zip(rows, places, strict=True)]
    return (len(flat),), array("q", flat).tobytes()


def parents_of(parts: Sequence[tuple[OutputTensor | None, int]]) -> NDArray[np.int64]:
    """Join the parents that requests of a function returned. `parts`: (parents, rows of the
    request); the result counts the rows of all requests."""
    joined_parents, rows = [np.empty(0, np.int64)], 0
    for tensor, count in parts:
        if tensor is not None:
            joined_parents.append(np.frombuffer(tensor[1], np.int64) + rows)
        rows += count
    return np.concatenate(joined_parents)


def _strings(tensor: OutputTensor) -> NDArray[Any]:
    shape, data = tensor
    array = np.empty(int(np.prod(shape)), object)
    array[:] = [bytes(element) for element in split_elements(data)]
    return array.reshape(shape)
