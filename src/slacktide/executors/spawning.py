"""`SpawnRequest`: the message with which a server requests a worker from its fork server.

It is JSON with four descriptors (SCM_RIGHTS): the worker's ends of the control socket and of the
socket of aborts, the pool's input arena, the worker's output file. The fork server answers with the
process id and a pidfd, and later reports how the process ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.executors.ports import (
    DecodeSource,
    ExitSource,
    FunctionSource,
    ModelSource,
    PoolingSource,
    RowShapes,
    TokenSource,
)
from slacktide.exits.own_exits import OwnExit

DESCRIPTORS: Final = 4
MESSAGE_LIMIT: Final = 1 << 16
"""Bytes of one message. A model whose configuration does not fit is refused."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """A request for one worker. The answer repeats `id`."""

    id: int
    source: ModelSource
    cores: tuple[int, ...]
    device: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self), default=str).encode()  # paths become text

    @classmethod
    def decode(cls, message: bytes) -> SpawnRequest:
        document = json.loads(message)
        stated = document["source"]
        read = {
            "path": Path(stated["path"]),
            "root": Path(stated["root"]),
            "providers": tuple(stated["providers"]),
            "warmup_shapes": _shapes(stated["warmup_shapes"]),
            "padding": _padding(stated["padding"]),
            "threads": tuple(stated["threads"]),
            "expose": tuple(stated["expose"]),
            "more_shapes": tuple(_shapes(shapes) for shapes in stated["more_shapes"]),
            "samples": None if stated["samples"] is None else Path(stated["samples"]),
            "sample_rows": {name: Path(path) for name, path in stated["sample_rows"].items()},
            "image_sizes": tuple(stated["image_sizes"]),
            "exits": _exits(stated["exits"]),
            "function": _function(stated["function"]),
            "before": _function(stated["before"]),
            "after": _function(stated["after"]),
            "image": _image(stated["image"]),
            "decode": _decoder(stated["decode"]),
            "tokens": _tokens(stated["tokens"]),
            "pooling": PoolingSource(**stated["pooling"]) if stated["pooling"] else None,
            "labels": None if stated["labels"] is None else Path(stated["labels"]),
            "own_exits": tuple(OwnExit(**own_exit) for own_exit in stated["own_exits"]),
        }
        document |= {"source": ModelSource(**{**stated, **read}), "cores": tuple(document["cores"])}
        return cls(**document)


def _shapes(document: Mapping[str, Sequence[int]]) -> RowShapes:
    return {name: tuple(shape) for name, shape in document.items()}


def _exits(document: Any) -> ExitSource | None:
    names = ("add", "forbid", "labels")
    lists = {name: tuple(document[name]) for name in names} if document else {}
    return ExitSource(**document | lists | {"folder": Path(document["folder"])}) if lists else None


def _image(document: Any) -> StatedPreprocessing | None:
    lists = ("size", "mean", "std")
    read = {key: tuple(document[key]) for key in lists if document and document[key]}
    return StatedPreprocessing(**document | read) if document else None


def _tokens(document: Any) -> TokenSource | None:
    ranges = _shapes(document["ranges"]) if document else {}
    return TokenSource(**document | {"ranges": ranges}) if document else None


def _function(document: Any) -> FunctionSource | None:
    return FunctionSource(**document) if document else None


def _decoder(document: Any) -> DecodeSource | None:
    if not document:
        return None
    names = ("outputs", "classes", "strides", "variance")
    lists: dict[str, Any] = {name: tuple(document[name]) for name in names}
    lists["anchors"] = tuple(tuple(map(tuple, sizes)) for sizes in document["anchors"])
    return DecodeSource(**document | lists | {"function": _function(document["function"])})


def _padding(document: Any) -> Padding | None:
    if document is None:
        return None
    inputs = {name: PaddedInput(**pad) for name, pad in document["inputs"].items()}
    outputs, detected_outputs = (
        {name: PaddedOutput(**pad) for name, pad in document[key].items()}
        for key in ("outputs", "detected_outputs")
    )
    return Padding(inputs, outputs, tuple(document["lengths"]), detected_outputs)
