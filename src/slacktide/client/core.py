"""`ClientCore`: the logic of a client session without I/O: events and `now` in, actions out.

The newest waiting frame is encoded first, and only when the link has room for it (`uplink.py`). Its
size is chosen then: as advised, or smaller if, by the client's own estimate, it would be late or
the link could not carry the frame rate. A frame that would be late even at the smallest size is
*hopeless* and is not sent. The fallback runs frames that are hopeless, refused or unmapped, those
that waited too long or have not reached the server by the time it must start, and all frames while
the server is gone.

A client that sends nothing learns nothing about its link. So once a second, if nothing else is
sent, a frame is sent at the smallest size anyway (a *trial*); the fallback runs it too.

A server may advise the client to move. The client then connects to the other address as well, and
sends further frames there as soon as it is welcomed. It closes the old connection once each frame
that was sent there has its outcome. If the new connection ends, it goes back to the first address.

Each captured frame gets exactly one outcome, at most `patience` after its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from random import Random

from slacktide.client.messages import (
    Advice,
    AdviceChanged,
    ClientAction,
    ClientClosed,
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
    FrameResult,
    FrameSent,
    GiveUp,
    MoveAdvised,
    ReportOutcome,
    RunFallback,
    SendFrame,
)
from slacktide.client.uplink import Uplink
from slacktide.wire.link_estimate import BytesPerPixel

TRIAL_S = 1.0
SHORTEST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
"""Seconds between attempts to connect. The delay doubles each time; the actual wait is a random 50
to 100 % of it."""
CONNECT_S = 5.0
"""Maximum seconds of an attempt to connect."""
SILENCE_S = 3.0
"""Seconds without an acknowledgement, while frames are in flight, after which the server counts as
gone."""
START_EARLY = 1.25
"""Factor on the fallback's usual time, so that it starts early enough."""
_DECAY = 0.7
"""Weight of the old value in a smoothed time."""


class _Link(Enum):
    DOWN = auto()
    CONNECTING = auto()
    UP = auto()
    CLOSED = auto()


@dataclass(slots=True)
class _Frame:
    id: int
    width: int
    height: int
    captured_at: float
    deadline: float
    size: int = 0
    trial: bool = False
    sent: bool = False
    link: int = 0
    """The connection on which it was sent."""
    reached_at: float = inf
    """Time of its acknowledgement; infinite before that."""
    local: bool = False
    """Whether the frame was given to the fallback, which may have been too busy to run it."""
    default_outcome: tuple[FrameResult, str] = (FrameResult.LOST, "no answer")
    """Its outcome if no better one follows."""


class ClientCore:
    """The state of a client session. `rng` draws the jitter of reconnects."""

    def __init__(self, settings: ClientSettings, rng: Random) -> None:
        self.settings = settings
        self.uplink = Uplink(settings.most_bytes_in_flight, settings.bytes_per_s)
        self.advice: Advice | None = None
        self.patience = max(settings.slo, 1.0)
        """Seconds that a frame waits for an answer after its deadline."""
        self.link = 0
        """Number of the connection on which frames are sent."""
        self._rng = rng
        self._bytes = BytesPerPixel()
        self._link, self._connect_at, self._failures = _Link.DOWN, -inf, 0
        self._links = 0
        """Number of connections so far."""
        self._address = ""
        """Address to which the server has sent the client; empty: the client is at the address that
        the user gave."""
        self._attempt: Connect | None = None
        """The attempt to connect to an advised address, and the time at which it began."""
        self._attempt_at = -inf
        self._previous: tuple[int, Uplink] | None = None
        """The connection that the client has left, while frames wait for its answers."""
        self._heard_at = self._sent_at = self._up_at = -inf
        self._silence = max(SILENCE_S, 2.0 * settings.slo)
        self._sizes: tuple[int, ...] = ()
        self._frames: dict[int, _Frame] = {}
        """Frames without an outcome, oldest first."""
        self._waiting: dict[int, _Frame] = {}
        self._local: dict[int, _Frame] = {}
        """Frames that wait for the fallback."""
        self._encoding: tuple[int, float] | None = None
        self._running: tuple[int, float] | None = None
        """The frame being encoded and the frame that the fallback runs, with their start times."""
        self._full = False
        """Whether the link had no room for the last encoded frame. If so, no other is encoded until
        a frame has arrived."""
        self._delivered = 0
        self._answer_s = self._encode_s = 0.0
        self._fallback_s = settings.slo / 4
        """Smoothed seconds from acknowledgement to answer, of encoding, and of the fallback. They
        are bounded so that a bad phase does not make all later frames hopeless."""
        self._actions: list[ClientAction] = []
        self._now = -inf

    def handle(
        self, event: ClientEvent, *, now: float, link: int | None = None
    ) -> list[ClientAction]:
        """Process an event. `link`: the connection that reports it; None: the current one. Returns
        the actions in order. Raises ValueError if a captured frame's id is not new."""
        self._now = now = max(now, self._now)
        if link is None or link == self.link:
            self._handle(event, now)
        elif self._attempt is not None and link == self._attempt.link:
            if isinstance(event, Connected):
                self._move(self._attempt, event, now)
            elif isinstance(event, Disconnected):
                self._attempt = None
        elif self._previous is not None and link == self._previous[0]:
            self._handle_previous(event, self._previous[1], now)
        self._advance(now)
        actions, self._actions = self._actions, []
        return actions

    def _handle(self, event: ClientEvent, now: float) -> None:
        match event:
            case FrameCaptured():
                self._captured(event, now)
            case FrameEncoded():
                self._encoded(event, now)
            case FrameSent():
                self.uplink.begin(event.id, now=now)
            case FrameAcknowledged():
                self._heard_at = now
                self._acknowledged(event, self.uplink, now)
            case FrameAnswered():
                self._heard_at, self._failures = now, 0
                self.advice = event.advice or self.advice
                self._answered(event, self.uplink, now)
            case AdviceChanged():
                self.advice, self._heard_at = event.advice, now
            case MoveAdvised():
                self._heard_at = now
                self._follow(event.address, now)
            case FallbackDone():
                self._fallback_done(event, now)
            case Connected():
                self._connected(event, now)
            case Disconnected():
                self._disconnected(event.detail, now)
            case ClientClosed():
                self._link, self._attempt, self._previous = _Link.CLOSED, None, None
                for frame in list(self._frames.values()):
                    self._report(frame, FrameResult.DROPPED, now, "the client was closed")

    def _handle_previous(self, event: ClientEvent, uplink: Uplink, now: float) -> None:
        """Process an event of the connection that the client has left."""
        match event:
            case FrameSent():
                uplink.begin(event.id, now=now)
            case FrameAcknowledged():
                self._acknowledged(event, uplink, now)
            case FrameAnswered():
                self._answered(event, uplink, now)
            case Disconnected():
                self._previous = None
                self._lose(uplink, event.detail, now)

    def next_wakeup(self) -> float:
        """The latest time for the next `TimerDue`; infinite: never."""
        now = self._now
        if self._link is _Link.CLOSED:
            return inf
        if self._link is _Link.DOWN:
            times = [self._connect_at]
        elif self._link is _Link.CONNECTING:
            times = [self._heard_at + CONNECT_S]
        else:
            times = [self._gone_at()]
            if self._waiting and not self._full and self._encoding is None:
                times += [at for at in (self.uplink.opens_at(now=now),) if at > now]
        times += [self._leaves_at(frame, now) for frame in self._waiting.values()]
        times += [self._too_late(frame) for frame in self._local.values()]
        times += [frame.deadline + self.patience for frame in self._frames.values()]
        starts = [self._start_at(frame) for frame in self._frames.values() if self._is_open(frame)]
        times += [at for at in starts if at > now]
        if self._attempt is not None:
            times.append(self._attempt_at + CONNECT_S)
        if not self.uplink.acknowledges:
            times.append(self.uplink.first_deadline + self.patience)
        return min(times)

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _captured(self, event: FrameCaptured, now: float) -> None:
        if event.id in self._frames:
            raise ValueError(f"frame {event.id} was already captured")
        deadline = event.captured_at + self.settings.slo
        frame = _Frame(event.id, event.width, event.height, event.captured_at, deadline)
        self._frames[event.id] = frame
        if self._link is _Link.CLOSED:
            self._report(frame, FrameResult.DROPPED, now, "the client was closed")
            return
        self._waiting[event.id] = frame
        if len(self._waiting) > self.settings.most_waiting:
            oldest = next(iter(self._waiting.values()))
            self._fall_back(oldest, FrameResult.DROPPED, now, "replaced by newer frames")

    def _encoded(self, event: FrameEncoded, now: float) -> None:
        if self._encoding is None or self._encoding[0] != event.id:
            return
        self._encode_s += (1.0 - _DECAY) * (now - self._encoding[1] - self._encode_s)
        self._encoding = None
        frame = self._frames.get(event.id)
        if frame is None:
            return
        if event.failed:
            self._fall_back(frame, FrameResult.REFUSED, now, event.failed)
            return
        self._bytes.observe(event.nbytes, self._pixels(frame, frame.size))
        if self._link is not _Link.UP or not self.uplink.has_room(event.nbytes):
            self._full = len(self.uplink) > 0
            self._waiting[frame.id] = frame
            self._waiting = dict(sorted(self._waiting.items()))
            return
        if not frame.trial and now + self._needs(event.nbytes, now) > frame.deadline:
            smaller = self._choose(frame, now, below=frame.size)
            if smaller is None:
                self._fall_back(frame, FrameResult.DROPPED, now, "would have been late")
            else:
                self._encode(frame, smaller, now)
            return
        self.uplink.send(frame.id, event.nbytes, frame.deadline, now=now)
        self._sent_at, frame.sent, frame.link = now, True, self.link
        rate = self.uplink.bytes_per_s(now=now)
        self._actions.append(SendFrame(frame.id, now - frame.captured_at, rate, self.link))
        if frame.trial and self.settings.fallback:
            self._fall_back(frame, FrameResult.LOST, now, "sent only as a trial of the link")

    def _acknowledged(self, event: FrameAcknowledged, uplink: Uplink, now: float) -> None:
        self._full = False
        self._delivered += 1
        uplink.arrived(event.id, event.transfer_s, now=now)
        frame = self._frames.get(event.id)
        if frame is not None:
            frame.reached_at = min(frame.reached_at, now)

    def _answered(self, event: FrameAnswered, uplink: Uplink, now: float) -> None:
        self._full = False
        if event.id in uplink:
            self._delivered += 1
            if not event.failed:
                uplink.arrived(event.id, 0.0, now=now)
            elif not uplink.acknowledges:  # otherwise it is still on its way
                uplink.withdrawn(event.id)
        frame = self._frames.get(event.id)
        if frame is None or not frame.sent:
            return
        if event.failed:
            self._fall_back(frame, FrameResult.REFUSED, now, event.failed)
            return
        if frame.reached_at < inf:
            took = min(now - frame.reached_at, self.settings.slo / 2)
            self._answer_s += (1.0 - _DECAY) * (took - self._answer_s)
        if now <= frame.deadline:
            self._report(frame, FrameResult.ANSWERED, now, variant=event.variant)
        elif not self._is_local(frame):
            self._report(frame, FrameResult.LATE, now, variant=event.variant)

    def _fallback_done(self, event: FallbackDone, now: float) -> None:
        if self._running is None or self._running[0] != event.id:
            return
        took, self._running = now - self._running[1], None
        longest = max(took, _DECAY * self._fallback_s + (1.0 - _DECAY) * took)
        self._fallback_s = min(longest, self.settings.slo / 2)
        frame = self._frames.get(event.id)
        if frame is None:
            return
        result, why = frame.default_outcome
        if event.failed:
            why = f"{why}; fallback: {event.failed}"
        else:
            result = FrameResult.FALLBACK if now <= frame.deadline else FrameResult.LATE
        self._report(frame, result, now, why)

    def _connected(self, event: Connected, now: float) -> None:
        if self._link is not _Link.CONNECTING:
            return
        self._link, self._heard_at, self._up_at = _Link.UP, now, now
        self.advice, self.uplink.acknowledges = event.advice, event.acknowledges
        named = {size for _, size, _ in event.variants if size > 0}
        self._sizes = tuple(sorted(named or set(self.settings.sizes))) or (0,)

    def _follow(self, address: str, now: float) -> None:
        """Connect to another address as well, unless the client is moving already."""
        moving = self._attempt is not None or self._previous is not None
        if self.settings.follow and not moving and address != self._address:
            self._attempt, self._attempt_at = self._open(address), now

    def _move(self, attempt: Connect, event: Connected, now: float) -> None:
        """Go on at another server, which has welcomed the client."""
        if self._link is _Link.UP:
            self._previous = self.link, self.uplink
        elif self._link is _Link.CONNECTING:
            self._actions.append(Disconnect(self.link))
        rate = self.uplink.bytes_per_s(now=now)
        self.uplink = Uplink(self.settings.most_bytes_in_flight, rate)
        self.link, self._address, self._attempt = attempt.link, attempt.address, None
        self._link, self._full, self._answer_s = _Link.CONNECTING, False, 0.0
        self._connected(event, now)

    def _open(self, address: str = "") -> Connect:
        """Open a connection."""
        action = Connect(self._links, address)
        self._links += 1
        self._actions.append(action)
        return action

    def _end_moves(self, now: float) -> None:
        """Close a connection that takes too long, or that no frame waits for any more."""
        if self._attempt is not None and now >= self._attempt_at + CONNECT_S:
            self._actions.append(Disconnect(self._attempt.link))
            self._attempt = None
        if self._previous is not None:
            link = self._previous[0]
            if not any(frame.sent and frame.link == link for frame in self._frames.values()):
                self._actions.append(Disconnect(link))
                self._previous = None

    def _lose(self, uplink: Uplink, detail: str, now: float) -> None:
        """Handle the frames in flight on a connection that has ended."""
        for id in uplink.broken():
            frame = self._frames.get(id)
            if frame is not None:
                self._fall_back(frame, FrameResult.LOST, now, detail or "the connection ended")

    def _disconnected(self, detail: str, now: float) -> None:
        if self._link not in (_Link.CONNECTING, _Link.UP):
            return
        if self._link is _Link.UP and now - self._up_at > LONGEST_DELAY_S:
            self._failures = 0
        delay = min(SHORTEST_DELAY_S * 2.0 ** min(self._failures, 10), LONGEST_DELAY_S)
        self._link, self._connect_at = _Link.DOWN, now + delay * self._rng.uniform(0.5, 1.0)
        self._failures += 1
        self._full, self._address = False, ""
        self._lose(self.uplink, detail, now)

    # ── actions ─────────────────────────────────────────────────────────────────────────────────

    def _advance(self, now: float) -> None:
        if self._link is _Link.CLOSED:
            return
        if self._link is _Link.CONNECTING and now >= self._heard_at + CONNECT_S:
            self._actions.append(Disconnect(self.link))
            self._disconnected("the server does not answer", now)
        elif self._link is _Link.UP and now >= self._gone_at():
            self._actions.append(Disconnect(self.link))
            self._disconnected(f"no acknowledgement for {self._silence:g} s", now)
        if self._link is _Link.DOWN and now >= self._connect_at:
            self._link, self._heard_at, self.link = _Link.CONNECTING, now, self._open().link
        self.uplink.watch(now=now)
        for frame in list(self._frames.values()):
            if now >= frame.deadline + self.patience:
                self._report(frame, frame.default_outcome[0], now, frame.default_outcome[1])
            elif self._is_open(frame) and self._start_at(frame) <= now < self._too_late(frame):
                self._fall_back(frame, FrameResult.LOST, now, "has not reached the server")
        if not self.uplink.acknowledges:
            for late in self.uplink.expired(self.patience, now=now):
                self._actions.append(GiveUp(late))
                self._full = False
        self._try_link(now)
        for frame in list(self._waiting.values()):
            if now >= self._leaves_at(frame, now):
                why = "no variant is fast enough" if self._unmapped() else "would have been late"
                if self._link is _Link.UP:
                    self._fall_back(frame, FrameResult.DROPPED, now, why)
                else:
                    self._fall_back(frame, FrameResult.LOST, now, "not connected")
        self._send_newest(now)
        self._start_fallback(now)
        self._end_moves(now)  # last: it may be the last frame of a connection that ends now

    def _send_newest(self, now: float) -> None:
        if not self._waiting or not self._may_send(now):
            return
        frame = next(reversed(self._waiting.values()))
        size = self._choose(frame, now)
        if size is None:  # blocked by the frames ahead of it; hopeless ones no longer wait
            return
        if self.uplink.has_room(self._bytes.of(self._pixels(frame, size))):
            self._encode(frame, size, now)

    def _try_link(self, now: float) -> None:
        """Send the newest frame as a trial unless it would be sent anyway."""
        if not self._waiting or len(self.uplink) or now < self._sent_at + TRIAL_S:
            return
        frame = next(reversed(self._waiting.values()))
        if not self._may_send(now) or not self._leaves_at(frame, now) <= now < frame.deadline:
            return
        frame.trial = True
        self._encode(frame, self._sizes[0], now)

    def _start_fallback(self, now: float) -> None:
        for frame in list(self._local.values()):
            if now >= self._too_late(frame) or len(self._local) > self.settings.most_waiting:
                del self._local[frame.id]
                if not self._in_flight(frame):
                    self._report(frame, frame.default_outcome[0], now, frame.default_outcome[1])
        if self._local and self._running is None:
            _, frame = self._local.popitem()
            self._running = frame.id, now
            self._actions.append(RunFallback(frame.id))

    def _encode(self, frame: _Frame, size: int, now: float) -> None:
        self._waiting.pop(frame.id, None)
        frame.size = size
        self._encoding = frame.id, now
        self._actions.append(EncodeFrame(frame.id, size))

    def _fall_back(self, frame: _Frame, result: FrameResult, now: float, detail: str) -> None:
        """Handle a frame that the server will not answer on time: give it to the fallback if
        possible, else report its outcome."""
        self._waiting.pop(frame.id, None)
        frame.default_outcome = result, detail
        if self._is_local(frame):
            return
        if self.settings.fallback and not frame.local and now < self._too_late(frame):
            frame.local = True
            self._local[frame.id] = frame
        else:
            self._report(frame, result, now, detail)

    def _report(
        self, frame: _Frame, result: FrameResult, now: float, detail: str = "", variant: str = ""
    ) -> None:
        for where in (self._frames, self._waiting, self._local):
            where.pop(frame.id, None)
        if any(job is not None and job[0] == frame.id for job in (self._running, self._encoding)):
            self._actions.append(GiveUp(frame.id))
        seconds = now - frame.captured_at
        self._actions.append(
            ReportOutcome(frame.id, FrameOutcome(result, seconds, frame.size, variant, detail))
        )

    # ── decisions ───────────────────────────────────────────────────────────────────────────────

    def _choose(self, frame: _Frame, now: float, below: float = inf) -> int | None:
        """The largest size, up to the advised one, at which the frame is on time and the link
        carries the rate; else the smallest size, if on time; None if the frame is hopeless."""
        advised = self.advice.size if self.advice is not None and self.advice.size else inf
        if self._unmapped():
            advised = 0
        sizes = [size for size in self._sizes if size <= advised] or list(self._sizes[:1])
        if not self.uplink.bytes_per_s(now=now):
            sizes = sizes[: self._delivered + 1]  # the first frames grow until one shows the rate
        sizes = [size for size in sizes if size < below]
        for size in reversed(sizes):
            nbytes = self._bytes.of(self._pixels(frame, size))
            if now + self._encode_s + self._needs(nbytes, now) > frame.deadline:
                continue
            smallest = size == sizes[0]
            if smallest or self.uplink.carries(nbytes, self.settings.rate, now=now):
                return size
        return None

    def _needs(self, nbytes: float, now: float) -> float:
        """Seconds from sending `nbytes` to the answer."""
        return self.uplink.seconds(nbytes, now=now) + self._answer_s

    def _leaves_at(self, frame: _Frame, now: float) -> float:
        """Time at which a frame stops waiting to be sent."""
        if self._link is not _Link.UP:
            return -inf if self.settings.fallback else frame.deadline
        if self._unmapped() and self.settings.fallback:
            return -inf
        nbytes = self._bytes.of(self._pixels(frame, self._sizes[0]))
        rate = self.uplink.bytes_per_s(now=now)
        needs = nbytes / rate + self.uplink.round_trip + self._answer_s if rate else 0.0
        hopeless = frame.deadline - needs - self._encode_s
        return min(hopeless, self._start_at(frame)) if self.settings.fallback else hopeless

    def _start_at(self, frame: _Frame) -> float:
        """Time at which the fallback should start with a frame."""
        return frame.deadline - START_EARLY * self._fallback_s

    def _too_late(self, frame: _Frame) -> float:
        """Time from which it is too late for the fallback to start with a frame."""
        return frame.deadline - self._fallback_s

    def _is_open(self, frame: _Frame) -> bool:
        """Whether a frame has been sent, has not reached the server, and may still be run by the
        fallback."""
        return self.settings.fallback and not frame.local and self._in_flight(frame)

    def _in_flight(self, frame: _Frame) -> bool:
        """Whether a frame has been sent and has not reached the server."""
        previous = () if self._previous is None else self._previous[1]
        return frame.id in self.uplink or frame.id in previous

    def _is_local(self, frame: _Frame) -> bool:
        """Whether the fallback is running a frame, or will."""
        return frame.id in self._local or (self._running or (None,))[0] == frame.id

    def _may_send(self, now: float) -> bool:
        ready = self._link is _Link.UP and self._encoding is None and not self._full
        return ready and now >= self.uplink.opens_at(now=now)

    def _gone_at(self) -> float:
        """Time from which the server counts as gone, unless it sends something."""
        return max(self._heard_at, self.uplink.silent_since) + self._silence

    def _unmapped(self) -> bool:
        return self.advice is not None and not self.advice.mapped

    @staticmethod
    def _pixels(frame: _Frame, size: int) -> int:
        most = size or inf
        return int(min(frame.width, most) * min(frame.height, most))
