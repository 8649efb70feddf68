"""Clients that act, each with a decision logic, a camera and a link; and records of their frames.

The client chooses a frame's size when it sends the frame, so transfers cannot be drawn beforehand:
`acting.py` runs these clients on the simulation's heap. The logic is `slacktide.client`'s core, or
a class that handles the same events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slacktide.client import ClientAction, ClientEvent, FrameOutcome
from slacktide.lab.workloads import ConstantLink, TraceLink
from slacktide.planning import SessionMeasured
from slacktide.planning.variants import FamilyVariant, FrameEnds
from slacktide.wire.link_estimate import BytesPerPixel, LinkEstimate

LINK_REPORT_INTERVAL_S = 0.1
"""Minimum seconds between reports of a session's link to planners, unless its bandwidth falls."""


class ClientLogic(Protocol):
    """Decision logic of a client: `ClientCore`, or the logic of a published system."""

    def handle(self, event: ClientEvent, *, now: float) -> Sequence[ClientAction]: ...
    def next_wakeup(self) -> float: ...


class MeasuredLink(Protocol):
    """The server's measurements of one client's link."""

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Return the expected seconds from a frame's first byte to its last."""

    def network_time(self, nbytes: int, *, now: float) -> float | None:
        """Return the assumed seconds that a frame spent on the way, from which the server sets its
        deadline; None: the server uses the age that the client states."""

    def received(
        self, nbytes: int, side: int, seconds: float, stated: float, *, now: float
    ) -> SessionMeasured | None:
        """Note a frame whose last byte came `seconds` after its announcement. `stated`: bytes per
        second as the client measured them. Return the report that planners get now, if any."""


@dataclass(slots=True)
class SessionLink:
    """The default `MeasuredLink`: measures as the server does."""

    id: str
    rtt: float
    link: LinkEstimate = field(default_factory=LinkEstimate)
    pixels: BytesPerPixel = field(default_factory=BytesPerPixel)
    ends: FrameEnds = field(default_factory=FrameEnds)
    _reported_at: float = -math.inf

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return self.link.transfer_time(nbytes, now=now)

    def network_time(self, nbytes: int, *, now: float) -> float | None:
        return None

    def received(
        self, nbytes: int, side: int, seconds: float, stated: float, *, now: float
    ) -> SessionMeasured | None:
        fell = self.link.observe(nbytes, seconds, now=now)
        self.pixels.observe(nbytes, side * side)
        if not fell and now < self._reported_at + LINK_REPORT_INTERVAL_S:
            return None
        self._reported_at = now
        return SessionMeasured(
            id=self.id,
            bytes_per_s=self.link.bytes_per_s(now=now),
            rtt=self.rtt,
            bytes_per_pixel=self.pixels.of(side * side) / (side * side),
            pixels=side * side,
            fell=fell,
            ended=self.ends.ended,
            lost_on_lanes=self.ends.lost_on_lanes,
            lost_on_link=self.ends.lost_on_link,
        )


@dataclass(frozen=True, slots=True)
class SimulatedClient:
    """One client that sends frames."""

    id: str
    """The client's session: `Request.client` of its requests."""
    model: str
    logic: ClientLogic
    link: ConstantLink | TraceLink
    rate: float
    """Frames per second."""
    slo: float
    """Seconds from capture to answer, at the client."""
    variants: tuple[FamilyVariant, ...]
    """Variants that the server announces to the client, smallest first."""
    smallest_run_s: float
    """Seconds of a batch of one on the smallest variant."""
    frame_bytes: Callable[[int], float]
    """Returns the bytes of a frame whose image has this side; side 0: the camera's own size."""
    jitter: Iterator[float]
    """Factors on the bytes of successive frames."""
    joins: float = 0.0
    leaves: float = math.inf
    """Instants at which it starts and stops capturing frames."""
    camera: tuple[int, int] = (1280, 720)
    """Width and height."""
    measured: MeasuredLink | None = None
    """None: a `SessionLink`."""
    encode_s: float = 0.0
    fallback: tuple[float, float] | None = None
    """(seconds, accuracy) of a model on the client itself."""
    min_accuracy: float = 0.0
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
    """None: the run ended before the frame did."""
    variant: str = ""
    side: int = 0
    """Side of the image that was sent."""
    nbytes: int = 0
    accuracy: float = 0.0
    """Expected accuracy of the answer (`expected_accuracy`); 0 if the frame was missed."""

    @property
    def missed(self) -> bool:
        return self.outcome is None or not self.outcome.on_time
