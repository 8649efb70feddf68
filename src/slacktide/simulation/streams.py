"""One stream of random numbers for each purpose, all from one seed.

A stream belongs to its purpose by name, not by the order of asking: another purpose, or more
draws for one, change nothing for the others, so that two runs stay paired in all that they share.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A fresh generator for `purpose` under `seed` ≥ 0; the same numbers at every call."""
    digest = hashlib.sha256(purpose.encode()).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))
