"""The example models: their descriptions and files, and generators of their inputs with the correct
answers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples import (
    dense,
    frames,
    road_users,
    sentences,
    stories,
    street,
    text_streams,
    vectors,
)
from slacktide.lab.examples.labelled import LabelledPicture

Array = NDArray[Any]

Streamed = Iterator[tuple[Mapping[str, Array], int]]
"""Ordered pairs of a one-row request (tensors by input name) and its label."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Requests of one row each. Free axes may differ between requests, datatypes may not."""

    requests: tuple[Mapping[str, Array], ...]
    """For each request, by input name, a tensor whose first axis is the batch axis, of size 1."""
    labels: NDArray[np.int64] | None
    """Class of each request, exact because the input was drawn; for plates, a row with the class
    of each character. None if the model has no classes."""

    def __len__(self) -> int:
        return len(self.requests)

    def batch(self, start: int = 0, stop: int | None = None) -> dict[str, Array]:
        """Return requests `start` to `stop` as one batch, zero-padded to the longest along free
        axes. This is correct for all example models: their inputs have fixed shapes, or a mask in
        which zero marks padding. Raises ValueError if the range is empty."""
        chosen = self.requests[start:stop]
        if not chosen:
            raise ValueError(f"no requests from {start} to {stop} among {len(self)}")
        return {name: _stack([request[name] for request in chosen]) for name in chosen[0]}

    def write(self, path: Path) -> None:
        """Write a compressed .npz. For each input NAME there are `NAME`, all requests padded into
        one batch, and `NAME.shapes` of shape (count, axes), their shapes before padding; and
        `labels` if known."""
        arrays: dict[str, Array] = dict(self.batch())
        for name in tuple(arrays):
            shapes = [request[name].shape[1:] for request in self.requests]
            arrays[f"{name}.shapes"] = np.array(shapes, dtype=np.int64)
        if self.labels is not None:
            arrays["labels"] = self.labels
        # Stated because, by NumPy's annotation, a key of `arrays` could set this flag.
        np.savez_compressed(path, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, path: Path) -> Samples:
        """Read a file that `write` wrote; requests get back their shapes before padding."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        labels = arrays.pop("labels", None)
        shapes = {name: arrays.pop(f"{name}.shapes") for name in tuple(arrays) if "." not in name}
        count = len(next(iter(arrays.values())))
        requests = tuple(
            {
                name: rows[i : i + 1][(slice(None), *map(slice, shapes[name][i]))]
                for name, rows in arrays.items()
            }
            for i in range(count)
        )
        return cls(requests, labels)


def _stack(tensors: list[Array]) -> Array:
    """Concatenate along axis 0, zero-padding the other axes to the largest."""
    largest = tuple(max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors), strict=True))
    batch = np.zeros((len(tensors), *largest), tensors[0].dtype)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(map(slice, tensor.shape[1:]))] = tensor[0]
    return batch


class ExamplesError(Exception):
    """An unknown example model, or a target folder with other content."""


@dataclass(frozen=True, slots=True)
class ExampleModel:
    """One example model."""

    name: str
    summary: str
    classes: tuple[str, ...]
    """Class names, indexed by label; empty: the model has no classes."""
    samples: int
    """Number of sample inputs that are written beside the model."""
    draw: Callable[[int, np.random.Generator], Samples]
    build: Callable[[], bytes] | None = None
    """Makes the ONNX file; None: the file ships with the package."""
    pictures: Callable[[int, np.random.Generator], Iterator[LabelledPicture]] | None = None
    """Draws pictures with exact labels one by one; None: the model takes no pictures."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """Number of inputs of each of its ordered streams, by name."""
    stream: Callable[[str, int, int], Streamed] | None = None
    """Draws inputs of a stream, by (name, start, stop); None: the model has no streams."""

    def onnx(self) -> bytes:
        """Return the content of the model's ONNX file; of several, the last and most accurate."""
        return list(self.onnx_files().values())[-1]

    def onnx_files(self) -> dict[str, bytes]:
        """Return the content of the ONNX files by name, in order: one, or one per variant."""
        if self.build:
            return {"model.onnx": self.build()}
        files = self._shipped()
        return {name: files[name] for name in sorted(files) if name.endswith(".onnx")}

    def extras(self) -> dict[str, bytes]:
        """Return the files beside the versions by name: settings, labels and so on."""
        files = self._shipped()
        extras = {name: files[name] for name in files if not name.endswith(".onnx")}
        if self.classes:
            extras["labels.txt"] = "".join(f"{name}\n" for name in self.classes).encode()
        return extras

    def _shipped(self) -> dict[str, bytes]:
        """Return all shipped files of this model by name."""
        folder = resources.files("slacktide.lab.examples") / "models" / self.name
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _of(name: str, rows: Iterable[Array], labels: NDArray[np.int64] | None = None) -> Samples:
    """Return one request per row, for a model whose only input is `name`."""
    return Samples(tuple({name: row[None]} for row in rows), labels)


def _masked(ids: NDArray[np.int64]) -> Mapping[str, Array]:
    return {"input_ids": ids[None], "attention_mask": np.ones((1, len(ids)), np.int64)}


def _of_frames(name: str, summary: str) -> ExampleModel:
    return ExampleModel(
        name,
        summary,
        frames.KINDS,
        64,
        lambda count, rng: _of("frames", *frames.frames(count, rng)),
        streams={
            name: conditions.frames for name, conditions in (frames.STREAMS | frames.HOURS).items()
        },
        stream=lambda *part: (({"frames": row[None]}, kind) for row, kind in frames.video(*part)),
    )


def _of_texts(
    name: str,
    summary: str,
    classes: tuple[str, ...],
    draw: Callable[[int, np.random.Generator], tuple[list[sentences.Ids], NDArray[np.int64]]],
    stream: Callable[[str, int, int], text_streams.Texts],
) -> ExampleModel:
    def drawn(count: int, rng: np.random.Generator) -> Samples:
        ids, labels = draw(count, rng)
        return Samples(tuple(map(_masked, ids)), labels)

    return ExampleModel(
        name,
        summary,
        classes,
        256,
        drawn,
        streams=dict.fromkeys(text_streams.STREAMS, text_streams.STREAM_TEXTS),
        stream=lambda *part: ((_masked(ids), label) for ids, label in stream(*part)),
    )


def _scenes(count: int, rng: np.random.Generator) -> Iterator[street.Scene]:
    return (street.Street(int(rng.integers(2**62))).scene() for _ in range(count))


def _street_pictures(count: int, rng: np.random.Generator) -> Iterator[LabelledPicture]:
    for scene in _scenes(count, rng):
        label = {"boxes": scene.boxes().tolist(), "classes": scene.kinds().tolist()}
        yield LabelledPicture(scene.picture, label)


def _of_streets(name: str, summary: str) -> ExampleModel:
    return ExampleModel(
        name,
        summary,
        street.KINDS,
        8,
        lambda count, rng: _of("image", (scene.picture for scene in _scenes(count, rng))),
        pictures=_street_pictures,
    )


def _of_road_users(name: str, summary: str) -> ExampleModel:
    question = road_users.QUESTIONS[name]

    def drawn(count: int, rng: np.random.Generator) -> Samples:
        crops = list(islice(road_users.crops(question, rng), count))
        labels = np.array([question.label(user) for _, user, _ in crops])
        return _of("image", (crop for crop, _, _ in crops), labels)

    return ExampleModel(name, summary, question.answers, 64, drawn)


def _vehicles(count: int, rng: np.random.Generator) -> Samples:
    pictures, labels = frames.frames(count, rng)
    return _of("image", np.ascontiguousarray(pictures.transpose(0, 2, 3, 1)), labels)


def _vehicle_pictures(count: int, rng: np.random.Generator) -> Iterator[LabelledPicture]:
    pictures, labels = frames.frames(count, rng)
    for picture, label in zip(pictures, labels, strict=True):
        yield LabelledPicture(picture.transpose(1, 2, 0), {"label": int(label)})


MODELS: Mapping[str, ExampleModel] = {
    model.name: model
    for model in (
        ExampleModel(
            "mlp",
            "tiny MLP: ten kinds of short signals",
            vectors.SIGNAL_KINDS,
            256,
            lambda count, rng: _of("features", *vectors.signals(count, rng)),
        ),
        _of_frames("residual", "residual classifier of street frames: batching hardly helps"),
        _of_texts(
            "text",
            "text encoder with free sequence length: time grows with the text",
            sentences.TOPICS,
            sentences.texts,
            text_streams.text_stream,
        ),
        _of_frames(
            "chained",
            "classifier of street frames, a plain chain of layers: the work is spread evenly",
        ),
        _of_texts(
            "whereabouts",
            "reader of stories that tells where a thing is: the order of words matters",
            stories.PLACES,
            stories.stories,
            text_streams.story_stream,
        ),
        ExampleModel(
            "dense",
            "network of random weights, bound by reading them: batching helps much",
            (),
            64,
            lambda count, rng: _of("features", vectors.features(count, rng)),
            build=dense.dense_model,
        ),
        _of_streets(
            "street",
            "detector of road users in pictures of 128 to 608 pixels: larger is more accurate",
        ),
        _of_streets(
            "street_depth",
            "detector of road users at three depths of one file: deeper is more accurate",
        ),
        ExampleModel(
            "vehicles",
            "classifier of street frames in five files: deeper is more accurate",
            frames.KINDS,
            64,
            _vehicles,
            pictures=_vehicle_pictures,
        ),
        _of_road_users("brand", "classifier of a vehicle's brand, in crops of street scenes"),
        _of_road_users("plate", "reader of a plate's four characters, in crops of vehicles"),
        _of_road_users("clothing", "classifier of a coat's colour, in crops of people"),
        _of_road_users("direction", "classifier of a person's direction, in crops of people"),
    )
}
"""All example models by name."""


def example(name: str) -> ExampleModel:
    """Return an example model. For an unknown name, raises ExamplesError with the nearest name."""
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
    raise ExamplesError(
        f"no example model is called {name!r}; did you mean {near!r}? (all: {', '.join(MODELS)})"
    )


def make_inputs(model: str, count: int, seed: int) -> Samples:
    """Draw `count` realistic one-row requests for an example model; equal seeds give equal ones.

    Raises ExamplesError for an unknown model, ValueError for a count below one.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return example(model).draw(count, np.random.default_rng(seed))


def make_stream(model: str, stream: str, start: int = 0, stop: int | None = None) -> Streamed:
    """Return inputs `start` to `stop` (or the last) of a stream of an example model, in order.

    Raises ExamplesError for an unknown model or stream.
    """
    chosen = example(model)
    if chosen.stream is None or stream not in chosen.streams:
        available = ", ".join(chosen.streams) or "it has none"
        raise ExamplesError(f"{model} has no stream called {stream!r} (all: {available})")
    return chosen.stream(stream, start, chosen.streams[stream] if stop is None else stop)
