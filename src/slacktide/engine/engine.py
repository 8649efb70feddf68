"""The engine: events in, commands out.

Theory of operation. The engine owns requests from their first event until their payload is
released, the lanes with their batches, and the pools with their queues. An event changes that
state; then every lane that it may have freed or filled is *dispatched*: the pools on the lane drop
hopeless requests, each proposes a batch, and the proposal that is worth most runs.

It does no I/O and reads no clock: `now` comes with every event, and `next_wakeup` says when a
driver must deliver `TimerFired`. Events that happen together may be handed over together
(`handle_all`); lanes are then dispatched once, after all of them, so that requests that arrive in
one read of the sockets can share a batch.

The parts that handle events are `requests`, `batches`, `replicas`, `resizing` and `deploying`. They
share `state`, with the requests in `request_table`. `unmeasured` holds requests whose run time
cannot be predicted; `early_exits` decides whether members may leave a batch; `idle_work` fills
idle lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from slacktide.domain import (
    Announced,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Command,
    DriverStalled,
    Event,
    LaneResized,
    MemoryShort,
    Plan,
    PlanChanged,
    Refused,
    ReplicaLost,
    ReplicaUp,
    RowsReleased,
    Submitted,
    TimerFired,
)
from slacktide.engine.batches import Batches
from slacktide.engine.deploying import Deploying
from slacktide.engine.early_exits import ExitRules
from slacktide.engine.idle_work import IdleWork
from slacktide.engine.ports import PoolFactory
from slacktide.engine.replicas import ReplicaLifecycle
from slacktide.engine.requests import Requests
from slacktide.engine.resizing import LaneResizing
from slacktide.engine.settings import EngineSettings
from slacktide.engine.snapshot import Snapshot
from slacktide.engine.state import EngineState
from slacktide.engine.unmeasured import UnmeasuredWork


class Engine:
    """The state machine under every driver. Not thread-safe: one driver, one thread."""

    def __init__(self, factory: PoolFactory, settings: EngineSettings | None = None) -> None:
        self.state = EngineState(factory, settings or EngineSettings())
        """For `check_invariants` and tests; everything else reads a `snapshot`."""
        self.events_seen = 0
        self.plan = Plan()
        """The last plan that was applied completely."""
        self.plan_done = True
        """False if applying the last PlanChanged raised an exception."""
        unmeasured = UnmeasuredWork(self.state)
        self._requests = Requests(self.state, unmeasured)
        self._idle = IdleWork(self.state)
        exits = ExitRules(self.state)
        self._batches = Batches(self.state, self._requests, self._idle, unmeasured, exits)
        self._replicas = ReplicaLifecycle(self.state, self._batches, self._idle, exits)
        self._resizing = LaneResizing(self.state)
        self._deploying = Deploying(
            self.state, self._requests, self._replicas, self._resizing, self._idle, exits
        )
        self._handlers: dict[type, Callable[[Any], None]] = {
            Announced: self._requests.announced,
            Submitted: self._requests.submitted,
            Refused: self._requests.refused,
            Cancelled: self._requests.cancelled,
            RowsReleased: self._batches.released,
            BatchFinished: self._batches.finished,
            BatchFailed: self._batches.failed,
            BatchAborted: self._batches.aborted,
            ReplicaUp: self._replicas.up,
            ReplicaLost: self._replicas.lost,
            LaneResized: self._resizing.resized,
            PlanChanged: self._plan_changed,
            MemoryShort: self._memory_short,
            DriverStalled: self._replicas.driver_stalled,
            TimerFired: self._timer_fired,
        }

    def handle(self, event: Event, *, now: float) -> list[Command]:
        """Apply one event at time `now` (seconds, never decreasing). Returns commands in order.
        Raises ValueError for an impossible event (an id in use, an unknown batch, decreasing time):
        a fault of the driver, not of a client."""
        return self.handle_all((event,), now=now)

    def handle_all(self, events: Sequence[Event], *, now: float) -> list[Command]:
        """Apply events that happened together; dispatch the lanes once, after all of them."""
        state = self.state
        if now < state.now:
            raise ValueError(f"time runs backwards: {now} after {state.now}")
        state.now = now
        state.runs = []
        state.commands = []
        for event in events:
            state.cause = self.events_seen
            self.events_seen += 1
            self._handlers[type(event)](event)
            if state.to_review:
                self._replicas.reconsider()
        while state.dirty:
            lanes, state.dirty, state.has_rescued = state.dirty, {}, False
            for lane in lanes.values():
                self._deploying.tidy(lane)
                self._batches.dispatch(lane)
            if not state.has_rescued:
                break
        return state.runs + state.commands if state.runs else state.commands

    @property
    def unfinished(self) -> list[Command]:
        """Commands that the last `handle_all` had made when it raised: all commands for the events
        before the failed event (number `events_seen` - 1), and some for the failed event."""
        return self.state.runs + self.state.commands

    @property
    def now(self) -> float:
        """Time of the last events."""
        return self.state.now

    @property
    def lane_changes(self) -> int:
        """Rises whenever a lane appears, disappears or has its cores confirmed."""
        return self.state.lane_changes

    @property
    def has_idle_lane(self) -> bool:
        """Whether a lane runs no batch."""
        return any(lane.running is None for lane in self.state.lanes.values())

    def snapshot(self, *, now: float | None = None) -> Snapshot:
        """A read-only view of everything. Durations refer to `now`, which must not be before the
        last event; None: the time of the last event."""
        return Snapshot(self.state, self.state.now if now is None else now)

    def next_wakeup(self) -> float | None:
        """When to deliver TimerFired (absolute seconds); None if there is nothing to wait for. A
        time in the past means that a scheduler's estimate has moved: deliver TimerFired
        immediately."""
        at = self._replicas.next_due
        notices = self._requests.next_due()
        if notices < at:
            at = notices
        for pool in self.state.pools.values():
            if pool.quiet:
                continue
            expiry = pool.scheduler.next_expiry()
            if expiry is not None and expiry < at:
                at = expiry
            if pool.unmeasured is not None and pool.unmeasured.next_expiry < at:
                at = pool.unmeasured.next_expiry
        for lane in self.state.lanes.values():
            running = lane.running
            if running is None:
                if lane.wait_until < at:
                    at = lane.wait_until
            elif running.hang_at < at and not running.placement.phase.dying:
                at = running.hang_at
            if lane.awaited_until < at:
                at = lane.awaited_until
        return at if at < math.inf else None

    def _plan_changed(self, event: PlanChanged) -> None:
        self.plan_done = False
        self._deploying.plan_changed(event)
        self.plan, self.plan_done = event.plan, True

    def _memory_short(self, _: MemoryShort) -> None:
        for pool in self.state.pools.values():
            self._idle.drop_held(pool)

    def _timer_fired(self, _: TimerFired) -> None:
        state = self.state
        self._requests.expire_notices()
        for pool in state.pools.values():
            self._requests.expire(pool)
        self._replicas.check_timers()
        self._resizing.check_timers()
        for lane in state.lanes.values():
            if lane.running is None and lane.wait_until <= state.now:
                state.mark(lane)
