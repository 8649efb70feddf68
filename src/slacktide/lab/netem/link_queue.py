"""Queue at the near end of a link: bytes that wait, and when each piece has passed. Pure.

A token bucket whose rate follows a trace, and which holds no more than one piece: pieces leave one
after the other, each as soon as the trace has moved its bytes. Instants are computed from those
before, never from the moment of asking, so that asking late costs no bandwidth.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from slacktide.lab.workloads import SharedLink, TraceLink

PIECE_SECONDS = 2e-3
"""A piece is what the link moves in this time: bytes trickle, and a server sees headers early."""
LEAST_PIECE, MOST_PIECE = 64, 65_536
"""Bytes of a piece."""


@dataclass(slots=True, eq=False)
class Flow:
    """One connection's bytes, in their order."""

    waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    """(when they came, bytes); no bytes at all are the end of the flow."""
    size: int = 0
    """Bytes that wait."""


SomeFlow = TypeVar("SomeFlow", bound=Flow)


@dataclass(frozen=True, slots=True)
class Piece(Generic[SomeFlow]):
    """Some bytes of a flow that have left; none: the flow ends."""

    flow: SomeFlow
    data: memoryview
    left_at: float
    """Seconds; half a round trip later they are there."""


class LinkQueue(Generic[SomeFlow]):
    """The flows that use one link, one after the other: the first to come keeps the link until
    none of its bytes wait. Seconds are those of the link; `now` must not decrease."""

    def __init__(self, link: TraceLink) -> None:
        self._trace, self._offset = link.trace, link.offset
        self._link = SharedLink(replace(link, rtt=0.0))
        self._flows: deque[SomeFlow] = deque()
        """Flows with bytes that wait, in the order in which they began to."""
        self._moving: Piece[SomeFlow] | None = None
        self._free_at = float("-inf")

    @property
    def next_at(self) -> float | None:
        """Instant at which the moving piece has left: infinite if never; None if nothing moves."""
        return None if self._moving is None else self._moving.left_at

    def offer(self, flow: SomeFlow, data: memoryview, *, now: float) -> None:
        """These bytes have come; none: no more will."""
        if not flow.waiting:
            self._flows.append(flow)
        flow.waiting.append((now, data))
        flow.size += len(data)
        if self._moving is None:
            self._start()

    def drop(self, flow: SomeFlow) -> None:
        """Forget what waits of `flow`. A piece on its way is not called back."""
        if flow.waiting:
            self._flows.remove(flow)
        flow.waiting.clear()
        flow.size = 0

    def take(self, *, now: float) -> list[Piece[SomeFlow]]:
        """Pieces that have left by `now`, in order."""
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
