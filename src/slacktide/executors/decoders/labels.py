"""Labels: names of a model's classes, from the owner's file or from the model's metadata."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slacktide._files import open_file
from slacktide.domain.tensors import TensorSpec
from slacktide.executors.decoders.heads import check_labels
from slacktide.executors.onnx_runtime import ModelError

MOST_LABEL_BYTES = 4 << 20
"""Maximum bytes of a file of labels."""
_MOST_NAME = 256
"""Maximum characters of a label."""
_MOST_NAMES_TEXT = 1 << 18
"""Maximum characters of `names` in a model's metadata."""
_MOST_LINES = 1000
"""Maximum lines of `character`; a longer list is the alphabet of a text recogniser."""
_MOST_CHARACTERS = 1 << 18
"""Maximum characters of such an alphabet."""
_READ_TASKS = ("", "detect", "classify")
"""Values of `task` in the metadata of models whose heads can be decoded."""


def parse_labels(data: bytes) -> tuple[str, ...]:
    """The labels in a file: one per line, in the order of the classes. Empty lines at the end are
    ignored. Raises ValueError."""
    if len(data) > MOST_LABEL_BYTES:
        raise ValueError(f"expected at most {MOST_LABEL_BYTES} bytes")
    try:
        lines = data.decode("utf-8-sig").rstrip().split("\n")
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8") from None
    labels = tuple(line.strip() for line in lines)
    if not any(labels):
        raise ValueError("expected a name in each line, found none")
    lines_by_label: dict[str, int] = {}
    for number, label in enumerate(labels, 1):
        if not 0 < len(label) <= _MOST_NAME or not label.isprintable():
            expected = f"expected a name of at most {_MOST_NAME} characters, got {label!r:.100}"
            raise ValueError(f"line {number}: {expected}")
        if (earlier := lines_by_label.setdefault(label, number)) != number:
            raise ValueError(f"line {number}: {label!r} is already the name in line {earlier}")
    return labels


def parse_characters(data: bytes) -> tuple[str, ...]:
    """The characters in a file: one per line, in the order of the classes. Raises ValueError."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8") from None
    characters = tuple(text.split("\n"))
    for number, character in enumerate(characters, 1):
        if not 0 < len(character) <= _MOST_NAME:
            raise ValueError(f"line {number}: expected a character, got {character!r:.100}")
    if len(characters) > _MOST_CHARACTERS:
        raise ValueError(f"expected at most {_MOST_CHARACTERS} characters")
    return characters


def names_in(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names of classes that exporters write into a model: `names` of Ultralytics, a Python
    literal such as {0: 'person', 1: 'bicycle'}, or `character` of the rapid family, one per line.
    Empty if there are none, or they are unreadable."""
    text = metadata.get("names", "")
    if not text or len(text) > _MOST_NAMES_TEXT:
        lines = metadata.get("character", "").split("\n")
        return tuple(lines) if all(lines) and len(lines) <= _MOST_LINES else ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about numbers such as 1a
            names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ()
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            return ()
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def find_labels(
    path: Path | None,
    metadata: Mapping[str, str],
    outputs: Sequence[TensorSpec] = (),
    *,
    decodes: bool,
    spells: bool = False,
) -> tuple[str, ...]:
    """The labels of a model: those in the owner's file, else those in its metadata, else none.
    `decodes`: whether a decoder reads its `outputs`, and compares the number of labels. `spells`:
    whether labels are characters. Raises ModelError if the file is unreadable, or contradicts the
    metadata or a classifier's only output."""
    if spells:
        if path is not None:
            return _read(path, parse_characters)
        alphabet = metadata.get("character", "")
        return tuple(alphabet.split("\n")) if 0 < len(alphabet) <= 2 * _MOST_CHARACTERS else ()
    task = metadata.get("task", "")
    if decodes and task not in _READ_TASKS:
        raise ModelError(f"decode.as: expected a model of task 'detect', its file says {task!r}")
    names = names_in(metadata)
    if path is None:
        return names
    labels = _read(path, parse_labels)
    if names:
        _check_alike(labels, names)
    for spec in outputs if len(outputs) == 1 and not decodes else ():
        if spec.datatype.is_float and len(spec.shape) == 2 and spec.shape[1] > 1:
            check_labels(len(labels), spec.shape[1], spec)
    return labels


def _read(path: Path, parse: Callable[[bytes], tuple[str, ...]]) -> tuple[str, ...]:
    """Raises ModelError."""
    try:
        with open_file(path) as file:
            return parse(file.read(MOST_LABEL_BYTES + 1))
    except OSError as error:
        raise ModelError(f"labels: the file cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"labels: {error}") from None


def _check_alike(labels: Sequence[str], names: Sequence[str]) -> None:
    """Raise ModelError unless the owner's labels fit those in the model's metadata. A label may be
    another word, such as a translation, but not the metadata's name of a different class."""
    if len(labels) != len(names):
        raise ModelError(f"labels: expected {len(names)} names, as the file has, got {len(labels)}")
    places = {name: number for number, name in enumerate(names)}
    for number, label in enumerate(labels):
        place = places.get(label, number)
        if place != number:
            expected = f"expected {names[number]!r} as class {number}, as the model's file says"
            raise ModelError(f"labels: {expected}, got {label!r}, its class {place}")
