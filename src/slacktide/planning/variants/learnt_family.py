"""`LearntFamily`: batch times and planning headroom of a family, learnt while it serves."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from slacktide.engine import Snapshot
from slacktide.engine.request_table import ModelCounts
from slacktide.planning.sessions import SessionMeasured
from slacktide.planning.variants.demand import LearnedCaution, LearnedHeadroom
from slacktide.planning.variants.frame_ends import FOR_BANDWIDTH, FOR_CAPACITY
from slacktide.planning.variants.question import Headroom, VariantsOptions
from slacktide.profiles.variant_times import rising

TAIL = math.log(1.1)
"""Logarithm of p99 ÷ median up to which `target_loss` holds. The longer the tail, the more accuracy
each frame costs that is not lost, so the target rises with this logarithm."""
PACE = 0.6
"""Largest share of caution given up for the throughput of lanes: batches that scatter make frames
wait."""
BATCH_MOST = 16
"""Rows of the largest batch that plans consider."""

Reading = tuple[object, tuple[float, ...], tuple[float, ...]]
"""(source, p99 by rows, median by rows) of the batches of a variant."""


class LearntFamily:
    """Measurements of one family while it is served."""

    def __init__(self, options: VariantsOptions, number: Mapping[str, int]) -> None:
        """`number`: place of each variant in the family, smallest first, by name."""
        self.seconds: dict[int, tuple[float, ...]] = {}
        """Seconds of batches of 1, 2, … rows to plan with, by variant: between the median and the
        p99. Never lower for more rows or a larger variant. Only variants that were on a lane have
        them."""
        self.paces: dict[int, tuple[float, ...]] = {}
        """Like `seconds`, for many batches in a row."""
        self._options, self._number = options, number
        self._readings: dict[int, Reading] = {}
        """Last reading by variant."""
        self._capacity = LearnedHeadroom(options.target_loss)
        self._caution = LearnedCaution(options.target_loss)
        self._scatter = 1.0
        """p99 ÷ median of single rows: the largest of all variants."""
        self._bandwidth = LearnedHeadroom(options.target_loss)
        self._ends = (0, 0.0, 0)
        """Frames of sessions so far: ended, lost on lanes, lost on links."""

    @property
    def headroom(self) -> Headroom:
        """Shares to plan with: as stated, or as learnt."""
        stated = self._options
        return Headroom(
            stated.capacity_share or self._capacity.share,
            stated.bandwidth_share or self._bandwidth.share,
        )

    def count(self, now: SessionMeasured, before: SessionMeasured | None) -> None:
        """Count the frames of a new measurement of a session."""
        ended, lanes, links = self._ends
        if before is None:
            self._ends = ended + now.ended, lanes + now.lost_on_lanes, links + now.lost_on_link
        else:
            self._ends = (
                ended + now.ended - before.ended,
                lanes + now.lost_on_lanes - before.lost_on_lanes,
                links + now.lost_on_link - before.lost_on_link,
            )

    def learn(self, counts: ModelCounts | None, *, seconds: float) -> None:
        """Update the shares from the frames of sessions or, without any, from all requests."""
        ended, lanes, links = self._ends
        if not ended and counts is not None:
            ends, ended = counts.by_reason, counts.ended
            lanes = sum(ends.get(reason, 0) for reason in FOR_CAPACITY)
            links = sum(ends.get(reason, 0) for reason in FOR_BANDWIDTH)
        patience = max(1.0, math.log(self._scatter) / TAIL)
        self._capacity.learn(lanes, ended, seconds=seconds, patience=patience)
        self._caution.learn(lanes, ended, seconds=seconds, patience=patience)
        self._bandwidth.learn(links, ended, seconds=seconds)

    def read_times(self, model: str, lanes: Collection[str], snapshot: Snapshot) -> None:
        """Read the p99 of batches on these lanes into `seconds`."""
        snapshots = snapshot.lanes
        cores = min((len(snapshots[lane].cores) for lane in lanes if lane in snapshots), default=1)
        for pool in snapshot.serving(model):
            at = self._number.get(pool.id.variant)
            if at is None:
                continue
            of = (pool.id, pool.times.revision, cores)
            if at not in self._readings or self._readings[at][0] != of:
                rows = range(1, min(pool.max_batch, BATCH_MOST) + 1)
                times = [pool.times.of(row_count, max(1, cores)) for row_count in rows]
                p99 = tuple([time.p99 for time in times])
                self._readings[at] = of, p99, tuple([time.expected for time in times])
        measured_variants = sorted(self._readings)
        scatters = [p99[0] / medians[0] for _, p99, medians in self._readings.values()]
        self._scatter = max(scatters, default=1.0)
        self._caution.scatters(self._scatter)
        share = 0.0 if self._options.capacity_share is not None else self._caution.share
        for planned, power in ((self.seconds, share), (self.paces, min(share, PACE))):
            between = [_between(self._readings[at], power) for at in measured_variants]
            planned.update(zip(measured_variants, rising(between), strict=True))


def _between(reading: Reading, share: float) -> list[float]:
    """Seconds between the p99s (share 0) and the medians (share 1)."""
    _, p99, medians = reading
    return [
        median**share * high ** (1.0 - share) for high, median in zip(p99, medians, strict=True)
    ]
