"""Queue at the near end of a link: waiting bytes, and the instant when each piece has left. No I/O.

The queue is a token bucket whose rate follows a trace and which holds at most one piece: pieces
leave one after another, each when the trace has moved its bytes. Each instant is computed from the
one before, never from the time of a call, so late calls lose no bandwidth.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from slacktide.lab.workloads import SharedLink, TraceLink

PIECE_SECONDS = 2e-3
"""Time in which the link moves one piece; small pieces let a server see headers early."""
LEAST_PIECE, MOST_PIECE = 64, 65_536
"""Bounds on the bytes of a piece."""


@dataclass(slots=True, eq=False)
class Flow:
    """The bytes of one connection, in order."""

    waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    """(arrival at the queue, bytes); empty bytes mark the end of the flow."""
    size: int = 0
    """Number of waiting bytes."""


SomeFlow = TypeVar("SomeFlow", bound=Flow)


@dataclass(frozen=True, slots=True)
class Piece(Generic[SomeFlow]):
    """Bytes of a flow that leave together; empty at the end of the flow."""

    flow: SomeFlow
    data: memoryview
    left_at: float
    """Instant (seconds) at which the bytes have left; they arrive half a round trip later."""


class LinkQueue(Generic[SomeFlow]):
    """Flows that share a link. The first flow to come keeps the link until none of its bytes wait.
    Times are seconds since the link's start; `now` must not decrease."""

    def __init__(self, link: TraceLink) -> None:
        self._trace, self._offset = link.trace, link.offset
        self._link = SharedLink(replace(link, rtt=0.0))
        self._flows: deque[SomeFlow] = deque()
        """Flows with waiting bytes, in the order in which they began to wait."""
        self._moving: Piece[SomeFlow] | None = None
        self._free_at = float("-inf")

    @property
    def next_at(self) -> float | None:
        """Instant at which the moving piece has left; infinite if never, None if nothing moves."""
        return None if self._moving is None else self._moving.left_at

    def offer(self, flow: SomeFlow, data: memoryview, *, now: float) -> None:
        """Add bytes of `flow`; empty bytes end it."""
        if not flow.waiting:
            self._flows.append(flow)
        flow.waiting.append((now, data))
        flow.size += len(data)
        if self._moving is None:
            self._start()

    def drop(self, flow: SomeFlow) -> None:
        """Drop the waiting bytes of `flow`. A piece that is moving is not recalled."""
        if flow.waiting:
            self._flows.remove(flow)
        flow.waiting.clear()
        flow.size = 0

    def take(self, *, now: float) -> list[Piece[SomeFlow]]:
        """Return the pieces that have left by `now`, in order."""
        pieces = []
        while self._moving is not None and self._moving.left_at <= now:
            pieces.append(self._moving)
            self._free_at = self._moving.left_at
            self._moving = None
            self._start()
        return pieces

    def _start(self) -> None:
        """Start to move the next waiting piece."""
        if not self._flows:
            return
        flow = self._flows[0]
        came, data = flow.waiting.popleft()
        begin = max(came, self._free_at)
        most = int(self._trace.rate(begin + self._offset) * PIECE_SECONDS)
        most = min(max(most, LEAST_PIECE), MOST_PIECE)
        if len(data) > most:
            flow.waiting.appendleft((came, data[most:]))
            data = data[:most]
        flow.size -= len(data)
        if not flow.waiting:
            self._flows.popleft()
        journey = self._link.deliver(len(data), sent=begin)
        self._moving = Piece(flow, data, journey.complete_at)
