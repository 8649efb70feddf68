"""What drivers tell planners of clients that stream frames: their sessions.

They are delivered with events (`Runtime.handle`), but the engine never sees them and nothing
records them: what planners make of them is in the plans. Times are in seconds, bytes per second
and frames per second are what they are called.
"""

from __future__ import annotations

from typing import TypeAlias

from slacktide.domain.read_only import read_only


@read_only
class SessionOpened:
    """A client has said what it wants. Sent again when that changes."""

    id: str
    """`Request.client` of its requests; of no other session, ever."""
    model: str
    rate: float
    """Frames per second that it states."""
    slo: float
    """Seconds from capture to the answer at the client."""
    floor: float = 0.0
    """Least accuracy that is of use to it."""
    weight: float = 1.0


@read_only
class SessionMeasured:
    """What is known of a client's link and frames. As a rule at most every 0.1 s; at once on a
    fall."""

    id: str
    bytes_per_s: float
    """Bandwidth of its link, smoothed; 0: nothing passes."""
    rtt: float
    """Seconds, for a message of no length."""
    bytes_per_pixel: float
    """Bytes per pixel of its encoded frames, smoothed; 0: not known yet."""
    pixels: float = 0.0
    """Pixels of the frames that have so many, since larger ones have fewer; 0: 128 × 128."""
    rate: float = 0.0
    """Frames per second that it really sends, or would if it could; 0: as stated."""
    overhead: float = 0.0
    """Seconds from the last byte to the answer, beyond waiting and running; smoothed."""
    fell: bool = False
    """Whether the link has fallen: to be planned for at once."""
    ended: int = 0
    """Frames so far from which may be learnt what room to leave; 0: not known."""
    lost_on_lanes: int = 0
    """Frames among `ended` that were lost for want of time on a lane."""
    lost_on_link: int = 0
    """Frames among `ended` that came with too little time left, or not at all."""


@read_only
class SessionClosed:
    """A client is gone. Ids that are not known are ignored."""

    id: str


SessionEvent: TypeAlias = SessionOpened | SessionMeasured | SessionClosed
SESSION_EVENTS = (SessionOpened, SessionMeasured, SessionClosed)
