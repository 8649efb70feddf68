"""`Driver`: delivers events to the engine, carries out its commands and keeps its timer.

Requests that arrive in one turn of the event loop are delivered together at its end, so that they
can share a batch; reports of replicas are delivered immediately. Everything runs on one event loop
and nothing here blocks; planners compute on a thread. `pending.py` keeps payloads and answers,
`replicas.py` the replicas.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from slacktide.domain import (
    AbortBatch,
    Answer,
    Batch,
    Cancelled,
    DriverStalled,
    FreeSlots,
    MemoryShort,
    Notice,
    Plan,
    PlanChanged,
    PublishExits,
    Reason,
    Refused,
    Request,
    ResizeLane,
    RunBatch,
    StartReplica,
    StopReplica,
    Submitted,
    TellCircuit,
    TimerFired,
)
from slacktide.domain.events import Announced
from slacktide.domain.frames import AnswerFrame, FreeFrame, PreparePayload
from slacktide.engine import Engine, NextStart, next_start
from slacktide.executors.hand_over.loop_watch import loop_watch
from slacktide.executors.ports import Payload
from slacktide.models.pipeline_version import PipelineVersion
from slacktide.planning import JobDone, Planner, PlannerError, Stated
from slacktide.recording import Recorder
from slacktide.runtime import Runtime, RuntimeCommand, RuntimeEvent
from slacktide.server.calls.driver_timing import DriverTimer, ReadCoalescing
from slacktide.server.calls.pending import PendingRequest, PendingRequests
from slacktide.server.calls.replicas import Launcher, ReplicaSupervisor
from slacktide.server.calls.route import CallRoute
from slacktide.server.frames import PipelineRoute, ServedFrames
from slacktide.wire.errors import ControlError

log = logging.getLogger("slacktide.driver")

EXPIRY_PATIENCE: Final = 0.004
"""Seconds by which a refusal may be delayed while every lane is busy."""

LONG_BATCH_S: Final = 0.001
"""A batch expected to take this many seconds or more is sent after the answers it would delay."""


class Driver:
    """Runs one engine on one event loop. It is also the `CallRoute` of every model."""

    def __init__(
        self,
        engine: Engine,
        launcher: Launcher,
        *,
        planners: Sequence[Planner] = (),
        recorder: Recorder | None = None,
    ) -> None:
        """Without `planners`, plans change only with loads and unloads. Raises PlannerError if two
        planners own one field."""
        self.engine = engine
        self.runtime = Runtime(
            engine,
            planners,
            watch=None if recorder is None else recorder.called,
            watch_frames=None if recorder is None else recorder.framed,
            on_fault=self._failed,
            on_lanes=self._lanes_changed,
            stopwatch=time.perf_counter,
        )
        self._launcher = launcher
        self._recorder = recorder
        self.clock = time.monotonic
        self._loop = asyncio.get_running_loop()
        self._watch = loop_watch(self._loop)
        self._stalled = self._watch.look()
        self._events: list[RuntimeEvent] = []
        self._flush_due = False
        self._timer = DriverTimer(self._loop, self.clock, self._wake)
        self._requests = PendingRequests()
        self.coalescing = ReadCoalescing(cores=len(os.sched_getaffinity(0)))
        self.frames = ServedFrames(self._requests, self.post, self.coalescing.arrived)
        """Calls of pipelines."""
        self.replicas = ReplicaSupervisor(
            launcher,
            self.clock,
            keep=self._requests.store_outputs,
            post=self.post,
            flush=self.flush,
        )
        self._next_id = 0
        self._closed = False
        self.broken = asyncio.Event()
        """Set when a plan could neither be applied nor reverted: the engine cannot continue."""
        self._plan = engine.plan
        self.on_plan: Callable[[Plan], None] = lambda plan: None
        """Called with each plan that takes effect."""
        self._pause_due = False
        self._unsent_batches: list[tuple[Batch, list[Payload]]] = []
        """Batches that have not been sent to their workers yet."""

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    @property
    def requests(self) -> int:
        """Number of requests so far."""
        return self._next_id

    def of_model(self) -> CallRoute:
        """The route of every model: the driver itself."""
        return self

    def of_pipeline(self, version: PipelineVersion) -> CallRoute:
        return PipelineRoute(self.frames, version)

    def announce(self, notice: Notice, call: PendingRequest) -> None:
        self._requests.add(call)
        self.post(Announced(notice))

    def submit(self, request: Request, call: PendingRequest) -> None:
        self._requests.add(call)
        self.coalescing.arrived(request.arrival)
        self.post(Submitted(request))

    def refuse(self, event: Refused, call: PendingRequest) -> None:
        self._requests.add(call)
        self.post(event)

    def cancel(self, id: int, reason: Reason) -> None:
        self.post(Cancelled(id, reason))

    def waiting(self) -> list[PendingRequest]:
        """Requests that have a payload and no outcome yet."""
        return self._requests.waiting()

    def next_start(self, model: str, pin: str) -> NextStart:
        """When the next request of a version would start."""
        return next_start(self.engine, model, pin, now=max(self.clock(), self.engine.now))

    @property
    def in_flight(self) -> int:
        """Number of requests that have no answer yet or whose payload is still in use."""
        return len(self._requests)

    def reclaim(self) -> bool:
        """Release the payloads kept for profiling. Returns False if there are none."""
        if not any(pool.held for pool in self.engine.snapshot().pools.values()):
            return False
        self.post(MemoryShort())
        self.flush()
        return True

    # ── plans ────────────────────────────────────────────────────────────────────────────────────

    def apply(self, base: Plan, stated: Stated | None = None) -> None:
        """Put a plan in force now: `base` as changed by the planners of the models in `stated`.
        Raises ControlError if that fails; then the previous plan stays in force."""
        self.flush()
        try:
            plan = self.runtime.rebase(base, stated or {}, now=self.clock())
        except PlannerError as error:
            raise ControlError("unavailable", str(error)) from error
        self.post(PlanChanged(plan))
        self.flush()
        if (fault := self.runtime.plan_fault) is not None:
            raise ControlError("unavailable", f"the engine cannot serve it: {fault!r}") from fault

    def _failed(self, fault: str, error: Exception, *, fatal: bool = False) -> None:
        if fatal:
            log.critical("%s", fault)
            self.broken.set()
        else:
            log.error("%s", fault, exc_info=error)

    # ── events in ────────────────────────────────────────────────────────────────────────────

    def post(self, event: RuntimeEvent) -> None:
        """Deliver an event at the end of this turn of the loop, with the turn's other events."""
        self._events.append(event)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Deliver posted events now."""
        self._flush_due = False
        if self._events:
            while self._events:  # commands of pipelines post further events
                events, self._events = self._events, []
                self._deliver(events)
            self._arm()
            if self.coalescing.may_pause and not self._pause_due:
                self._pause_due = True
                self._loop.call_soon(self._pause)

    def _pause(self) -> None:
        """While every lane is busy, pause the loop briefly if lanes use all of its cores."""
        self._pause_due = False
        self._send_batches()  # else a worker would idle through the pause
        if self.engine.has_idle_lane:
            return
        running = self.engine.snapshot().batches()
        if not running:
            return
        now = self.clock()
        seconds = self.coalescing.pause_for(
            now=now,
            soonest_end=min(self._frames_due, *(batch.expected_end for batch in running)),
            shortest_batch=min(batch.expected_end - batch.batch.started for batch in running),
        )
        if seconds > 0.0:
            reports = [self.replicas.descriptor(batch.batch.replica.id) for batch in running]
            descriptors = [descriptor for descriptor in reports if descriptor is not None]
            if len(descriptors) == len(running):
                self.coalescing.pause(seconds, descriptors, now=now)
                # Called after the loop has read what arrived during the pause.
                self._loop.call_soon(self.coalescing.resume)

    def _deliver(self, events: Sequence[RuntimeEvent]) -> None:
        if self._closed:
            return
        stalled = self._watch.look()
        if stalled > self._stalled:  # first, or the other events would look late
            events = [DriverStalled(stalled - self._stalled), *events]
            self._stalled = stalled
        # The engine's time never goes back, even if the clock is slightly behind it.
        now = max(self.clock(), self.engine.now)
        if self._timer.take_due(now=now):
            events = [*events, TimerFired()]  # in the same turn
        for command in self.runtime.handle(events, now=now):
            self._carry_out(command)
        if self.engine.plan is not self._plan:
            self._plan = self.engine.plan
            self.on_plan(self._plan)
        for job in self.runtime.take_jobs():
            self._loop.run_in_executor(None, job.run).add_done_callback(self._computed)
        if self._recorder is not None:
            self._recorder.encode()

    def _lanes_changed(self, cores: Mapping[str, int], _: float) -> None:
        self.coalescing.lanes_have(sum(cores.values()))

    def _computed(self, job: asyncio.Future[JobDone]) -> None:
        if not job.cancelled():
            self.post(job.result())

    def _arm(self) -> None:
        if self._closed:
            return
        at = self.runtime.next_wakeup()
        if at is not None:
            # While every lane is busy only expiries are due. Their answers can wait briefly for the
            # next arrival or end of a batch: waking up costs more than the answer. Answers of
            # frames carry results and cannot wait.
            prompt = self.engine.has_idle_lane or at == self._frames_due
            self._timer.set(at, patience=0.0 if prompt else EXPIRY_PATIENCE)

    @property
    def _frames_due(self) -> float:
        """Time at which the next frame must be answered, even without some of its results."""
        frames = self.runtime.frames
        return math.inf if frames is None else frames.next_deadline

    def _wake(self) -> None:
        at = self.runtime.next_wakeup()
        # The loop's clock is coarse and may fire slightly early: wait for the rest.
        if at is not None and self.clock() < at:
            self._arm()
        elif at is not None:
            self.post(TimerFired())
            self.flush()

    # ── commands out ─────────────────────────────────────────────────────────────────────────

    def _carry_out(self, command: RuntimeCommand) -> None:
        match command:
            case Answer():
                self._requests.answer(command)
            case FreeSlots():
                self._requests.free(command.ids)
            case RunBatch():
                batch, payloads = command.batch, self._requests.payloads(command.batch)
                self.coalescing.expected = command.expected
                if self.coalescing.shares_core and command.expected >= LONG_BATCH_S:
                    # A worker takes the core as soon as it gets a batch, but transports write at
                    # the end of this turn: let answers go first.
                    self._unsent_batches.append((batch, payloads))
                    self._loop.call_soon(self._send_batches)
                else:
                    self.replicas.run(batch, payloads)
            case AbortBatch():
                self.replicas.abort(command.batch)
            case StartReplica():
                self.replicas.start(command.replica)
            case StopReplica():
                self.replicas.stop(command)
            case ResizeLane():
                self.replicas.resize(command)
            case TellCircuit():
                self._launcher.circuit(command)
            case PreparePayload():
                self.frames.prepare(command)
            case AnswerFrame():
                self.frames.answer(command)
            case FreeFrame():
                self.frames.free(command.id)
            case PublishExits():
                self._send_batches()  # earlier batches run under the earlier policy
                self.replicas.publish(command)

    def _send_batches(self) -> None:
        batches, self._unsent_batches = self._unsent_batches, []
        for batch, payloads in batches:
            self.replicas.run(batch, payloads)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop every replica and refuse the waiting requests."""
        self._closed = True
        self._timer.clear()
        self.replicas.close()
        self._requests.refuse_all(now=self.clock())
