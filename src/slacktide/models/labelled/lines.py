"""Our format of labels: a JSON object in each line.

    DATA/labels.jsonl
    {"image": "images/000000.jpg", "boxes": [[0.1, 0.2, 0.3, 0.4]], "classes": [2]}
    {"image": "images/000001.npy", "label": 3}      of a classifier

Boxes are left, top, right and bottom in fractions of the image; numbers of classes are the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from slacktide.domain.suggestions import shown
from slacktide.models.labelled import images as common

LABELS = "labels.jsonl"


def _ordered(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    if box[0] >= box[2] or box[1] >= box[3]:
        raise ValueError(f"expected [left, top, right, bottom], got {shown(list(box))}")
    return box


_Fraction = Annotated[float, Field(ge=0, le=1)]
_Box = Annotated[tuple[_Fraction, _Fraction, _Fraction, _Fraction], AfterValidator(_ordered)]
_Class = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Line(common.LabelSection):
    image: str
    label: _Class | None = None
    boxes: Annotated[list[_Box], Field(fail_fast=True, max_length=common.MOST_BOXES)] | None = None
    classes: Annotated[list[_Class], Field(fail_fast=True)] | None = None


def read_lines(folder: Path, labels: Sequence[str], name: str = LABELS) -> common.LabelledSet:
    """Read the images of a folder in the order of the lines. Raises DataError."""
    images: list[common.LabelledImage] = []
    for number, line in enumerate(common.text_of(folder, name).split("\n"), 1):
        if line.strip():
            images.append(_labelled(folder, line, f"{name} line {number}"))
            if isinstance(images[-1].truth, int) != isinstance(images[0].truth, int):
                expected = "expected 'label' in every line, or 'boxes' in every line"
                raise common.DataError(f"{images[-1].where}: {expected}")
    return common.labelled_set(images, dict(enumerate(labels)), name)


def _labelled(folder: Path, line: str, where: str) -> common.LabelledImage:
    stated = common.parse_object(line, _Line, where)
    path = common.image_in(folder, stated.image, f"{where}: image")
    if stated.label is not None:
        return common.LabelledImage(path, where, stated.label)
    if stated.boxes is None or stated.classes is None:
        raise common.DataError(f"{where}: expected 'label', or the lists 'boxes' and 'classes'")
    if len(stated.boxes) != len(stated.classes):
        count = f"{len(stated.boxes)} boxes and {len(stated.classes)} classes"
        raise common.DataError(f"{where}: expected a class for each box, got {count}")
    truth = common.boxes_of(stated.boxes, stated.classes)
    return common.LabelledImage(path, where, truth)
