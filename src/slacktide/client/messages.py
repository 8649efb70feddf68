"""What a client is to do, what happens to it, and what it does. Seconds of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client is to do. Raises ValueError naming the field."""

    slo: float = 0.1
    """Seconds, from capture to result."""
    rate: float = 0.0
    """Frames per second that the link should carry; 0: not stated."""
    sizes: tuple[int, ...] = ()
    """Sides in pixels to choose from where the server names none; none: as captured."""
    fallback: bool = False
    """Whether the client has a model of its own."""
    bytes_per_s: float = 0.0
    """What is known of the link beforehand; 0: nothing, so the first frame is small."""
    most_waiting: int = 8
    """Frames kept for sending, and as many for the fallback: each is a picture in memory."""
    most_bytes_in_flight: int = 1 << 20

    def __post_init__(self) -> None:
        for name, least in (("slo", 1e-4), ("rate", 0.0), ("bytes_per_s", 0.0)):
            value = getattr(self, name)
            if not least <= value < inf:
                raise ValueError(f"{name}: must be finite and at least {least:g}, is {value!r}")
        for name in ("most_waiting", "most_bytes_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, is {getattr(self, name)!r}")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes: must be pixels, at least 1, are {self.sizes!r}")


class ClientError(Exception):
    """What keeps a client from working at all: an argument, an extra that is missing, a server that
    refuses the session."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What the server says of the next frames."""

    size: int = 0
    """Side in pixels; 0: no advice."""
    variant: str = ""
    mapped: bool = True
    """False: no variant can answer this client on time now."""
    bytes_per_s: float = 0.0
    """Of the client's link, as the server measured it; 0: not yet."""


class FrameResult(StrEnum):
    """How a frame ended."""

    ANSWERED = "answered"
    LATE = "late"  # answered, or run by the fallback, after its deadline
    FALLBACK = "fallback"
    REFUSED = "refused"  # by the server; or it could not be encoded
    DROPPED = "dropped"  # not sent: too late, or newer frames took its place
    LOST = "lost"  # the connection ended, or no answer came


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """The one outcome of a frame."""

    result: FrameResult
    seconds: float
    """From capture to outcome."""
    size: int = 0
    """Side in pixels at which it was sent; 0: as captured, or not sent."""
    variant: str = ""
    detail: str = ""

    @property
    def on_time(self) -> bool:
        """Whether there is a result, and it came by the deadline."""
        return self.result in (FrameResult.ANSWERED, FrameResult.FALLBACK)


# ── events ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Connected:
    """The server takes frames. `variants`: (name, side in pixels or 0, accuracy), smallest first;
    none: the settings' sizes hold. Without acknowledgements only answers come (plain OIP)."""

    variants: tuple[tuple[str, int, float], ...] = ()
    advice: Advice | None = None
    acknowledges: bool = True


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection, or the attempt at one, has ended; so have the frames in flight."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class FrameCaptured:
    """A new frame. `id` is new and larger than those before; `captured_at` may lie in the past."""

    id: int
    width: int
    height: int
    captured_at: float


@dataclass(frozen=True, slots=True)
class FrameEncoded:
    """What `EncodeFrame` asked for is there; `failed` says why not."""

    id: int
    nbytes: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class FrameSent:
    """The transport begins to send it: its transfer is timed from now, not from `SendFrame`."""

    id: int


@dataclass(frozen=True, slots=True)
class FrameAcknowledged:
    """Its last byte is at the server, so long after its announcement (0: that is not said)."""

    id: int
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FrameAnswered:
    """The server's answer; `failed` is its reason if it refused or failed."""

    id: int
    advice: Advice | None = None
    variant: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class AdviceChanged:
    """New advice, with no answer."""

    advice: Advice


@dataclass(frozen=True, slots=True)
class FallbackDone:
    """The client's own model has run the frame; `failed` says why not."""

    id: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """No frame comes any more; those without an outcome get one now."""


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time of `next_wakeup` has come."""


ClientEvent: TypeAlias = (
    Connected
    | Disconnected
    | FrameCaptured
    | FrameEncoded
    | FrameSent
    | FrameAcknowledged
    | FrameAnswered
    | AdviceChanged
    | FallbackDone
    | ClientClosed
    | TimerDue
)

# ── actions ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection, closing the one before; nothing of that one is reported any more."""


@dataclass(frozen=True, slots=True)
class EncodeFrame:
    """Make both its sides at most `size` pixels (0: leave them), and encode it."""

    id: int
    size: int


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send what was encoded, after its announcement. `bytes_per_s`: own estimate; 0: none yet."""

    id: int
    age_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class RunFallback:
    """Run the frame on the client's own model. One at a time."""

    id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The frame needs nothing any more: withdraw what is under way of it, where that can be."""

    id: int


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """The frame's one outcome."""

    id: int
    outcome: FrameOutcome


ClientAction: TypeAlias = Connect | EncodeFrame | SendFrame | RunFallback | GiveUp | ReportOutcome
