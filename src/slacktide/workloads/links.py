"""How long a payload is on its way: links between a client and the server.

Each request is taken to have the link to itself. A link turns the moment of sending into the
moments the server sees; it moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slacktide.workloads.errors import not_negative, positive


@dataclass(frozen=True, slots=True)
class Delivery:
    """The journey of one payload; absolute seconds unless the name says otherwise."""

    arrival: float
    """When its first byte is here: deadlines run from then, less `network_time`."""
    announced_at: float
    """When the server can know of it: its headers travel in front."""
    complete_at: float
    """When its last byte is here; never before `arrival`."""
    network_time: float
    """Seconds already spent on the way when the first byte arrived."""


class Link(Protocol):
    """One client's way to the server."""

    def deliver(self, payload_bytes: int, *, sent: float) -> Delivery:
        """The journey of `payload_bytes` ≥ 0 that leave at `sent` (absolute seconds)."""
        ...

    @property
    def way_back(self) -> float:
        """Seconds that an answer is taken to need."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantLink:
    """The same bandwidth and round trip for ever."""

    bandwidth: float
    """Bytes per second."""
    rtt: float = 0.0
    """Seconds there and back, for a message of no length."""

    def __post_init__(self) -> None:
        positive("bandwidth", self.bandwidth)
        not_negative("rtt", self.rtt)

    def deliver(self, payload_bytes: int, *, sent: float) -> Delivery:
        not_negative("payload_bytes", payload_bytes)
        first = sent + self.rtt / 2.0
        return Delivery(
            arrival=first,
            announced_at=first,
            complete_at=first + payload_bytes / self.bandwidth,
            network_time=first - sent,
        )

    @property
    def way_back(self) -> float:
        return self.rtt / 2.0
