"""Settings, events and actions of a client. Times are seconds of one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a client. Raises ValueError naming the field."""

    slo: float = 0.1
    """Seconds from capture to result."""
    rate: float = 0.0
    """Frames per second that the link should carry; 0: unknown."""
    sizes: tuple[int, ...] = ()
    """Sides in pixels to choose from if the server names none; empty: as captured."""
    fallback: bool = False
    """Whether the client has a local model."""
    bytes_per_s: float = 0.0
    """Known rate of the link; 0: unknown, so the first frame is small."""
    most_waiting: int = 8
    """Maximum frames that wait to be sent, and as many that wait for the fallback; each is a
    picture in memory."""
    most_bytes_in_flight: int = 1 << 20
    follow: bool = True
    """Whether the client moves to another server when its own advises that."""

    def __post_init__(self) -> None:
        for name, least in (("slo", 1e-4), ("rate", 0.0), ("bytes_per_s", 0.0)):
            value = getattr(self, name)
            if not least <= value < inf:
                raise ValueError(f"{name}: expected {least:g} or more, got {value!r}")
        for name in ("most_waiting", "most_bytes_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)!r}")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes: expected sides of at least 1 pixel, got {self.sizes!r}")


class ClientError(Exception):
    """An error that keeps a client from working at all: an invalid argument, a missing extra, or a
    server that refuses the session."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The server's advice for the next frames."""

    size: int = 0
    """Side in pixels; 0: no advice."""
    variant: str = ""
    mapped: bool = True
    """Whether some variant can answer this client on time."""
    bytes_per_s: float = 0.0
    """Rate of the client's link as the server measured it; 0: not measured yet."""


class FrameResult(StrEnum):
    """The result of a frame."""

    ANSWERED = "answered"
    LATE = "late"  # answered, or run by the fallback, after its deadline
    FALLBACK = "fallback"
    REFUSED = "refused"  # by the server; or it could not be encoded
    DROPPED = "dropped"  # not sent: too late, or newer frames took its place
    LOST = "lost"  # the connection ended, or no answer came


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """The outcome of a frame."""

    result: FrameResult
    seconds: float
    """Seconds from capture to outcome."""
    size: int = 0
    """Side in pixels at which it was sent; 0: as captured, or not sent."""
    variant: str = ""
    detail: str = ""

    @property
    def on_time(self) -> bool:
        """Whether the frame had a result by its deadline."""
        return self.result in (FrameResult.ANSWERED, FrameResult.FALLBACK)


# ── events ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Connected:
    """The server accepts frames. `variants`: (name, side in pixels or 0, accuracy), smallest first;
    empty: use the settings' sizes. `acknowledges`: False if only answers come (plain OIP)."""

    variants: tuple[tuple[str, int, float], ...] = ()
    advice: Advice | None = None
    acknowledges: bool = True


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection or the attempt to connect has ended, and with it all frames in flight."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class FrameCaptured:
    """A new frame. `id` is larger than all earlier ones; `captured_at` may be in the past."""

    id: int
    width: int
    height: int
    captured_at: float


@dataclass(frozen=True, slots=True)
class FrameEncoded:
    """A frame has been encoded; `failed`: the error if it could not be."""

    id: int
    nbytes: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class FrameSent:
    """The transport begins to send a frame. Its transfer is timed from now, not from
    `SendFrame`."""

    id: int


@dataclass(frozen=True, slots=True)
class FrameAcknowledged:
    """A frame's last byte has reached the server, `transfer_s` after its announcement (0:
    unknown)."""

    id: int
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FrameAnswered:
    """The server has answered a frame; `failed`: the reason if it refused or failed."""

    id: int
    advice: Advice | None = None
    variant: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class AdviceChanged:
    """The server has sent new advice without an answer."""

    advice: Advice


@dataclass(frozen=True, slots=True)
class MoveAdvised:
    """The server advises the client to go on at another address, host:port."""

    address: str


@dataclass(frozen=True, slots=True)
class FallbackDone:
    """The local model has run a frame; `failed`: the error if it could not."""

    id: int
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """The client is closed. Frames without an outcome get one now."""


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
    | MoveAdvised
    | FallbackDone
    | ClientClosed
    | TimerDue
)

# ── actions ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection, whose events have this `link`. `address`: host:port of the server; empty:
    as the user gave it."""

    link: int = 0
    address: str = ""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close a connection, if it is open. It reports nothing more."""

    link: int


@dataclass(frozen=True, slots=True)
class EncodeFrame:
    """Resize a frame to sides of at most `size` pixels (0: unchanged) and encode it."""

    id: int
    size: int


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send an announcement and the encoded frame. `bytes_per_s`: the client's estimate of its link;
    0: none yet."""

    id: int
    age_s: float
    bytes_per_s: float
    link: int = 0


@dataclass(frozen=True, slots=True)
class RunFallback:
    """Run a frame on the local model. One at a time."""

    id: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Cancel the pending work for a frame, if possible."""

    id: int


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """Report the outcome of a frame."""

    id: int
    outcome: FrameOutcome


ClientAction: TypeAlias = (
    Connect | Disconnect | EncodeFrame | SendFrame | RunFallback | GiveUp | ReportOutcome
)
