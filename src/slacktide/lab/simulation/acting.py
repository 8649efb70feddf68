"""`SimulatedClients`: clients that act in virtual time.

The simulation's heap holds their turns. A client's logic decides; this module encodes, sends and
waits for the answer. The server's side of a session works as in the server: the announcement is a
`Notice`, the link is measured from the announcement to the last byte, planners get the events of
sessions, and advice comes from the plan in force.

An answer takes half a round trip plus the transfer of its bytes. A frame is missed if its client
says so: no answer within the SLO, counted from the capture.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

from slacktide.client import (
    Advice,
    AdviceChanged,
    ClientAction,
    ClientEvent,
    Connect,
    Connected,
    EncodeFrame,
    FallbackDone,
    FrameAcknowledged,
    FrameAnswered,
    FrameCaptured,
    FrameEncoded,
    FrameResult,
    FrameSent,
    ReportOutcome,
    RunFallback,
    SendFrame,
    TimerDue,
)
from slacktide.domain import (
    Announced,
    Batch,
    Event,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    Request,
    Submitted,
)
from slacktide.lab.simulation.clients import FrameRecord, SessionLink, SimulatedClient
from slacktide.lab.workloads import SharedLink
from slacktide.planning import SessionClosed, SessionEvent, SessionOpened
from slacktide.planning.variants.family import expected_accuracy

FIRST_ID = 1 << 48
"""First id of clients' requests; other requests have smaller ones."""
ANSWER_BYTES = 300
"""Bytes of an answer (Jellyfish's initial estimate)."""

TurnEvents: TypeAlias = Sequence[Event | SessionEvent]
Turn: TypeAlias = Callable[[float], TurnEvents]
"""Action of a client, called with the present instant; returns the events for the runtime."""
Advise: TypeAlias = Callable[[str], Advice | None]
"""Returns the advice that the client of a session gets with an answer."""


class SimulatedClients:
    """All clients of one run."""

    def __init__(
        self,
        clients: Sequence[SimulatedClient],
        put: Callable[[float, Turn], None],
        *,
        recorded: Callable[[SimulatedClient, FrameRecord], None] | None = None,
        advise: Advise | None = None,
        variant_of: Callable[[Batch], str] | None = None,
    ) -> None:
        """`put` schedules a turn; `recorded` is called when a frame ends. By default, advice comes
        from the plan, and a batch has the variant of its pool."""
        self.frames: list[FrameRecord] = []
        self.plan = Plan()
        self._put = put
        self._recorded = recorded
        self.advise = advise or (lambda session: self._inputs.get(session))
        self._variant_of = variant_of or (lambda batch: batch.replica.pool.variant)
        self._inputs: Mapping[str, Advice] = {}
        self._open_frames: dict[int, _Frame] = {}
        """By request id: frames that have no outcome at the server yet."""
        self._ids = count(FIRST_ID)
        self._all = {client.id: _Acting(client, self) for client in clients}
        for acting in self._all.values():
            put(acting.client.joins, acting.join)

    def plan_changed(self, plan: Plan, *, now: float) -> None:
        """Take over a plan in force, and send advice to the clients for which it has changed."""
        before, self.plan = self.plan, plan
        if plan.inputs == before.inputs:
            return
        self._inputs = {
            input_size.client: Advice(
                size=self._all[input_size.client].sides.get(input_size.variant, 0),
                variant=input_size.variant,
                mapped=bool(input_size.variant),
            )
            for input_size in plan.inputs
            if input_size.client in self._all
        }
        for acting in self._all.values():
            acting.tell_advice(now)

    def runs(self, batch: Batch) -> None:
        """Note the variant that a starting batch uses, for its frames."""
        variant = self._variant_of(batch)
        for member in batch.members:
            frame = self._open_frames.get(member.id)
            if frame is not None:
                frame.record.variant = variant

    def answered(self, id: int, outcome: Outcome) -> None:
        """Pass on the outcome of a request if one of these clients sent it."""
        frame = self._open_frames.pop(id, None)
        if frame is not None:
            frame.acting.answer(frame, outcome)


@dataclass(slots=True)
class _Frame:
    acting: _Acting
    id: int
    record: FrameRecord
    jitter: float
    request: int = 0
    stated: float = 0.0
    """Bytes per second as the client measures them."""
    sent: float = 0.0
    age: float = 0.0
    begun: float = 0.0
    """Instant at which the frame's announcement reached the server."""


class _Acting:
    """One client in a run."""

    def __init__(self, client: SimulatedClient, all_: SimulatedClients) -> None:
        self.client = client
        self._all = all_
        self._way = SharedLink(client.link)
        self._measured = client.measured or SessionLink(client.id, 2.0 * client.link.way_back)
        self._frames: dict[int, _Frame] = {}
        """By number: captured frames that have not ended."""
        self._captured = 0
        self._wakes = math.inf
        self._last: Advice | None = None
        """Advice last sent to the client."""
        self.sides = {variant.name: variant.size for variant in client.variants}
        self._least = float(client.frame_bytes(client.variants[0].size))

    # ── the client ───────────────────────────────────────────────────────────────────────────

    def join(self, now: float) -> TurnEvents:
        client = self.client
        self._tell(TimerDue(), now)
        self._all._put(now + 1.0 / client.rate, self.capture)
        return (
            SessionOpened(
                client.id, client.model, client.rate, client.slo, client.min_accuracy, client.weight
            ),
        )

    def capture(self, now: float) -> TurnEvents:
        client = self.client
        if now >= client.leaves:
            return (SessionClosed(client.id),)
        id = self._captured
        self._captured += 1
        jitter = next(client.jitter)
        record = FrameRecord(client.id, now, self._savable(jitter, now))
        self._all.frames.append(record)
        self._frames[id] = _Frame(self, id, record, jitter)
        self._all._put(client.joins + (self._captured + 1) / client.rate, self.capture)
        self._tell(FrameCaptured(id, *client.camera, now), now)
        return ()

    def _savable(self, jitter: float, now: float) -> bool:
        """Return whether the smallest frame would be on time if link and server were idle."""
        client = self.client
        arrival = client.link.deliver(self._least * jitter, sent=now).complete_at
        if arrival == math.inf:
            return False
        done = arrival + client.smallest_run_s
        return self._back(done) <= now + client.slo

    def _back(self, at: float) -> float:
        """Return the instant at which an answer sent at `at` reaches the client."""
        return self.client.link.deliver(ANSWER_BYTES, sent=at).complete_at

    def _tell(self, event: ClientEvent, now: float) -> None:
        """Give an event to the client's logic, and carry out its actions."""
        logic, events = self.client.logic, deque([event])
        while events:
            for action in logic.handle(events.popleft(), now=now):
                events.extend(self._carry_out(action, now))
        wakes = logic.next_wakeup()
        if wakes != self._wakes:
            self._wakes = wakes
            if wakes < math.inf:
                self._all._put(max(wakes, now), partial(self._wake, wakes))

    def _wake(self, wakes: float, now: float) -> TurnEvents:
        if wakes == self._wakes:
            self._wakes = math.inf
            self._tell(TimerDue(), now)
        return ()

    def _later(self, at: float, event: ClientEvent) -> None:
        """Deliver `event` to the client at `at`."""

        def turn(now: float) -> TurnEvents:
            self._tell(event, now)
            return ()

        if at < math.inf:
            self._all._put(at, turn)

    def _carry_out(self, action: ClientAction, now: float) -> Sequence[ClientEvent]:
        client = self.client
        match action:
            case Connect():
                forms = tuple((form.name, form.size, form.accuracy) for form in client.variants)
                at = now + 2.0 * client.link.way_back
                self._last = self._all.advise(client.id)
                self._later(at, Connected(forms, self._last))
            case EncodeFrame():
                frame = self._frames[action.id]
                record = frame.record
                record.side = action.size or min(client.camera)
                record.nbytes = max(1, round(client.frame_bytes(action.size) * frame.jitter))
                done = FrameEncoded(action.id, record.nbytes)
                if not client.encode_s:
                    return (done,)
                self._later(now + client.encode_s, done)
            case SendFrame():
                self._send(action, now)
                return (FrameSent(action.id),)
            case RunFallback():
                assert client.fallback is not None, "it has no model of its own"
                self._later(now + client.fallback[0], FallbackDone(action.id))
            case ReportOutcome():
                self._end(action)
        return ()

    def _end(self, action: ReportOutcome) -> None:
        frame = self._frames.pop(action.id)
        record = frame.record
        record.outcome = action.outcome
        if action.outcome.result is FrameResult.ANSWERED:
            record.accuracy = expected_accuracy(self.client.variants, record.variant, record.side)
        elif action.outcome.on_time and self.client.fallback is not None:
            record.accuracy = self.client.fallback[1]
        if self._all._recorded is not None:
            self._all._recorded(self.client, record)

    # ── the link, and the server's side of the session ───────────────────────────────────────

    def _send(self, action: SendFrame, now: float) -> None:
        frame = self._frames[action.id]
        frame.stated, frame.sent, frame.age = action.bytes_per_s, now, action.age_s
        frame.request = next(self._all._ids)
        journey = self._way.deliver(frame.record.nbytes, sent=now)
        if journey.complete_at < math.inf:
            self._all._put(journey.arrival, partial(self._announced, frame))
            self._all._put(journey.complete_at, partial(self._received, frame))

    def _announced(self, frame: _Frame, now: float) -> TurnEvents:
        client, nbytes = self.client, frame.record.nbytes
        frame.begun = now
        if self._measured.network_time(nbytes, now=now) is not None:
            return ()  # this server learns of frames only when they are complete
        self._all._open_frames[frame.request] = frame
        notice = Notice(
            id=frame.request,
            model=client.model,
            arrival=now,
            deadline=self._deadline(frame),
            payload_bytes=nbytes,
            complete_at=now + self._measured.transfer_time(nbytes, now=now),
            application=client.application,
            client=client.id,
            size=frame.record.side,
        )
        return (Announced(notice),)

    def _deadline(self, frame: _Frame) -> float:
        """Return a frame's deadline at the server, from its age when sent: the announcement took
        half a round trip, and the answer will take another."""
        back = self._measured.transfer_time(ANSWER_BYTES, now=frame.begun)
        return frame.begun - frame.age + self.client.slo - 2.0 * self.client.link.way_back - back

    def _received(self, frame: _Frame, now: float) -> TurnEvents:
        client, measured = self.client, self._measured
        record = frame.record
        events: list[Event | SessionEvent] = []
        news = measured.received(
            record.nbytes, record.side, now - frame.begun, frame.stated, now=now
        )
        if news is not None:
            events.append(news)
        self._later(now + client.link.way_back, FrameAcknowledged(frame.id, now - frame.begun))
        late = measured.network_time(record.nbytes, now=now)
        if late is None:
            deadline = self._deadline(frame)
            if frame.request not in self._all._open_frames:
                return events  # answered before the frame was complete
        else:
            deadline = now - late + client.slo
            self._all._open_frames[frame.request] = frame
        request = Request(
            id=frame.request,
            model=client.model,
            arrival=frame.begun,
            deadline=deadline,
            application=client.application,
            client=client.id,
            network_time=frame.begun - frame.sent,
            size=record.side,
        )
        events.append(Submitted(request))
        return events

    def answer(self, frame: _Frame, outcome: Outcome) -> None:
        """Send the server's outcome of a frame back to the client."""
        if isinstance(self._measured, SessionLink):
            self._measured.ends.count(outcome, self.client.slo)
        served = outcome.kind in (OutcomeKind.SERVED, OutcomeKind.LATE)
        failed = "" if served else outcome.reason.label
        self._last = self._all.advise(self.client.id)
        event = FrameAnswered(frame.id, self._last, frame.record.variant, failed)
        self._later(self._back(outcome.at), event)

    def tell_advice(self, now: float) -> None:
        """Send the client its advice if it has changed."""
        advice = self._all.advise(self.client.id)
        if advice is not None and advice != self._last:
            self._last = advice
            self._later(now + self.client.link.way_back, AdviceChanged(advice))
