"""`Request`: one call with a deadline. `Notice`: its headers, before its body arrives.

`Replica` and `Batch`: where requests run, and which requests run together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from slacktide.domain.plan import PoolId
from slacktide.domain.read_only import read_only


@dataclass(frozen=True, slots=True)
class Replica:
    """One loaded copy of a pool's model on a lane. Ids are never reused."""

    id: int
    pool: PoolId
    lane: str
    cores: tuple[int, ...]
    max_batch: int
    device: str = "cpu"
    """The lane's device: `cpu` or `cuda:N`."""


class Leaving(Enum):
    """Whether members of a batch, except `final` ones, may be answered before the model's end."""

    NONE = "none"
    RUN_ON = "run_on"
    """Answered rows run on to the end."""
    SHRINK = "shrink"
    """Answered rows leave the batch."""

    __hash__ = object.__hash__


@read_only
class Batch:
    """Requests that run together, once. `rows` is the sum of the members' rows."""

    id: int
    replica: Replica
    members: tuple[Request, ...]
    rows: int
    started: float
    hang_at: float
    """Time at which a replica that has not finished counts as hung and is killed: max(1 s, 10 ×
    p99) after the batch's start."""
    solo: bool = False
    """Whether it runs one answered request again, alone, to learn how long requests of its length
    take."""
    leaving: Leaving = Leaving.NONE
    judged: bool = False
    """Whether accuracy is judged on this batch, as its id decides. All rows of a judged batch run
    to the end, even if all have been answered."""
    held: tuple[int, ...] = ()
    """Places of members that only the model's end may answer."""
    refreshes: bool = False
    """Whether its answered rows would run to the end even if it were not judged, so that the
    model's answers to them may be remembered."""


@read_only
class BatchTiming:
    """How long the phases of a batch took, as its worker measured them (seconds)."""

    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of the worker's threads over the batch."""
    thread_s: float = 0.0
    """CPU time of the thread that ran the batch; 0 if the executor does not measure it."""


Signature = tuple[tuple[int, ...], ...]
"""The shape of every input without its batch axis. Unequal signatures never share a batch."""


@read_only
class Request:
    """One call as the engine sees it, without tensors, sockets or protocols.

    Times are seconds on the driver's monotonic clock. `deadline` already accounts for the network
    time spent and the reserve. A best-effort request is ordered by its `deadline` but is never
    dropped and never late.
    """

    id: int
    model: str
    arrival: float
    """Time at which its first byte arrived."""
    deadline: float
    rows: int = 1
    penalty: float = 1.0
    """Cost of missing the deadline, in steps (Orloj, appendix B)."""
    signature: Signature = ()
    best_effort: bool = False
    version: str | None = None
    """The version that the client asks for; None: the route decides."""
    application: str = ""
    client: str = ""
    work_hint: float | None = None
    """The quantity that its run time grows with, e.g. the sequence length."""
    reserve: float = 0.0
    """Seconds reserved for the way back or for later stages of a pipeline (informative)."""
    network_time: float = 0.0
    """Seconds the request spent on the network (informative)."""
    parent: int | None = None
    """The frame of a pipeline that this request belongs to."""
    size: int = 0
    """The variant of a family that the request asks for: the side in pixels of its input image or,
    for a family of several files, the variant's position from 1. 0: the route decides. A route of
    its client has priority, unless `names_variant` is set."""
    final: bool = False
    """Whether only the model's end may answer it: its client asked for that, or for an output that
    no early exit has."""
    names_variant: bool = False
    """Whether `size` stands for a variant that the client named, not for the size of its image."""
    decoding: float = 0.0
    """Lower bound, in seconds, on the time of decoding its pictures that the profile does not
    include. It is estimated from pixels × components of large pictures."""
    session: int = 0
    """The stream of inputs that it belongs to, if its model remembers answers; 0: none."""
    frame: int = 0
    """Its number within the session, rising by one."""

    def check(self) -> None:
        """Check a request from a file or a network. Raises ValueError."""
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")
        if not (math.isfinite(self.deadline) and math.isfinite(self.arrival)):
            raise ValueError("arrival and deadline must be finite")
        if not 0.0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be positive and finite, got {self.penalty}")


def decoding_time(members: Sequence[Request]) -> float:
    """Lower bound, in seconds, on a batch's decoding of large pictures. Members of one frame share
    its picture."""
    pictures: dict[int, float] | None = None  # rarely needed, but every batch asks
    for member in members:
        if member.decoding:
            if pictures is None:
                pictures = {}
            pictures[member.id if member.parent is None else member.parent] = member.decoding
    return 0.0 if pictures is None else sum(pictures.values())


@read_only
class Notice:
    """A request whose body is still arriving. Its deadline counts from its first byte. Once the
    body is complete, the request replaces the notice."""

    id: int
    model: str
    arrival: float
    deadline: float
    payload_bytes: int
    complete_at: float
    """When the body should be complete: its length divided by the client's measured rate."""
    penalty: float = 1.0
    best_effort: bool = False
    version: str | None = None
    application: str = ""
    client: str = ""
    likely_due: float | None = None
    """Time at which the answer will be due unless the body states a deadline; None: unknown until
    the body arrives. It serves only for planning: no request is refused because of it."""
    size: int = 0
    """See `Request`; also 0 if only the body states it."""
    names_variant: bool = False

    @property
    def planned_due(self) -> float | None:
        """The deadline to plan with; None if there is none."""
        return self.likely_due if self.best_effort else self.deadline
