"""`Uplink`: the link from a client to its server: frames in flight, rate, and when to send next.

Pure. Slacktide's servers *acknowledge* a frame when its last byte has arrived. The next frame may
follow once the one before it should have left the link, but not while an acknowledgement is
overdue. So a link that slows down holds only a frame or two. Other servers send only answers. Then
the whole time to the answer, including the server's, counts as the transfer. Sizes are then judged
by their real cost, and the estimated rate rises as frames become larger, because larger frames take
less time per byte. New frames may be sent until the deadline of the oldest frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from slacktide.wire.link_estimate import LinkEstimate

SPARE_S = 0.01
"""The next frame is sent this many seconds before the link should be free, to keep it busy."""
OVERDUE_S = 0.02
"""Seconds (or half a round trip, if longer) by which an acknowledgement may be late before the link
counts as slower."""
_ROUND_TRIP_DECAY = 0.75
"""Weight of the old round trip when a longer round trip is measured; a shorter round trip replaces
it fully."""


@dataclass(slots=True)
class _InFlight:
    nbytes: int
    deadline: float
    sent_at: float
    passes_at: float
    """Time at which its last byte should have left the client."""
    alone: bool
    """Whether nothing else was in flight when it was sent."""


class Uplink:
    """Frames in flight and the link estimate learnt from them."""

    def __init__(self, most_bytes: int, bytes_per_s: float = 0.0) -> None:
        """`bytes_per_s`: known rate of the link; 0: unknown."""
        self.acknowledges = True
        self.round_trip = 0.0
        """Round-trip time in seconds; 0 until the server has reported the time of a transfer."""
        self._most_bytes = most_bytes
        self._has_guess = bytes_per_s > 0.0
        self._link = LinkEstimate(bytes_per_s) if self._has_guess else LinkEstimate()
        self._flight: dict[int, _InFlight] = {}
        self._arrived_at = -inf
        """Time of the last acknowledgement."""

    def __len__(self) -> int:
        return len(self._flight)

    def __contains__(self, frame: int) -> bool:
        return frame in self._flight

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the frames that were sent and not yet acknowledged or answered."""
        return sum(frame.nbytes for frame in self._flight.values())

    @property
    def silent_since(self) -> float:
        """Time at which the oldest frame in flight was sent; infinite if there is none."""
        return next((frame.sent_at for frame in self._flight.values()), inf)

    @property
    def first_deadline(self) -> float:
        """Earliest deadline of the frames in flight; infinite if there are none."""
        return min((frame.deadline for frame in self._flight.values()), default=inf)

    def bytes_per_s(self, *, now: float) -> float:
        """The rate of the link; 0 if unknown."""
        has_rate = self._has_guess or self._link.measured
        return self._link.bytes_per_s(now=now) if has_rate else 0.0

    def seconds(self, nbytes: float, *, now: float) -> float:
        """Seconds until `nbytes` sent now are acknowledged; 0 if the rate is unknown."""
        rate = self.bytes_per_s(now=now)
        if rate <= 0.0:
            return 0.0
        ahead = max((frame.passes_at for frame in self._flight.values()), default=now) - now
        return max(ahead, 0.0) + nbytes / rate + self.round_trip

    def carries(self, nbytes: float, frames_per_s: float, *, now: float) -> bool:
        """Whether the link carries this many frames of `nbytes`; True if its rate is unknown."""
        rate = self.bytes_per_s(now=now)
        return not self.acknowledges or rate <= 0.0 or nbytes * frames_per_s <= rate

    def opens_at(self, *, now: float) -> float:
        """When the next frame may be sent; infinite: after an acknowledgement."""
        if not self._flight:
            return -inf
        oldest = next(iter(self._flight.values()))
        if not self.acknowledges:
            return -inf if now < oldest.deadline else inf
        if not self.bytes_per_s(now=now):
            return inf
        if now > oldest.passes_at + self.round_trip:  # its acknowledgement is overdue
            return inf
        return next(reversed(self._flight.values())).passes_at - SPARE_S

    def has_room(self, nbytes: float) -> bool:
        """Whether `nbytes` more stay within the limit. A frame alone may have any size."""
        return not self._flight or self.bytes_in_flight + nbytes <= self._most_bytes

    def send(self, frame: int, nbytes: int, deadline: float, *, now: float) -> None:
        """Record a frame that is being sent."""
        passes_at, rate = now, self.bytes_per_s(now=now)
        if self.acknowledges and rate:
            passes_at += self.seconds(nbytes, now=now) - self.round_trip
        self._flight[frame] = _InFlight(nbytes, deadline, now, passes_at, alone=not self._flight)

    def begin(self, frame: int, *, now: float) -> None:
        """Restart the clock of a frame whose first byte leaves only now."""
        in_flight = self._flight.get(frame)
        if in_flight is not None:
            in_flight.passes_at += now - in_flight.sent_at
            in_flight.sent_at = now

    def arrived(self, frame: int, transfer_s: float, *, now: float) -> None:
        """Record a frame that was acknowledged, or answered without acknowledgement. `transfer_s`:
        time of its transfer as the server reports it, or 0."""
        in_flight = self._flight.get(frame)
        if in_flight is None:
            return
        if self.acknowledges:  # one stream, in order: all earlier frames have arrived too
            for earlier in list(self._flight):
                del self._flight[earlier]
                if earlier == frame:
                    break
        else:
            del self._flight[frame]
        sent_at = in_flight.sent_at
        if transfer_s > 0.0 and in_flight.alone:
            trip = max(now - sent_at - transfer_s, 0.0)
            weight = _ROUND_TRIP_DECAY if 0.0 < self.round_trip < trip else 0.0
            self.round_trip = weight * self.round_trip + (1.0 - weight) * trip
        seconds = transfer_s
        if seconds <= 0.0:
            began = max(sent_at, self._arrived_at) if self.acknowledges else sent_at
            seconds = max(now - began, 1e-6)
        self._link.observe(in_flight.nbytes, seconds, now=now)
        self._arrived_at = now
        rate, passed = self.bytes_per_s(now=now), now - self.round_trip
        if self.acknowledges and rate:  # later frames leave at the new rate
            for later in self._flight.values():
                passed = later.passes_at = max(passed, later.sent_at) + later.nbytes / rate

    def watch(self, *, now: float) -> None:
        """Lower the estimate if the oldest frame is overdue."""
        if self._flight:
            oldest = next(iter(self._flight.values()))
            waited = now - oldest.sent_at
            if self.acknowledges:
                waited = now - max(oldest.sent_at, self._arrived_at)
                waited -= self.round_trip + max(OVERDUE_S, self.round_trip / 2)
            self._link.silent(oldest.nbytes, waited, now=now)

    def withdrawn(self, frame: int) -> None:
        """Remove a frame that is no longer on the link."""
        self._flight.pop(frame, None)

    def expired(self, patience: float, *, now: float) -> list[int]:
        """Remove and return the frames whose deadline was more than `patience` ago."""
        late = [frame for frame, sent in self._flight.items() if sent.deadline + patience <= now]
        for frame in late:
            del self._flight[frame]
        return late

    def broken(self) -> tuple[int, ...]:
        """Remove and return all frames in flight, because the connection has ended."""
        frames = tuple(self._flight)
        self._flight.clear()
        return frames
