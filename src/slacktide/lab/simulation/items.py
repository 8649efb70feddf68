"""Items that come from outside: requests, uploads that take time, and whatever else may happen; the
one error of simulations; and `stream`, where all their random numbers come from.

Every item has an `arrival`, its instant. They come from one iterator, in the order of their
arrivals, and are looked at when their time has come: a run of ten million holds a handful of them.
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
    """A fresh generator for `purpose` under `seed` ≥ 0; the same numbers at every call. A stream
    belongs to its purpose by name, not by the order of asking: another purpose, or more draws for
    one, change nothing for the others, so two runs stay paired in all that they share."""
    digest = hashlib.sha256(purpose.encode()).digest()
    words = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


class SimulationError(Exception):
    """A simulation that cannot be run, or has contradicted itself; the text says how."""


@read_only
class DrawnRequest(Request):
    """A request that carries the length drawn for it. The truth, for `ByLength` and for yardsticks:
    no policy may look at it. (It cannot name this class: `scheduling` lies below.)"""

    length: float = 0.0
    """See `BatchLatency`; not negative."""


@read_only
class SimulatedUpload:
    """A request whose body takes time: announced at its first byte, submitted once complete.
    `notice.complete_at` is what the server believes, `complete_at` the truth. Raises ValueError if
    the two are not of one request, or the body is complete before it begins."""

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
        """`request`, announced at its arrival as one that is complete at `believed`."""
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
    """Any other event: a client withdraws or says something of its session, a frame of a pipeline
    comes, a plan changes, a lane is resized."""

    arrival: float
    event: Event | SessionEvent | ExitEvent | FrameEvent


@dataclass(frozen=True, slots=True)
class Failure:
    """The replica on `lane` dies, and what it runs with it; nothing if there is none."""

    arrival: float
    lane: str
    model: str | None = None
    """Model whose replica dies; None: any."""
    detail: str = "a simulated failure"
    permanent: bool = False
    """Starting again does not help."""


Item: TypeAlias = Request | SimulatedUpload | ExternalEvent | Failure
