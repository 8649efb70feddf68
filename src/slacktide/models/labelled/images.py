"""Labelled images, and code shared by all formats of labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ConfigDict, ValidationError

from slacktide.domain.suggestions import shown, suggestion
from slacktide.executors.pictures import load_opencv
from slacktide.models.accuracy import MISSING_SCORER, Boxes, can_score_boxes
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.fields import Section
from slacktide.models.repository.paths import read_bounded
from slacktide.models.repository.settings_file import dotted, validation_problems

MOST_LABEL_BYTES = 256 << 20
MOST_IMAGES = 100_000
MOST_BOXES = 4096
DECODED_HERE = (".png", ".bmp", ".webp")
"""Suffixes of images that OpenCV decodes before a worker gets their pixels."""
SUFFIXES = (".jpg", ".jpeg", ".npy", *DECODED_HERE)
MISSING_DECODER = "images other than JPEG and .npy need OpenCV: pip install 'slacktide[images]'"


class DataError(Exception):
    """Raised for errors in labels, images or the model's answers; the text names the place, with
    control characters in file names escaped."""

    def __init__(self, text: str) -> None:
        super().__init__(
            "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)
        )


class LabelSection(Section):
    """An object in a file of labels. Unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class LabelledImage:
    path: Path
    where: str
    """File and line of the label, for errors."""
    truth: Boxes | int
    """Boxes or class of the image."""


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """One or more images, all with boxes (at least one in total) or all with a class."""

    images: tuple[LabelledImage, ...]
    class_names: Mapping[int, str]
    """Names of classes by the model's number, if labels or model have any."""

    @property
    def metric(self) -> str:
        """Name of the accuracy that these labels allow."""
        return "AP50:95" if isinstance(self.images[0].truth, Boxes) else "top-1"


def labelled_set(
    images: Sequence[LabelledImage], names: Mapping[int, str], where: str
) -> LabelledSet:
    """Return the set. Raises DataError, naming `where`, if there is no image or no box, or if a
    library that boxes need is not installed."""
    if not 0 < len(images) <= MOST_IMAGES:
        raise DataError(f"{where}: expected 1 to {MOST_IMAGES} images, got {len(images) or 'none'}")
    truths = [image.truth for image in images if isinstance(image.truth, Boxes)]
    if truths and not any(boxes.counted.any() for boxes in truths):
        raise DataError(f"{where}: no image has a box")
    if truths and not can_score_boxes():
        raise DataError(MISSING_SCORER)
    return LabelledSet(tuple(images), names)


def text_of(root: Path, name: str, limit: int = MOST_LABEL_BYTES) -> str:
    """Read a file of labels in the folder. Raises DataError."""
    try:
        return read_bounded(file_in(root, name, name), limit, where=name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{name}: expected UTF-8") from None
    except RepositoryError as error:
        raise DataError(str(error)) from None


_Form = TypeVar("_Form", bound=LabelSection)


def parse_object(text: str, form: type[_Form], where: str) -> _Form:
    """Parse a JSON object. Raises DataError, which names the key."""
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            raise DataError(f"{where}: expected a JSON object") from None
        problem = validation_problems(error, form)[0]
        place = f"{where}: {dotted(problem.path)}" if problem.path else where
        raise DataError(f"{place}: {problem.message}") from None


def file_in(root: Path, name: str, where: str, *, folder: bool = False) -> Path:
    """Return a file, or a folder, inside `root`. Raises DataError if there is none."""
    path = root / name
    try:
        inside = path.resolve().is_relative_to(root.resolve())
        exists = inside and (path.is_dir() if folder else path.is_file())
    except (OSError, ValueError, RuntimeError):  # an invalid name, or a loop of links
        raise DataError(f"{where}: expected a path, got {shown(name, 100)}") from None
    if not exists:
        kind = "folder" if folder else "file"
        raise DataError(f"{where}: there is no {kind} {shown(name, 100)} in the data")
    return path


def image_in(root: Path, name: str, where: str) -> Path:
    """Return an image inside `root`. Raises DataError if there is none that can be decoded."""
    if not name.lower().endswith(SUFFIXES):
        kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise DataError(f"{where}: expected a {kinds} file, got {shown(name, 100)}")
    if name.lower().endswith(DECODED_HERE) and load_opencv() is None:
        raise DataError(f"{where}: {MISSING_DECODER}")
    return file_in(root, name, where)


def images_under(root: Path, folder: Path) -> list[str]:
    """Return the paths, relative to `root`, of the images in a folder and its subfolders, sorted.
    Skips hidden files, and links to folders. Raises DataError."""
    names: list[str] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images = [name for name in files if name.lower().endswith(SUFFIXES) and name[0] != "."]
        names += [os.path.relpath(os.path.join(place, name), root) for name in images]
        if len(names) > MOST_IMAGES:
            raise DataError(f"{folder.name}: expected at most {MOST_IMAGES} images")
    return sorted(names)


def boxes_of(boxes: Sequence[Any], classes: Sequence[int], crowds: Sequence[bool] = ()) -> Boxes:
    """Return true boxes."""
    crowded = np.array(crowds, bool) if any(crowds) else None
    return Boxes(np.array(boxes, float).reshape(-1, 4), np.array(classes, np.int64), crowds=crowded)


class ClassMap:
    """Maps classes of labels to the model's numbers: by name if the model has labels, else in the
    order of the names."""

    def __init__(self, names: Sequence[str], labels: Sequence[str], noun: str) -> None:
        """`noun`: what a name is in errors, such as `category`."""
        self._names, self._labels, self._noun = names, labels, noun
        numbers = {label.strip().casefold(): at for at, label in enumerate(labels)}
        self._numbers = [numbers.get(name.strip().casefold()) for name in names]
        self.matches_none = not any(number is not None for number in self._numbers)
        self.by_number = dict(enumerate(labels or names))

    def number(self, at: int, where: str) -> int:
        """Return the model's number of the name at this place. Raises DataError if it has none."""
        number = self._numbers[at] if self._labels else at
        if number is None:
            name, hint = self._names[at], suggestion(self._names[at], self._labels[:20])
            unknown = f"{self._noun} {shown(name)} is none of the model's labels"
            raise DataError(f"{where}: {unknown}; {hint}")
        return number
