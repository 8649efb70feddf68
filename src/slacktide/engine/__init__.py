"""The state machine of Slacktide: events in, commands out. Pure; it is driven, it never waits.

It does not decide which requests run (`scheduling` proposes) nor how long they take (`profiles`
predicts); it keeps every request in exactly one place and ends it exactly once.
"""

from slacktide.engine.engine import Engine
from slacktide.engine.invariants import InvariantError, check_invariants
from slacktide.engine.ports import (
    BatchTimes,
    Idle,
    Planner,
    PoolFactory,
    PoolParts,
    PoolView,
    Proposal,
    Scheduler,
    WaitUntil,
)
from slacktide.engine.samples import SampleCounts, Sampling
from slacktide.engine.settings import EngineSettings

__all__ = [
    "BatchTimes",
    "Engine",
    "EngineSettings",
    "Idle",
    "InvariantError",
    "Planner",
    "PoolFactory",
    "PoolParts",
    "PoolView",
    "Proposal",
    "SampleCounts",
    "Sampling",
    "Scheduler",
    "WaitUntil",
    "check_invariants",
]
