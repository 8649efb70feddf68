"""What a scaling planner sees of one model, and what it answers.

A planner looks at one model at a time. Where the wishes of several exceed the machine, the core
ledger decides who gets what.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits, or whose body is on its way. Absolute seconds."""

    ready_at: float
    """When it can run: now or earlier if its body is here."""
    deadline: float
    """When its answer is due. Network time and the way back are already taken off, so each
    request's own remaining budget is what counts; infinite for best effort."""
    rows: int = 1


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of the model. Absolute seconds."""

    cores: int
    """What it has, or will have once a resize under way is confirmed."""
    ready_at: float
    """When it serves: now or earlier if it is up, the expected end of its start if it starts."""
    free_at: float
    """When the batch it runs is expected to end; now or earlier if it runs none."""
    due: float = inf
    """The earliest deadline of that batch's requests that can be kept with the present cores."""


class BatchSeconds(Protocol):
    """How long a batch takes; seconds, rows ≥ 1, cores ≥ 1. A `BatchTimes` is one."""

    def expected(self, rows: int, cores: int) -> float: ...

    def p99(self, rows: int, cores: int) -> float: ...


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """Between what a planner may choose; all at least 1. Raises ValueError, naming the field."""

    cores_min: int = 1
    cores_max: int = 1
    """Most cores of one replica."""
    replicas_min: int = 1
    replicas_max: int = 1
    batch_max: int = 1
    """Most rows in one batch."""

    def __post_init__(self) -> None:
        for name in ("cores_min", "replicas_min", "batch_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("cores", "replicas"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if most < least:
                raise ValueError(f"{name}: expected min at most max, got {least} and {most}")


@dataclass(frozen=True, slots=True)
class VariantView:
    """Another form of the model that every replica holds and can run from its next batch on."""

    name: str
    accuracy: float
    """Larger is better; only its order among the variants counts."""
    times: BatchSeconds


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as its planner sees it."""

    model: str
    waiting: tuple[Waiting, ...]
    """In the order of their deadlines."""
    replicas: tuple[ReplicaView, ...]
    rate: float
    """Rows per second expected until the next plan, of requests that can be on time on some of the
    allowed cores; the margin for bursts included."""
    budget: float
    """Seconds that such an arrival will have left when it is ready; leaning towards the short ones.
    Infinite if none has a deadline."""
    batch: int
    """Most rows in a batch under the plan in force."""
    times: BatchSeconds
    limits: ScalingLimits
    start_time: float = 0.0
    """Seconds from the start of a replica until it serves."""
    arrived: int = 0
    """Rows of such requests known so far, announced ones included: from it a planner takes rates
    over longer spans. It rises, but for announced ones whose bodies came too late."""
    variants: tuple[VariantView, ...] = ()
    """What the model can run instead, the one that runs included; empty if there is but one."""
    burst: float = 0.0
    """How far arrivals may run ahead of the rate by chance: within t seconds by burst · √t rows. 0:
    they are evenly spaced."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a planner wants for one model."""

    replicas: int
    cores: int
    """Of each replica."""
    batch: int
    """Most rows in one batch."""
    late: int = 0
    """How many of the waiting and expected requests would miss their deadlines even so."""
    reason: str = ""
    """Why, in a few words for people and metrics, such as `deadlines` or `rate`."""
    start_cores: int = 0
    """Of each replica that does not serve yet; 0: like the others."""
    needed: int = 0
    """Replicas that the load forecast needs, even if the limits allow fewer; 0: not looked at, or
    no number of them would do."""
    variant: str = ""
    """What to run, by its name; empty: what runs now."""
    restart: bool = False
    """Replicas whose cores change are stopped and started anew with them, not resized."""


class ScalingPlanner(Protocol):
    """View in, wish out. May keep what it has seen (hysteresis); reads no clock."""

    @property
    def period(self) -> float:
        """Seconds between two plans, unless the queue cannot wait."""
        ...

    def decide(self, view: ModelView, *, now: float) -> Wish: ...


@runtime_checkable
class Watchful(Protocol):
    """A planner that wants to be asked before its period is over."""

    def misses(self, view: ModelView, *, now: float) -> bool:
        """Whether somebody who can be saved would miss a deadline under the plan in force.

        Asked often, so it should cost less than `decide`.
        """
        ...
