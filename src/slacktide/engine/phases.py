"""The phases of a pool's place on a lane, across restarts of its replica, as a table.

What is to become of the place and what its replica is doing are one phase, so that each pair of
phase and step is either in `TRANSITIONS` or an error. docs/internals/placement.md draws
the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class ReplicaState(Enum):
    """What the replica of a placement is doing."""

    STARTING = "starting"
    UP = "up"
    BACKOFF = "backoff"
    """There is none; perhaps one will be started."""


UP: Final = ReplicaState.UP
"""As a name of its own, like those of engine/ledger.py."""


class Phase(Enum):
    """What a placement is doing, and what is to become of it."""

    _value_: tuple[str, ReplicaState]
    label: str
    replica: ReplicaState
    serves: bool
    """Whether the placement may be given a batch."""
    dying: bool
    """Whether the replica is being killed; its ReplicaLost is on the way."""
    retiring: bool
    """Whether the placement goes as soon as its replica is done or has died."""
    leaves: bool
    """Whether it is no longer in the plan."""

    PAUSED = ("paused", ReplicaState.BACKOFF)
    """No replica. Another starts when the pause is over, or the circuit of the version says so."""
    STARTING = ("starting", ReplicaState.STARTING)
    STALLED = ("stalled", ReplicaState.STARTING)
    """It took too long to start and is being killed."""
    UP = ("up", ReplicaState.UP)
    RESTARTING = ("restarting", ReplicaState.UP)
    """Another replica takes the place of this one once the batch that it runs is done."""
    HUNG = ("hung", ReplicaState.UP)
    """Its batch took too long and it is being killed."""
    LEAVING = ("leaving", ReplicaState.UP)
    """No longer in the plan. Serves until its pool is up on a lane that is."""
    RETIRING = ("retiring", ReplicaState.UP)
    """No longer in the plan. Stops once the batch that it runs is done."""
    HUNG_RETIRING = ("hung_retiring", ReplicaState.UP)
    """Both: ends once it has died."""


for _phase in Phase:  # read for each request: attributes cost a third of properties
    _phase.label, _phase.replica = _phase._value_
    _phase.serves = _phase in (Phase.UP, Phase.LEAVING)
    _phase.dying = _phase in (Phase.STALLED, Phase.HUNG, Phase.HUNG_RETIRING)
    _phase.retiring = _phase in (Phase.RETIRING, Phase.HUNG_RETIRING)
    _phase.leaves = _phase.retiring or _phase is Phase.LEAVING


class Step(Enum):
    """What happens to a placement."""

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
