"""Measures the accuracy of each variant of a family on labelled images.

    DATA/labels.jsonl                               one object per line, of a detector
    {"image": "images/000000.jpg", "boxes": [[0.1, 0.2, 0.3, 0.4]], "classes": [2]}
    {"image": "images/000001.npy", "label": 3}      or of a classifier

Boxes are left, top, right and bottom in fractions of the image. An `.npy` file has uint8 [height,
width, 3]. Variants run in a worker as in serving, so that its decoder and resizer count. The folder
is not trusted: it is read with bounds, and errors name file and line.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface, image_input
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.ports import Executor, Outputs, Payload, TensorRef
from slacktide.executors.timed_replica import BatchError, TimedReplica
from slacktide.models.accuracy import Boxes, score_detections, top1
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.paths import read_bounded
from slacktide.models.repository.repository import ModelDefinition

LABELS = "labels.jsonl"
MOST_LABEL_BYTES = 256 << 20
MOST_IMAGE_BYTES = 64 << 20
MOST_IMAGES = 100_000
MOST_BOXES = 4096
_ARENA_LIMIT = 1 << 30
_PATIENCE_S = 60.0
_DETECTED = {"boxes", "scores", "classes"}
_DECODED = {"scores", "classes"}
"""Outputs of a classifier behind a decoder: the best classes, best first."""

Progress = Callable[[float, str], None]


class DataError(Exception):
    """Raised for errors in the folder or in the model's answers; the text names the place."""


@dataclass(frozen=True, slots=True)
class LabelledImage:
    path: Path
    where: str
    """File and line of the label, for errors."""
    truth: Boxes | int
    """Boxes or class of the image."""


@dataclass(frozen=True, slots=True)
class VariantAccuracy:
    """Accuracy of a variant."""

    variant: str
    accuracy: float
    """Mean average precision, or top-1."""
    f1: float | None = None
    threshold: float | None = None
    """Score threshold at which `f1` is reached. Both are None for a classifier."""


def read_labels(folder: Path) -> tuple[LabelledImage, ...]:
    """Return one or more labelled images, all of one kind, in the order of the labels. Raises
    DataError."""
    try:
        text = read_bounded(folder / LABELS, MOST_LABEL_BYTES, where=LABELS).decode()
    except (RepositoryError, UnicodeDecodeError) as error:
        reason = "expected UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise DataError(reason if reason.startswith(LABELS) else f"{LABELS}: {reason}") from None
    labelled: list[LabelledImage] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{LABELS} line {number}"
        if len(labelled) >= MOST_IMAGES:
            raise DataError(f"{where}: expected at most {MOST_IMAGES} images")
        image = _labelled(folder, line, where)
        if labelled and isinstance(image.truth, int) != isinstance(labelled[0].truth, int):
            raise DataError(f"{where}: expected 'label' in every line, or 'boxes' in every line")
        labelled.append(image)
    if not labelled:
        raise DataError(f"{LABELS}: expected a line for each image, there is none")
    boxes = [image.truth for image in labelled if isinstance(image.truth, Boxes)]
    if boxes and not any(len(truth.classes) for truth in boxes):
        raise DataError(f"{LABELS}: no image has a box")
    return tuple(labelled)


def _labelled(folder: Path, line: str, where: str) -> LabelledImage:
    try:
        stated = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: expected a JSON object") from None
    if not isinstance(stated, dict) or not isinstance(stated.get("image"), str):
        raise DataError(f"{where}: expected a JSON object with the path of an 'image'")
    name = stated["image"]
    path = folder / name
    if not name.lower().endswith((".jpg", ".jpeg", ".npy")):
        raise DataError(f"{where}: image: expected a .jpg or .npy file, got {name!r:.100}")
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        if not inside or not path.is_file():
            raise DataError(f"{where}: image: there is no file {name!r:.100} in the folder")
    except (OSError, ValueError, RuntimeError):  # an invalid name, or a loop of links
        raise DataError(f"{where}: image: expected the path of a file") from None
    if "label" in stated:
        label = stated["label"]
        if type(label) is not int or not 0 <= label < 1 << 31:
            raise DataError(f"{where}: label: expected a whole number from 0, got {label!r:.100}")
        return LabelledImage(path, where, label)
    boxes, classes = stated.get("boxes"), stated.get("classes")
    if not isinstance(boxes, list) or not isinstance(classes, list):
        raise DataError(f"{where}: expected 'label', or the lists 'boxes' and 'classes'")
    if len(boxes) != len(classes) or len(boxes) > MOST_BOXES:
        count = f"{len(boxes)} boxes and {len(classes)} classes"
        raise DataError(
            f"{where}: expected a class for each of {MOST_BOXES} boxes at most: {count}"
        )
    for index, (box, kind) in enumerate(zip(boxes, classes, strict=True)):
        if not _is_box(box):
            expected = "expected [left, top, right, bottom] in fractions of the image"
            raise DataError(f"{where}: boxes[{index}]: {expected}, got {box!r:.100}")
        if type(kind) is not int or not 0 <= kind < 1 << 31:
            raise DataError(
                f"{where}: classes[{index}]: expected a whole number, got {kind!r:.100}"
            )
    at = np.array(boxes, float).reshape(-1, 4)
    return LabelledImage(path, where, Boxes(at, np.array(classes, np.int64)))


def _is_box(box: object) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(type(side) in (int, float) and 0.0 <= side <= 1.0 for side in box):
        return False
    return bool(box[0] < box[2] and box[1] < box[3])


def _bytes_of(image: LabelledImage) -> tuple[bytes, tuple[int, ...]]:
    """Return an image's data and shape as a client would send them. Raises DataError."""
    try:
        data = read_bounded(image.path, MOST_IMAGE_BYTES, where=image.path.name)
    except RepositoryError as error:
        raise DataError(f"{image.where}: {error}") from None
    if image.path.suffix.lower() != ".npy":
        return encode_strings(np.array([data], object)), (1,)
    try:
        array = np.load(BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError):
        array = None
    pixels = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 3
    if not pixels or array.shape[2] != 3 or not array.size:
        raise DataError(f"{image.where}: {image.path.name}: expected uint8 [height, width, 3]")
    return array.tobytes(), (1, *array.shape)


async def measure_accuracy(
    executor: Executor,
    definition: ModelDefinition,
    images: Sequence[LabelledImage],
    *,
    cores: tuple[int, ...],
    progress: Progress = lambda share, text: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[VariantAccuracy, ...]:
    """Run every image with every variant, and return the accuracies, smallest variant first. Raises
    DataError, and MeasuringError if a file cannot run."""
    settings = definition.settings.variants
    if settings is None:
        raise DataError(f"{definition.name} has no variants to compare")
    names, accuracies = settings.names, []
    for number, name in enumerate(names):
        variant_definition = definition.of_variant(name)
        arena = Arena(_ARENA_LIMIT, name="slacktide-accuracy")
        source = source_of(definition if variant_definition.image_size else variant_definition)
        device = definition.settings.device
        replica = TimedReplica(executor, source, cores, device, arena, clock, _PATIENCE_S)
        try:
            interface = (await replica.ready()).interface
            replica.size = variant_definition.image_size
            answers = []
            for index, image in enumerate(images):
                share = (number + index / len(images)) / len(names)
                progress(share, f"variant {name}, image {index + 1} of {len(images)}")
                answers.append(await _answer(replica, arena, interface, image))
        finally:
            replica.close()
            arena.close()
        accuracies.append(_scored(name, answers, images, interface, settings.output))
    progress(1.0, "done")
    return tuple(accuracies)


def accuracy_document(
    measured: Sequence[VariantAccuracy], images: Sequence[LabelledImage]
) -> dict[str, Any]:
    """Return the document of a measurement to store as JSON (docs/variants.md)."""
    detector = isinstance(images[0].truth, Boxes)
    return {
        "metric": "mean average precision" if detector else "top-1",
        "images": len(images),
        "accuracy": {score.variant: score.accuracy for score in measured},
        "f1": {score.variant: score.f1 for score in measured if score.f1 is not None},
    }


async def _answer(
    replica: TimedReplica, arena: Arena, interface: ModelInterface, image: LabelledImage
) -> Outputs:
    if image_input(interface) is None or len(interface.inputs) != 1:
        raise DataError("expected a model whose one input is an image, uint8 [-1, -1, -1, 3]")
    data, shape = await asyncio.to_thread(_bytes_of, image)
    slot = arena.allocate(len(data))
    try:
        arena.view(slot)[:] = data
        replica.inputs = [Payload(1, (TensorRef(slot.offset, len(data), shape),))]
        await replica.run(1)
    except BatchError as error:
        raise DataError(f"{image.where}: {error}") from None
    finally:
        arena.free(Slot(slot.offset, slot.nbytes))
    if replica.faults:
        raise DataError(f"{image.where}: {next(iter(replica.faults.values()))}")
    return replica.outputs[0]


def _scored(
    name: str,
    answers: Sequence[Outputs],
    images: Sequence[LabelledImage],
    interface: ModelInterface,
    output: str | None,
) -> VariantAccuracy:
    boxes = [image.truth for image in images if isinstance(image.truth, Boxes)]
    if boxes:
        score = score_detections([*_detected(answers, interface)], boxes)
        return VariantAccuracy(name, score.mean_average_precision, score.f1, score.threshold)
    labels = [image.truth for image in images if isinstance(image.truth, int)]
    if output is None and {spec.name for spec in interface.outputs} == _DECODED:
        place = [spec.name for spec in interface.outputs].index("classes")
        best = [_array(answer, interface, place).reshape(-1)[0] for answer in answers]
        return VariantAccuracy(name, float(np.mean(np.array(best) == np.array(labels))))
    if output is None and {spec.name for spec in interface.outputs} >= _DETECTED:
        raise DataError(
            f"{images[0].where}: expected 'boxes' and 'classes', as the model is a detector, got "
            "'label'; variants.output states an output that has a score for each class"
        )
    chosen = _scores_output(answers[0], interface, output)
    arrays = [_array(answer, interface, chosen).reshape(-1) for answer in answers]
    for image, label, array in zip(images, labels, arrays, strict=True):
        if label >= array.size:
            at = interface.outputs[chosen].name
            raise DataError(f"{image.where}: label: {label}, but {at!r} has {array.size} classes")
    return VariantAccuracy(name, top1(arrays, labels))


def _detected(answers: Sequence[Outputs], interface: ModelInterface) -> Iterator[Boxes]:
    places = {spec.name: index for index, spec in enumerate(interface.outputs)}
    if not places.keys() >= _DETECTED:
        raise DataError(
            "expected the outputs 'boxes' [-1, K, 4], 'scores' [-1, K] and 'classes' [-1, K] of a "
            f"detector, got {', '.join(map(repr, places))}"
        )
    for answer in answers:
        boxes, scores, classes = (
            _array(answer, interface, places[name]) for name in ("boxes", "scores", "classes")
        )
        if scores.ndim != 2 or boxes.shape != (*scores.shape, 4) or classes.shape != scores.shape:
            shapes = [list(array.shape) for array in (boxes, scores, classes)]
            expected = "expected [1, K, 4], [1, K] and [1, K]"
            raise DataError(f"outputs 'boxes', 'scores' and 'classes': {expected}, got {shapes}")
        yield Boxes(boxes[0], classes[0], scores[0])


def _scores_output(answer: Outputs, interface: ModelInterface, output: str | None) -> int:
    """Return the index of the output with a score per class: the stated one, else the largest."""
    names = [spec.name for spec in interface.outputs]
    if output is not None:
        if output not in names:
            raise DataError(f"variants.output: the model has no output {output!r}")
        return names.index(output)
    sizes = {
        index: math.prod(answer[index][0])
        for index, spec in enumerate(interface.outputs)
        if spec.datatype.is_float and len(answer[index][0]) == 2
    }
    most = [index for index, size in sizes.items() if size == max(sizes.values())]
    if len(most) != 1:
        raise DataError(
            "the output with the scores of classes is ambiguous; state one of "
            f"{', '.join(map(repr, names))} as variants.output"
        )
    return most[0]


def _array(answer: Outputs, interface: ModelInterface, index: int) -> NDArray[Any]:
    spec, (shape, data) = interface.outputs[index], answer[index]
    if spec.datatype in (Datatype.BYTES, Datatype.BF16):
        raise DataError(f"output {spec.name!r}: expected numbers, got {spec.datatype.wire_name}")
    return np.frombuffer(data, spec.datatype.dtype).reshape(shape)
