"""A lane runs one batch at a time; the replicas of several pools may share it."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

from slacktide.domain import Batch, LaneSpec, Replica
from slacktide.engine.worth import LaneTime

if TYPE_CHECKING:
    from slacktide.engine.pool import Pool


class ReplicaState(Enum):
    """Life of one placement of a pool on a lane.

    STARTING → UP, or → BACKOFF when it is lost; UP → BACKOFF when it is lost; BACKOFF → STARTING
    when the pause is over. A placement that leaves the plan is stopped and forgotten, at once or,
    if it runs a batch, after it (`retiring`); if its pool has only moved to another lane, once that
    one is up (`leaving`).
    """

    STARTING = "starting"
    UP = "up"
    BACKOFF = "backoff"


class Placement:
    """A pool's place on a lane, across restarts of its replica."""

    __slots__ = (
        "killed",
        "lane",
        "lane_time",
        "leaving",
        "pool",
        "replica",
        "retiring",
        "since",
        "state",
        "until",
    )

    def __init__(self, pool: Pool, lane: Lane, replica: Replica, fairness_window: float) -> None:
        self.pool = pool
        self.lane = lane
        self.lane_time = LaneTime(fairness_window)
        self.replica = replica
        """The latest replica here."""
        self.state = ReplicaState.STARTING
        self.since = -math.inf
        """When the latest replica was started."""
        self.until = math.inf
        """When the engine must act: start limit (STARTING) or restart (BACKOFF)."""
        self.retiring = False
        """No longer in the plan; goes once the batch it runs is done."""
        self.leaving = False
        """No longer in the plan; serves until its pool is up on a lane that is."""
        self.killed = False
        """Told to die for hanging; its ReplicaLost is on the way."""

    @property
    def serves(self) -> bool:
        """Whether it may be given a batch."""
        return self.state is ReplicaState.UP and not self.retiring and not self.killed


class Running:
    """The batch on a lane, and how many of its members still wait for their answer."""

    __slots__ = ("batch", "expected_end", "placement", "suspect", "waiting")

    def __init__(
        self, batch: Batch, placement: Placement, expected_end: float, *, suspect: bool = False
    ) -> None:
        self.batch = batch
        self.placement = placement
        self.waiting = 0 if batch.sample else len(batch.members)
        self.expected_end = expected_end
        self.suspect = suspect
        """One request, run alone because an earlier batch with it died."""


class Lane:
    """One lane: its cores, its placements, the batch it runs."""

    __slots__ = ("cores", "device", "name", "placements", "removed", "running", "wait_until")

    def __init__(self, spec: LaneSpec) -> None:
        self.name = spec.name
        self.device = spec.device
        self.cores = spec.cores
        self.placements: list[Placement] = []
        self.running: Running | None = None
        self.wait_until = math.inf
        """When a policy asked to be asked again (WaitUntil)."""
        self.removed = False
        """No longer in the plan; goes once its last batch is done."""

    @property
    def size(self) -> int:
        """Cores, at least 1 (an accelerator lane counts as one)."""
        return len(self.cores) or 1
