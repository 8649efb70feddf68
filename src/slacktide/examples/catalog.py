"""The example models: what each is, where its file comes from, and how its inputs are drawn."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

import numpy as np

from slacktide.examples import dense, frames, sentences, vectors
from slacktide.examples.samples import Samples


class ExamplesError(Exception):
    """Asked for an example model there is none of, or to write where something else lies."""


@dataclass(frozen=True, slots=True)
class ExampleModel:
    """One example model."""

    name: str
    summary: str
    classes: tuple[str, ...]
    """Names of what the labels number; empty: the model has no classes."""
    samples: int
    """How many sample inputs are written beside it."""
    draw: Callable[[int, np.random.Generator], Samples]
    build: Callable[[], bytes] | None = None
    """Makes the ONNX file; None: it ships with the package."""

    def onnx(self) -> bytes:
        """Content of the model's ONNX file."""
        return self.build() if self.build else self._shipped()["model.onnx"]

    def extras(self) -> dict[str, bytes]:
        """Files that belong beside the versions, by name: settings and the like."""
        files = self._shipped()
        return {name: content for name, content in files.items() if name != "model.onnx"}

    def _shipped(self) -> dict[str, bytes]:
        """Every shipped file of this model, by name."""
        folder = resources.files("slacktide.examples") / "models" / self.name
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _signals(count: int, rng: np.random.Generator) -> Samples:
    rows, labels = vectors.signals(count, rng)
    return Samples(tuple({"features": row[None]} for row in rows), labels)


def _frames(count: int, rng: np.random.Generator) -> Samples:
    pictures, labels = frames.frames(count, rng)
    return Samples(tuple({"frames": picture[None]} for picture in pictures), labels)


def _texts(count: int, rng: np.random.Generator) -> Samples:
    ids, labels = sentences.texts(count, rng)
    requests = tuple(
        {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)} for row in ids
    )
    return Samples(requests, labels)


def _features(count: int, rng: np.random.Generator) -> Samples:
    return Samples(tuple({"features": row[None]} for row in vectors.features(count, rng)), None)


MODELS: Mapping[str, ExampleModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            ExampleModel(
                "mlp", "tiny MLP: ten kinds of short signals", vectors.SIGNAL_KINDS, 256, _signals
            ),
            ExampleModel(
                "residual",
                "residual classifier of street frames: hardly gains from batching",
                frames.KINDS,
                64,
                _frames,
            ),
            ExampleModel(
                "text",
                "text encoder with free sequence length: time grows with the text",
                sentences.TOPICS,
                256,
                _texts,
            ),
            ExampleModel(
                "dense",
                "weight-bound network of random weights: gains much from batching",
                (),
                64,
                _features,
                build=dense.dense_model,
            ),
        )
    }
)
"""Every example model by name."""


def example(name: str) -> ExampleModel:
    """The example model of this name. Raises ExamplesError naming the nearest if there is none."""
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
    raise ExamplesError(
        f"no example model is called {name!r}; did you mean {near!r}? (all: {', '.join(MODELS)})"
    )


def make_inputs(model: str, count: int, seed: int) -> Samples:
    """`count` realistic requests of one row for an example model, the same for the same seed.

    Raises ExamplesError for an unknown model, ValueError for a count below one.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return example(model).draw(count, np.random.default_rng(seed))
