"""`Replica` and `Batch`: what runs, and where."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain.light import light
from slacktide.domain.plan import PoolId
from slacktide.domain.request import Request


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


@light
@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Where a finished batch spent its time, as its worker measured it (seconds)."""

    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of the worker's threads over the batch."""
