"""`LearntFamily`: batch times and planning headroom of a family, learnt while it serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slacktide.domain import Reason
from slacktide.engine import Snapshot
from slacktide.engine.request_table import ModelCounts
from slacktide.planning.sessions import SessionMeasured
from slacktide.planning.variants.demand import LearnedHeadroom
from slacktide.planning.variants.question import Headroom, VariantsOptions
from slacktide.profiles.variant_times import rising

BATCH_MOST = 16
"""Rows of the largest batch that plans consider."""
FOR_CAPACITY = (
    Reason.AFTER_DEADLINE,
    Reason.HOPELESS,
    Reason.CROWDED_OUT,
    Reason.BEHIND_OVERRUN,
    Reason.BEHIND_WORK,
)
"""Reasons that show a lack of time on lanes."""
FOR_BANDWIDTH = (Reason.SHORTER_THAN_ALONE, Reason.EXPIRED)
"""Reasons that show a lack of bandwidth: the frame came too late."""


class LearntFamily:
    """Measurements of one family while it is served."""

    def __init__(self, options: VariantsOptions, number: Mapping[str, int]) -> None:
        """`number`: place of each variant in the family, smallest first, by name."""
        self.seconds: dict[int, tuple[float, ...]] = {}
        """P99 of batches of 1, 2, … rows, by variant. Never lower for more rows or a larger
        variant. Only variants that were on a lane have a P99."""
        self._options, self._number = options, number
        self._readings: dict[int, tuple[object, tuple[float, ...]]] = {}
        """Last reading by variant: (source, p99 by rows)."""
        self._capacity = LearnedHeadroom(options.target_loss)
        self._bandwidth = LearnedHeadroom(options.target_loss)
        self._ends = (0, 0, 0)
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
            lanes, links = (
                sum(ends.get(reason, 0) for reason in reasons)
                for reasons in (FOR_CAPACITY, FOR_BANDWIDTH)
            )
        self._capacity.learn(lanes, ended, seconds=seconds)
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
                p99 = [pool.times.of(row_count, max(1, cores)).p99 for row_count in rows]
                self._readings[at] = of, tuple(p99)
        measured_variants = sorted(self._readings)
        raised = rising([self._readings[at][1] for at in measured_variants])
        self.seconds.update(zip(measured_variants, raised, strict=True))
