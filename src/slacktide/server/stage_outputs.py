"""What a stage's outputs say: which boxes or rows go on along an edge, and what several requests of
one stage come to when they are joined for the frame's answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import BoxChoice
from slacktide.domain.pipelines import Edge
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.ports import OutputTensor
from slacktide.executors.tensor_io import encode_strings, split_elements

_ALL = BoxChoice()


class Chosen(NamedTuple):
    """What goes on along one edge, of the rows of one request."""

    rows: NDArray[np.intp]
    """Of the upstream: where each comes from."""
    places: NDArray[np.intp] | None = None
    """Of boxes: which one of its row's."""
    boxes: NDArray[np.float32] | None = None
    """[n, 4]."""
    width: int = 1
    """Boxes that each row has, whether they go on or not."""


class StageArrays:
    """One request's outputs as arrays, made when they are asked for."""

    def __init__(self, interface: ModelInterface, outputs: Sequence[OutputTensor | None]) -> None:
        self._places = {spec.name: index for index, spec in enumerate(interface.outputs)}
        self._specs = interface.outputs
        self._outputs = outputs

    def has(self, name: str) -> bool:
        return name in self._places

    def get(self, name: str) -> NDArray[Any] | None:
        """None where the model has no such output. Raises ValueError if it is not of numbers."""
        index = self._places.get(name)
        if index is None:
            return None
        datatype = self._specs[index].datatype
        if datatype in (Datatype.BYTES, Datatype.BF16):
            raise ValueError(f"output {name!r} is {datatype.wire_name}, not of numbers")
        shape, data = self.tensor(name)[1]
        return np.frombuffer(data, datatype.dtype).reshape(shape)

    def tensor(self, name: str) -> tuple[TensorSpec, OutputTensor]:
        """Raises KeyError where the model has no such output."""
        index = self._places[name]
        tensor = self._outputs[index]
        assert tensor is not None  # of a model, not of a pipeline
        return self._specs[index], tensor


def chosen_boxes(edge: Edge, found: StageArrays) -> Chosen:
    """The boxes that `edge` hands on. Raises ValueError where the outputs do not fit together."""
    boxes = found.get(edge.boxes)
    if boxes is None:
        raise ValueError(f"there is no output {edge.boxes!r}")
    scores, classes = found.get(edge.scores), found.get(edge.classes)
    if scores is not None and scores.ndim == boxes.ndim:  # of each class
        classes = scores.argmax(-1) if classes is None else classes
        scores = scores.max(-1)
    if boxes.ndim == 2:  # of a model without rows
        boxes = boxes[None]
        scores = None if scores is None else scores[None]
        classes = None if classes is None else classes[None]
    columns = [each for each in (scores, classes) if each is not None]
    if boxes.ndim != 3 or any(each.shape != boxes.shape[:2] for each in columns):
        shapes = " and ".join(str(list(each.shape)) for each in (boxes, *columns))
        raise ValueError(f"expected [rows, boxes, 4] and [rows, boxes], got {shapes}")
    boxes = boxes.astype(np.float32, copy=False)
    choice = edge.when or _ALL
    if len(boxes) == 1:  # a frame, as a rule
        places = choice.choose(
            boxes[0],
            None if scores is None else scores[0],
            None if classes is None else classes[0],
        )
        return Chosen(np.zeros(len(places), np.intp), places, boxes[0][places], boxes.shape[1])
    of_rows = [
        choice.choose(
            boxes[row],
            None if scores is None else scores[row],
            None if classes is None else classes[row],
        )
        for row in range(len(boxes))
    ]
    counts = [len(each) for each in of_rows]
    rows = np.repeat(np.arange(len(boxes)), counts)
    places = np.concatenate(of_rows) if of_rows else np.zeros(0, np.intp)
    return Chosen(rows, places, boxes[rows, places], boxes.shape[1])


def chosen_rows(edge: Edge, found: StageArrays, rows: int) -> Chosen:
    """The rows that `edge` hands on, in their order. Raises ValueError as above."""
    choice = edge.when
    if choice is None:
        return Chosen(np.arange(rows))
    scores, classes = found.get(edge.scores), found.get(edge.classes)
    if scores is not None and scores.ndim == 2:
        classes = scores.argmax(1) if classes is None else classes
        scores = scores.max(1)
    good = np.ones(rows, np.bool_)
    for column in (scores, classes):
        if column is not None and column.shape != (rows,):
            raise ValueError(f"expected [{rows}] scores and classes, got {list(column.shape)}")
    if scores is not None:
        good &= scores >= choice.score
    if classes is not None and choice.classes:
        good &= np.isin(classes, choice.classes)
    chosen = np.flatnonzero(good)
    if len(chosen) > choice.most:
        if scores is not None:
            chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        chosen = np.sort(chosen[: choice.most])
    return Chosen(chosen)


def taken(spec: TensorSpec, tensor: OutputTensor, rows: NDArray[np.intp]) -> OutputTensor:
    """These rows of an output."""
    shape, data = tensor
    if len(rows) == shape[0]:
        return tensor
    wanted = (len(rows), *shape[1:])
    if spec.datatype is Datatype.BYTES:
        return wanted, encode_strings(_strings(tensor)[rows])
    return wanted, np.frombuffer(data, spec.datatype.dtype).reshape(shape)[rows].tobytes()


def joined(spec: TensorSpec, parts: Sequence[OutputTensor]) -> OutputTensor:
    """One output of a stage, from those of its requests, one behind the other; those that are
    shorter than others are filled up, with 0 or empty."""
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
    """`rows` of a stage: of (what an upstream request handed on, first, end, rows of the upstream
    before it), where each row comes from in the upstream's own outputs."""
    width = max([each.width for each, _, _, _ in chosen], default=1)
    found: list[int] = []  # they are few: see `BoxChoice`
    for each, first, end, before in chosen:
        rows = each.rows[first:end].tolist()
        if each.places is None:
            found += [before + row for row in rows]
        else:
            places = each.places[first:end].tolist()
            found += [(before + row) * width + at for row, at in zip(rows, places, strict=True)]
    return (len(found),), array("q", found).tobytes()


def _strings(tensor: OutputTensor) -> NDArray[Any]:
    shape, data = tensor
    array = np.empty(int(np.prod(shape)), object)
    array[:] = [bytes(element) for element in split_elements(data)]
    return array.reshape(shape)
