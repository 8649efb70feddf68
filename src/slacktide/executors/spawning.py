"""What a server says to its fork server.

A `SpawnRequest`, as JSON beside four descriptors (SCM_RIGHTS): the worker's ends of the control and
the abort socket, the pool's input arena, the worker's output file. The fork server answers with the
process id and a pidfd, and later reports how the process ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from slacktide.domain.padding import PaddedInput, Padding
from slacktide.executors.ports import ExitSource, FunctionSource, ModelSource, RowShapes
from slacktide.exits.own_exits import OwnExit

DESCRIPTORS: Final = 4
MESSAGE_LIMIT: Final = 1 << 16
"""Bytes of one message; a model with more warm-up shapes than fit is refused."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One worker to be made. `id` is the server's, and comes back in the answer."""

    id: int
    source: ModelSource
    cores: tuple[int, ...]
    device: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self), default=str).encode()  # as text: paths

    @classmethod
    def decode(cls, message: bytes) -> SpawnRequest:
        document = json.loads(message)
        told = document["source"]
        read = {
            "path": Path(told["path"]),
            "root": Path(told["root"]),
            "providers": tuple(told["providers"]),
            "warmup_shapes": _shapes(told["warmup_shapes"]),
            "padding": _padding(told["padding"]),
            "threads": tuple(told["threads"]),
            "more_shapes": tuple(_shapes(more) for more in told["more_shapes"]),
            "samples": None if told["samples"] is None else Path(told["samples"]),
            "sample_rows": {name: Path(path) for name, path in told["sample_rows"].items()},
            "image_sizes": tuple(told["image_sizes"]),
            "exits": _exits(told["exits"]),
            "function": FunctionSource(**told["function"]) if told["function"] else None,
            "own_exits": tuple(OwnExit(**each) for each in told["own_exits"]),
        }
        document |= {"source": ModelSource(**{**told, **read}), "cores": tuple(document["cores"])}
        return cls(**document)


def _shapes(document: Mapping[str, Sequence[int]]) -> RowShapes:
    return {name: tuple(shape) for name, shape in document.items()}


def _exits(document: Any) -> ExitSource | None:
    names = ("add", "forbid", "labels")
    lists = {name: tuple(document[name]) for name in names} if document else {}
    return ExitSource(**document | lists | {"folder": Path(document["folder"])}) if lists else None


def _padding(document: Any) -> Padding | None:
    if document is None:
        return None
    inputs = {name: PaddedInput(**one) for name, one in document["inputs"].items()}
    return Padding(inputs, document["outputs"], tuple(document["lengths"]))
