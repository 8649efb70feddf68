"""Links between a client and the server: how long a payload is on its way.

A link computes arrival times from the time of sending; it carries no data. The simulator uses these
times, and the load generator's proxy delays real bytes accordingly.

Unless stated otherwise, each payload has a link to itself. An answer is assumed to take half a
round trip, because answers are small.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from slacktide.lab.workloads.bandwidth import NEVER, BandwidthTrace
from slacktide.lab.workloads.values import not_negative, positive


@dataclass(frozen=True, slots=True)
class Delivery:
    """The journey of one payload, in absolute seconds except `network_time`. All fields are
    infinite on a link that never carries anything."""

    arrival: float
    """Arrival of the first byte (of the headers). Deadlines count from `arrival − network_time`."""
    complete_at: float
    """Arrival of the last byte; never before `arrival`."""
    network_time: float
    """Seconds already spent on the way when the first byte arrived."""


class Link(Protocol):
    """Link from one client to the server."""

    def deliver(self, payload_bytes: float, *, sent: float) -> Delivery:
        """Return the journey of `payload_bytes` ≥ 0 that leave at `sent` (absolute seconds)."""

    @property
    def way_back(self) -> float:
        """Seconds that an answer is assumed to take back to the client."""


@dataclass(frozen=True, slots=True)
class ConstantLink:
    """A link with constant bandwidth and round trip."""

    bandwidth: float
    """Bytes per second."""
    rtt: float = 0.0
    """Round-trip time of an empty message, in seconds."""

    def __post_init__(self) -> None:
        positive(bandwidth=self.bandwidth)
        not_negative(rtt=self.rtt)

    def deliver(self, payload_bytes: float, *, sent: float) -> Delivery:
        not_negative(payload_bytes=payload_bytes)
        first = sent + self.way_back
        return _journey(sent, first, first + payload_bytes / self.bandwidth)

    @property
    def way_back(self) -> float:
        return self.rtt / 2.0

    def describe(self) -> str:
        return f"{_megabits(self.bandwidth)}, {self.rtt * 1e3:g} ms there and back"


@dataclass(frozen=True, slots=True)
class TraceLink:
    """A link of changing bandwidth: a payload takes as long as the trace needs to move its bytes.
    In an outage nothing moves; even the first byte waits at the client."""

    trace: BandwidthTrace
    rtt: float = 0.0
    """Round-trip time of an empty message, in seconds."""
    offset: float = 0.0
    """Seconds into the trace at time 0."""

    def __post_init__(self) -> None:
        not_negative(rtt=self.rtt, offset=self.offset)

    def deliver(self, payload_bytes: float, *, sent: float) -> Delivery:
        not_negative(payload_bytes=payload_bytes)
        trace, back, start = self.trace, self.way_back, sent + self.offset
        begin = trace.moving_from(start)
        if begin == NEVER:
            return Delivery(NEVER, NEVER, NEVER)
        # Counted from `sent`, so that a link without an outage causes no rounding error.
        first = sent + (begin - start)
        last = max(first, sent + (trace.finish(payload_bytes, start=start) - start))
        return _journey(sent, first + back, last + back)

    @property
    def way_back(self) -> float:
        return self.rtt / 2.0

    def describe(self) -> str:
        from_there = f" from {self.offset:g} s on" if self.offset else ""
        mean = _megabits(self.trace.mean)
        name = f"{self.trace.source or 'trace'}{from_there}"
        return f"{name} ({mean} on average), {self.rtt * 1e3:g} ms there and back"


@dataclass(slots=True)
class SharedLink:
    """A link on which each payload waits until all earlier ones have left. It keeps state, so call
    `deliver` once for each payload, in the order of sending."""

    link: Link
    _free_at: float = field(default=float("-inf"), init=False)
    """Instant at which the latest payload has left its client."""

    def deliver(self, payload_bytes: float, *, sent: float) -> Delivery:
        journey = self.link.deliver(payload_bytes, sent=max(sent, self._free_at))
        self._free_at = journey.complete_at - self.link.way_back
        return replace(journey, network_time=journey.arrival - sent)

    @property
    def way_back(self) -> float:
        return self.link.way_back


def _journey(sent: float, first: float, last: float) -> Delivery:
    return Delivery(arrival=first, complete_at=last, network_time=first - sent)


def _megabits(bandwidth: float) -> str:
    """Format bytes per second as Mbit/s."""
    return f"{bandwidth * 8e-6:.4g} Mbit/s"
