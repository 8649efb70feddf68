"""Sorts keys (applications and hint bins) into a few run classes by their measured lengths.

Only measured lengths count, never names or hints, so a wrong hint does no harm. Keys are sorted by
mean length and merged with neighbours into at most `most` classes, so that the spread within
classes is smallest:

    minimise  Σ over classes Σ over their keys  share · (mean − mean of the class)²

This is one-dimensional k-means with weights, which dynamic programming solves exactly for sorted
keys (Wang and Song, Ckmeans.1d.dp, The R Journal 3/2, 2011). There are fewer classes if a further
one would reduce the spread by next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import ArrayLike

from slacktide.profiles.distribution import (
    Floats,
    empirical_cdf,
    expected_max,
    step_for,
    weighted_sum,
)
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.run_classes import NO_HINT, BatchLatency, Key, RunClasses

MOST_CLASSES = 4
"""Largest number of classes: four do as well as eight, at half the cost of a decision."""
NEGLIGIBLE = 0.01
"""Part of the spread of all keys that a further class must remove to be worth its cost."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyLengths:
    """The distribution of the lengths of one key."""

    key: Key
    cdf: Floats
    share: float
    """Its part of the arrivals; any unit, not negative."""


def classes_of(
    key_lengths: Sequence[KeyLengths],
    latency: BatchLatency,
    step: float,
    *,
    hint_edges: tuple[float, ...] = (),
    most: int = MOST_CLASSES,
) -> RunClasses:
    """Merge keys into at most `most` classes. Raises ProfileError if there are none."""
    if not key_lengths:
        raise ProfileError("no distributions to sort into classes")
    means = [expected_max(lengths_of_key.cdf, step) for lengths_of_key in key_lengths]
    order = sorted(range(len(key_lengths)), key=lambda i: (means[i], key_lengths[i].key))
    total = sum(lengths_of_key.share for lengths_of_key in key_lengths)
    # Every key has some weight, since one without arrivals still needs a class.
    shares = [key_lengths[i].share / total if total > 0.0 else 0.0 for i in order]
    weights = [max(share, 1e-6) for share in shares]
    cuts = partition([means[i] for i in order], weights, most, negligible=NEGLIGIBLE)
    cdfs: list[Floats] = []
    merged: list[float] = []
    by_key: dict[Key, int] = {}
    for of, (start, stop) in enumerate(pairwise(cuts)):
        parts = np.array(weights[start:stop])
        group = np.stack([key_lengths[i].cdf for i in order[start:stop]])
        cdfs.append(weighted_sum(parts / parts.sum(), group))
        merged.append(float(parts.sum()))
        by_key.update((key_lengths[i].key, of) for i in order[start:stop])
    everything = sum(merged)
    return RunClasses(
        latency=latency,
        step=step,
        cdfs=np.stack(cdfs),
        means=tuple(expected_max(cdf, step) for cdf in cdfs),
        shares=tuple(share / everything for share in merged),
        by_key=by_key,
        fallback=len(cdfs) - 1,
        hint_edges=hint_edges,
    )


def classes_of_samples(
    samples: Mapping[str, ArrayLike] | Mapping[Key, ArrayLike],
    latency: BatchLatency,
    *,
    shares: Mapping[str, float] | Mapping[Key, float] | None = None,
    hint_edges: tuple[float, ...] = (),
    most: int = MOST_CLASSES,
) -> RunClasses:
    """Classes from lengths measured elsewhere: {application or (application, bin): lengths}.
    `shares` are parts of the arrivals; None: the numbers of samples. Raises ProfileError for a key
    without samples and for lengths that are negative or not finite."""
    lengths = {_key(key): np.asarray(values, dtype=np.float64) for key, values in samples.items()}
    stated = None if shares is None else {_key(key): share for key, share in shares.items()}
    for key, values in lengths.items():
        if not values.size or not (np.isfinite(values).all() and values.min() >= 0.0):
            name = key[0] if key[1] == NO_HINT else key
            raise ProfileError(f"{name!r}: expected lengths, finite and not negative")
    step = step_for(max((float(values.max()) for values in lengths.values()), default=0.0) or 1.0)
    key_lengths = [
        KeyLengths(
            key, empirical_cdf(values, step), float(values.size) if stated is None else stated[key]
        )
        for key, values in lengths.items()
    ]
    return classes_of(key_lengths, latency, step, hint_edges=hint_edges, most=most)


def _key(key: str | Key) -> Key:
    return (key, NO_HINT) if isinstance(key, str) else key


def partition(
    values: Sequence[float], weights: Sequence[float], most: int, *, negligible: float = 0.0
) -> list[int]:
    """Cut ascending `values` into at most `most` runs with the least weighted spread. Returns the
    cuts: run i is values[cuts[i] : cuts[i + 1]]. Fewer runs if they leave no more than `negligible`
    of the spread of all values. Time O(most · n²)."""
    n = len(values)
    mass = list(accumulate(weights, initial=0.0))
    first = list(accumulate((w * v for w, v in zip(weights, values, strict=True)), initial=0.0))
    second = list(
        accumulate((w * v * v for w, v in zip(weights, values, strict=True)), initial=0.0)
    )

    def spread(start: int, stop: int) -> float:
        moment = first[stop] - first[start]
        return max(0.0, second[stop] - second[start] - moment * moment / (mass[stop] - mass[start]))

    least = [spread(0, stop) if stop else 0.0 for stop in range(n + 1)]
    ends: list[list[int]] = [[0] * (n + 1)]
    enough = max(negligible, 1e-12) * least[n]
    for runs in range(2, min(most, n) + 1):
        if least[n] <= enough:
            break
        before, least = least, [0.0] * (n + 1)
        starts = [0] * (n + 1)
        for stop in range(runs, n + 1):
            least[stop], starts[stop] = min(
                (before[i] + spread(i, stop), i) for i in range(runs - 1, stop)
            )
        ends.append(starts)
    cuts = [n]
    for starts in reversed(ends):
        cuts.append(starts[cuts[-1]])
    return cuts[::-1]
