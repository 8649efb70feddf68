"""Pools, lanes, and the placements of pools on lanes.

A pool is one (model, version, variant) with one queue and one scheduler. A lane runs one batch at a
time, and several pools may share it. They refer to each other, so they share a file.
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
from slacktide.domain.read_only import read_only
from slacktide.engine.phases import TRANSITIONS, UP, Phase, ReplicaState, Step
from slacktide.engine.ports import PoolFactory
from slacktide.engine.recovery import Crash, CrashHistory
from slacktide.engine.settings import EngineSettings
from slacktide.engine.time_share import SoloRuns, Trials
from slacktide.engine.unmeasured_queue import UnmeasuredQueue
from slacktide.engine.worth import LaneTime

FALL, RISE = 0.2, 0.01
"""Shares by which a shorter (FALL) and a longer (RISE) budget move the usual budget. With these
values, one short budget in twenty keeps the usual budget low."""

COST_GAIN = 0.1
"""Weight of the newest batch in a request's usual lane time."""

GOING_ON, FAIR = 0.85, 0.5
"""Rivals are expected to use GOING_ON × their recent lane time, because bursts end. A pool counts
on only FAIR × its fair part, because a rival's batches may be worth more (decision 0030)."""


@read_only
class Rivals:
    """The claims of other models on a pool's lanes."""

    used: float
    """Share of the lanes that they will use."""
    queued: float
    """Lane time of their waiting requests, in seconds."""
    least: float
    """Share of the lanes that is left to the pool in any case."""

    def left(self, within: float) -> float:
        """How many of the next `within` seconds the rivals leave to the pool."""
        return max(within * (1.0 - self.used) - self.queued, within * self.least)

    def within(self, left: float) -> float:
        """Seconds until `left` seconds of lane time will have been left to the pool."""
        longest = left / self.least
        free = 1.0 - self.used
        return min((left + self.queued) / free, longest) if free > 0.0 else longest


class Pool:
    """A pool and its queue. It is also the `PoolView` that its scheduler sees."""

    __slots__ = (
        "announced", "cores", "cost", "crashes", "down_reason", "ever_up", "exits",
        "id", "lanes", "max_batch", "placements", "quarantine", "quiet",
        "rates", "rates_key", "removed", "rescue", "rescued", "scheduler", "settings", "share",
        "size", "solo", "start_time", "times", "trials", "unmeasured", "usual_budget", "widest",
    )  # fmt: skip

    def __init__(
        self, id: PoolId, max_batch: int, factory: PoolFactory, settings: EngineSettings
    ) -> None:
        self.id = id
        self.max_batch = max_batch
        """Maximum rows of a request, and of a batch unless a plan sets a lower cap."""
        self.settings = settings
        self.placements: list[Placement] = []
        self.lanes = 1
        """See PoolView; kept by `count_lanes`."""
        self.cores = 1
        self.announced = 0
        """Requests whose body is on its way here."""
        self.quarantine: deque[Request] = deque()
        """Members of batches whose replica died. They run again, one by one, before anything
        else."""
        self.quiet = False
        """Whether there is nothing to do here until the next event: no request waits or is
        announced, and none can expire."""
        self.crashes = CrashHistory(settings)
        self.down_reason: str | None = None
        """Why the version is unavailable; None if it is available."""
        self.ever_up = False
        """Whether any replica of it has ever come up."""
        self.removed = False
        """Whether it has left the plan; it is deleted after its last batch."""
        self.start_time = settings.start_guess
        """Seconds the last replica took to come up."""
        parts = factory(id, max_batch, self)
        self.scheduler = parts.scheduler
        self.times = parts.times
        self.rates = 0.0, 0.0
        """Rates that `next_start` computed for `rates_key`."""
        self.rates_key = -1, 0, 0
        self.exits: ExitPolicy | None = None
        """Exit policy of its requests under the plan in force; None: they never leave early."""
        self.share = parts.share
        self.size = parts.size
        self.rescue = tuple([id._replace(variant=name) for name in parts.rescue])
        """Pools that take requests for which there is no time here, best first."""
        self.rescued = 0
        """How many requests the pools in `rescue` have taken."""
        self.solo = None if parts.solo is None else SoloRuns(parts.solo)
        """Requests held for solo runs; None: there are never any."""
        self.unmeasured = None if parts.unmeasured is None else UnmeasuredQueue(parts.unmeasured)
        """Waiting requests without a prediction; None: there are never any."""
        self.trials = Trials()
        """Runs of requests that its profile would refuse."""
        self.cost = 0.0
        """Usual lane time of a request, in seconds."""
        self.widest = 1
        """Maximum rows of a request so far."""
        self.usual_budget = math.inf
        """Usual seconds between arrival and deadline, biased towards short budgets."""

    @property
    def resident(self) -> bool:
        """Whether it serves now and stays in the plan."""
        if self.removed or self.down_reason is not None:
            return False
        return any(p.phase.serves and not p.standby for p in self.placements)

    @property
    def has_requests(self) -> bool:
        """Whether a request waits here for its first or second run, or is announced."""
        return bool(len(self.scheduler) or self.quarantine or self.announced)

    def free_in(self, *, now: float) -> float:
        """See PoolView. A start is expected to take as long as the previous one."""
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
        """See PoolView. Waiting requests of rivals come first, up to their fair share."""
        rivals = self.rivals(now=now)
        return float if rivals is None else rivals.left

    def rivals(self, *, now: float) -> Rivals | None:
        """The claims of other models on this pool's lanes; None if it shares no lane."""
        for placement in self.placements:
            if len(placement.lane.placements) > 1:
                break
        else:
            return None
        active = [p for p in self.placements if not p.standby]
        beside = [o for p in active for o in p.lane.placements if o is not p and not o.standby]
        had = sum([o.lane_time.had(now=now) for o in beside]) / self.settings.fairness_window
        used = min(1.0, GOING_ON * had / self.lanes)
        pools = [o.pool for o in beside if len(o.pool.scheduler)]
        queued = sum([len(pool.scheduler) * pool.cost / pool.lanes for pool in pools]) / self.lanes
        least = FAIR * self.share / (self.share + sum([pool.share for pool in pools]))
        return Rivals(used, queued, least)

    def see_cost(self, seconds: float, requests: int) -> None:
        """Update the usual cost: a batch of `requests` used a lane for `seconds`."""
        self.cost += (COST_GAIN if self.cost else 1.0) * (seconds / requests - self.cost)

    def see_budget(self, budget: float) -> None:
        """Update the usual budget: a request had `budget` seconds from arrival to deadline."""
        usual = self.usual_budget
        if usual == math.inf:
            self.usual_budget = budget
        else:
            self.usual_budget += (FALL if budget < usual else RISE) * (budget - usual)

    def count_lanes(self) -> None:
        """Update `lanes` and `cores`. To be called when placements or the cores of a lane
        change."""
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
    """A pool's place on a lane, across restarts of its replica. At first it has no replica."""

    __slots__ = (
        "cap", "generation", "lane", "lane_time", "phase", "planned_generation", "pool", "replica",
        "since", "standby", "state", "until",
    )  # fmt: skip

    def __init__(
        self, pool: Pool, lane: Lane, deployment: Deployment, fairness_window: float
    ) -> None:
        self.pool = pool
        self.lane = lane
        self.cap = deployment.max_batch
        """Maximum rows of a batch under the plan in force; a replica can take `pool.max_batch`."""
        self.planned_generation = self.generation = deployment.generation
        """Generations in the plan in force and of the latest replica."""
        self.standby = deployment.standby
        """Whether it gets no batches under the plan in force."""
        self.lane_time = LaneTime(fairness_window)
        self.replica = Replica(-1, pool.id, lane.name, lane.target, self.cap, lane.device)
        """The latest replica here, with its present cores and cap."""
        self.phase = Phase.PAUSED
        self.state = ReplicaState.BACKOFF
        """The replica state of `phase`."""
        self.since = -math.inf
        """Time at which the latest replica started or, once it is up, came up."""
        self.until = math.inf
        """Time at which the engine acts next: the start limit (STARTING), or the restart (PAUSED;
        inf: not before the version's circuit allows it)."""

    def go(self, step: Step) -> None:
        """Enter the phase that `step` leads to. Raises ValueError if there is none."""
        phase = TRANSITIONS[self.phase].get(step)
        if phase is None:
            raise ValueError(
                f"{self.pool.id} on {self.lane.name} cannot {step.value}: it is {self.phase.label}"
            )
        self.phase = phase
        self.state = phase.replica

    def adapt(self) -> None:
        """Update `replica`. To be called when the cores of the lane or the cap have changed."""
        cores, cap = self.lane.usable, min(self.cap, self.pool.max_batch)
        if (self.replica.cores, self.replica.max_batch) != (cores, cap):
            self.replica = replace(self.replica, cores=cores, max_batch=cap)

    @property
    def busy(self) -> bool:
        """Whether it runs the batch on its lane."""
        return self.lane.running is not None and self.lane.running.placement is self

    @property
    def parked(self) -> bool:
        """Whether it has no replica until the circuit of its version allows one."""
        return self.state is ReplicaState.BACKOFF and self.until == math.inf


class Running:
    """The batch on a lane, and how many of its members have no answer yet (`waiting`)."""

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
        """Time at which the replica starts to count as hung; changes with the cores of the lane."""
        self.cores = placement.lane.size
        """Cores that it is expected to run on from now on."""
        self.steady = True
        """Whether `cores` is the same as when the batch started."""
        self.unmeasured = False
        """Whether the batch is one request without a prediction (engine/unmeasured.py)."""
        self.trial_s = 0.0
        """Predicted seconds, if this is the trial of a refused request (engine/trials.py); else
        0."""
        self.may_stop = False
        """Whether it may stop once ramps have answered all members (engine/early_exits.py)."""
        self.spare = False
        """Whether ramps have answered all members, so that the next request stops the batch."""

    def moved(self, cores: int, *, now: float, settings: EngineSettings) -> None:
        """Continue on another number of cores. The remaining time changes in the ratio of the whole
        batch's expected times on the two numbers of cores."""
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
    """A lane: its cores, its placements, and the batch it runs."""

    __slots__ = (
        "awaited_until", "cores", "device", "free_since", "held", "name", "placements", "planned",
        "removed", "resize_began", "resize_time", "running", "size", "target", "usable",
        "wait_until", "windows",
    )  # fmt: skip

    def __init__(self, spec: LaneSpec) -> None:
        self.name = spec.name
        self.device = spec.device
        self.cores = spec.cores
        """Confirmed cores."""
        self.target = spec.cores
        """Planned cores; differ from `cores` during a resize."""
        self.held = spec.cores
        """All cores it may run on now: `cores`, and all targets since the last settled resize."""
        self.awaited_until = math.inf
        """Earliest start of a batch while the lane awaits more cores; inf: it awaits none."""
        self.resize_began = -math.inf
        self.resize_time = 0.0
        """Seconds that the last resize took to be confirmed."""
        self.count()
        self.placements: list[Placement] = []
        self.running: Running | None = None
        self.free_since = -math.inf
        """End of its last batch."""
        self.wait_until = math.inf
        """Time at which a policy wants to propose again (WaitUntil)."""
        self.windows: LaneWindows | None = None
        """Its timetable and missed windows; None if it has none."""
        self.removed = False
        """Whether it has left the plan; it is deleted after its last batch."""

    def count(self) -> None:
        """Update the derived fields. To be called when `cores`, `target` or `awaited_until`
        change."""
        shrinks = len(self.target) <= len(self.cores)
        self.usable = self.target if shrinks else self.cores
        """Cores for a batch that starts now."""
        self.size = len(self.usable) or 1
        """Number of usable cores, at least 1 (an accelerator lane counts as one)."""
        awaited = self.awaited_until < math.inf
        self.planned = (len(self.target) or 1) if awaited else self.size
        """Number of cores for a request that waits, at least 1."""

    def free_in(self, *, now: float) -> float:
        """Seconds until it should start another batch; not positive if it is free."""
        ready = 0.0 if self.running is None else self.running.expected_end - now
        if self.awaited_until < math.inf:  # an upper bound, however long the last resize took
            ready = max(ready, min(self.resize_began + self.resize_time, self.awaited_until) - now)
        return ready


class LaneWindows:
    """The timetable of a lane, and its missed windows."""

    __slots__ = ("check_at", "checked", "missed", "ran_at", "table")

    def __init__(self, table: Timetable, *, now: float) -> None:
        self.table = table
        self.missed: Counter[str] = Counter()
        """Windows that closed without a batch although a request had waited, by model."""
        self.ran_at: dict[str, float] = {}
        """Last begin or end of a batch, by model."""
        self.checked = dict.fromkeys(table.windows, now)
        """The latest checked closing time of each window."""
        self.check_at = -math.inf
        """Time of the next check, because a window may have closed by then."""

    def ran(self, model: str, *, now: float) -> None:
        """Record that a batch of `model` begins or ends."""
        self.ran_at[model] = now
