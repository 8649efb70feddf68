"""What the engine wants done. A driver carries commands out in order.

`cause` is the running number of the event that made the engine ask (0 is the first).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slacktide.domain.outcomes import Answer
from slacktide.domain.plan import ExitPolicy, PoolId
from slacktide.domain.read_only import read_only
from slacktide.domain.request import Batch, Replica


class Circuit(Enum):
    """Whether a version may serve, after what it has crashed."""

    CLOSED = "closed"
    """It may."""
    OPEN = "open"
    """Not now: its replicas are stopped."""
    TRIAL = "trial"
    """One replica is started, or up, to see whether it may."""


@read_only
class RunBatch:
    """Hand this batch to its replica. Ends in exactly one batch event, or in ReplicaLost."""

    batch: Batch
    cause: int
    expected: float
    """Seconds that it is predicted to take, typically."""
    p99: float
    """The same, 99 times in 100."""


@dataclass(frozen=True, slots=True)
class AbortBatch:
    """No client waits for this batch any more: stop it if that is possible. Its members have
    withdrawn, or ramps have answered them. Still ends in exactly one batch event; the lane is free
    only after that."""

    batch: Batch
    cause: int


@read_only
class FreeSlots:
    """Nothing names the payloads of these requests any more. Sent once for each request. Always
    after the `Answer` of the same request."""

    ids: tuple[int, ...]
    cause: int


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start this replica; ends in ReplicaUp or ReplicaLost."""

    replica: Replica
    cause: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop this replica. It runs nothing unless `kill` is set; then it hangs, and
    `ReplicaLost` must follow once it is dead."""

    replica: Replica
    kill: bool
    cause: int


@dataclass(frozen=True, slots=True)
class ResizeLane:
    """Move the lane's replicas to these cores; ends in LaneResized."""

    lane: str
    cores: tuple[int, ...]
    replicas: tuple[Replica, ...]
    cause: int


@dataclass(frozen=True, slots=True)
class TellCircuit:
    """The circuit of a version has changed: report it."""

    pool: PoolId
    circuit: Circuit
    reason: str
    """Why it is unavailable; empty: it is not."""
    retry_s: float | None
    """Open: seconds until it is tried again; None: never."""
    cause: int


@dataclass(frozen=True, slots=True)
class PublishExits:
    """From its next batch on, requests leave the replica's model early as `policy` says. Sent once
    the replica is up, and whenever the policy changes; one without ramps ends it."""

    replica: Replica
    policy: ExitPolicy
    cause: int


Command = (
    RunBatch
    | AbortBatch
    | Answer
    | FreeSlots
    | StartReplica
    | StopReplica
    | ResizeLane
    | TellCircuit
    | PublishExits
)
