"""The words of Slacktide: requests, batches, plans, events, commands, outcomes.

Pure data, frozen, validated when made. No behaviour beyond what a value can say of itself.
"""

from slacktide.domain.batch import Batch, BatchTiming, Replica
from slacktide.domain.commands import (
    AbortBatch,
    Answer,
    Circuit,
    Command,
    FreeSlots,
    ResizeLane,
    RunBatch,
    StartReplica,
    StopReplica,
    TellCircuit,
)
from slacktide.domain.events import (
    Announced,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Event,
    LaneResized,
    MemoryShort,
    PlanChanged,
    Refused,
    ReplicaLost,
    ReplicaUp,
    RowsReleased,
    Submitted,
    TimerFired,
)
from slacktide.domain.outcomes import Outcome, OutcomeKind, Reason
from slacktide.domain.plan import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.domain.request import Notice, Request, Signature

__all__ = [
    "AbortBatch",
    "Announced",
    "Answer",
    "Batch",
    "BatchAborted",
    "BatchFailed",
    "BatchFinished",
    "BatchTiming",
    "Cancelled",
    "Circuit",
    "Command",
    "Deployment",
    "Event",
    "FreeSlots",
    "LaneResized",
    "LaneSpec",
    "MemoryShort",
    "Notice",
    "Outcome",
    "OutcomeKind",
    "Plan",
    "PlanChanged",
    "PoolId",
    "Reason",
    "Refused",
    "Replica",
    "ReplicaLost",
    "ReplicaUp",
    "Request",
    "ResizeLane",
    "Route",
    "RowsReleased",
    "RunBatch",
    "Signature",
    "StartReplica",
    "StopReplica",
    "Submitted",
    "TellCircuit",
    "TimerFired",
]
