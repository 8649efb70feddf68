"""`SpawnRequest`: what a server asks of the fork server, as JSON beside four descriptors.

The descriptors travel with the message (SCM_RIGHTS), in this order: the worker's ends of the
control and the abort socket, the pool's input arena, the worker's output file. The fork server
answers with the process id and a pidfd, and later reports how the process ended.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slacktide.domain.padding import PaddedInput, Padding
from slacktide.executors.ports import ModelSource

DESCRIPTORS = 4
MESSAGE_LIMIT = 1 << 16
"""Bytes of one message; a model with more warm-up shapes than fit is refused."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One worker to be made. `id` is the server's, and comes back in the answer."""

    id: int
    source: ModelSource
    cores: tuple[int, ...]
    device: str

    def encode(self) -> bytes:
        source = asdict(self.source)
        source["path"], source["root"] = str(self.source.path), str(self.source.root)
        source["warmup_shapes"] = {k: list(v) for k, v in self.source.warmup_shapes.items()}
        document = {
            "id": self.id,
            "cores": list(self.cores),
            "device": self.device,
            "source": source,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, message: bytes) -> SpawnRequest:
        document = json.loads(message)
        source = ModelSource(**document["source"])
        source = replace(
            source,
            path=Path(source.path),
            root=Path(source.root),
            providers=tuple(source.providers),
            warmup_shapes={k: tuple(v) for k, v in source.warmup_shapes.items()},
            padding=_padding(document["source"]["padding"]),
            threads=tuple(source.threads),
        )
        return cls(document["id"], source, tuple(document["cores"]), document["device"])


def _padding(document: Any) -> Padding | None:
    if document is None:
        return None
    inputs = {name: PaddedInput(**one) for name, one in document["inputs"].items()}
    return Padding(inputs, document["outputs"], tuple(document["lengths"]))
