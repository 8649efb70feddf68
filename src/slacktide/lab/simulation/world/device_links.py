"""`PartLink`: one direction of a link between two devices, in virtual time.

Messages leave one after another, in the order in which they were offered. A message that nothing
waits for any more is removed, even while it moves, and the next one starts. Future bandwidth is
unknown: when a message's turn comes, the present bandwidth decides whether it can arrive in time. A
message that turns out slower is given up when it can no longer arrive in time.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

from slacktide.lab.workloads import BandwidthTrace
from slacktide.lab.workloads.values import not_negative

Sent = TypeVar("Sent")


class Sending(Generic[Sent]):
    """A message to send over a link."""

    __slots__ = ("message", "nbytes", "until")

    def __init__(self, sent: Sent, nbytes: float, until: float) -> None:
        self.message = sent
        self.nbytes = nbytes
        self.until = until
        """Latest useful arrival in absolute seconds; infinite: no limit."""


class PartLink(Generic[Sent]):
    """A link. `now` must not decrease. After each call, call `take` at the new `leaves_at`."""

    def __init__(self, trace: BandwidthTrace, latency: float = 0.0, offset: float = 0.0) -> None:
        """`latency`: seconds from a message's last byte leaving to its arrival. `offset`: seconds
        into the trace at time 0. Raises WorkloadError."""
        not_negative(latency=latency, offset=offset)
        self.trace, self.latency, self.offset = trace, latency, offset
        self.leaves_at = math.inf
        """Instant at which the moving message has left, or is given up."""
        self.given_up: list[Sending[Sent]] = []
        """Messages that cannot arrive in time; the caller must remove them."""
        self.carried = 0.0
        """Bytes that have arrived."""
        self._moving: Sending[Sent] | None = None
        self._whole = True
        """Whether the moving message will arrive in time."""
        self._waiting: deque[Sending[Sent]] = deque()

    def __len__(self) -> int:
        """Number of messages that wait or move."""
        return len(self._waiting) + (self._moving is not None)

    def offer(self, sending: Sending[Sent], *, now: float) -> None:
        """Queue a message behind all others."""
        self._waiting.append(sending)
        if self._moving is None:
            self._start(now)

    def drop(self, sending: Sending[Sent], *, now: float) -> None:
        """Forget a message that nothing waits for any more, whether or not it has left."""
        if sending is self._moving:
            self._moving = None
            self._start(now)
        elif sending in self._waiting:
            self._waiting.remove(sending)

    def take(self, *, now: float) -> Sending[Sent] | None:
        """Return the message that has left by `now`, if any; it arrives `latency` later."""
        moving = self._moving
        if moving is None or now < self.leaves_at:
            return None
        self._moving, whole = None, self._whole
        if whole:
            self.carried += moving.nbytes
        else:
            self.given_up.append(moving)
        self._start(now)
        return moving if whole else None

    def message_at(self, *, now: float) -> float:
        """Return when an empty message arrives that is sent `now` and skips the queue."""
        return self.trace.moving_from(now + self.offset) - self.offset + self.latency

    def _start(self, now: float) -> None:
        """Start the next message that can arrive in time; give up those that cannot."""
        self.leaves_at = math.inf
        while self._waiting:
            sending = self._waiting.popleft()
            rate = self.trace.rate(now + self.offset)
            last = sending.until - self.latency
            if sending.until < math.inf and (rate <= 0.0 or now + sending.nbytes / rate > last):
                self.given_up.append(sending)
                continue
            ends = self.trace.finish(sending.nbytes, start=now + self.offset) - self.offset
            self._whole = ends <= last
            self._moving = sending
            self.leaves_at = max(now, min(ends, last))
            return
