"""`RowMemory`: the remembered answers for the rows of one batch, as a worker uses them.

The server keeps what a worker reports about a row as bytes that only workers read, and hands it out
with a later frame of the session. So memory survives the worker, and all lanes share it. The bytes
hold the model's class and its doubt, the means at the model's first position, and the outputs that
ramps make.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import NEVER
from slacktide.executors.ports import NOTHING_REMEMBERED
from slacktide.exits.session_memory import reuse_uncertainty

_LENGTH = struct.Struct("=I")


class RememberedRow(NamedTuple):
    """The model's answer to a frame."""

    answer: int
    """The model's class."""
    doubt: float
    """1 − the model's probability of this class."""
    features: NDArray[np.float32]
    outputs: Mapping[str, NDArray[Any]]
    """By name, with a batch axis of one row."""


def encode_row(row: RememberedRow) -> bytes:
    """Encode a row; empty if it has an output that is not a number."""
    arrays = row.outputs.values()
    if any(array.dtype.hasobject for array in arrays):
        return b""
    layout = [(name, array.dtype.str, array.shape) for name, array in row.outputs.items()]
    head = json.dumps([row.answer, row.doubt, row.features.nbytes, layout]).encode()
    features = row.features.tobytes()
    return b"".join(
        (_LENGTH.pack(len(head)), head, features, *[array.tobytes() for array in arrays])
    )


def decode_row(content: bytes) -> RememberedRow:
    """Decode `encode_row`, which this or another worker of the model has made."""
    (length,) = _LENGTH.unpack_from(content)
    at = _LENGTH.size + length
    answer, doubt, nbytes, layout = json.loads(content[_LENGTH.size : at])
    features = np.frombuffer(content, np.float32, nbytes // 4, at)
    at += nbytes
    outputs = {}
    for name, dtype, shape in layout:
        array = np.frombuffer(content, dtype, int(np.prod(shape)), at).reshape(shape)
        outputs[name], at = array, at + array.nbytes
    return RememberedRow(answer, doubt, features, outputs)


class RowMemory:
    """Remembered answers for members of a batch, and what the batch adds to them."""

    def __init__(
        self, contents: Mapping[int, bytes] = NOTHING_REMEMBERED, *, refreshes: bool = False
    ) -> None:
        """`contents`: by place, for each member of a session with one row; empty: nothing is
        remembered. `refreshes`: see `Batch.refreshes`."""
        self.places = contents.keys()
        self.refreshes = refreshes
        self._rows = {at: decode_row(content) for at, content in contents.items() if content}
        self.features: dict[int, NDArray[np.float32]] = {}
        """By place: means of the member's row."""
        self.uncertainty: dict[int, float] = {}
        """By place: uncertainty of the remembered answer; missing if there is none."""

    def compare(self, places: Sequence[int], features: NDArray[np.float32]) -> None:
        """Take the means of the batch's rows, which belong to the members at `places`."""
        rows = zip(places, features, strict=True)
        self.features = {place: row for place, row in rows if place in self.places}
        for place, row in self._rows.items():
            if place in self.features and row.features.shape == features.shape[1:]:
                self.uncertainty[place] = float(
                    reuse_uncertainty(self.features[place], row.features, row.doubt)
                )

    def verdict(self, place: int) -> tuple[float, int | None]:
        """Return the uncertainty about a member's row, and its answer; None: there is none."""
        if place not in self.uncertainty:
            return NEVER, None
        return self.uncertainty[place], self._rows[place].answer

    def output(self, name: str, places: Sequence[int]) -> NDArray[Any]:
        """Return an output for rows of the members at `places`. Rows without a remembered answer
        get that of another row."""
        default = self._rows[next(iter(self.uncertainty))]
        rows = [self._rows[at] if at in self.uncertainty else default for at in places]
        return np.concatenate([row.outputs[name] for row in rows])
