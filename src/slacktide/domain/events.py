"""Events: what happens to the engine, as its driver reports it."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain.outcomes import Reason
from slacktide.domain.plan import Plan
from slacktide.domain.read_only import read_only
from slacktide.domain.request import BatchTiming, Notice, Request


@read_only
class Announced:
    """The headers of a request have arrived, but not its body. It already counts as submitted."""

    notice: Notice


@read_only
class Submitted:
    """A request has arrived with its body. If it was announced, it replaces its notice."""

    request: Request


@read_only
class Refused:
    """The driver itself rejected a request for a known model (bad input, memory, limits). The
    request may have been announced before. The engine counts it, so that no request is lost."""

    id: int
    model: str
    reason: Reason
    version: str | None = None
    detail: str = ""


@read_only
class Cancelled:
    """A client cancelled a request, or its input turned out to be invalid. Unknown and finished ids
    are ignored, because a cancellation and an answer may cross."""

    id: int
    reason: Reason = Reason.CLIENT_CANCELLED
    detail: str = ""


@read_only
class RowsReleased:
    """A ramp answered these members of a running batch. May happen several times for a batch."""

    batch: int
    ids: tuple[int, ...]
    ramp: int = -1
    """The position of the ramp; -1: unknown."""


NEVER = 2.0
"""Uncertainty of a row that may not leave at a ramp."""


@read_only
class ExitReport:
    """The verdicts of a batch's ramps, by row (members in order, then their rows) and by ramp,
    front to end."""

    ramps: tuple[int, ...]
    """Positions of the ramps that were active."""
    uncertainty: tuple[tuple[float, ...], ...]
    """By row, by ramp: 1 − the probability of the ramp's answer; NEVER if ramps may not give this
    class. A row that left earlier has fewer values."""
    agrees: tuple[tuple[bool, ...], ...]
    """By row, by ramp: whether the ramp agreed with the model's end. Empty if the row did not get
    to the end."""
    left: tuple[int, ...]
    """By row: index in `ramps` of the ramp that answered the row; -1: the model's end answered
    it."""
    stage_s: tuple[float, ...] = ()
    """Seconds from the batch's start to the answers of each ramp."""
    answers: tuple[int, ...] = ()
    """By row: class that the model's end gave; -1: the row did not get there. Empty: unknown."""


@read_only
class BatchFinished:
    """The outputs of all members are ready; the lane is free."""

    batch: int
    timing: BatchTiming = BatchTiming()
    exits: ExitReport | None = None


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The model raised an error; the replica still runs, and the lane is free."""

    batch: int
    detail: str


@dataclass(frozen=True, slots=True)
class BatchAborted:
    """A batch stopped as requested; the lane is free."""

    batch: int
    exits: ExitReport | None = None
    """Verdicts up to that point."""


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """A started replica is warm and ready."""

    replica: int


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica died, was killed, or could not start. Its batch is lost."""

    replica: int
    detail: str
    permanent: bool = False
    """Whether starting it again cannot help (a broken model file)."""
    computed: bool = False
    """Whether its process used a core for at least half the duration of its last batch."""
    shared: bool = False
    """Whether the loss is counted for another replica of the same process instead."""


@dataclass(frozen=True, slots=True)
class LaneResized:
    """A lane now runs on these cores."""

    lane: str
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """A new plan is in force from now on."""

    plan: Plan
    reason: str = ""
    """Explanation for people, which the engine does not read; empty if the planner gives none."""


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A payload does not fit into memory: release all payloads held only for profiling."""


@dataclass(frozen=True, slots=True)
class DriverStalled:
    """The driver was blocked and read nothing for `seconds`; no replica is blamed for that time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that `next_wakeup` returned has come."""


Event = (
    Announced
    | Submitted
    | Refused
    | Cancelled
    | RowsReleased
    | BatchFinished
    | BatchFailed
    | BatchAborted
    | ReplicaUp
    | ReplicaLost
    | LaneResized
    | PlanChanged
    | MemoryShort
    | DriverStalled
    | TimerFired
)
