"""A client core in virtual time: a link that carries one byte after the other, and a server."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random

from slacktide.client import TimerDue
from slacktide.client.core import ClientCore
from slacktide.client.messages import (
    Advice,
    ClientEvent,
    ClientSettings,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    EncodeFrame,
    FallbackDone,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameOutcome,
    FrameSent,
    GiveUp,
    MoveAdvised,
    ReportOutcome,
    RunFallback,
    SendFrame,
)

SIZES = (128, 256, 416, 608)
VARIANTS = tuple((str(size), size, size / 1000) for size in SIZES)


class World:
    """Fields may be set before `run`, and functions of time or frame replaced."""

    def __init__(self, options: ClientSettings, *, seed: int = 0) -> None:
        self.core = ClientCore(options, Random(seed))
        self.now = 0.0
        self.bytes_per_s: Callable[[float], float] = lambda at: 1e6
        self.round_trip = 0.01
        self.serves: Callable[[int], float | None] = lambda frame: 0.02
        """Seconds a frame takes there; None: its answer is lost."""
        self.refuses: Callable[[int], bool] = lambda frame: False
        self.advice = Advice(608)
        self.accepts: Callable[[str], bool | None] = lambda address: True
        """Whether a server welcomes the client; None: it never answers."""
        self.acknowledges = True
        self.says_transfer = True
        self.fallback_s = 0.01
        self.outcomes: dict[int, FrameOutcome] = {}
        self.sizes: dict[int, int] = {}
        self.sent: list[tuple[float, int, int]] = []
        """(when, frame, bytes)"""
        self.places: dict[int, str] = {}
        """Address of the server that each frame was sent to."""
        self.links: dict[int, str] = {}
        """Addresses of the links that are open."""
        self.hopeless: set[int] = set()
        """Sent though late by the client's own estimate."""
        self.most_in_flight = 0
        self.runs: list[int] = []
        self.connects: list[float] = []
        self.frames = 0
        self._captured: dict[int, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._free_at = 0.0
        self._encoded: dict[int, int] = {}

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, act))

    def capture(self) -> None:
        self.frames += 1
        self._captured[self.frames] = self.now
        self.tell(FrameCaptured(self.frames, 1280, 720, self.now))

    def stream(self, rate: float, seconds: float) -> None:
        for number in range(int(rate * seconds)):
            self.at(self.now + number / rate, self.capture)

    def disconnect(self, address: str | None = None) -> None:
        """Cut the links to one server, or all."""
        for link in [link for link, to in self.links.items() if address in (None, to)]:
            del self.links[link]
            self.tell(Disconnected("reset"), link)

    def advise(self, address: str) -> None:
        """Let the server that gets the frames send the client to another."""
        if self.core.link in self.links:
            self.tell(MoveAdvised(address), self.core.link)

    def run(self, until: float) -> None:
        for _ in range(20_000):
            due = self._heap[0][0] if self._heap else inf
            wake = max(self.core.next_wakeup(), self.now)
            if min(due, wake) > until:
                self.now = until
                return
            self.now = min(due, wake)
            if due <= wake:
                heapq.heappop(self._heap)[2]()
            else:
                self.tell(TimerDue())
        raise AssertionError("the core wakes without end")

    def results(self) -> Counter[str]:
        return Counter(outcome.result.value for outcome in self.outcomes.values())

    def tell(self, event: ClientEvent, link: int | None = None) -> None:
        for action in self.core.handle(event, now=self.now, link=link):
            match action:
                case Connect(opened, address):
                    self.connects.append(self.now)
                    self.links[opened] = address
                    self.at(self.now + 0.005, self._if_open(opened, self._connected))
                case Disconnect(closed):
                    self.links.pop(closed, None)
                case EncodeFrame(frame, size):
                    assert frame not in self.outcomes
                    nbytes = int(1.5 * min(size * size or inf, 1280 * 720) ** 0.83)
                    self._encoded[frame] = nbytes
                    self.sizes[frame] = size
                    self.at(self.now + 0.001, self._tells(FrameEncoded(frame, nbytes)))
                case SendFrame(frame, age, _, over):
                    assert age >= 0.0
                    self._send(frame, over)
                case RunFallback(frame):
                    assert frame not in self.outcomes
                    self.runs.append(frame)
                    self.at(self.now + self.fallback_s, self._tells(FallbackDone(frame)))
                case ReportOutcome(frame, outcome):
                    assert frame not in self.outcomes, "a second outcome"
                    self.outcomes[frame] = outcome
                case GiveUp():
                    pass
        self.most_in_flight = max(self.most_in_flight, self.core.uplink.bytes_in_flight)

    def _says(self, event: ClientEvent) -> Callable[[int], None]:
        return lambda link: self.tell(event, link)

    def _tells(self, event: ClientEvent) -> Callable[[], None]:
        return lambda: self.tell(event)

    def _if_open(self, link: int, act: Callable[[int], None]) -> Callable[[], None]:
        return lambda: act(link) if link in self.links else None

    def _connected(self, link: int) -> None:
        accepts = self.accepts(self.links[link])
        if accepts is None:
            return
        if not accepts:
            del self.links[link]
            self.tell(Disconnected("refused"), link)
            return
        if len(self.links) == 1:
            self._free_at = self.now
        if self.acknowledges:
            self.tell(Connected(VARIANTS, self.advice), link)
        else:
            self.tell(Connected(acknowledges=False), link)

    def _send(self, frame: int, link: int) -> None:
        self.places[frame] = self.links.get(link, "")
        nbytes = self._encoded[frame]
        self.sent.append((self.now, frame, nbytes))
        ahead = self.core.uplink.seconds(0, now=self.now)  # it is in flight already
        if self.now + ahead > self._captured[frame] + self.core.settings.slo + 1e-9:
            self.hopeless.add(frame)
        self.tell(FrameSent(frame), link)
        began = at = max(self.now, self._free_at)
        left = float(nbytes)
        while left > 0.0 and at < began + 100.0:
            rate = self.bytes_per_s(at)
            step = min(0.002, left / rate) if rate else 0.002
            left -= step * rate
            at += step
        self._free_at = at
        back = at + self.round_trip
        if self.acknowledges:
            transfer = at - began if self.says_transfer else 0.0
            self.at(back, self._if_open(link, self._says(FrameAcknowledged(frame, transfer))))
        served = self.serves(frame)
        if served is not None:
            failed = "rejected_overload" if self.refuses(frame) else ""
            advice = self.advice if self.acknowledges else None
            answer = FrameAnswered(frame, advice, str(self.sizes[frame]), failed)
            self.at(back + served, self._if_open(link, self._says(answer)))
