"""The short cut of `slack` where all have time: the best prefix, without trying candidates.

Where all requests have one row and one penalty, and the first of them would be on time for sure in
the largest batch, every start point is the head of the queue and P(on time) is 1. The candidates
are then the first k requests, and with the formula of slack.py, the common penalty left out,

    score(k) = Σ over i ≤ k of (1 − κ + κ e^((now + T(k) + alone − deadline(i)) / τ)) / T(k)
             = ((1 − κ) k + κ e^((T(k) − T(m)) / τ) · E(k)) / T(k),
    E(k) = Σ over i ≤ k of e^((now + T(m) + alone − deadline(i)) / τ)

with T(m) the time of the largest: one exponential per request and one per size, where the whole
search takes one per request *and* size, and bisects for start points. Nearly every decision of a
server that keeps up is of this kind, and for a model of 25 µs the search would take longer than the
batch that it is about.

Both ways round differently, so where the best two scores are closer than that the short cut does
not say which: the search does, and the choice is the same as if there were no short cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp, ulp

from slacktide.scheduling.queue import Entry
from slacktide.scheduling.slack_table import PrefixSizes

ROUNDING = 1e-9
"""Relative difference of two scores that rounding cannot make; times are treated in `_margin`."""


def clear_prefix(
    entries: Sequence[Entry],
    prefixes: PrefixSizes,
    *,
    now: float,
    kappa: float,
    tau: float,
    alone: float,
) -> int | None:
    """How many of the first of `entries` make the best batch; None if only the search can tell.

    `entries` are sorted, all of one row and one penalty, and at least as many as the largest of
    `prefixes.sizes`. `alone` and `tau` in seconds, as in slack_uniform.py.
    """
    sizes, times = prefixes.sizes, prefixes.times
    longest = times[-1]
    patient = now + longest + alone  # Due later: time to spare after any of the batches.
    first = entries[0][0]
    if first < patient or first < now + prefixes.certain:
        return None
    if len(sizes) == 1:
        return sizes[0]
    sums = list(
        accumulate([exp((patient - entry[0]) / tau) for entry in entries[: sizes[-1]]], initial=0.0)
    )
    kept = 1.0 - kappa
    best = second = 0.0
    chosen = sizes[0]
    for size, time in zip(sizes, times, strict=True):
        score = (kept * size + kappa * exp((time - longest) / tau) * sums[size]) / time
        if score > best:
            best, second, chosen = score, best, size
        elif score > second:
            second = score
    return chosen if second < best * (1.0 - _margin(patient, tau)) else None


def _margin(at: float, tau: float) -> float:
    """Relative error of a score whose exponents have the error of a few sums of times near `at`.

    On a clock that has run for days a time is exact to 1e-10 s, which is not nothing next to the
    `tau` of a model that takes 25 µs.
    """
    return ROUNDING + 16.0 * ulp(at) / tau
