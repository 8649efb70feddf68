"""External events in a recording: arrivals, withdrawals, failures.

Outcomes are read for comparison. Batch times are not read, because they are to be predicted.

An item happens at the instant when it reached the engine. A live server reads its sockets some time
after the first byte, and later still while it shares its core with a model. A simulation repeats
that delay instead of predicting it, because it hardly depends on anything that is predicted.
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
class _RecordedRequest:
    """One request's notice and body, with the instants at which the engine got them."""

    notice: Notice | None = None
    announced_at: float = 0.0
    request: Request | None = None
    submitted_at: float = 0.0


@dataclass(slots=True)
class RecordedInputs:
    """All events from outside after `start`, and how requests ended."""

    start: float
    plan: Plan | None = None
    """Plan in force at `start`; None if no plan had been stated by then."""
    plan_at: float | None = None
    """Instant at which `plan` came into force, if it was after `start`."""
    opened: list[PoolOpened] = field(default_factory=list)
    """Descriptions of pools; the first one of each pool counts."""
    items: list[Item] = field(default_factory=list)
    """Complete requests, uploads, withdrawals, plans and failures, sorted by arrival."""
    ended: dict[int, Outcome] = field(default_factory=dict)
    """By id: outcomes of requests that came after `start`."""
    scored: dict[int, Request | Notice] = field(default_factory=dict)
    """By id: requests that came after `start` and that policies could decide on."""
    turned_away: int = 0
    """Number of requests that the server itself refused; they are simulated but not scored."""
    frames: FrameInputs = field(default_factory=FrameInputs)
    open: int = 0
    """Number of requests without an outcome when the recording ended; they are left out."""
    start_s: float = 0.0
    """Seconds that the first replica took to come up."""
    resize_s: float = 0.0
    """Median seconds from a resize command until the lane was resized; 0 if there was none."""


def recorded_inputs(
    records: Iterable[Record], *, after: float = 0.0, plan: Plan | None = None
) -> RecordedInputs:
    """Read `records`, leaving out requests and events of the first `after` seconds. `plan` is in
    force before the first record."""
    reader = _Reader(after, plan)
    for record in records:
        if isinstance(record, PoolOpened):
            reader.inputs.opened.append(record)
        elif isinstance(record, FramesCall):
            reader.frames_call(record)
        else:
            reader.call(record)
    return reader.finish()


class _Reader:
    """Collects the inputs in one pass over the calls."""

    def __init__(self, after: float, plan: Plan | None) -> None:
        self.inputs = RecordedInputs(float("-inf"), plan)
        self._after = after
        self._requests: dict[int, _RecordedRequest] = {}
        self._refused: set[int] = set()
        self._starting: dict[int, tuple[float, Replica]] = {}
        """Started replicas and their instants, by id."""
        self._took: float | None = None
        self._resizing: dict[str, float] = {}
        """Instant of the last resize command of each lane."""
        self._resizes: list[float] = []
        self._frames = FrameInputsReader()

    def frames_call(self, call: FramesCall) -> None:
        start = self.inputs.start
        self._frames.call(call, counts=float("-inf") < start <= call.now)

    def call(self, call: Call) -> None:
        inputs = self.inputs
        if inputs.start == float("-inf"):
            inputs.start = call.now + self._after
        live = call.now >= inputs.start
        self._frames.submitted(call.events)
        for event in call.events:
            if live:
                self._event(event, call.now)
            elif isinstance(event, PlanChanged):
                inputs.plan = event.plan
            if isinstance(event, ReplicaUp) and event.replica in self._starting:
                self._took = self._took or call.now - self._starting[event.replica][0]
            if isinstance(event, LaneResized) and event.lane in self._resizing:
                self._resizes.append(call.now - self._resizing.pop(event.lane))
        for _, lane, *_ in of_type(call, "ResizeLane"):
            self._resizing[lane] = call.now
        for replica in started(call):
            self._starting[replica.id] = (call.now, replica)
        for id, outcome in answers(call):
            if id in self._requests:
                inputs.ended[id] = outcome
            elif id < 0:
                self._frames.answered(id, call.now)

    def _event(self, event: Event, now: float) -> None:
        inputs = self.inputs
        match event:
            case Announced() if event.notice.id >= 0:  # requests of stages (id < 0) are simulated
                self._requests[event.notice.id] = _RecordedRequest(event.notice, now)
            case Submitted() if event.request.id >= 0:
                record = self._requests.setdefault(event.request.id, _RecordedRequest())
                record.request, record.submitted_at = event.request, now
            case Refused():
                self._refused.add(event.id)
                inputs.turned_away += 1
                inputs.items.append(ExternalEvent(now, event))
            case Cancelled() if event.id in self._requests:
                inputs.items.append(ExternalEvent(now, event))
            case PlanChanged() if inputs.plan is None:
                inputs.plan, inputs.plan_at = event.plan, now
            case PlanChanged():
                inputs.items.append(ExternalEvent(now, event))
            case ReplicaLost() if event.replica in self._starting:
                _, replica = self._starting[event.replica]
                inputs.items.append(
                    Failure(now, replica.lane, replica.pool.model, event.detail, event.permanent)
                )
            case _:
                pass  # ends of batches, timers and reports of replicas are predicted

    def finish(self) -> RecordedInputs:
        inputs = self.inputs
        inputs.start_s = self._took or 0.0
        inputs.resize_s = median(self._resizes) if self._resizes else 0.0
        requests = (record.request for record in self._requests.values())
        likely = {request.model: request for request in requests if request is not None}
        for id, record in self._requests.items():
            if id not in inputs.ended:
                inputs.open += 1
                continue
            notice = record.notice
            if notice is not None:
                at_once = record.request is None and inputs.ended[id].at == record.announced_at
                inputs.items.append(_upload(record, likely.get(notice.model), at_once))
            elif record.request is not None:
                inputs.items.append(ExternalEvent(record.submitted_at, Submitted(record.request)))
            if id not in self._refused:
                request = record.request or record.notice
                assert request is not None
                inputs.scored[id] = request
        self._finish_frames()
        inputs.items.sort(key=attrgetter("arrival"))
        return inputs

    def _finish_frames(self) -> None:
        inputs, frames = self.inputs, self._frames
        inputs.frames = frames.finish()
        inputs.items += inputs.frames.items
        inputs.turned_away += len(frames.refused)
        inputs.open += len(frames.open)
        for id, request in frames.requests.items():
            inputs.ended[id] = frames.ended[id]
            if id not in frames.refused:
                inputs.scored[id] = request


def _upload(record: _RecordedRequest, like: Request | None, at_once: bool) -> SimulatedUpload:
    """Return an announced request. If it was rejected immediately (`at_once`), before its body was
    read, assume the shape of `like`, a request to the same model, and completion as expected.
    """
    notice = record.notice
    assert notice is not None
    upload = replace(notice, arrival=record.announced_at)
    if record.request is not None:
        return SimulatedUpload(
            upload, record.request, max(record.submitted_at, record.announced_at)
        )
    if like is None or not at_once:  # the body never came, or was refused when it came
        return SimulatedUpload(upload, None, record.announced_at)
    shared = {slot.name for slot in fields(Notice)} & {slot.name for slot in fields(Request)}
    request = replace(like, **{name: getattr(notice, name) for name in shared})
    return SimulatedUpload(upload, request, max(notice.complete_at, record.announced_at))
