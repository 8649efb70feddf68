"""Who comes first: the total order of events is (time, kind, running number).

Two events of one instant are delivered in the order of their kinds, two of one kind in the order in
which they were put down. So a run repeats exactly, and what a tie means is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from slacktide.domain import (
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


class Kind(IntEnum):
    """Order of events of one instant, first to last."""

    BATCH = 0
    """A batch ends or gives rows back. First: an answer due at this very instant is on time, and a
    replica that dies as it finishes has finished."""
    REPLICA = 1
    """Replicas, lanes, plans and memory. Before requests: who comes at the instant at which a
    replica comes up finds it up."""
    NOTICE = 2
    REQUEST = 3
    """After notices, so that an upload that takes no time is announced before it is complete."""
    WITHDRAWAL = 4
    """After requests, so that a request withdrawn as it comes was known."""
    TIMER = 5
    """Last: whatever ends, comes or goes at this instant has changed what is due."""


KIND_OF: Mapping[type[Event], Kind] = {
    BatchFinished: Kind.BATCH,
    BatchFailed: Kind.BATCH,
    BatchAborted: Kind.BATCH,
    RowsReleased: Kind.BATCH,
    ReplicaUp: Kind.REPLICA,
    ReplicaLost: Kind.REPLICA,
    LaneResized: Kind.REPLICA,
    PlanChanged: Kind.REPLICA,
    MemoryShort: Kind.REPLICA,
    Announced: Kind.NOTICE,
    Submitted: Kind.REQUEST,
    Cancelled: Kind.WITHDRAWAL,
    Refused: Kind.WITHDRAWAL,
    TimerFired: Kind.TIMER,
}
