"""What happens to the engine. A driver delivers events; the engine answers with commands."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain.outcomes import Reason
from slacktide.domain.plan import Plan
from slacktide.domain.read_only import read_only
from slacktide.domain.request import BatchTiming, Notice, Request


@read_only
class Announced:
    """A request's headers are here, its body is not. Counts as submitted from now on."""

    notice: Notice


@read_only
class Submitted:
    """A request is here, body and all. If it was announced, this replaces the notice."""

    request: Request


@read_only
class Refused:
    """A driver turned a known model's request away itself (bad input, memory, limits). The id may
    have been announced or be new. Keeps the conservation law: the engine counts it."""

    id: int
    model: str
    reason: Reason
    version: str | None = None
    detail: str = ""


@read_only
class Cancelled:
    """A client withdrew, or its input turned out to be wrong. Unknown and finished ids are ignored:
    the two may cross."""

    id: int
    reason: Reason = Reason.CLIENT_CANCELLED
    detail: str = ""


@read_only
class RowsReleased:
    """A ramp answered these members of a running batch. Any number of times before its end."""

    batch: int
    ids: tuple[int, ...]
    ramp: int = -1
    """The position of the ramp; -1: not known."""


@read_only
class ExitReport:
    """What the ramps of a batch said: by row, in the order of its members and of their rows, and
    by ramp, front to end."""

    ramps: tuple[int, ...]
    """Positions of the ramps that were active."""
    uncertainty: tuple[tuple[float, ...], ...]
    """By row, by ramp: 1 − the probability of the answer. Shorter where a row left before."""
    agrees: tuple[tuple[bool, ...], ...]
    """By row, by ramp: whether the ramp gave the answer of the model's end. Empty where a row did
    not come that far."""
    left: tuple[int, ...]
    """By row: index in `ramps` of the one that answered it; -1: the model's end did."""
    stage_s: tuple[float, ...] = ()
    """Seconds from the batch's start to the answers of each ramp."""


@read_only
class BatchFinished:
    """The outputs of every member are ready; the lane is free."""

    batch: int
    timing: BatchTiming = BatchTiming()
    exits: ExitReport | None = None


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """The model raised; the replica lives on and the lane is free."""

    batch: int
    detail: str


@dataclass(frozen=True, slots=True)
class BatchAborted:
    """A batch stopped as commanded; the lane is free."""

    batch: int
    exits: ExitReport | None = None
    """What was known by then."""


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """A started replica is warm and ready."""

    replica: int


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica died, was killed, or could not start. What it ran is lost."""

    replica: int
    detail: str
    permanent: bool = False
    """True if starting it again cannot help (a broken model file)."""
    computed: bool = False
    """Its process had used a core for at least half of the time that its last batch took."""
    shared: bool = False
    """Its process was that of another replica too, whose loss is the one that counts."""


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
    """For people: of planners that say why. The engine does not read it."""


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A payload does not fit: what is kept for profiling alone is to be given back, at once."""


@dataclass(frozen=True, slots=True)
class DriverStalled:
    """The driver has stood still and read nothing: for so long nobody was late for it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The moment that `next_wakeup` asked for has come."""


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
