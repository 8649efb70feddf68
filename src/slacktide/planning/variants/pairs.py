"""`divided`: the best division of clients between two replicas with any two variants; exact.

Batch limits are nested, so two variants and two batch sizes a and b decide which clients only the
first replica can serve and which only the second. All others may go to either; the sums of their
rates are the bits of an integer, as in `mapping.py`. The more accurate variant serves as much of
the rate as it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from operator import and_

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.variants.fleet import Fleet

Clients = NDArray[np.int64]


@dataclass(slots=True)
class Effort:
    """Divisions that may still be tried, and clients that were tried in vain."""

    remaining: int
    """Pairs of batch sizes."""
    tries: int
    """Sets of clients. Where many clients are left unmapped, few of their sets can be divided."""
    vain: dict[bytes, float] = field(default_factory=dict)
    """By clients: accuracy · rate that no two replicas exceed with them."""


@dataclass(frozen=True, slots=True)
class Division:
    """Clients and variants of two replicas."""

    variants: tuple[int, int]
    first: Clients
    second: Clients


def divided(fleet: Fleet, members: Clients, *, least: float, effort: Effort) -> Division | None:
    """Return the division of `members` with the most accuracy · rate (in columns of the grid); None
    if none has more than `least`, or effort is used up."""
    key = members.tobytes()
    if effort.remaining <= 0 or effort.tries <= 0 or len(members) < 2:
        return None
    if effort.vain.get(key, np.inf) <= least:
        return None
    effort.tries -= 1
    rates, limits = np.array(fleet.rates)[members], fleet.limits[members]
    total = int(rates.sum())
    sums = np.tensordot(rates, limits[:, :, None] >= np.arange(fleet.batches + 1), 1)
    served = np.minimum(fleet.columns, sums)[:, 1:].max(axis=1)
    """Maximum rate that a replica can serve, by variant."""
    first, second = fleet.pairs
    hoped = fleet.accuracy[second] * total
    hoped = hoped + (fleet.accuracy[first] - fleet.accuracy[second]) * served[first]
    hoped[served[first] + served[second] < total] = -1.0
    best, division = least + 1e-9, None
    order = np.flatnonzero(hoped > best)
    columns = limits.T.tolist()
    for at in order[np.argsort(-hoped[order], kind="stable")].tolist():
        if hoped[at] <= best or effort.remaining <= 0:
            break
        variants = int(first[at]), int(second[at])
        reached, mask = _best(fleet, rates.tolist(), columns, variants, best, effort)
        if mask is not None:
            best = reached
            chosen = np.array(mask)
            division = Division(variants, members[chosen], members[~chosen])
    if division is None and effort.remaining > 0:
        effort.vain[key] = least
    return division


def _best(
    fleet: Fleet,
    rates: list[int],
    limits: list[list[int]],
    variants: tuple[int, int],
    least: float,
    effort: Effort,
) -> tuple[float, list[bool] | None]:
    """Return the best accuracy · rate above `least`, and a mask of the first replica's clients.
    `limits`: batch limits of each client, by variant."""
    first_limits, second_limits = (limits[variant] for variant in variants)
    large, small = (float(fleet.accuracy[variant]) for variant in variants)
    first, second = (fleet.columns[variant].tolist() for variant in variants)
    total, best_split = sum(rates), None
    for a in sorted({*first_limits} - {0}, reverse=True):
        cannot = [limit < a for limit in first_limits]
        high = min(first[a], total - sum(compress(rates, cannot)))
        if small * total + (large - small) * high <= least:
            continue
        for b in sorted({*second_limits} - {0}, reverse=True):
            low = max(0, total - second[b])
            if low > high:
                break  # capacity falls with the batch size
            must = [limit < b for limit in second_limits]
            if any(map(and_, must, cannot)):
                continue
            effort.remaining -= 1
            sums = _sums(rates, must, cannot)[-1] & ((2 << high) - 1)
            reached = sums.bit_length() - 1
            worth = small * total + (large - small) * reached
            if reached >= low and worth > least:
                least, best_split = worth, (must, cannot, reached)
    return least, None if best_split is None else _chosen(rates, *best_split)


def _sums(rates: list[int], must: list[bool], cannot: list[bool]) -> list[int]:
    """Return, after 0, 1, … clients, the total rates possible on the first replica, as bits."""
    sums = [1]
    for rate, forced, barred in zip(rates, must, cannot, strict=True):
        before = sums[-1]
        if not barred:
            before = before << rate if forced else before | before << rate
        sums.append(before)
    return sums


def _chosen(rates: list[int], must: list[bool], cannot: list[bool], reached: int) -> list[bool]:
    """Return a mask of the clients that make up the rate `reached`."""
    sums, chosen = _sums(rates, must, cannot), must.copy()
    for at in reversed(range(len(rates))):
        if must[at] or not sums[at] >> reached & 1:
            chosen[at] = True
            reached -= rates[at]
    return chosen
