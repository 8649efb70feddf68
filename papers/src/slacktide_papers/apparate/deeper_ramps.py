"""Deeper ramps, with hidden layers behind the pooled features, for comparison with ours.

`DeeBERT` has BERT's pooler: a dense layer as wide as the features, and tanh. `two layers` has two
layers, half and a quarter as wide as the features (§3.1 tries both kinds). Numpy trains them on the
model's logits for the first three quarters of the rows that our ramps learn from; the last layer is
then replaced by one that is learnt like our ramps. The hidden layers take 1 to 3 µs at batch 1,
which tables leave out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEEBERT = "DeeBERT"
DEEPER: Mapping[str, Sequence[float]] = MappingProxyType(
    {DEEBERT: (1.0,), "two layers": (0.5, 0.25)}
)
"""By style: width of each hidden layer, as a share of the number of features."""
EPOCHS, BATCH, RATE, MOMENTUM, SEED = 15, 64, 0.02, 0.9, 3

Array = NDArray[Any]
Layers = Sequence[tuple[Array, Array]]
"""(weights, bias) of each layer."""


def units(features: Array, layers: Layers) -> Array:
    """Apply the layers to rows [n, features]; without layers, return the features."""
    for weights, bias in layers:
        features = np.tanh(features @ weights + bias)
    return features


def hidden_layers(style: str, features: Array, logits: Array) -> Layers:
    """Train layers of `style`, rows in order: `features` [n, features], `logits` [n, classes]."""
    count = len(features) * 3 // 4
    mean, scale = features.mean(axis=0), 1.0 / (features.std(axis=0) + 1e-6)
    inputs, targets = (features[:count] - mean) * scale, _softmax(logits[:count])
    width = features.shape[1]
    sizes = [width, *(max(2, round(part * width)) for part in DEEPER[style]), logits.shape[1]]
    random = np.random.default_rng(SEED)
    layers = [
        (random.standard_normal((n, m), np.float32) / np.float32(n**0.5), np.zeros(m, np.float32))
        for n, m in pairwise(sizes)
    ]
    speeds = [(np.zeros_like(weights), np.zeros_like(bias)) for weights, bias in layers]
    for _ in range(EPOCHS):
        for rows in np.array_split(random.permutation(count), max(1, count // BATCH)):
            feeds = [units(inputs[rows], layers[:at]) for at in range(len(layers))]
            weights, bias = layers[-1]
            error = (_softmax(feeds[-1] @ weights + bias) - targets[rows]) / len(rows)
            for layer, speed, feed in zip(layers[::-1], speeds[::-1], feeds[::-1], strict=True):
                slopes = feed.T @ error, error.sum(axis=0)
                error = (error @ layer[0].T) * (1.0 - feed * feed)
                for values, moved, slope in zip(layer, speed, slopes, strict=True):
                    moved *= MOMENTUM
                    moved -= RATE * slope
                    values += moved
    (weights, bias), *later_layers = layers[:-1]
    return [(weights * scale[:, None], bias - (mean * scale) @ weights), *later_layers]


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
