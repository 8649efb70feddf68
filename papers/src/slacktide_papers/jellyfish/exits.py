"""Early exits of a detector (§5.3, §8.3): Figure 20, and the exits of the runs of Figure 21.

Times with an exit are measured once, on the example `street_depth` (`street_depth.json`, made by
`examples/models/measure_exits.py`). Which rows leave is drawn at random, as in the paper: from 25 %
of the rows of the smallest variant to 40 % of the rows of the largest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from slacktide.domain import Batch, ExitMode, ExitPolicy, PoolId, Replica
from slacktide.lab.simulation import ExitCourse, ExitTable, TableExits, rng_for
from slacktide.planning.exits import ExitsArranged
from slacktide.planning.variants import Variant

LEAST_SHARE, MOST_SHARE = 0.25, 0.4
"""Smallest and largest share of rows that leave, by variant (§8.3)."""
DRAWS = 10_000
RUNS = 1000
"""Simulated batches of each size in Figure 20."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredExits:
    """One exit, behind the first of three stages."""

    times: Mapping[int, Mapping[int, tuple[float, float, float]]]
    """By side of the pictures, then by batch size: milliseconds (of the uncut model, of the part up
    to the exit's answers, of the rest)."""
    accuracy: Sequence[tuple[float, float]]
    """(share of pictures that leave early, mean average precision)."""

    def relative_accuracy(self, share: float) -> float:
        """Accuracy if this share of pictures leaves early, relative to accuracy without exits."""
        shares, scores = zip(*self.accuracy, strict=True)
        return float(np.interp(share, shares, scores) / scores[0])

    @property
    def parts(self) -> tuple[float, float]:
        """(up to the exit's answers, the rest), as shares of an uncut pass: median of all sizes."""
        times = np.array([ms for by_batch in self.times.values() for ms in by_batch.values()])
        first, after = np.median(times[:, 1:] / times[:, :1], axis=0).tolist()
        return first, after


@cache
def measured_exits() -> MeasuredExits:
    """Measurements in the file."""
    document = json.loads(Path(__file__).with_name("street_depth.json").read_text())
    times: dict[int, dict[int, tuple[float, float, float]]] = {}
    for side, batch, whole, first, after in document["times"]:
        times.setdefault(side, {})[batch] = (whole, first, after)
    return MeasuredExits(times, tuple((share, score) for share, score in document["accuracy"]))


def leaving(variant: int, variants: int) -> float:
    """Share of rows that leave early in variant number `variant`; 0 is the smallest."""
    return LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * variant / max(1, variants - 1)


@dataclass(frozen=True, slots=True)
class ExitLatency:
    """One batch size of one variant, without and with the exit. Milliseconds."""

    side: int
    share: float
    """Share of the rows that leave."""
    batch: int
    whole_ms: float
    quantiles_ms: Sequence[float]
    """Latency of requests with the exit: percentiles 0, 5, … 100."""
    batch_ms: float
    """Mean time of a batch with the exit."""


def figure_20() -> Iterator[ExitLatency]:
    """Execution latency if rows that exit leave the batch, compared with the uncut model."""
    measured = measured_exits()
    for number, (side, by_batch) in enumerate(measured.times.items()):
        share = leaving(number, len(measured.times))
        sizes = (0, *by_batch)
        after = [0.0, *(times[2] for times in by_batch.values())]
        for batch, (whole, first, _) in by_batch.items():
            random = rng_for(0, f"figure-20 {side} {batch}")
            early = random.binomial(batch, share, RUNS)
            ends = first + np.interp(batch - early, sizes, after)
            requests = np.repeat([np.full(RUNS, first), ends], 1, axis=0)
            latencies = np.repeat(requests.T.ravel(), np.stack([early, batch - early], 1).ravel())
            quantiles = np.percentile(latencies, range(0, 101, 5)).round(3).tolist()
            yield ExitLatency(side, share, batch, whole, quantiles, float(ends.mean()))


class FamilyExits:
    """`EarlyExits` of a family: every variant has one exit, after the same share of its pass."""

    def __init__(self, variants: Sequence[Variant], seed: int) -> None:
        """`variants` as `with_exit` makes them."""
        first, after = measured_exits().parts
        drawn = rng_for(seed, "exits").uniform(0.0, 1.0, (DRAWS, 1))
        self._of: dict[str, TableExits] = {}
        for variant in variants:
            whole = np.array(variant.seconds)
            before = whole[:, None] * first / (first + after)
            sizes, agrees = np.arange(1, len(whole) + 1), np.ones((DRAWS, 1), np.bool_)
            table = (drawn, agrees, np.ones(1), sizes, whole, before, np.zeros_like(before))
            self._of[variant.name] = TableExits(ExitTable(variant.name, 0.0, ("depth 1",), *table))

    def learnt(self, pool: PoolId) -> None:
        """Does nothing: the exits belong to the model and learn nothing."""

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        return self._of[replica.pool.variant].arranged(replica, policy)

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        return self._of[batch.replica.pool.variant].course(batch, policy, seconds)


def with_exit(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Variants as planners see them: with times of batches that no row leaves early (§8.1)."""
    longer = sum(measured_exits().parts)
    return tuple(
        replace(variant, seconds=tuple(longer * seconds for seconds in variant.seconds))
        for variant in variants
    )


def policies(pools: Sequence[PoolId], mode: ExitMode) -> tuple[ExitPolicy, ...]:
    """Exit policies of the variants, smallest first."""
    return tuple(
        ExitPolicy(pool, (0,), (leaving(at, len(pools)),), mode, feedback=0.0, revision=1)
        for at, pool in enumerate(pools)
    )
