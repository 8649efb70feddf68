"""Jellyfish as its published code works: planner, workers and client, to compare with ours.

Source: the repository vuhpdc/jellyfish, whose server differs from the paper in places. Clients
estimate their bandwidth from acknowledged transfers; the server takes the harmonic mean of the last
second, plans every half second from the present plan, and tells clients a size with each answer.
Each worker has its own queue, and pads each batch to the planned size. It keeps five variants
loaded, and serves with the old variant until the new one is loaded.

If the code is vague, this takes the reading that favours Jellyfish: planning and dispatching take
no time, a client is planned for as soon as it joins, and waiting frames follow their client to its
new worker.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.client import (
    Advice,
    AdviceChanged,
    ClientAction,
    ClientEvent,
    Connect,
    Connected,
    EncodeFrame,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameOutcome,
    FrameResult,
    ReportOutcome,
    SendFrame,
    TimerDue,
)
from slacktide.domain import Route
from slacktide.engine import Snapshot
from slacktide.lab.simulation import ANSWER_BYTES
from slacktide.planning import (
    Draft,
    Owned,
    PlanField,
    Planner,
    SessionClosed,
    SessionEvent,
    SessionMeasured,
    SessionOpened,
    Stated,
)
from slacktide.planning.variants import (
    UNMAPPED,
    Assignment,
    Client,
    Fleet,
    matched,
    misses,
    published,
)
from slacktide_papers.jellyfish.published_workers import MOST, PublishedWorkers

PERIOD_S = 0.5
"""Seconds between two plans."""
GUESS = 100_000 * 128.0
"""Bytes per second assumed before any are measured: 100,000 kbit of 1,024 bits."""
WIRE_S = 0.5e-3
"""Latency of the wire, one way."""
OTHER_S = 2e-3
"""Seconds that the server takes in addition to batches and dispatching. The published server
measures dispatching; here it takes no time."""


class ErrorFilter:
    """Kim and Noble 2001: the nearer the error is to its recent peak, the more a sample counts."""

    def __init__(self) -> None:
        self.value = 0.0
        self._error = 0.0
        self._errors: deque[float] = deque(maxlen=10)
        self._begun = False

    def add(self, sample: float) -> float:
        if not self._begun:
            self._begun, self.value = True, sample
            return sample
        self._error = 0.6 * self._error + 0.4 * abs(self.value - sample)
        self._errors.append(self._error)
        most = max(self._errors)
        weight = 1.0 - self._error / most if most > 0.0 else 0.0
        self.value = weight * self.value + (1.0 - weight) * sample
        return self.value


class PublishedClient:
    """The client's daemon: sends every frame at the advised size or, if its link does not carry
    that, at the largest size below it."""

    def __init__(
        self,
        sides: Sequence[int],
        frame_bytes: Callable[[int], float],
        *,
        rate: float,
        slo: float,
        adapts: bool = True,
        network_s: float = math.inf,
    ) -> None:
        """`sides`: sides of the variants' images, smallest first. `adapts`: whether it may send
        less than the advised size; `network_s`: longest time that a frame may take on the link."""
        self._sides = sides
        self._bytes = frame_bytes
        self._rate, self._slo = rate, slo
        self._adapts, self._network_s = adapts, network_s
        self._advised = sides[0]
        self._bandwidth = GUESS
        self._filter = ErrorFilter()
        self._filtered = 0
        """Side of the frames that the filter has seen."""
        self._frames: dict[int, list[float]] = {}
        """By frame id: [instant of capture, side, bytes, instant of sending]."""
        self._connecting = False

    def next_wakeup(self) -> float:
        return math.inf

    def handle(self, event: ClientEvent, *, now: float) -> Sequence[ClientAction]:
        match event:
            case TimerDue() if not self._connecting:
                self._connecting = True
                return (Connect(),)
            case Connected() | AdviceChanged() if event.advice is not None:
                self._advised = event.advice.size
            case FrameCaptured():
                side = self._side()
                self._frames[event.id] = [event.captured_at, side, 0.0, now]
                return (EncodeFrame(event.id, side),)
            case FrameEncoded():
                frame = self._frames[event.id]
                frame[2], frame[3] = event.nbytes, now
                return (SendFrame(event.id, now - frame[0], self._bandwidth),)
            case FrameAcknowledged() if event.id in self._frames:
                self._measure(self._frames[event.id], now)
            case FrameAnswered():
                return (self._answered(event, now),)
        return ()

    def _side(self) -> int:
        """The advised size, or the largest below it that the link carries."""
        below = [side for side in self._sides if side <= self._advised]
        while self._adapts and len(below) > 1 and not self._carries(below[-1]):
            below.pop()
        return below[-1]

    def _carries(self, side: int) -> bool:
        size = self._bytes(side)
        return self._bandwidth > self._rate * size and size <= self._network_s * self._bandwidth

    def _measure(self, frame: Sequence[float], now: float) -> None:
        _, side, nbytes, sent = frame
        if side != self._filtered:
            self._filter, self._filtered = ErrorFilter(), int(side)
        took = self._filter.add(now - sent) - 0.9 * WIRE_S
        self._bandwidth = nbytes / max(took, 1e-4)

    def _answered(self, event: FrameAnswered, now: float) -> ReportOutcome:
        captured, side, _, _ = self._frames.pop(event.id)
        if event.advice is not None:
            self._advised = event.advice.size
        seconds = now - captured
        result = FrameResult.ANSWERED if seconds <= self._slo else FrameResult.LATE
        if event.failed:
            result = FrameResult.REFUSED
        return ReportOutcome(event.id, FrameOutcome(result, seconds, int(side), event.variant))


class PublishedLink:
    """The server's view of a client's link: what the client has stated in the last second."""

    def __init__(self, id: str, rate: float) -> None:
        self._id = id
        self._stated = deque([GUESS], maxlen=max(1, round(rate)))

    def bytes_per_s(self) -> float:
        return len(self._stated) / math.fsum(1.0 / sample for sample in self._stated)

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return nbytes / self.bytes_per_s()

    def network_time(self, nbytes: int, *, now: float) -> float:
        return (nbytes + ANSWER_BYTES) / self.bytes_per_s() + 2.0 * WIRE_S

    def received(
        self, nbytes: int, side: int, seconds: float, stated: float, *, now: float
    ) -> SessionMeasured:
        self._stated.append(stated)
        return SessionMeasured(self._id, self.bytes_per_s(), 2.0 * WIRE_S, 0.0)


@dataclass(frozen=True, slots=True)
class Adaptation:
    """How frame sizes and variants are decided; by default jointly, as in Jellyfish."""

    compute_share: float = 0.0
    """Share of the SLO that the server gets, whatever the network takes; 0: the server gets what
    the network leaves."""
    fixed: int = -1
    """Index of the variant whose size all frames have; −1: sizes vary."""
    aligned: bool = True
    """Whether clients learn the size of their variant."""


@dataclass(slots=True)
class _Session:
    opened: SessionOpened
    bytes_per_s: float = GUESS
    lane: str = ""
    """Worker that gets the client's frames; while the client is not mapped, the last worker that
    did."""
    mapped: bool = False
    side: int = 0


class PublishedPlanner(Planner):
    """Selects variants, maps clients and updates workers, every half second."""

    name = "published"

    def __init__(
        self,
        workers: PublishedWorkers,
        frame_bytes: Sequence[float],
        sides: Sequence[int],
        *,
        load: Callable[[], float],
        most: int = 5,
        adaptation: Adaptation = Adaptation(),
        seed: int = 0,
    ) -> None:
        """`frame_bytes`: bytes of a frame, by variant; `load`: draws the seconds that loading a
        variant takes; `most`: variants that a worker keeps loaded."""
        self._workers = workers
        self._bytes, self._sides = frame_bytes, sides
        self._load, self._most = load, most
        self._adaptation = adaptation
        self._seed = seed
        self._sessions: dict[str, _Session] = {}
        self._next = math.inf

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.ROUTES) for model in stated)

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        for event in events:
            if isinstance(event, SessionOpened):
                self._sessions[event.id] = _Session(event)
                self._next = now
            elif isinstance(event, SessionMeasured):
                self._sessions[event.id].bytes_per_s = event.bytes_per_s
            elif isinstance(event, SessionClosed):
                self._sessions.pop(event.id, None)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        return self._next

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        if now >= self._next:
            self._next = now + PERIOD_S if self._sessions else math.inf
            self._decide(now)
        plan = draft.plan
        pools = {deployment.lane: deployment.pool for deployment in plan.deployments}
        routes = tuple(
            Route(session.opened.model, pools[session.lane], client=id)
            for id, session in self._sessions.items()
            if session.lane
        )
        return replace(draft, plan=replace(plan, routes=plan.routes + routes))

    def advise(self, session: str) -> Advice | None:
        """Advice for the next answer: the size of the worker's variant or, if its budget is shorter
        than two of the worker's batches, the largest size below it whose budget is long enough."""
        state = self._sessions.get(session)
        if state is None:
            return None
        at = 0
        if self._adaptation.fixed >= 0:
            at = self._adaptation.fixed
        elif not self._adaptation.aligned:
            at = len(self._sides) - 1
        elif state.mapped:
            worker = self._workers.lanes[state.lane]
            at, batch = worker.target
            twice = 2.0 * self._workers.variants[at].seconds[batch - 1]
            while at > 0 and self._budget(state, at) < twice:
                at -= 1
        return Advice(size=self._sides[at], mapped=state.mapped)

    def _budget(self, session: _Session, variant: int) -> float:
        """Seconds of the SLO left for the server after a frame of this variant's size is sent; 0 if
        the link cannot carry such frames at the client's rate."""
        rules, slo = self._adaptation, session.opened.slo
        if rules.compute_share:
            return rules.compute_share * slo
        size = self._bytes[rules.fixed if rules.fixed >= 0 else variant]
        if session.bytes_per_s <= session.opened.rate * size:
            return 0.0
        network = (size + ANSWER_BYTES) / session.bytes_per_s + 2.0 * WIRE_S
        return max(0.0, slo - network - OTHER_S)

    def _decide(self, now: float) -> None:
        workers, variants = self._workers, self._workers.variants
        if not self._sessions:
            return
        ids = sorted(self._sessions)
        clients = []
        for id in ids:
            session = self._sessions[id]
            budgets = tuple(self._budget(session, at) for at in range(len(variants)))
            clients.append(Client(id, session.opened.rate, budgets))
        fleet = Fleet(variants, clients, len(workers.lanes))
        present = {lane: worker.target[0] for lane, worker in workers.lanes.items()}
        self._seed += 1
        assignment = published(fleet, start=tuple(present.values()), seed=self._seed)
        lanes = self._update(present, fleet, assignment, now)
        for id, replica in zip(ids, assignment.clients, strict=True):
            session = self._sessions[id]
            session.mapped = replica != UNMAPPED
            if session.mapped:
                session.lane = lanes[replica]
            elif not session.lane:
                session.lane = next(iter(workers.lanes))
        workers.mapped = frozenset(id for id in ids if self._sessions[id].mapped)

    def _update(
        self, present: Mapping[str, int], fleet: Fleet, assignment: Assignment, now: float
    ) -> list[str]:
        """Put the assignment into force; returns the lane of each of its replicas."""
        workers = self._workers
        plan = matched(present, assignment.variants)
        missed = misses({lane: worker.loaded for lane, worker in workers.lanes.items()}, plan)
        free = sorted(plan)
        lanes = []
        for replica, variant in enumerate(assignment.variants):
            lane = next(free_lane for free_lane in free if plan[free_lane] == variant)
            free.remove(lane)
            lanes.append(lane)
            worker = workers.lanes[lane]
            worker.settle(now)
            if variant != worker.target[0]:
                workers.switches += 1
                late = bool(worker.loaded) and lane in missed
                workers.late += late
                worker.ready = now + self._load() if late else now
            worker.target = variant, self._batch(fleet, assignment, replica)
            worker.loaded = _window(variant, len(workers.variants), self._most)
            worker.settle(now)
        return lanes

    def _batch(self, fleet: Fleet, plan: Assignment, replica: int) -> int:
        """The smallest batch that serves the replica's clients, enlarged while all of them have
        time for two such batches and the throughput carries their load."""
        members = [c for c, at in zip(fleet.clients, plan.clients, strict=True) if at == replica]
        if not members:
            return 1
        batch = min(fleet.batch_of(plan, replica), MOST)
        variant = plan.variants[replica]
        seconds = self._workers.variants[variant].seconds
        least = min(client.budgets[variant] for client in members)
        load = sum(client.rate for client in members)
        while batch < min(MOST, len(seconds)):
            longer = seconds[batch]
            if 2.0 * longer > least or (batch + 1) / longer < load:
                break
            batch += 1
        return batch


def _window(variant: int, count: int, most: int) -> tuple[int, ...]:
    """The variant and its neighbours on either side; fewer at the ends, as published."""
    reach = most // 2
    return tuple(range(max(0, variant - reach), min(count, variant + reach + 1)))
