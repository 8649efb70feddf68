"""Inputs of a simulation: requests, uploads that take time, and other events from outside. Also
`SimulationError`, and `rng_for`, the source of all random numbers.

Every item has an `arrival`, its instant. Items come from one iterator in order of arrival, and are
read when their time has come: a run of ten million requests holds a handful of them in memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from slacktide.domain import Event, Notice, Request
from slacktide.domain.frames import FrameEvent
from slacktide.domain.read_only import read_only
from slacktide.planning import ExitEvent, SessionEvent


def rng_for(seed: int, purpose: str) -> np.random.Generator:
    """Return a new generator for `purpose` under `seed` ≥ 0, with the same numbers at every call.
    The numbers depend only on seed and purpose, not on the order of calls: another purpose, or more
    draws for one, leaves all others unchanged. So two runs draw the same numbers for everything
    that they have in common."""
    digest = hashlib.sha256(purpose.encode()).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


class SimulationError(Exception):
    """A simulation that cannot be run, or has contradicted itself; the text says how."""


@read_only
class DrawnRequest(Request):
    """A request that carries its true length, for `ByLength` and `OracleSlack`. No policy may read
    the length. (`scheduling`, a lower layer, cannot import this class.)"""

    length: float = 0.0
    """True length in the units of `BatchLatency`; not negative."""


@read_only
class SimulatedUpload:
    """A request whose body takes time: announced at its first byte, submitted once complete.
    `notice.complete_at` is the server's estimate, `complete_at` the true instant. Raises ValueError
    if the ids of notice and request differ, or if the body is complete before it begins."""

    notice: Notice
    request: Request | None
    """None: the body never comes."""
    complete_at: float

    def __post_init__(self) -> None:
        if self.request is not None and self.request.id != self.notice.id:
            raise ValueError(f"notice {self.notice.id} announces request {self.request.id}")
        if not self.complete_at >= self.notice.arrival:
            raise ValueError(f"upload {self.notice.id} is complete before it begins")

    @classmethod
    def of(cls, request: Request, *, believed: float, complete_at: float) -> SimulatedUpload:
        """Return `request` as an upload, announced at its arrival and expected at `believed`."""
        notice = Notice(
            id=request.id,
            model=request.model,
            arrival=request.arrival,
            deadline=request.deadline,
            payload_bytes=0,
            complete_at=believed,
            application=request.application,
        )
        return cls(notice, request, complete_at)

    @property
    def arrival(self) -> float:
        """Instant of the first byte."""
        return self.notice.arrival


@dataclass(frozen=True, slots=True)
class ExternalEvent:
    """Any other event from outside: a withdrawal, an event of a client's session, a frame of a
    pipeline, a change of plan, a resized lane."""

    arrival: float
    event: Event | SessionEvent | ExitEvent | FrameEvent


@dataclass(frozen=True, slots=True)
class Failure:
    """Death of the replica on `lane` and of its batch; ignored if there is no replica."""

    arrival: float
    lane: str
    model: str | None = None
    """Model whose replica dies; None: a replica of any model."""
    detail: str = "a simulated failure"
    permanent: bool = False
    """Whether a restart would not help."""


Item: TypeAlias = Request | SimulatedUpload | ExternalEvent | Failure
