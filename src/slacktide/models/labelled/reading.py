"""Tells formats of labels apart, and reads them.

The simplest format is a folder of images for each class. Folders are named after labels of the
model. If no name is a label, or the model has no labels, the sorted order of folders gives the
class numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slacktide.models.labelled.coco import ANNOTATIONS, coco_files, read_coco
from slacktide.models.labelled.images import (
    ClassMap,
    DataError,
    LabelledImage,
    LabelledSet,
    image_in,
    images_under,
    labelled_set,
)
from slacktide.models.labelled.lines import LABELS, read_lines
from slacktide.models.labelled.yolo import DATA_FILE, read_yolo


def read_labels(path: Path, labels: Sequence[str] = ()) -> LabelledSet:
    """Read labelled images: a folder, or its file of labels. `labels`: the model's names of
    classes, with which the names in the data are matched. Raises DataError."""
    if path.is_file():
        return _read_file(path, labels)
    try:
        files = {child.name for child in path.iterdir()}
        if LABELS in files:
            return read_lines(path, labels)
        if DATA_FILE in files:
            return read_yolo(path, DATA_FILE, labels)
        if annotations := coco_files(path):
            if len(annotations) > 1:
                raise DataError(f"{', '.join(annotations)}: expected one file; state its path")
            return read_coco(path, annotations[0], labels)
        if _class_folders(path):
            return _read_class_folders(path, labels)
    except OSError as error:
        raise DataError(f"{path.name}: cannot be read: {error.strerror}") from None
    raise DataError(
        f"{path.name}: expected {LABELS}, {DATA_FILE}, {ANNOTATIONS}/instances_*.json, or a folder "
        "of images for each class"
    )


def _read_file(path: Path, labels: Sequence[str]) -> LabelledSet:
    kind = path.suffix.lower()
    if kind == ".json":
        root = path.parent.parent if path.parent.name == ANNOTATIONS else path.parent
        return read_coco(root, str(path.relative_to(root)), labels)
    if kind in (".yaml", ".yml"):
        return read_yolo(path.parent, path.name, labels)
    if kind == ".jsonl":
        return read_lines(path.parent, labels, path.name)
    raise DataError(f"{path.name}: expected a .json, .yaml or .jsonl file, or a folder")


def _class_folders(root: Path) -> list[str]:
    """Return the names of a folder's folders, sorted, without hidden ones and links."""
    folders = (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(path.name for path in folders if not path.name.startswith("."))


def _read_class_folders(root: Path, labels: Sequence[str]) -> LabelledSet:
    """Read the images of all folders. Raises DataError."""
    names = _class_folders(root)
    classes = ClassMap(names, labels, "folder")
    if classes.matches_none:
        if labels and len(names) > len(labels):
            expected = f"expected {len(labels)} folders at most, one for each label of the model"
            raise DataError(f"{root.name}: {expected}, got {len(names)}")
        classes = ClassMap(names, (), "folder")
    images = [
        LabelledImage(image_in(root, image, image), image, classes.number(at, name))
        for at, name in enumerate(names)
        for image in images_under(root, root / name)
    ]
    return labelled_set(images, classes.by_number, root.name)
