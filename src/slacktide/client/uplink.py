"""The way from a client to its server: what is on it, how fast it is, when it takes the next frame.

Pure. One kind of server *acknowledges* a frame when its last byte is there: the next may follow
when the one before should have passed, and while an acknowledgement is due nothing follows.
So what lies on a link that falls is a frame or two. The other kind only answers: a frame's whole
time, the server's included, then counts as its transfer, which judges sizes by what they really
take, and rises by itself, since larger frames take less time for a byte. Frames overlap while the
oldest has time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from slacktide.wire.link_estimate import LinkEstimate

SPARE_S = 0.01
"""The next frame is sent so long before the link should be free, lest it idles."""
OVERDUE_S = 0.02
"""An acknowledgement that comes so much later than expected, or half a round trip if that is more,
says that the link has become slower."""
_ROUND_TRIP_KEPT = 0.75
"""Of a round trip when a longer one is seen; a shorter one is believed at once."""


@dataclass(slots=True)
class _InFlight:
    nbytes: int
    deadline: float
    sent_at: float
    passes_at: float
    """When its last byte should have left the link's near end."""
    alone: bool
    """Nothing else was on the link when it was sent."""


class Uplink:
    """Frames in flight, and the estimate learnt from them."""

    def __init__(self, most_bytes: int, bytes_per_s: float = 0.0) -> None:
        """`bytes_per_s`: what is known of the link beforehand; 0: nothing."""
        self.acknowledges = True
        self.round_trip = 0.0
        """Seconds; 0 until the server has said how long a transfer took."""
        self._most_bytes = most_bytes
        self._known = bytes_per_s > 0.0
        self._link = LinkEstimate(bytes_per_s) if self._known else LinkEstimate()
        self._flight: dict[int, _InFlight] = {}
        self._arrived_at = -inf
        """When the last acknowledgement came."""

    def __len__(self) -> int:
        return len(self._flight)

    def __contains__(self, frame: int) -> bool:
        return frame in self._flight

    @property
    def bytes_in_flight(self) -> int:
        """Of the frames that were sent and have not been acknowledged or answered."""
        return sum(frame.nbytes for frame in self._flight.values())

    @property
    def silent_since(self) -> float:
        """Since when the oldest frame in flight has been waiting; infinite: there is none."""
        return next((frame.sent_at for frame in self._flight.values()), inf)

    @property
    def first_deadline(self) -> float:
        """Of the frames in flight; infinite: there is none."""
        return min((frame.deadline for frame in self._flight.values()), default=inf)

    def bytes_per_s(self, *, now: float) -> float:
        """0: not known."""
        is_measured = self._known or self._link.measured
        return self._link.bytes_per_s(now=now) if is_measured else 0.0

    def seconds(self, nbytes: float, *, now: float) -> float:
        """Until `nbytes` sent now have been acknowledged; 0 where the link is not known."""
        rate = self.bytes_per_s(now=now)
        if rate <= 0.0:
            return 0.0
        ahead = max((frame.passes_at for frame in self._flight.values()), default=now) - now
        return max(ahead, 0.0) + nbytes / rate + self.round_trip

    def carries(self, nbytes: float, frames_per_s: float, *, now: float) -> bool:
        """Whether so many frames of this size get through. True where that is not known."""
        rate = self.bytes_per_s(now=now)
        return not self.acknowledges or rate <= 0.0 or nbytes * frames_per_s <= rate

    def opens_at(self, *, now: float) -> float:
        """When the next frame may be sent: infinite if only an acknowledgement can tell."""
        if not self._flight:
            return -inf
        oldest = next(iter(self._flight.values()))
        if not self.acknowledges:
            return -inf if now < oldest.deadline else inf
        if not self.bytes_per_s(now=now):
            return inf
        if now > oldest.passes_at + self.round_trip:  # its acknowledgement is due: wait for that
            return inf
        return next(reversed(self._flight.values())).passes_at - SPARE_S

    def has_room(self, nbytes: float) -> bool:
        """Whether `nbytes` more keep within the bound. One frame alone may be of any size."""
        return not self._flight or self.bytes_in_flight + nbytes <= self._most_bytes

    def send(self, frame: int, nbytes: int, deadline: float, *, now: float) -> None:
        """The frame is on its way."""
        passes_at, rate = now, self.bytes_per_s(now=now)
        if self.acknowledges and rate:
            passes_at += self.seconds(nbytes, now=now) - self.round_trip
        self._flight[frame] = _InFlight(nbytes, deadline, now, passes_at, alone=not self._flight)

    def begun(self, frame: int, *, now: float) -> None:
        """Its first byte leaves only now."""
        sent = self._flight.get(frame)
        if sent is not None:
            sent.passes_at += now - sent.sent_at
            sent.sent_at = now

    def arrived(self, frame: int, transfer_s: float, *, now: float) -> None:
        """The frame has been acknowledged, or answered without. `transfer_s`: as the server says;
        0: it does not."""
        sent = self._flight.get(frame)
        if sent is None:
            return
        if self.acknowledges:  # one stream, in order: those sent before it are there as well
            for earlier in list(self._flight):
                del self._flight[earlier]
                if earlier == frame:
                    break
        else:
            del self._flight[frame]
        if transfer_s > 0.0 and sent.alone:
            trip = max(now - sent.sent_at - transfer_s, 0.0)
            weight = _ROUND_TRIP_KEPT if 0.0 < self.round_trip < trip else 0.0
            self.round_trip = weight * self.round_trip + (1.0 - weight) * trip
        seconds = transfer_s
        if seconds <= 0.0:
            began = max(sent.sent_at, self._arrived_at) if self.acknowledges else sent.sent_at
            seconds = max(now - began, 1e-6)
        self._link.observe(sent.nbytes, seconds, now=now)
        self._arrived_at = now
        rate, passed = self.bytes_per_s(now=now), now - self.round_trip
        if self.acknowledges and rate:  # what is behind it leaves at the rate that is known now
            for later in self._flight.values():
                passed = later.passes_at = max(passed, later.sent_at) + later.nbytes / rate

    def watch(self, *, now: float) -> None:
        """Learn from what has not come yet: the oldest frame bounds the rate."""
        if self._flight:
            oldest = next(iter(self._flight.values()))
            waited = now - oldest.sent_at
            if self.acknowledges:
                waited = now - max(oldest.sent_at, self._arrived_at)
                waited -= self.round_trip + max(OVERDUE_S, self.round_trip / 2)
            self._link.silent(oldest.nbytes, waited, now=now)

    def withdrawn(self, frame: int) -> None:
        """Nothing of it is on the link any more."""
        self._flight.pop(frame, None)

    def expired(self, patience: float, *, now: float) -> list[int]:
        """Withdraw the frames whose deadline was so many seconds ago, and return them."""
        late = [frame for frame, sent in self._flight.items() if sent.deadline + patience <= now]
        for frame in late:
            del self._flight[frame]
        return late

    def broken(self) -> tuple[int, ...]:
        """The connection has ended. Returns the frames that were in flight."""
        lost = tuple(self._flight)
        self._flight.clear()
        return lost
