"""`Request`: one call with a deadline; `Notice`: what is known of it before its body is.

`Replica` and `Batch`: what runs, and where.
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
    """One loaded copy of a pool's model on a lane. `id` is never used again."""

    id: int
    pool: PoolId
    lane: str
    cores: tuple[int, ...]
    max_batch: int
    device: str = "cpu"
    """Of its lane: `cpu` or `cuda:N`."""


class Leaving(Enum):
    """Whether members of a batch may be answered before the model's end."""

    NONE = "none"
    RUN_ON = "run_on"
    """They may; their rows run on to the end."""
    SHRINK = "shrink"
    """They may; their rows leave the batch."""

    __hash__ = object.__hash__


@read_only
class Batch:
    """Requests that run together, once. Rows, not requests, fill it."""

    id: int
    replica: Replica
    members: tuple[Request, ...]
    rows: int
    started: float
    hang_at: float
    """When the replica is taken to hang and is killed: max(1 s, 10 × p99) after the start."""
    solo: bool = False
    """A request that has its answer, run again by itself to learn its length."""
    leaving: Leaving = Leaving.NONE
    """Of members that are not `final`."""
    judged: bool = False
    """Whether accuracy is judged on it, chosen by its id alone: all its rows run on to the end,
    and it is not stopped once all of them are answered."""


@read_only
class BatchTiming:
    """Where a finished batch spent its time, as its worker measured it (seconds)."""

    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of the worker's threads over the batch."""
    thread_s: float = 0.0
    """CPU time of the thread that ran the batch; 0 where the executor does not say."""


Signature = tuple[tuple[int, ...], ...]
"""The shape of every input without its batch axis. Unequal signatures never share a batch."""


@read_only
class Request:
    """One call, as the engine sees it: no tensor, no socket, no protocol.

    Times are seconds on the driver's monotonic clock. `deadline` already contains the network
    time spent and the reserve. A best-effort request is ordered by its `deadline` as
    if it had one, is never dropped and never late.
    """

    id: int
    model: str
    arrival: float
    """When its first byte arrived."""
    deadline: float
    rows: int = 1
    penalty: float = 1.0
    """Cost of missing the deadline, in steps (Orloj, appendix B)."""
    signature: Signature = ()
    best_effort: bool = False
    version: str | None = None
    """A version the client insists on; None takes the route's."""
    application: str = ""
    client: str = ""
    work_hint: float | None = None
    """What the run time grows with, e.g. the sequence length."""
    reserve: float = 0.0
    """Seconds kept back for the way home or the rest of a pipeline (informative)."""
    network_time: float = 0.0
    """Seconds the client spent on the way here (informative)."""
    parent: int | None = None
    """The frame of a pipeline this request is a part of."""
    size: int = 0
    """Which variant of a family it asks for: the side in pixels at which its image is to be run, or
    of several files the place, from 1; 0: the route decides. A route of its client comes first,
    unless it `names_variant`."""
    final: bool = False
    """Whether only the model's end may answer it: its client asked for that, or for an output that
    no early exit makes."""
    names_variant: bool = False
    """Whether `size` is that of a variant it names, not of its image."""
    decoding: float = 0.0
    """Seconds that decoding its pictures takes at least, beyond what batches of its model are
    measured with: large ones are charged for by pixels × components."""

    def check(self) -> None:
        """For what comes from a file or a network. Raises ValueError that says what cannot be."""
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1, got {self.rows}")
        if not (math.isfinite(self.deadline) and math.isfinite(self.arrival)):
            raise ValueError("arrival and deadline must be finite")
        if not 0.0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be positive and finite, got {self.penalty}")


def decoding_time(members: Sequence[Request]) -> float:
    """Seconds that a batch spends at least on decoding large pictures. Members of one frame share
    its picture."""
    pictures: dict[int, float] | None = None  # hardly ever any: each batch asks
    for member in members:
        if member.decoding:
            if pictures is None:
                pictures = {}
            pictures[member.id if member.parent is None else member.parent] = member.decoding
    return 0.0 if pictures is None else sum(pictures.values())


@read_only
class Notice:
    """A request whose body is still on its way. Its deadline runs from the first byte and is
    replaced once, by the body's."""

    id: int
    model: str
    arrival: float
    deadline: float
    payload_bytes: int
    complete_at: float
    """When the body is expected to be complete: length over the client's measured rate."""
    penalty: float = 1.0
    best_effort: bool = False
    version: str | None = None
    application: str = ""
    client: str = ""
    likely_due: float | None = None
    """When its answer will be due unless its body says otherwise. Only for planning: no request
    is refused by it. None: only its body states it."""
    size: int = 0
    """See `Request`; 0 also where only its body states it."""
    names_variant: bool = False

    @property
    def planned_due(self) -> float | None:
        """The deadline to plan with; None where there is none."""
        return self.likely_due if self.best_effort else self.deadline
