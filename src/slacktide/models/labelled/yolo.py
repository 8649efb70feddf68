"""YOLO's format of labels: `data.yaml`, and a text file for each image.

    DATA/data.yaml                     names: [car, person], val: images/val
    DATA/images/val/000000.jpg
    DATA/labels/val/000000.txt         a line for each object: class, centre x, y, width, height

Numbers are fractions of the upright image. A line with more numbers is an outline, whose bounding
box counts. An image without a text file has no object. `val` is read, else `test`, else `train`:
the name of a folder of images, or of a text file with a path in each line, relative to that file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from slacktide.domain.suggestions import shown
from slacktide.models.accuracy import Boxes
from slacktide.models.labelled import images as common

DATA_FILE = "data.yaml"
_MOST_YAML = 1 << 20
_SPLITS = ("val", "test", "train")


def read_yolo(root: Path, name: str, labels: Sequence[str]) -> common.LabelledSet:
    """Read the split that the file `name` of the folder states. Raises DataError."""
    stated = _yaml_of(common.text_of(root, name, _MOST_YAML), name)
    names = _names(stated.get("names"), name)
    classes = common.ClassMap(names, labels, "name")
    split = next((key for key in _SPLITS if stated.get(key)), None)
    if split is None:
        raise common.DataError(f"{name}: expected a folder of images as 'val', 'test' or 'train'")
    where = f"{name}: {split}"
    parts = stated[split] if isinstance(stated[split], list) else [stated[split]]
    labelled = []
    for part in parts:
        if not isinstance(part, str):
            raise common.DataError(f"{where}: expected the name of a folder or list of images")
        home = stated.get("path")
        for image, place in _images(root, home if isinstance(home, str) else "", part, where):
            path, truth_file = common.image_in(root, image, place), _labels_of(image)
            truth = _truth(root, truth_file, classes, len(names))
            labelled.append(common.LabelledImage(path, truth_file, truth))
    return common.labelled_set(labelled, classes.by_number, where)


def _yaml_of(text: str, name: str) -> dict[str, Any]:
    """Parse YAML with numbers as keys, which our settings refuse. All scalars become text. Aliases
    can make lists huge: never print them."""
    try:
        stated = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = name if mark is None else f"{name} line {mark.line + 1}"
        raise common.DataError(f"{where}: expected YAML") from None
    if not isinstance(stated, dict):
        raise common.DataError(f"{name}: expected 'names', and 'val', 'test' or 'train'")
    return stated


def _names(stated: Any, name: str) -> list[str]:
    """Return the names of classes in order: of a list, or of numbers from 0."""
    if isinstance(stated, dict):
        stated = [stated.get(str(number)) for number in range(len(stated))]
    names = stated if isinstance(stated, list) else []
    if not names or not all(isinstance(part, str) for part in names):
        raise common.DataError(f"{name}: names: expected a list of names, or names of 0, 1, …")
    return names


def _images(root: Path, home: str, stated: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the images in a folder or a text file, relative to `root`, and their place for errors.

    Exporters state places that users do not have, so a leading `/` or `..` is dropped. The rest is
    looked up in the data, below `path` if it exists there."""
    inner, home = (
        str(PurePosixPath(*dropwhile("..".__eq__, PurePosixPath(path.lstrip("/")).parts)))
        for path in (stated, home)
    )
    at_home = str(PurePosixPath(home, inner))
    name = at_home if "\0" not in at_home and (root / at_home).exists() else inner
    if not name.endswith(".txt"):
        folder = common.file_in(root, name, where, folder=True)
        yield from ((image, image) for image in common.images_under(root, folder))
        return
    common.file_in(root, name, where)
    lines = common.text_of(root, name).splitlines()
    if len(lines) > common.MOST_IMAGES:
        raise common.DataError(f"{name}: expected at most {common.MOST_IMAGES} lines")
    for number, line in enumerate(lines, 1):
        if image := line.strip():
            yield os.path.normpath(PurePosixPath(name).parent / image), f"{name} line {number}"


def _labels_of(image: str) -> str:
    """Return the text file of an image: in `labels` instead of the last `images` of its path."""
    before, images, after = f"/{Path(image).with_suffix('.txt')}".rpartition("/images/")
    return (f"{before}/labels/{after}" if images else after).lstrip("/")


def _truth(root: Path, name: str, classes: common.ClassMap, count: int) -> Boxes:
    """Return the boxes in a text file, none if it is missing. Raises DataError."""
    boxes, numbers = [], []
    lines = common.text_of(root, name).splitlines() if (root / name).is_file() else []
    if len(lines) > common.MOST_BOXES:
        raise common.DataError(f"{name}: expected at most {common.MOST_BOXES} lines")
    for number, line in enumerate(lines, 1):
        if line.strip():
            kind, box = _object(line.split(), count, f"{name} line {number}")
            numbers.append(classes.number(kind, f"{name} line {number}"))
            boxes.append(box)
    return common.boxes_of(boxes, numbers)


def _object(fields: Sequence[str], classes: int, where: str) -> tuple[int, list[float]]:
    """Return class and box of a line. Raises DataError."""
    try:
        kind, numbers = int(fields[0]), [float(field) for field in fields[1:]]
    except ValueError:
        kind, numbers = -1, []
    if not 0 <= kind < classes:
        expected = f"expected the number of a class below {classes} first, then fractions"
        raise common.DataError(f"{where}: {expected}, got {shown(' '.join(fields))}")
    across, down = numbers[::2], numbers[1::2]
    whole = len(numbers) == 4 or (len(numbers) >= 6 and len(across) == len(down))
    if not whole or not all(0.0 <= number <= 1.0 for number in numbers):
        expected = "expected class, and centre x, y, width and height in fractions"
        raise common.DataError(f"{where}: {expected}, got {shown(' '.join(fields))}")
    if len(numbers) > 4:
        return kind, [min(across), min(down), max(across), max(down)]
    x, y, width, height = numbers
    return kind, [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
