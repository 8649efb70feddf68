"""COCO's format of labels: a JSON file with `images`, `annotations` and `categories`.

Images lie in the file's folder, in the folder above `annotations`, or there in `images`, SPLIT or
`images/SPLIT`, where SPLIT is the file's name without `instances_`. Boxes are left, top, width and
height in pixels of the upright image. Category numbers may have gaps. Crowds are not scored.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from slacktide.domain.suggestions import shown
from slacktide.models.labelled import images as common
from slacktide.models.labelled.pictures import picture_size

ANNOTATIONS = "annotations"
_PREFIX = "instances_"


def _checked(box: list[float]) -> list[float]:
    if len(box) != 4 or min(box[2:]) < 0:
        raise ValueError(f"expected [left, top, width, height] in pixels, got {shown(box)}")
    return box


class _Image(common.LabelSection):
    id: int
    file_name: str
    width: float | None = None
    height: float | None = None


class _Annotation(common.LabelSection):
    image_id: int
    category_id: int
    bbox: Annotated[list[float], Field(fail_fast=True), AfterValidator(_checked)]
    iscrowd: int = 0


class _Category(common.LabelSection):
    id: int
    name: str


class _Document(common.LabelSection):
    images: Annotated[list[_Image], Field(fail_fast=True)]
    annotations: Annotated[list[_Annotation], Field(fail_fast=True, min_length=1)]
    categories: Annotated[list[_Category], Field(fail_fast=True)]


def coco_files(folder: Path) -> list[str]:
    """Return the files of annotations in a folder as COCO lays it out."""
    paths = (folder / ANNOTATIONS).glob(f"{_PREFIX}*.json")
    return sorted(f"{ANNOTATIONS}/{path.name}" for path in paths)


def read_coco(root: Path, name: str, labels: Sequence[str]) -> common.LabelledSet:
    """Read the file `name` of the folder. Raises DataError."""
    document = common.parse_object(common.text_of(root, name), _Document, name)
    images = _by_id(document.images, f"{name}: images")
    categories = _by_id(document.categories, f"{name}: categories")
    ids = sorted(categories)
    places = {number: at for at, number in enumerate(ids)}
    classes = common.ClassMap([categories[number].name for number in ids], labels, "category")
    labels_of: dict[int, list[tuple[_Annotation, int]]] = defaultdict(list)
    for index, annotation in enumerate(document.annotations):
        where = f"{name}: annotations[{index}]"
        if annotation.image_id not in images:
            raise common.DataError(f"{where}: there is no image with id {annotation.image_id}")
        if annotation.category_id not in places:
            raise common.DataError(
                f"{where}: there is no category with id {annotation.category_id}"
            )
        number = classes.number(places[annotation.category_id], where)
        labels_of[annotation.image_id].append((annotation, number))
    split = Path(name).stem.removeprefix(_PREFIX)
    folders = (str(Path(name).parent), ".", "images", split, f"images/{split}")
    labelled = [
        _labelled(root, folders, image, labels_of[number], f"{name}: image with id {number}")
        for number, image in images.items()
    ]
    return common.labelled_set(labelled, classes.by_number, name)


def _labelled(
    root: Path,
    folders: Sequence[str],
    image: _Image,
    labels: Sequence[tuple[_Annotation, int]],
    where: str,
) -> common.LabelledImage:
    names = (os.path.normpath(f"{folder}/{image.file_name}") for folder in folders)
    file_name = next((name for name in names if os.path.lexists(root / name)), image.file_name)
    path = common.image_in(root, file_name, f"{where}: file_name")
    width, height = picture_size(path, where)
    if (image.width or width, image.height or height) != (width, height):
        expected = f"expected {width} and {height}, the size of the upright image"
        stated = f"{image.width} and {image.height}"
        raise common.DataError(f"{where}: width and height: {expected}, got {stated}")
    if len(labels) > common.MOST_BOXES:
        raise common.DataError(f"{where}: expected at most {common.MOST_BOXES} annotations")
    boxes = []
    for annotation, _ in labels:
        left, top, across, down = annotation.bbox
        boxes.append((left / width, top / height, (left + across) / width, (top + down) / height))
    truth = common.boxes_of(
        boxes,
        [number for _, number in labels],
        [annotation.iscrowd == 1 for annotation, _ in labels],
    )
    return common.LabelledImage(path, where, truth)


_Numbered = TypeVar("_Numbered", _Image, _Category)


def _by_id(elements: Sequence[_Numbered], where: str) -> dict[int, _Numbered]:
    by_id = {element.id: element for element in elements}
    if len(by_id) < len(elements):
        raise common.DataError(f"{where}: expected each id once")
    return by_id
