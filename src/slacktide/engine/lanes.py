"""Pools, lanes, and the placements of the one on the other.

A pool is one (model, version, variant) with one queue and one scheduler. A lane runs one batch at a
time, and several pools may share it. They refer to each other, so
they are in one file.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from slacktide.domain import (
    Batch,
    Deployment,
    ExitPolicy,
    LaneSpec,
    PoolId,
    Replica,
    Request,
    Timetable,
)
from slacktide.engine.phases import TRANSITIONS, UP, Phase, ReplicaState, Step
from slacktide.engine.ports import Outlook, PoolFactory
from slacktide.engine.recovery import Crash, CrashHistory
from slacktide.engine.settings import EngineSettings
from slacktide.engine.time_share import SoloRuns, Trials
from slacktide.engine.unmeasured_queue import UnmeasuredQueue
from slacktide.engine.worth import LaneTime

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
        "announced", "cores", "cost", "crashes", "down_reason", "ever_up", "exits",
        "id", "lanes", "max_batch", "outlook", "placements", "quarantine", "quiet",
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
        active = [p for p in self.placements if not p.standby]
        beside = [o for p in active for o in p.lane.placements if o is not p and not o.standby]
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


class PoolCrash(Crash):
    """The loss of a replica of `pool`."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool, at: float, detail: str) -> None:
        super().__init__(at, detail)
        self.pool = pool


class Placement:
    """Begins without a replica."""

    __slots__ = (
        "cap", "generation", "lane", "lane_time", "phase", "pool", "replica", "since", "standby",
        "state", "until", "wanted",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, lane: Lane, deployment: Deployment, fairness_window: float
    ) -> None:
        self.pool = pool
        self.lane = lane
        self.cap = deployment.max_batch
        """Most rows in one batch under the plan in force; the replica itself takes `max_batch` of
        its pool."""
        self.wanted = self.generation = deployment.generation
        """Of the plan in force, and of the latest replica."""
        self.standby = deployment.standby
        """Whether it is given no batch under the plan in force."""
        self.lane_time = LaneTime(fairness_window)
        self.replica = Replica(-1, pool.id, lane.name, lane.target, self.cap, lane.device)
        """The latest replica here, with the cores and the cap that count now."""
        self.phase = Phase.PAUSED
        self.state = ReplicaState.BACKOFF
        """Of `phase`."""
        self.since = -math.inf
        """When the latest replica was started; once it is up, when it came up."""
        self.until = math.inf
        """When the engine must act: start limit (STARTING) or restart (PAUSED; inf: only once the
        circuit of its version says so)."""

    def go(self, step: Step) -> None:
        """Enter the phase that `step` leads to. Raises ValueError if it cannot be taken."""
        phase = TRANSITIONS[self.phase].get(step)
        if phase is None:
            raise ValueError(
                f"{self.pool.id} on {self.lane.name} cannot {step.value}: it is {self.phase.label}"
            )
        self.phase = phase
        self.state = phase.replica

    def adapt(self) -> None:
        """Call when the cores of the lane or the cap have changed."""
        cores, cap = self.lane.usable, min(self.cap, self.pool.max_batch)
        if (self.replica.cores, self.replica.max_batch) != (cores, cap):
            self.replica = replace(self.replica, cores=cores, max_batch=cap)

    @property
    def busy(self) -> bool:
        """Whether it runs the batch on its lane."""
        return self.lane.running is not None and self.lane.running.placement is self

    @property
    def parked(self) -> bool:
        """Whether it waits for the circuit of its version."""
        return self.state is ReplicaState.BACKOFF and self.until == math.inf


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
            remaining = max(0.0, self.expected_end - now)
            self.expected_end = now + remaining * after.expected / before.expected
        if before.p99 > 0.0:
            remaining = max(0.0, self.hang_at - now)
            self.hang_at = max(
                batch.started + settings.hang_floor, now + remaining * after.p99 / before.p99
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


class LaneWindows:
    """The timetable of one lane, and what became of its windows."""

    __slots__ = ("check_at", "checked", "missed", "ran_at", "table")

    def __init__(self, table: Timetable, *, now: float) -> None:
        self.table = table
        self.missed: Counter[str] = Counter()
        """Windows that closed without a batch of their model though one had waited, by model."""
        self.ran_at: dict[str, float] = {}
        """When a batch of a model was on the lane last."""
        self.checked = dict.fromkeys(table.windows, now)
        """When a window closed that was looked at last."""
        self.check_at = -math.inf
        """When one may have closed since."""

    def ran(self, model: str, *, now: float) -> None:
        """A batch of `model` begins or ends."""
        self.ran_at[model] = now
