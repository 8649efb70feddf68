"""The wall-clock driver: delivers events to the engine, carries its commands out, keeps its timer.

Requests that come in one turn of the event loop are handed over together at its end, so that
they can share a batch; what a replica reports is handed over at once. Everything runs on one event
loop and nothing here waits; what planners want computed is computed on a thread. Payloads and
answers are kept by `pending.py`, replicas by `replicas.py`.
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
from slacktide.engine import Engine
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
"""Seconds by which the refusal of a hopeless request may be delayed while every lane is busy."""

LONG_BATCH_S: Final = 0.001
"""A shorter batch holds answers up for less than it costs to let them go first."""


class Driver:
    """One engine on one event loop."""

    def __init__(
        self,
        engine: Engine,
        launcher: Launcher,
        *,
        planners: Sequence[Planner] = (),
        recorder: Recorder | None = None,
    ) -> None:
        """`planners` plan while models serve; without, only loads and unloads do. Raises
        PlannerError if two of them own one field."""
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
        self.frames = ServedFrames(self._requests, self.post, self._frame_came)
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
        """Set when a plan could be neither put in force nor taken back: no state to serve from."""
        self._plan = engine.plan
        self.on_plan: Callable[[Plan], None] = lambda plan: None
        """Called when another plan is in force."""
        self._pause_due = False
        self._decided: list[tuple[Batch, list[Payload]]] = []
        """Batches that their workers are still to be given."""
        self.coalescing = ReadCoalescing(cores=len(os.sched_getaffinity(0)))

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    @property
    def requests(self) -> int:
        """Requests that have come so far."""
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
        self.coalescing.arrived(1, now=request.arrival)
        self.post(Submitted(request))

    def _frame_came(self, at: float) -> None:
        self.coalescing.arrived(1, now=at)

    def refuse(self, event: Refused, call: PendingRequest) -> None:
        self._requests.add(call)
        self.post(event)

    def cancel(self, id: int, reason: Reason) -> None:
        self.post(Cancelled(id, reason))

    def waiting(self) -> list[PendingRequest]:
        """Those that are here and have no outcome yet."""
        return self._requests.waiting()

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet or whose payload is still named."""
        return len(self._requests)

    def reclaim(self) -> bool:
        """Have what is kept for profiling given back, now; False if nothing is."""
        if not any(pool.held for pool in self.engine.snapshot().pools.values()):
            return False
        self.post(MemoryShort())
        self.flush()
        return True

    # ── plans ────────────────────────────────────────────────────────────────────────────────────

    def apply(self, base: Plan, stated: Stated | None = None) -> None:
        """Put a plan in force, now: `base`, and what planners make of it where models are `stated`
        to be planned for. Raises ControlError if that cannot be; then the plan before it is in
        force again."""
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
        """Deliver an event at the end of this turn of the loop, with others that come in it."""
        self._events.append(event)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Deliver what was posted, now."""
        self._flush_due = False
        if self._events:
            while self._events:  # what stages hand on comes while commands are carried out
                events, self._events = self._events, []
                self._deliver(events)
            self._arm()
            if self.coalescing.may_pause and not self._pause_due:
                self._pause_due = True
                self._loop.call_soon(self._pause)

    def _pause(self) -> None:
        """While every lane is busy, leave a shared core to the models for a moment."""
        self._pause_due = False
        self._hand_over()  # else a worker would sit idle through the pause
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
                # Called after what came meanwhile has been read.
                self._loop.call_soon(self.coalescing.resume)

    def _deliver(self, events: Sequence[RuntimeEvent]) -> None:
        if self._closed:
            return
        stalled = self._watch.look()
        if stalled > self._stalled:  # before what was read since: it is not as late as it looks
            events = [DriverStalled(stalled - self._stalled), *events]
            self._stalled = stalled
        # Never earlier than the engine's last time: clocks of callers may be a hair behind.
        now = max(self.clock(), self.engine.now)
        if self._timer.take_due(now=now):
            events = [*events, TimerFired()]  # one turn for both
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
            # While every lane is busy only expiries are due. Their answers can wait for the next
            # arrival or the end of a batch, a moment: waking up costs more than the answer.
            # Those of frames carry results, and cannot.
            prompt = self.engine.has_idle_lane or at == self._frames_due
            self._timer.set(at, patience=0.0 if prompt else EXPIRY_PATIENCE)

    @property
    def _frames_due(self) -> float:
        """When the next frame is to be answered with what it has."""
        frames = self.runtime.frames
        return math.inf if frames is None else frames.next_deadline

    def _wake(self) -> None:
        at = self.runtime.next_wakeup()
        # The loop's clock is coarse and may fire a hair early: wait for the rest.
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
                    # A worker that is given a batch takes the core at once, and the transports
                    # write what they were given at the end of this turn: answers go first.
                    self._decided.append((batch, payloads))
                    self._loop.call_soon(self._hand_over)
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
                self._hand_over()  # batches that were decided before go by the policy of then
                self.replicas.publish(command)

    def _hand_over(self) -> None:
        decided, self._decided = self._decided, []
        for batch, payloads in decided:
            self.replicas.run(batch, payloads)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop every replica and answer nothing more."""
        self._closed = True
        self._timer.clear()
        self.replicas.close()
        self._requests.refuse_all(now=self.clock())
