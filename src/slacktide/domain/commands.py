"""Commands: what the engine asks of its driver, which carries them out in order.

`cause` is the running number of the event that caused the command (0 is the first).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slacktide.domain.outcomes import Answer
from slacktide.domain.plan import ExitPolicy, PoolId
from slacktide.domain.read_only import read_only
from slacktide.domain.request import Batch, Replica


class Circuit(Enum):
    """State of a version's circuit breaker: whether the version may serve after crashes."""

    CLOSED = "closed"
    """It serves."""
    OPEN = "open"
    """It does not serve: its replicas are stopped."""
    TRIAL = "trial"
    """One replica is started, to find out whether the version can serve again."""


@read_only
class RunBatch:
    """Hand this batch to its replica. Ends in exactly one batch event, or in ReplicaLost."""

    batch: Batch
    cause: int
    expected: float
    """Median of its predicted duration, in seconds."""
    p99: float
    """99th percentile of its predicted duration, in seconds."""


@dataclass(frozen=True, slots=True)
class AbortBatch:
    """Stop this batch if possible: no client waits for it, because its members were cancelled or
    ramps have answered them. It still ends in exactly one batch event, which frees the lane."""

    batch: Batch
    cause: int


@read_only
class FreeSlots:
    """Release the payloads of these requests. Sent once for each request, always after its
    `Answer`."""

    ids: tuple[int, ...]
    cause: int


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start this replica; ends in ReplicaUp or ReplicaLost."""

    replica: Replica
    cause: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop this idle replica. With `kill`, the replica is overdue instead: kill it, and report
    `ReplicaLost` once it is dead."""

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
    """Report that the circuit of a version has changed."""

    pool: PoolId
    circuit: Circuit
    reason: str
    """Why the version is unavailable; empty if it is available."""
    retry_s: float | None
    """Seconds until an open circuit is tried again; None: never."""
    cause: int


@dataclass(frozen=True, slots=True)
class PublishExits:
    """Apply `policy` from the replica's next batch on. Sent once the replica is up, and whenever
    the policy changes; a policy without ramps ends early exits."""

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
