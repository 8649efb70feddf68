"""Short signals of ten kinds, for the MLP, and plain feature vectors, for the dense network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGNAL_LENGTH = 64
"""Samples in one signal."""
FEATURES = 256
"""Values in one feature vector."""

_NOISE = 0.25
"""Standard deviation of the noise on a signal whose amplitude is 0.6 to 1.4."""

Float32 = NDArray[np.float32]
_Float = NDArray[np.floating[Any]]


_T: _Float = np.linspace(0, 1, SIGNAL_LENGTH, dtype=np.float64)
"""Time through the signal, 0 to 1."""

# A function for each kind. It turns cycles and phases, both of shape (n, 1), into signals of
# shape (n, SIGNAL_LENGTH).
_KINDS: dict[str, Callable[[_Float, _Float], _Float]] = {
    "sine": lambda c, p: np.sin(2 * np.pi * c * _T + p),
    "square": lambda c, p: np.sign(np.sin(2 * np.pi * c * _T + p)),
    "sawtooth": lambda c, p: (2 * np.pi * c * _T + p) / np.pi % 2 - 1,
    "triangle": lambda c, p: 2 / np.pi * np.arcsin(np.sin(2 * np.pi * c * _T + p)),
    "pulses": lambda c, p: np.where((2 * np.pi * c * _T + p) % (2 * np.pi) < 0.8, 1.5, -0.2),
    "rising pitch": lambda c, p: np.sin(2 * np.pi * c * _T * (0.5 + _T) + p),
    "falling pitch": lambda c, p: np.sin(2 * np.pi * c * _T * (2 - _T) + p),
    "fading": lambda c, p: 1.6 * np.exp(-3 * _T) * np.sin(2 * np.pi * c * _T + p),
    "growing": lambda c, p: 1.6 * np.exp(3 * _T - 3) * np.sin(2 * np.pi * c * _T + p),
    "noise": lambda c, p: 0 * (c + p) * _T,
}

SIGNAL_KINDS: tuple[str, ...] = tuple(_KINDS)
"""Class names; a label is an index into them."""


def signals(count: int, rng: np.random.Generator) -> tuple[Float32, NDArray[np.int64]]:
    """Draw signals (count, SIGNAL_LENGTH), with kinds in equal parts, and their labels (count,)."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % len(SIGNAL_KINDS))
    cycles = rng.uniform(3, 5, (count, 1))
    phase = rng.uniform(0, 2 * np.pi, (count, 1))
    amplitude = rng.uniform(0.6, 1.4, (count, 1))
    noise = rng.normal(0, 1, (count, SIGNAL_LENGTH))
    out = np.empty((count, SIGNAL_LENGTH), np.float64)
    for label, shape in enumerate(_KINDS.values()):
        rows = labels == label
        out[rows] = shape(cycles[rows], phase[rows])
    # Otherwise "noise" would be quieter than all other kinds, and loudness alone would reveal it.
    level = np.where(labels == SIGNAL_KINDS.index("noise"), 0.7, _NOISE)[:, None]
    return (amplitude * out + level * noise).astype(np.float32), labels


def features(count: int, rng: np.random.Generator) -> Float32:
    """Draw standard normal feature vectors (count, FEATURES). They have no classes."""
    return rng.standard_normal((count, FEATURES), dtype=np.float32)
