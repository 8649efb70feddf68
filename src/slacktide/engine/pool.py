"""A pool: one (model, version, variant) with one queue, one scheduler, and its placements."""

from __future__ import annotations

import math
from collections import deque

from slacktide.domain import PoolId, Request
from slacktide.engine.lane import Placement, ReplicaState
from slacktide.engine.ports import PoolFactory
from slacktide.engine.recovery import CrashHistory
from slacktide.engine.samples import Samples
from slacktide.engine.settings import EngineSettings

FALL, RISE = 0.2, 0.01
"""Gains of the usual budget: an expectile that one request in twenty is enough to hold down."""


class Pool:
    """Also the `PoolView` its scheduler sees."""

    __slots__ = (
        "announced",
        "cores",
        "crashes",
        "down_reason",
        "ever_up",
        "id",
        "lanes",
        "max_batch",
        "placements",
        "removed",
        "samples",
        "scheduler",
        "settings",
        "share",
        "start_time",
        "suspects",
        "times",
        "usual_budget",
        "widest",
    )

    def __init__(
        self, id: PoolId, max_batch: int, factory: PoolFactory, settings: EngineSettings
    ) -> None:
        self.id = id
        self.max_batch = max_batch
        """Most rows in one request, and in one batch unless a plan caps them lower."""
        self.settings = settings
        self.placements: list[Placement] = []
        self.lanes = 1
        """See PoolView; kept by `count_lanes`."""
        self.cores = 1
        self.announced = 0
        """Requests whose body is on its way."""
        self.suspects: deque[Request] = deque()
        """Members of batches that died, to be run again one by one before anything else."""
        self.crashes = CrashHistory(settings)
        self.down_reason: str | None = None
        """Why the version is unavailable; None while it is not."""
        self.ever_up = False
        """Whether any replica of it has come up."""
        self.removed = False
        """No longer in the plan; goes once its last batch is done."""
        self.start_time = settings.start_guess
        """Seconds the last replica took to come up."""
        parts = factory(id, max_batch, self)
        self.scheduler = parts.scheduler
        self.times = parts.times
        self.share = parts.share
        self.samples = None if parts.sampling is None else Samples(parts.sampling)
        """What is held to be run again alone; None: nothing ever is."""
        self.widest = 1
        """Most rows that a request has had."""
        self.usual_budget = math.inf
        """Seconds between arrival and deadline, leaning towards the short ones."""

    def free_in(self, *, now: float) -> float:
        """See PoolView. A starting replica is expected to take as long as the last one did."""
        best = math.inf
        for placement in self.placements:
            if placement.retiring:
                continue
            ready = placement.lane.free_in(now=now)
            if placement.state is not ReplicaState.UP:
                starting = placement.state is ReplicaState.STARTING
                start = placement.since if starting else placement.until
                ready = max(ready, start + self.start_time - now)
            if ready < best:
                best = ready
        return best if best > 0.0 else 0.0

    def see_budget(self, budget: float) -> None:
        """A request had `budget` seconds from arrival to deadline."""
        usual = self.usual_budget
        if usual == math.inf:
            self.usual_budget = budget
        else:
            self.usual_budget += (FALL if budget < usual else RISE) * (budget - usual)

    def count_lanes(self) -> None:
        """Call when a placement has come or gone, or a lane has changed its cores."""
        staying = [p for p in self.placements if not p.retiring and not p.leaving]
        self.lanes = max(1, len(staying))
        self.cores = min((placement.lane.planned for placement in staying), default=self.cores)
