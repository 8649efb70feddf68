"""Clients that act: a logic that decides, a camera and a link; and what is noted of their frames.

A frame gets its size when it is sent, so its journey is not drawn up beforehand: `acting.py` plays
these clients in the simulation's heap. The logic is the core of `slacktide.client`, or another that
takes the same events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slacktide.client import ClientAction, ClientEvent, FrameOutcome
from slacktide.lab.workloads import ConstantLink, TraceLink
from slacktide.planning import SessionMeasured
from slacktide.planning.variants import FamilyVariant
from slacktide.wire.link_estimate import BytesPerPixel, LinkEstimate

TOLD_S = 0.1
"""Planners hear of a session's link no more often, except of a fall."""


class ClientLogic(Protocol):
    """Logic of a client: `ClientCore`, or a published one."""

    def handle(self, event: ClientEvent, *, now: float) -> Sequence[ClientAction]: ...
    def next_wakeup(self) -> float: ...


class MeasuredLink(Protocol):
    """The server's measurements of one client's link."""

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Seconds expected from a frame's first byte to its last."""

    def network_time(self, nbytes: int, *, now: float) -> float | None:
        """Seconds a frame is taken to have spent on the way, by which its deadline is set; None:
        by the age that the client states."""

    def received(
        self, nbytes: int, side: int, seconds: float, stated: float, *, now: float
    ) -> SessionMeasured | None:
        """A frame's last byte is here, `seconds` after its announcement; its client states so many
        bytes per second of its own. What planners are to hear now."""


@dataclass(slots=True)
class SessionLink:
    """Link as the server measures it."""

    id: str
    rtt: float
    link: LinkEstimate = field(default_factory=LinkEstimate)
    pixels: BytesPerPixel = field(default_factory=BytesPerPixel)
    _told: float = -math.inf

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return self.link.transfer_time(nbytes, now=now)

    def network_time(self, nbytes: int, *, now: float) -> float | None:
        return None

    def received(
        self, nbytes: int, side: int, seconds: float, stated: float, *, now: float
    ) -> SessionMeasured | None:
        fell = self.link.observe(nbytes, seconds, now=now)
        self.pixels.observe(nbytes, side * side)
        if not fell and now < self._told + TOLD_S:
            return None
        self._told = now
        return SessionMeasured(
            id=self.id,
            bytes_per_s=self.link.bytes_per_s(now=now),
            rtt=self.rtt,
            bytes_per_pixel=self.pixels.of(side * side) / (side * side),
            pixels=side * side,
            fell=fell,
        )


@dataclass(frozen=True, slots=True)
class SimulatedClient:
    """One client that sends frames."""

    id: str
    """Its session: `Request.client` of its requests."""
    model: str
    logic: ClientLogic
    link: ConstantLink | TraceLink
    rate: float
    """Frames per second."""
    slo: float
    """Seconds from capture to answer, at the client."""
    variants: tuple[FamilyVariant, ...]
    """Variants that the server announces to it, smallest first."""
    alone: float
    """Seconds of a batch of one of the smallest."""
    frame_bytes: Callable[[int], float]
    """Bytes of a frame whose image has this side; 0: as it comes from the camera."""
    jitter: Iterator[float]
    """By frame: a factor on its bytes."""
    joins: float = 0.0
    leaves: float = math.inf
    """Instants at which it starts and stops to capture frames."""
    camera: tuple[int, int] = (1280, 720)
    """Width and height."""
    measured: MeasuredLink | None = None
    """None: as the server measures."""
    encode_s: float = 0.0
    fallback: tuple[float, float] | None = None
    """Seconds and accuracy of a model of its own."""
    floor: float = 0.0
    weight: float = 1.0
    application: str = ""


@dataclass(slots=True)
class FrameRecord:
    """Outcome of one frame, as its client saw it."""

    client: str
    captured: float
    savable: bool
    """Whether any policy could have answered it in time."""
    outcome: FrameOutcome | None = None
    """None: the run ended before."""
    variant: str = ""
    side: int = 0
    """Side of the image that was sent."""
    nbytes: int = 0
    accuracy: float = 0.0
    """Expected accuracy of its answer, by the smaller of sent size and variant; 0 if missed."""

    @property
    def missed(self) -> bool:
        return self.outcome is None or not self.outcome.on_time
