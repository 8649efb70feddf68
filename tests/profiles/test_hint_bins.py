"""Edges of hint bins: of about equal use, and standing still."""

from __future__ import annotations

import numpy as np

from slacktide.profiles.run_times import BINS, ENOUGH_HINTS, HintBins


def seen(bins: HintBins, hints: np.ndarray) -> int:
    """How often the edges have changed."""
    return sum(bins.see(float(hint)) for hint in hints)


def test_one_bin_until_enough_were_seen() -> None:
    bins = HintBins()
    assert seen(bins, np.arange(ENOUGH_HINTS - 1)) == 0
    assert bins.bin_of(1e9) == 0
    assert seen(bins, np.array([5.0])) == 1
    assert bins.bin_of(1e9) == BINS - 1


def test_bins_hold_equally_many() -> None:
    bins = HintBins()
    hints = np.random.default_rng(4).lognormal(3.0, 1.0, 2_000)
    assert seen(bins, hints) == 1
    counts = np.bincount([bins.bin_of(float(hint)) for hint in hints], minlength=BINS)
    assert counts.min() > 0.5 * hints.size / BINS


def test_few_different_hints_have_few_bins() -> None:
    bins = HintBins()
    seen(bins, np.tile([8.0, 64.0], 3_000))
    assert len({bins.bin_of(hint) for hint in (8.0, 64.0)}) == 2
    assert len(bins.edges) <= 2


def test_edges_stand_until_hints_have_moved() -> None:
    rng = np.random.default_rng(5)
    bins = HintBins()
    seen(bins, rng.uniform(0.0, 100.0, 1_000))
    edges = bins.edges
    assert seen(bins, rng.uniform(0.0, 100.0, 5_000)) == 0
    assert bins.edges is edges
    assert seen(bins, rng.uniform(1_000.0, 2_000.0, 3_000)) >= 1
    assert bins.edges[0] > 1_000.0
