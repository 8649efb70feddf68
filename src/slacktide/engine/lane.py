"""A lane runs one batch at a time; the replicas of several pools may share it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slacktide.domain import Batch, LaneSpec
from slacktide.engine.placement import Placement
from slacktide.engine.settings import EngineSettings

if TYPE_CHECKING:  # it needs pools, which need this file
    from slacktide.engine.windows import LaneWindows


class Running:
    """The batch on a lane, and how many of its members still wait for their answer."""

    __slots__ = (
        "batch", "cores", "expected_end", "hang_at", "may_stop", "placement", "spare", "steady",
        "trial_s", "unmeasured", "waiting",
    )  # fmt: skip

    def __init__(self, batch: Batch, placement: Placement, expected_end: float) -> None:
        self.batch = batch
        self.placement = placement
        self.waiting = 0 if batch.solo else len(batch.members)
        self.expected_end = expected_end
        self.hang_at = batch.hang_at
        """When the replica is taken to hang; moves with the cores of the lane."""
        self.cores = placement.lane.size
        """How many it is expected to run on from now on."""
        self.steady = True
        """Whether it has been expected to run on the same number all along."""
        self.unmeasured = False
        """Whether it is a request whose run time could not be judged (engine/unmeasured.py)."""
        self.trial_s = 0.0
        """Seconds that its pool predicts, if it had refused this request (engine/trials.py); 0: it
        had not."""
        self.may_stop = False
        """Whether it may be stopped once ramps have answered all members: engine/early_exits.py."""
        self.spare = False
        """Whether they have, and it is to be stopped for the next request that needs the lane."""

    def moved(self, cores: int, *, now: float, settings: EngineSettings) -> None:
        """It goes on with so many cores: what is left of it takes as much more or less time as it
        would from the beginning."""
        if cores == self.cores:
            return
        batch, times = self.batch, self.placement.pool.times
        before = times.of(batch.rows, self.cores, batch.members)
        after = times.of(batch.rows, cores, batch.members)
        self.cores, self.steady = cores, False
        if before.expected > 0.0:
            left = max(0.0, self.expected_end - now)
            self.expected_end = now + left * after.expected / before.expected
        if before.p99 > 0.0:
            left = max(0.0, self.hang_at - now)
            self.hang_at = max(
                batch.started + settings.hang_floor, now + left * after.p99 / before.p99
            )


class Lane:
    """One lane: its cores, its placements, the batch it runs."""

    __slots__ = (
        "awaited_until", "cores", "device", "free_since", "held", "name", "placements", "planned",
        "removed", "resize_began", "resize_time", "running", "size", "target", "usable",
        "wait_until", "windows",
    )  # fmt: skip

    def __init__(self, spec: LaneSpec) -> None:
        self.name = spec.name
        self.device = spec.device
        self.cores = spec.cores
        """What it has, as last confirmed."""
        self.target = spec.cores
        """What it is to have; other than `cores` while a resize is under way."""
        self.held = spec.cores
        """All that it may run on just now: besides these two what it was to have meanwhile."""
        self.awaited_until = math.inf
        """No batch starts before more cores are confirmed, or this; inf: none are awaited."""
        self.resize_began = -math.inf
        self.resize_time = 0.0
        """Seconds the last resize took to be confirmed."""
        self.count()
        self.placements: list[Placement] = []
        self.running: Running | None = None
        self.free_since = -math.inf
        """When its last batch left it."""
        self.wait_until = math.inf
        """When a policy asked to be asked again (WaitUntil)."""
        self.windows: LaneWindows | None = None
        """Its timetable at work; None: it has none."""
        self.removed = False
        """No longer in the plan; goes once its last batch is done."""

    def count(self) -> None:
        """Call when `cores`, `target` or `awaited_until` have changed."""
        shrinks = len(self.target) <= len(self.cores)
        self.usable = self.target if shrinks else self.cores
        """What a batch that starts now can count on."""
        self.size = len(self.usable) or 1
        """How many these are, at least 1 (an accelerator lane counts as one)."""
        awaited = self.awaited_until < math.inf
        self.planned = (len(self.target) or 1) if awaited else self.size
        """How many a request that waits can count on, at least 1."""

    def free_in(self, *, now: float) -> float:
        """Seconds until it is expected to start another batch; not positive if it is free."""
        ready = 0.0 if self.running is None else self.running.expected_end - now
        if self.awaited_until < math.inf:  # however long the last resize took, no longer
            ready = max(ready, min(self.resize_began + self.resize_time, self.awaited_until) - now)
        return ready
