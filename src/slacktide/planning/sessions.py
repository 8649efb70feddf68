"""Events of sessions, the clients that stream frames, for planners.

Drivers deliver them with the engine's events (`Runtime.handle`), but the engine never sees them and
nothing records them: their effect is in the plans. Times are in seconds.
"""

from __future__ import annotations

from typing import TypeAlias

from slacktide.domain.read_only import read_only


@read_only
class SessionOpened:
    """A client has stated its needs. Sent again when these change."""

    id: str
    """`Request.client` of its requests; never reused."""
    model: str
    rate: float
    """Stated frames per second."""
    slo: float
    """Seconds from capture to the answer at the client."""
    floor: float = 0.0
    """Lowest accuracy that is of use to it."""
    weight: float = 1.0


@read_only
class SessionMeasured:
    """Measurements of a client's link and frames; at most every 0.1 s, but immediately if its
    bandwidth drops."""

    id: str
    bytes_per_s: float
    """Smoothed bandwidth of its link; 0: nothing passes."""
    rtt: float
    """Round trip of an empty message, in seconds."""
    bytes_per_pixel: float
    """Smoothed bytes per pixel of its encoded frames; 0: unknown."""
    pixels: float = 0.0
    """Pixels of the frames from which `bytes_per_pixel` was measured, because larger frames have
    fewer bytes per pixel; 0: 128 × 128."""
    rate: float = 0.0
    """Frames per second that the client sends, or would send if it could; 0: as stated."""
    overhead: float = 0.0
    """Smoothed seconds from the last byte to the answer, excluding waiting and running."""
    fell: bool = False
    """Whether the bandwidth has dropped, so that planning is urgent."""
    ended: int = 0
    """Number of frames so far from which planners learn the headroom needed; 0: unknown."""
    lost_on_lanes: float = 0.0
    """Frames among `ended` that were lost because their lanes lacked time; those that were much too
    late count less."""
    lost_on_link: int = 0
    """Frames among `ended` that came too late, or not at all."""


@read_only
class SessionClosed:
    """A client has gone. Unknown ids are ignored."""

    id: str


SessionEvent: TypeAlias = SessionOpened | SessionMeasured | SessionClosed
SESSION_EVENTS = (SessionOpened, SessionMeasured, SessionClosed)
