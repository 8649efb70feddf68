"""Pooled features of a stream, kept in files; ramps learn from them and are judged on them.

The stream passes through the model once, with the pooled features of all positions as additional
outputs. Features are kept in half precision, about 3 KB per input, in files of `CHUNK` inputs. So
the pass can be stopped, resumed and extended, and other ramps need no second pass. The folder's
name contains a hash of the model, its pooling nodes and a sample of the inputs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits import find_positions, with_features
from slacktide.lab.examples import Samples, example, make_stream
from slacktide_papers.apparate.class_groups import merged
from slacktide_papers.apparate.setting import ExitStream
from slacktide_papers.apparate.stage_times import opened, read_arrays, write_arrays

CHUNK = 300
"""Number of inputs in a file; the parts of an hour that are played are multiples of it."""
BATCH = 8
_SAMPLED = 4
"""Number of sampled inputs that the hash in the folder's name covers."""

Array = NDArray[Any]


def cached(*names: str) -> Path:
    """A file or folder in the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home.joinpath("slacktide", "exit-tables", *names)


class StreamFeatures:
    """Features of one model on one of its streams, read from files, or computed on one core if
    their files are missing."""

    def __init__(self, stream: ExitStream) -> None:
        import onnx

        self._stream, self.model = stream, stream.model
        self.proto = proto = onnx.load_model_from_string(example(stream.model).onnx())
        mask = "attention_mask" if _masked(proto) else ""
        self.graph = find_positions(proto, mask=mask, output=proto.graph.output[0].name)
        self._ends = np.cumsum([position.features for position in self.graph.positions])

    @cached_property
    def folder(self) -> Path:
        """Folder of this stream's files, named after the stream and the hash."""
        digest = hashlib.sha256(self._pooling + f"{CHUNK}".encode())
        for place in np.linspace(0, self._stream.length - 1, _SAMPLED).astype(int).tolist():
            for inputs in self._inputs(place, place + 1):
                digest.update(b"".join(value.tobytes() for value in inputs.values()))
        return cached(f"{self.model}-{self._stream.stream}-{digest.hexdigest()[:12]}")

    @cached_property
    def _pooling(self) -> bytes:
        return bytes(with_features(self.proto, self.graph).SerializeToString(deterministic=True))

    @cached_property
    def _session(self) -> Any:
        return opened(self._pooling)

    def missing(self, stop: int) -> list[int]:
        """The first inputs of the files that are missing for the used inputs up to `stop`."""
        return [first for first in range(0, stop, CHUNK) if not self._path(first).exists()]

    def compute(self, first: int) -> None:
        """Write the file of the used inputs from `first` on."""
        path, place = self._path(first), self._stream.place(first)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, self._computed(place, min(place + CHUNK, self._stream.length)))

    def rows(self, start: int, stop: int) -> Iterator[tuple[list[Array], Array]]:
        """(features by position, logits) of the used inputs `start` to `stop`, chunk by chunk."""
        for first in range(start - start % CHUNK, stop, CHUNK):
            if not self._path(first).exists():
                self.compute(first)
            chunk = read_arrays(self._path(first))
            part = slice(max(start - first, 0), stop - first)
            features = np.split(chunk["features"][part].astype(np.float32), self._ends[:-1], axis=1)
            logits = chunk["logits"][part]
            if self._stream.groups:
                logits = merged(logits, example(self.model).classes)
            yield features, logits

    def pictures(self, start: int, stop: int) -> Iterator[Array]:
        """The used inputs `start` to `stop` of a video, [n, 3, height, width], in parts."""
        places = [self._stream.place(number) for number in range(start, stop)]
        for part in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            inputs = self._inputs(int(part[0]), int(part[-1]) + 1)
            while few := tuple(islice(inputs, CHUNK)):
                yield np.concatenate([next(iter(request.values())) for request in few])

    def _path(self, first: int) -> Path:
        return self.folder / f"{self._stream.place(first)}.npz"

    def _computed(self, start: int, stop: int) -> dict[str, Array]:
        outputs = [f"exits/features/{number}" for number in range(len(self._ends))]
        features, logits = [], []
        inputs = self._inputs(start, stop)
        while few := tuple(islice(inputs, BATCH)):
            *pooled, batch_logits = self._session.run(
                [*outputs, "exits/logits"], Samples(few, None).batch()
            )
            features.append(np.concatenate(pooled, axis=1).astype(np.float16))
            logits.append(batch_logits)
        return {"features": np.concatenate(features), "logits": np.concatenate(logits)}

    def _inputs(self, start: int, stop: int) -> Iterator[Mapping[str, Array]]:
        stream = make_stream(self._stream.model, self._stream.stream, start, stop)
        return (request for request, _ in stream)


def _masked(proto: Any) -> bool:
    return any(tensor.name == "attention_mask" for tensor in proto.graph.input)
