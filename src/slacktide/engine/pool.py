"""A pool: one (model, version, variant) with one queue, one scheduler, and its placements."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from slacktide.domain import ExitPolicy, PoolId, Request
from slacktide.engine.idle_work import SoloRuns
from slacktide.engine.placement import UP, Placement, ReplicaState
from slacktide.engine.ports import Outlook, PoolFactory, exit_learner_of, learner_of
from slacktide.engine.recovery import CrashHistory
from slacktide.engine.settings import EngineSettings
from slacktide.engine.trials import Trials
from slacktide.engine.unmeasured import UnmeasuredQueue

FALL, RISE = 0.2, 0.01
"""Gains of the usual budget: an expectile that one request in twenty is enough to hold down."""

COST_GAIN = 0.1
"""Weight of the newest batch in the usual lane time of a request."""

GOING_ON, FAIR = 0.85, 0.5
"""Part of what rivals had of a lane lately that they are taken to have from now on, for bursts end;
and of its fair share that a pool counts on: a rival's batches may be worth more (decision 0030)."""


class Pool:
    """Also the `PoolView` its scheduler sees."""

    __slots__ = (
        "announced", "cores", "cost", "crashes", "down_reason", "ever_up", "exit_times", "exits",
        "id", "lanes", "learner", "max_batch", "outlook", "placements", "quarantine", "quiet",
        "removed", "rescue", "rescued", "scheduler", "settings", "share", "size", "solo",
        "start_time", "times", "trials", "unmeasured", "usual_budget", "widest",
    )  # fmt: skip

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
        self.quarantine: deque[Request] = deque()
        """Members of batches that died, to be run again one by one before anything else."""
        self.quiet = False
        """Whether nothing waits here, is on its way or may expire, until it is told something."""
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
        self.outlook: Outlook | None = getattr(parts.scheduler, "outlook", None)
        self.times = parts.times
        self.learner = learner_of(parts.times)
        self.exit_times = exit_learner_of(parts.times)
        self.exits: ExitPolicy | None = None
        """How its requests leave the model early under the plan in force; None: they do not."""
        self.share = parts.share
        self.size = parts.size
        self.rescue = tuple([id._replace(variant=name) for name in parts.rescue])
        """Pools that a request goes to for which there is no time here, best first."""
        self.rescued = 0
        """Requests that have gone there."""
        self.solo = None if parts.solo is None else SoloRuns(parts.solo)
        """What is held to be run again alone; None: nothing ever is."""
        self.unmeasured = None if parts.unmeasured is None else UnmeasuredQueue(parts.unmeasured)
        """What waits because it cannot be judged; None: nothing ever does."""
        self.trials = Trials()
        """Runs of requests that its profile refuses."""
        self.cost = 0.0
        """Seconds of lane time that a request takes, usually."""
        self.widest = 1
        """Most rows that a request has had."""
        self.usual_budget = math.inf
        """Seconds between arrival and deadline, leaning towards the short ones."""

    @property
    def resident(self) -> bool:
        """Whether it serves now, and is to."""
        if self.removed or self.down_reason is not None:
            return False
        return any(p.phase.serves and not p.standby for p in self.placements)

    def free_in(self, *, now: float) -> float:
        """See PoolView. A starting replica is expected to take as long as the last one did."""
        best = math.inf
        for placement in self.placements:
            if placement.phase.retiring or placement.standby:
                continue
            ready = placement.lane.free_in(now=now)
            if placement.state is not UP:
                starting = placement.state is ReplicaState.STARTING
                start = placement.since if starting else placement.until
                ready = max(ready, start + self.start_time - now)
            if ready < best:
                best = ready
        return best if best > 0.0 else 0.0

    def leave(self, *, now: float) -> Callable[[float], float]:
        """See PoolView. What rivals have waiting comes first, up to their fair share of it."""
        for placement in self.placements:
            if len(placement.lane.placements) > 1:
                break
        else:
            return float
        own = [p for p in self.placements if not p.standby]
        beside = [o for p in own for o in p.lane.placements if o is not p and not o.standby]
        had = sum([o.lane_time.had(now=now) for o in beside]) / self.settings.fairness_window
        used = min(1.0, GOING_ON * had / self.lanes)
        pools = [o.pool for o in beside if len(o.pool.scheduler)]
        queued = sum([len(pool.scheduler) * pool.cost / pool.lanes for pool in pools]) / self.lanes
        least = FAIR * self.share / (self.share + sum([pool.share for pool in pools]))
        return lambda within: max(within * (1.0 - used) - queued, within * least)

    def see_cost(self, seconds: float, requests: int) -> None:
        """A batch of so many requests has had so many seconds of a lane."""
        self.cost += (COST_GAIN if self.cost else 1.0) * (seconds / requests - self.cost)

    def see_budget(self, budget: float) -> None:
        """A request had `budget` seconds from arrival to deadline."""
        usual = self.usual_budget
        if usual == math.inf:
            self.usual_budget = budget
        else:
            self.usual_budget += (FALL if budget < usual else RISE) * (budget - usual)

    def count_lanes(self) -> None:
        """Call when a placement has come or gone, or a lane has changed its cores."""
        staying = [p for p in self.placements if not p.phase.leaves and not p.standby]
        self.lanes = max(1, len(staying))
        self.cores = min((placement.lane.planned for placement in staying), default=self.cores)
