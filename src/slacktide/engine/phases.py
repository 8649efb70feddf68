"""The phases of a pool's placement on a lane, across restarts of its replica, as a table.

A phase combines the placement's future with its replica's state, so that each pair of phase and
step is either in `TRANSITIONS` or an error. docs/internals/placement.md draws the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ReplicaState(Enum):
    """The state of a placement's replica."""

    STARTING = "starting"
    UP = "up"
    BACKOFF = "backoff"
    """No replica runs; another may be started."""


UP: Final = ReplicaState.UP
"""A module constant for speed, see engine/request_table.py."""


class Phase(Enum):
    """The replica's state together with the placement's future."""

    _value_: tuple[str, ReplicaState]
    label: str
    replica: ReplicaState
    serves: bool
    """Whether the placement may get a batch."""
    dying: bool
    """Whether the replica is being killed and its ReplicaLost is due."""
    retiring: bool
    """Whether the placement goes when its replica finishes its batch or dies."""
    leaves: bool
    """Whether it has left the plan."""

    PAUSED = ("paused", ReplicaState.BACKOFF)
    """No replica. The next one starts after a pause, or when the circuit of the version allows."""
    STARTING = ("starting", ReplicaState.STARTING)
    STALLED = ("stalled", ReplicaState.STARTING)
    """The replica has taken too long to start, and is being killed."""
    UP = ("up", ReplicaState.UP)
    RESTARTING = ("restarting", ReplicaState.UP)
    """A new replica replaces this one after its batch."""
    HUNG = ("hung", ReplicaState.UP)
    """The replica's batch has taken too long, and the replica is being killed."""
    LEAVING = ("leaving", ReplicaState.UP)
    """The placement has left the plan and serves until its pool is up on a planned lane."""
    RETIRING = ("retiring", ReplicaState.UP)
    """The placement has left the plan; its replica stops after its batch."""
    HUNG_RETIRING = ("hung_retiring", ReplicaState.UP)
    """The placement has left the plan, and its hung replica is being killed."""


for _phase in Phase:  # read for every request: attributes cost a third of properties
    _phase.label, _phase.replica = _phase._value_
    _phase.serves = _phase in (Phase.UP, Phase.LEAVING)
    _phase.dying = _phase in (Phase.STALLED, Phase.HUNG, Phase.HUNG_RETIRING)
    _phase.retiring = _phase in (Phase.RETIRING, Phase.HUNG_RETIRING)
    _phase.leaves = _phase.retiring or _phase is Phase.LEAVING


class Step(Enum):
    """An event in the life of a placement; the value completes `cannot …`."""

    START = "start"
    CAME_UP = "came up"
    LOST = "lost"
    KILL = "kill"
    STOP = "stop"
    RESTART = "restart after its batch"
    LEAVE = "leave once up elsewhere"
    RETIRE = "leave after its batch"
    KEEP = "in the plan again"


TRANSITIONS: Mapping[Phase, Mapping[Step, Phase]] = {
    Phase.PAUSED: {Step.START: Phase.STARTING},
    Phase.STARTING: {
        Step.CAME_UP: Phase.UP,
        Step.LOST: Phase.PAUSED,
        Step.KILL: Phase.STALLED,
        Step.STOP: Phase.PAUSED,
    },
    Phase.STALLED: {Step.CAME_UP: Phase.HUNG, Step.LOST: Phase.PAUSED, Step.STOP: Phase.PAUSED},
    Phase.UP: {
        Step.LOST: Phase.PAUSED,
        Step.KILL: Phase.HUNG,
        Step.STOP: Phase.PAUSED,
        Step.RESTART: Phase.RESTARTING,
        Step.LEAVE: Phase.LEAVING,
        Step.RETIRE: Phase.RETIRING,
    },
    Phase.RESTARTING: {
        Step.LOST: Phase.PAUSED,
        Step.KILL: Phase.HUNG,
        Step.STOP: Phase.PAUSED,
        Step.RETIRE: Phase.RETIRING,
    },
    Phase.HUNG: {
        Step.LOST: Phase.PAUSED,
        Step.STOP: Phase.PAUSED,
        Step.RETIRE: Phase.HUNG_RETIRING,
    },
    Phase.LEAVING: {
        Step.LOST: Phase.PAUSED,
        Step.KILL: Phase.HUNG_RETIRING,
        Step.RETIRE: Phase.RETIRING,
        Step.KEEP: Phase.UP,
    },
    Phase.RETIRING: {Step.LOST: Phase.PAUSED, Step.KILL: Phase.HUNG_RETIRING, Step.KEEP: Phase.UP},
    Phase.HUNG_RETIRING: {Step.LOST: Phase.PAUSED, Step.KEEP: Phase.HUNG},
}
