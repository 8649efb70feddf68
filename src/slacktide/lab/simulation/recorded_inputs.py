"""What a recording says of the outside world: arrivals, what clients withdrew, what broke.

And what it says of the inside, to compare with: how every request ended. No time of a batch is read
here: those are to be predicted.

An item happens when it reached the engine. A live server reads its sockets some time after the
first byte, and later still while it shares its core with a model; that is part of the outside here,
as it does not depend much on what is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from statistics import median

from slacktide.domain import (
    Announced,
    Cancelled,
    Event,
    LaneResized,
    Notice,
    Outcome,
    Plan,
    PlanChanged,
    Refused,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    Submitted,
)
from slacktide.lab.simulation.items import ExternalEvent, Failure, Item, SimulatedUpload
from slacktide.lab.simulation.recorded_frames import FrameInputs, FrameInputsReader
from slacktide.recording import Call, FramesCall, PoolOpened, Record
from slacktide.recording.records import answers, of_type, started


@dataclass(slots=True)
class _Known:
    """What the engine got of one request."""

    notice: Notice | None = None
    announced_at: float = 0.0
    request: Request | None = None
    submitted_at: float = 0.0


@dataclass(slots=True)
class RecordedInputs:
    """Everything that came from outside after `start`, and how requests ended."""

    start: float
    plan: Plan | None = None
    """In force at `start`; None: none had been stated by then."""
    plan_at: float | None = None
    """When that came into force, if it was after `start`."""
    opened: list[PoolOpened] = field(default_factory=list)
    """Every statement of a pool, the first of each first."""
    items: list[Item] = field(default_factory=list)
    """By arrival. Complete requests, uploads, withdrawals, plans, failures."""
    ended: dict[int, Outcome] = field(default_factory=dict)
    """Outcomes of requests that came after `start`."""
    scored: dict[int, Request | Notice] = field(default_factory=dict)
    """Requests that came after `start` and that policies could decide on."""
    turned_away: int = 0
    """Requests that the server itself refused (bad input, memory); fed, not scored."""
    frames: FrameInputs = field(default_factory=FrameInputs)
    open: int = 0
    """Requests without an outcome, as the recording ended; neither fed nor scored."""
    start_s: float = 0.0
    """What the first replica took to come up, seconds."""
    resize_s: float = 0.0
    """What lanes took to be resized, the median in seconds; 0 if none was."""


def recorded_inputs(
    records: Iterable[Record], *, after: float = 0.0, plan: Plan | None = None
) -> RecordedInputs:
    """Read `records`; what comes within `after` seconds of the first call is left out. `plan` is in
    force before the first of them."""
    reader = _Reader(after, plan)
    for record in records:
        if isinstance(record, PoolOpened):
            reader.found.opened.append(record)
        elif isinstance(record, FramesCall):
            reader.frames_call(record)
        else:
            reader.call(record)
    return reader.finish()


class _Reader:
    """Goes through the calls once."""

    def __init__(self, after: float, plan: Plan | None) -> None:
        self.found = RecordedInputs(float("-inf"), plan)
        self._after = after
        self._known: dict[int, _Known] = {}
        self._refused: set[int] = set()
        self._starting: dict[int, tuple[float, Replica]] = {}
        """Every replica that was started, and when, by id."""
        self._took: float | None = None
        self._resizing: dict[str, float] = {}
        """When each lane was last to be resized."""
        self._resizes: list[float] = []
        self._frames = FrameInputsReader()

    def frames_call(self, call: FramesCall) -> None:
        start = self.found.start
        self._frames.call(call, counts=float("-inf") < start <= call.now)

    def call(self, call: Call) -> None:
        found = self.found
        if found.start == float("-inf"):
            found.start = call.now + self._after
        live = call.now >= found.start
        self._frames.told(call.events)
        for event in call.events:
            if live:
                self._event(event, call.now)
            elif isinstance(event, PlanChanged):
                found.plan = event.plan
            if isinstance(event, ReplicaUp) and event.replica in self._starting:
                self._took = self._took or call.now - self._starting[event.replica][0]
            if isinstance(event, LaneResized) and event.lane in self._resizing:
                self._resizes.append(call.now - self._resizing.pop(event.lane))
        for _, lane, *_rest in of_type(call, "ResizeLane"):
            self._resizing[lane] = call.now
        for replica in started(call):
            self._starting[replica.id] = (call.now, replica)
        for id, outcome in answers(call):
            if id in self._known:
                found.ended[id] = outcome
            elif id < 0:
                self._frames.answered(id, call.now)

    def _event(self, event: Event, now: float) -> None:
        found = self.found
        match event:
            case Announced() if event.notice.id >= 0:  # others are of stages: to be predicted
                self._known[event.notice.id] = _Known(event.notice, now)
            case Submitted() if event.request.id >= 0:
                known = self._known.setdefault(event.request.id, _Known())
                known.request, known.submitted_at = event.request, now
            case Refused():
                self._refused.add(event.id)
                found.turned_away += 1
                found.items.append(ExternalEvent(now, event))
            case Cancelled() if event.id in self._known:
                found.items.append(ExternalEvent(now, event))
            case PlanChanged() if found.plan is None:
                found.plan, found.plan_at = event.plan, now
            case PlanChanged():
                found.items.append(ExternalEvent(now, event))
            case ReplicaLost() if event.replica in self._starting:
                _, replica = self._starting[event.replica]
                found.items.append(
                    Failure(now, replica.lane, replica.pool.model, event.detail, event.permanent)
                )
            case _:
                pass  # ends of batches, timers and what replicas report: to be predicted

    def finish(self) -> RecordedInputs:
        found = self.found
        found.start_s = self._took or 0.0
        found.resize_s = median(self._resizes) if self._resizes else 0.0
        requests = (known.request for known in self._known.values())
        likely = {request.model: request for request in requests if request is not None}
        for id, known in self._known.items():
            if id not in found.ended:
                found.open += 1
                continue
            notice = known.notice
            if notice is not None:
                at_once = known.request is None and found.ended[id].at == known.announced_at
                found.items.append(_upload(known, likely.get(notice.model), at_once))
            elif known.request is not None:
                found.items.append(ExternalEvent(known.submitted_at, Submitted(known.request)))
            if id not in self._refused:
                request = known.request or known.notice
                assert request is not None
                found.scored[id] = request
        self._finish_frames()
        found.items.sort(key=attrgetter("arrival"))
        return found

    def _finish_frames(self) -> None:
        found, frames = self.found, self._frames
        found.frames = frames.finish()
        found.items += found.frames.items
        found.turned_away += len(frames.refused)
        found.open += len(frames.open)
        for id, asked in frames.asked.items():
            found.ended[id] = frames.ended[id]
            if id not in frames.refused:
                found.scored[id] = asked


def _upload(known: _Known, like: Request | None, at_once: bool) -> SimulatedUpload:
    """An announced request. If it was rejected `at_once`, before its body was read, its shape is
    unknown: it is taken to be `like` others of its model, and complete when it was expected.
    """
    notice = known.notice
    assert notice is not None
    told = replace(notice, arrival=known.announced_at)
    if known.request is not None:
        return SimulatedUpload(told, known.request, max(known.submitted_at, known.announced_at))
    if like is None or not at_once:  # its body never came, or was refused when it did
        return SimulatedUpload(told, None, known.announced_at)
    known_of_it = {each.name for each in fields(Notice)} & {each.name for each in fields(Request)}
    request = replace(like, **{name: getattr(notice, name) for name in known_of_it})
    return SimulatedUpload(told, request, max(notice.complete_at, known.announced_at))
