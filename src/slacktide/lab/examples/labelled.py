"""Writes pictures with labels, for measuring how accurate a model is.

    FOLDER/images/000000.jpg           or 000000.npy, uint8 (height, width, 3), RGB
    FOLDER/labels.jsonl                a line for each picture, in order

A line names the picture and, for a classifier, its class: `{"image": "images/000000.jpg",
"label": 3}`; for a detector `"boxes": [[x0, y0, x1, y1], ...]` in fractions of the picture from its
top left corner, and `"classes": [...]`, one for each box. Pictures are JPEG if opencv-python is
installed (`slacktide[images]`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.executors.pictures import encode_jpeg, load_opencv

_JPEG_QUALITY = 95


@dataclass(frozen=True, slots=True)
class LabelledPicture:
    """A picture and its label."""

    picture: NDArray[np.uint8]
    """(height, width, 3), RGB."""
    label: Mapping[str, Any]
    """`label`, or `boxes` and `classes`."""


def write_labelled(folder: Path, pictures: Iterable[LabelledPicture]) -> int:
    """Create `folder`, and write pictures and labels into it; return the number of pictures. Raises
    OSError."""
    (folder / "images").mkdir(parents=True)
    suffix, encode = _encoding()
    count = 0
    with (folder / "labels.jsonl").open("w", encoding="utf-8") as labels:
        for count, drawn in enumerate(pictures, start=1):
            name = f"images/{count - 1:06}.{suffix}"
            (folder / name).write_bytes(encode(drawn.picture))
            labels.write(json.dumps({"image": name, **drawn.label}) + "\n")
    return count


def _encoding() -> tuple[str, Callable[[NDArray[np.uint8]], bytes]]:
    """Return suffix and encoder of the files: JPEG if opencv-python is installed."""
    if load_opencv() is None:
        return "npy", _npy
    return "jpg", partial(encode_jpeg, quality=_JPEG_QUALITY)


def _npy(picture: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(picture), allow_pickle=False)
    return stream.getvalue()
