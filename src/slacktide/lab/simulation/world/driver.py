"""The virtual-time driver: the server's engine, under a clock that jumps to the next event.

Theory of operation. A heap holds future events: ends of batches, replicas that come up, bodies of
announced requests. Events from outside come from an iterator that is read one instant at a time, so
memory does not grow with the length of a run. The engine's own timer is not on the heap:
`next_wakeup` is called after every event, and the earliest of heap, iterator and timer comes next
(`EventOrder` breaks ties). Requests and notices of the same instant are delivered together, as the
server delivers those of one turn of its event loop; every other event is delivered alone.

No serving decision is made here. The engine, its schedulers and its profiles are the server's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import Protocol, TypeAlias, cast

from slacktide.domain import (
    Announced,
    Answer,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Command,
    DriverStalled,
    Event,
    FreeSlots,
    LaneResized,
    MemoryShort,
    Notice,
    Outcome,
    Plan,
    PlanChanged,
    Refused,
    ReplicaLost,
    ReplicaUp,
    Request,
    RowsReleased,
    RunBatch,
    Submitted,
    TimerFired,
)
from slacktide.domain.frames import (
    FRAME_COMMANDS,
    FRAME_EVENTS,
    FrameAnnounced,
    FrameArrived,
    FrameCancelled,
    FrameCommand,
    FrameEvent,
    FrameRefused,
    PartAnswered,
    PipelinesChanged,
    StageYielded,
)
from slacktide.engine import Engine, check_invariants
from slacktide.lab.simulation.acting import SimulatedClients, Turn
from slacktide.lab.simulation.exit_courses import EarlyExits
from slacktide.lab.simulation.items import (
    ExternalEvent,
    Failure,
    Item,
    SimulatedUpload,
    SimulationError,
)
from slacktide.lab.simulation.world.hardware import Execution, Hardware, Report
from slacktide.planning import (
    ExitEvent,
    Planner,
    SessionClosed,
    SessionEvent,
    SessionMeasured,
    SessionOpened,
    Stated,
)
from slacktide.planning.exits import ExitsArranged, RampsJudged, RampsLearnt, RampsRefused
from slacktide.runtime import Runtime, RuntimeCommand, RuntimeEvent, Watch, WatchFrames


class EventOrder(IntEnum):
    """Order of events at the same instant, first to last. Two events of one kind come in the order
    in which they were put on the heap. This makes runs exactly repeatable."""

    BATCH = 0
    """A batch ends or releases rows. First, so an answer that is due at this very instant is on
    time, and a replica that dies at the instant when it finishes a batch has finished it."""
    REPLICA = 1
    """Replicas, lanes, plans, memory, sessions, ramps. Before requests, so a request that arrives
    at the instant when a replica comes up finds it up."""
    CLIENT = 2
    """A client acts. It knows all answers of this instant; what it sends is delivered next."""
    NOTICE = 3
    REQUEST = 4
    """After notices, so an upload that takes no time is announced before it is complete."""
    WITHDRAWAL = 5
    """After requests, so a request that arrives and is withdrawn at one instant is known first."""
    TIMER = 6
    """Last, because every other event of this instant may change what is due."""


ORDER_OF: Mapping[type[Event | SessionEvent | ExitEvent | FrameEvent], EventOrder] = {
    **dict.fromkeys((BatchFinished, BatchFailed, BatchAborted, RowsReleased), EventOrder.BATCH),
    **dict.fromkeys((StageYielded, PartAnswered), EventOrder.BATCH),
    **dict.fromkeys((ReplicaUp, ReplicaLost, LaneResized, PlanChanged), EventOrder.REPLICA),
    **dict.fromkeys((MemoryShort, DriverStalled, PipelinesChanged), EventOrder.REPLICA),
    **dict.fromkeys((SessionOpened, SessionMeasured, SessionClosed), EventOrder.REPLICA),
    **dict.fromkeys((RampsLearnt, RampsJudged, RampsRefused, ExitsArranged), EventOrder.REPLICA),
    **dict.fromkeys((Announced, FrameAnnounced), EventOrder.NOTICE),
    **dict.fromkeys((Submitted, FrameArrived), EventOrder.REQUEST),
    **dict.fromkeys((Cancelled, FrameCancelled, Refused, FrameRefused), EventOrder.WITHDRAWAL),
    TimerFired: EventOrder.TIMER,
}


Answered: TypeAlias = Callable[[Request | Notice, Outcome], None]
"""Called with every request and its outcome; with the `Notice` if the request's body never came."""


class SimulatedFrames(Protocol):
    """Simulates frames in a run with pipelines: outputs of stages, and outcomes of frames."""

    def still_happens(self, event: FrameEvent) -> bool:
        """Return whether `event`, whose time has come, still happens."""

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        """Note the outcome of a stage's request. Return the rows that the stage hands on; None if
        there are none or they come later."""

    def carry_out(self, command: FrameCommand, *, now: float) -> None: ...

    def on_commands(self, commands: Sequence[Command], *, now: float) -> None:
        """Note the engine's other commands before they are carried out."""


@dataclass(frozen=True, slots=True)
class _ClientTurn:
    turn: Turn


_Happens: TypeAlias = RuntimeEvent | Failure | SimulatedUpload | _ClientTurn
_Entry: TypeAlias = tuple[float, EventOrder, int, _Happens]
_TOGETHER = (EventOrder.NOTICE, EventOrder.REQUEST)
_OF_FRAMES = frozenset(FRAME_COMMANDS)
_FRAME_EVENTS = frozenset(FRAME_EVENTS)
_TURNS_MOST = 10_000
"""More timer calls than this at one instant are taken for an endless loop of the engine."""


class Simulation:
    """One engine in virtual time. Use an instance for one run only."""

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        execution: Execution,
        *,
        answered: Answered | None = None,
        watch: Watch | None = None,
        begin: float = 0.0,
        start_s: float = 0.0,
        resize_s: float = 0.0,
        planners: Sequence[Planner] = (),
        stated: Stated | None = None,
        job_s: float = 0.0,
        exits: Mapping[str, EarlyExits] | None = None,
        frames: SimulatedFrames | None = None,
        watch_frames: WatchFrames | None = None,
        check: bool = False,
    ) -> None:
        """`plan` comes into force at `begin`. A replica is up `start_s` seconds after its start;
        a lane has its new cores `resize_s` seconds after the resize command.

        `planners` start from `plan` as their base plan and from the `stated` facts about its
        models; their jobs off the loop take `job_s` seconds. `exits`: by name, the models with
        early exits. `frames`: needed if there are pipelines. `check`: check the engine's invariants
        after every event; slow, for tests. Raises PlannerError.
        """
        self.engine = engine
        self.now = begin
        self.hardware = Hardware(
            engine, execution, self._put_report, start_s=start_s, resize_s=resize_s, exits=exits
        )
        """Replicas and batches. Callers may read from it what has run, and on how many cores."""
        self.runtime = Runtime(
            engine,
            planners,
            watch=watch,
            watch_frames=watch_frames,
            on_lanes=self.hardware.lanes_changed,
        )
        self._frames = frames
        self._answered = answered
        self._check = check
        self._job_s = job_s
        self._heap: list[_Entry] = []
        self._put_down = 0
        self._open: dict[int, Request | Notice] = {}
        """By id: requests that the engine knows and that have no outcome yet."""
        self._fired_at, self._turns = -math.inf, 0
        self._clients: SimulatedClients | None = None
        self._source: Iterator[Item] = iter(())
        self._coming: Item | None = None
        plan = self.runtime.rebase(plan, stated or {}, now=begin)
        self._exits = exits or {}
        self._put(begin, EventOrder.REPLICA, PlanChanged(plan))
        for learnt in self.learnt(plan):
            self._put(begin, EventOrder.REPLICA, learnt)

    def learnt(self, plan: Plan) -> Iterator[RampsLearnt]:
        """Yield the events that give planners the ramps of the models in `plan`."""
        for pool in dict.fromkeys(deployment.pool for deployment in plan.deployments):
            exits = self._exits.get(pool.model)
            learnt = None if exits is None else exits.learnt(pool)
            if learnt is not None:
                yield learnt

    @property
    def in_flight(self) -> int:
        """Number of requests that the engine knows and that have no outcome yet."""
        return len(self._open)

    def put_turn(self, at: float, turn: Turn) -> None:
        """Let a client act at `at` (absolute seconds)."""
        self._put(at, EventOrder.CLIENT, _ClientTurn(turn))

    def join(self, clients: SimulatedClients) -> None:
        """Let `clients` act in this run. Call it before `run`."""
        self._clients = clients

    def run(self, items: Iterable[Item] = (), *, until: float = math.inf) -> None:
        """Deliver all events up to and including `until`, in order.

        `items` must be in order of arrival. Raises SimulationError if they are not, or if no event
        is left while a request has no outcome; ValueError for an impossible event.
        """
        self.begin(items)
        while (at := self.next_at()) <= until and at < math.inf:
            self.turn(at)
        if self._open and until == math.inf:
            raise SimulationError(
                f"{len(self._open)} requests have no outcome, and no event is left"
            )

    def begin(self, items: Iterable[Item]) -> None:
        """Start reading `items`. Callers of `run` need not call it."""
        self._source = iter(items)
        self._coming = next(self._source, None)

    def next_at(self, *, more: bool = False) -> float:
        """Return the instant of the next event; infinite if there is none. `more`: whether further
        events may be `put`."""
        heap, coming = self._heap, self._coming
        at = heap[0][0] if heap else math.inf
        if coming is not None and coming.arrival < at:
            at = coming.arrival
        wakeup = self.runtime.next_wakeup(more=more or at < math.inf)
        return at if wakeup is None or wakeup >= at else wakeup

    def turn(self, at: float) -> None:
        """Handle the first event at `at`, the result of `next_at`. Raises as `run` does."""
        coming = self._coming
        if coming is not None and coming.arrival <= at:
            if at < self.now:
                raise SimulationError(f"expected ascending times, got {at} s after {self.now} s")
            self._come(at, coming)
        elif self._heap and self._heap[0][0] <= at:
            self._step()
        else:
            self._fire(max(at, self.now))

    def put(self, at: float, event: Event | FrameEvent | RampsLearnt) -> None:
        """Add an event at `at`, not in the past; for callers that run several simulations."""
        self._put(at, ORDER_OF[type(event)], event)

    # ── time ─────────────────────────────────────────────────────────────────────────────────

    def _put(self, at: float, kind: EventOrder, event: _Happens) -> None:
        """Put `event` on the heap for `at`; if it is an upload, its body is complete then."""
        heappush(self._heap, (at, kind, self._put_down, event))
        self._put_down += 1

    def _put_report(self, at: float, report: Report) -> None:
        self._put(at, ORDER_OF[type(report)], report)

    def _take_in(self, item: Item) -> None:
        """Put an item from outside, whose instant has come, on the heap."""
        if isinstance(item, Request):
            self._put(item.arrival, EventOrder.REQUEST, Submitted(item))
        elif isinstance(item, SimulatedUpload):
            self._open[item.notice.id] = item.request or item.notice
            self._put(item.arrival, EventOrder.NOTICE, Announced(item.notice))
            if item.request is not None:
                self._put(item.complete_at, EventOrder.REQUEST, item)
        elif isinstance(item, ExternalEvent):
            self._put(item.arrival, ORDER_OF[type(item.event)], item.event)
        else:
            self._put(item.arrival, EventOrder.REPLICA, item)

    def _come(self, at: float, item: Item) -> None:
        """Take in the items that arrive at `at`, and deliver the first event of that instant."""
        source, heap = self._source, self._heap
        coming = self._coming = next(source, None)
        lone = (not heap or at < heap[0][0]) and (coming is None or coming.arrival > at)
        if lone and isinstance(item, Request):
            # The usual case: nothing else happens at this instant, so nothing must be sorted.
            self._open[item.id] = item
            self._deliver((Submitted(item),), at)
            return
        self._take_in(item)
        while coming is not None and coming.arrival <= at:
            if coming.arrival < at:
                raise SimulationError(
                    f"expected ascending times, got {coming.arrival} s after {at} s"
                )
            self._take_in(coming)
            coming = self._coming = next(source, None)
        self._step()

    def _fire(self, at: float) -> None:
        """Deliver the engine's timer."""
        self._turns = self._turns + 1 if at == self._fired_at else 0
        self._fired_at = at
        if self._turns > _TURNS_MOST:
            raise SimulationError(f"the engine requests its timer at {at} s in an endless loop")
        self._deliver((TimerFired(),), at)

    def _step(self) -> None:
        """Deliver the first event on the heap, and the requests of the same instant."""
        heap = self._heap
        at, kind, _, first = heappop(heap)
        self.now = at
        if isinstance(first, _ClientTurn):
            turn_events = first.turn(at)
            for news in turn_events:
                if isinstance(news, Submitted):
                    self._open[news.request.id] = news.request
                elif isinstance(news, Announced):
                    self._open[news.notice.id] = news.notice
            if turn_events:
                self._deliver(turn_events, at)
            return
        if kind not in _TOGETHER:
            event = self._event(first)
            if event is not None:
                self._deliver((event,), at)
            return
        together: list[_Happens] = [first]
        while heap and heap[0][0] == at and heap[0][1] in _TOGETHER:
            if _announced_in(together, heap[0][3]):
                break  # the sender first learns whether the server wants the body
            together.append(heappop(heap)[3])
        events = [event for happening in together if (event := self._event(happening)) is not None]
        if events:
            self._deliver(events, at)

    def _event(self, happening: _Happens) -> RuntimeEvent | None:
        """Return the event that the engine gets; None if it no longer happens."""
        if isinstance(happening, Report):
            return happening if self.hardware.happens(happening, now=self.now) else None
        if isinstance(happening, _ClientTurn):
            return None  # `_step` handles clients' turns
        if isinstance(happening, Submitted):
            self._open[happening.request.id] = happening.request
        elif isinstance(happening, SimulatedUpload):
            if happening.request is None or happening.request.id not in self._open:
                return None  # the sender has got its outcome and sends no body
            return Submitted(happening.request)
        elif isinstance(happening, Failure):
            return self.hardware.fails(happening, now=self.now)
        elif self._frames is not None and type(happening) in _FRAME_EVENTS:
            return happening if self._frames.still_happens(cast(FrameEvent, happening)) else None
        return happening

    def _deliver(self, events: Sequence[RuntimeEvent], at: float) -> None:
        self.now = at
        runtime_commands = self.runtime.handle(events, now=at)
        commands = cast(Sequence[Command], runtime_commands)
        yields: Sequence[StageYielded] = ()
        if self.runtime.frames is not None:
            commands, yields = self._framed(runtime_commands, at)
        clients = self._clients
        if clients is not None and clients.plan is not self.engine.plan:
            clients.plan_changed(self.engine.plan, now=at)
        if self._check:
            check_invariants(self.engine)
        for job in self.runtime.take_jobs():
            self._put(at + self._job_s, EventOrder.REPLICA, job.run())
        for command in commands:
            if type(command) is FreeSlots:
                continue  # the simulation has no slots
            if type(command) is not Answer:
                if clients is not None and type(command) is RunBatch:
                    clients.runs(command.batch)
                self.hardware.carry_out(command, now=at)
            elif (request := self._open.pop(command.id, None)) is not None:
                if clients is not None:
                    clients.answered(command.id, command)
                if self._answered is not None:
                    self._answered(request, command)
        if yields:  # reading outputs takes no time
            self._deliver(yields, at)

    def _framed(
        self, commands: Sequence[RuntimeCommand], at: float
    ) -> tuple[Sequence[Command], Sequence[StageYielded]]:
        """Carry out commands about frames. Return all other commands, and what stages yield."""
        frames = self._frames
        assert frames is not None, "a run with pipelines needs `frames`"
        hardware_commands: list[Command] = []
        yields: list[StageYielded] = []
        for command in commands:
            if type(command) in _OF_FRAMES:
                frames.carry_out(cast(FrameCommand, command), now=at)
                continue
            hardware_commands.append(cast(Command, command))
            if type(command) is Answer and command.id < 0:
                yielded = frames.answered(command, now=at)
                if yielded is not None:
                    yields.append(yielded)
        frames.on_commands(hardware_commands, now=at)
        if self._check and self.runtime.frames is not None:
            self.runtime.frames.check()
        return hardware_commands, yields


def _announced_in(events: Sequence[_Happens], happening: object) -> bool:
    """Return whether `happening` is the body of a request that one of `events` announces."""
    return isinstance(happening, SimulatedUpload) and any(
        isinstance(event, Announced) and event.notice.id == happening.notice.id for event in events
    )
