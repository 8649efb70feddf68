"""The wall-clock driver: delivers events to the engine, carries its commands out, keeps its timer.

Requests that come in one turn of the event loop are handed over together at its end, so that
they can share a batch; what a replica reports is handed over at once. Everything runs on one
event loop and nothing here waits.

Payloads and answers stay here, by request id: the engine sees descriptors only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from slacktide.domain import (
    AbortBatch,
    Answer,
    Batch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    BatchTiming,
    Cancelled,
    Command,
    Event,
    FreeSlots,
    LaneResized,
    MemoryShort,
    Notice,
    Outcome,
    Reason,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    ResizeLane,
    RunBatch,
    StartReplica,
    StopReplica,
    Submitted,
    TimerFired,
)
from slacktide.domain.events import Announced
from slacktide.engine import Engine
from slacktide.executors.ports import (
    Aborted,
    Failed,
    Finished,
    Lost,
    Payload,
    Ready,
    ReplicaHandle,
    Report,
    Resized,
)
from slacktide.server.alarm import Alarm
from slacktide.server.moderation import Moderation

log = logging.getLogger("slacktide.driver")

EXPIRY_PATIENCE = 0.004
"""Seconds that a request which has become hopeless may wait to be told so, on a busy lane."""

START_AGAIN_S = 1.0
"""Seconds until a replica that found no free file descriptor is tried again."""

Outputs = tuple[tuple[tuple[int, ...], bytes], ...]
"""Shape and raw bytes of every output of one request, in the model's order."""


class Done(Protocol):
    """Told of a request's outcome; `outputs` is None unless a result was computed."""

    def __call__(
        self, outcome: Outcome, outputs: Outputs | None, timing: BatchTiming | None
    ) -> None: ...


class Launcher(Protocol):
    """Starts replicas for the driver, and hears what becomes of them."""

    def start(self, replica: Replica, report: Callable[[Report], None]) -> ReplicaHandle: ...

    def ready(self, replica: Replica, report: Ready) -> str | None:
        """A replica is warm. A sentence refuses it for good."""
        ...

    def lost(self, replica: Replica, detail: str) -> None: ...

    def stopped(self, replica: Replica) -> None:
        """A replica is no longer wanted; nothing more is heard of it."""
        ...

    def finished(self, batch: Batch, timing: BatchTiming, seconds: float) -> None:
        """A batch is done, `seconds` after it was handed over."""
        ...


class Recorder(Protocol):
    """Remembers what the engine is told and what it commands."""

    def called(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        """The engine has handled `events` at `now`."""
        ...

    def encode(self) -> None:
        """The commands have been carried out: there is time to write them down."""
        ...


class _Work:
    """What the driver keeps of one request."""

    __slots__ = ("done", "outputs", "payload", "release", "timing")

    def __init__(self, done: Done, release: Callable[[], None] | None) -> None:
        self.done: Done | None = done
        self.release = release
        self.payload: Payload | None = None
        self.outputs: Outputs | None = None
        self.timing: BatchTiming | None = None


class Driver:
    """One engine on one event loop."""

    def __init__(
        self, engine: Engine, launcher: Launcher, *, recorder: Recorder | None = None
    ) -> None:
        self.engine = engine
        self._recorder = recorder
        self.clock = time.monotonic
        self._launcher = launcher
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._flush_due = False
        self._alarm = Alarm(self._loop, self.clock, self._wake)
        self._work: dict[int, _Work] = {}
        self._next_id = 0
        self._handles: dict[int, ReplicaHandle] = {}
        self._replicas: dict[int, Replica] = {}
        self._batches: dict[int, Batch] = {}
        self._resizing: dict[str, tuple[tuple[int, ...], set[int]]] = {}
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._closed = False
        self._pause_due = False
        self.moderation = Moderation(cores=len(os.sched_getaffinity(0)))

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def announce(
        self, notice: Notice, done: Done, release: Callable[[], None] | None = None
    ) -> None:
        """A request's headers are here. `done` is called once, at the latest at its deadline."""
        self._work[notice.id] = _Work(done, release)
        self.post(Announced(notice))

    def submit(
        self,
        request: Request,
        payload: Payload,
        done: Done,
        release: Callable[[], None] | None = None,
    ) -> None:
        """A request is here, its payload written. `release` is called once, when nothing names
        the payload any more."""
        work = self._work.get(request.id)
        if work is None:
            work = self._work[request.id] = _Work(done, release)
        else:
            work.done = done
        work.payload = payload
        self.moderation.arrived(1, now=request.arrival)
        self.post(Submitted(request))

    def refuse(self, event: Event, id: int, done: Done) -> None:
        """A request that never gets a payload: counted by the engine, answered through `done`."""
        if id not in self._work:
            self._work[id] = _Work(done, None)
        self.post(event)

    def is_open(self, id: int) -> bool:
        """Whether the request still waits for its answer."""
        work = self._work.get(id)
        return work is not None and work.done is not None

    def cancel(self, id: int, reason: Reason) -> None:
        """Withdraw; `done` is not called any more."""
        work = self._work.get(id)
        if work is not None and work.done is not None:
            work.done = None
            self.post(Cancelled(id, reason))

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet or whose payload is still named."""
        return len(self._work)

    async def idle(self) -> None:
        """Return once no request is in flight."""
        if self._work:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def reclaim(self) -> bool:
        """Have what is kept for profiling given back, now; False if nothing is."""
        pools = self.engine.state.pools.values()
        if not any(pool.samples is not None and pool.samples.held for pool in pools):
            return False
        self.post(MemoryShort())
        self.flush()
        return True

    # ── events in ────────────────────────────────────────────────────────────────────────────

    def post(self, event: Event) -> None:
        """Deliver an event at the end of this turn of the loop, with others that come in it."""
        self._events.append(event)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Deliver what was posted, now."""
        self._flush_due = False
        if self._events:
            events, self._events = self._events, []
            self._deliver(events)
            if not self._pause_due:
                self._pause_due = True
                self._loop.call_soon(self._pause)

    def _pause(self) -> None:
        """While every lane is busy, leave a shared core to the models for a moment."""
        self._pause_due = False
        lanes = self.engine.state.lanes.values()
        running = [lane.running for lane in lanes if lane.running is not None]
        if not running or len(running) < len(lanes):
            return
        now = self.clock()
        seconds = self.moderation.pause_for(
            now=now,
            soonest_end=min(each.expected_end for each in running),
            shortest_batch=min(each.expected_end - each.batch.started for each in running),
            lane_cores=sum(len(lane.cores) for lane in lanes),
        )
        if seconds > 0.0:
            handles = [self._handles.get(each.batch.replica.id) for each in running]
            reports = [handle.descriptor for handle in handles if handle is not None]
            known = [descriptor for descriptor in reports if descriptor is not None]
            if len(known) == len(running):
                self.moderation.pause(seconds, known, now=now)
                # Called after what came meanwhile has been read.
                self._loop.call_soon(self.moderation.resume)

    def _deliver(self, events: Sequence[Event]) -> None:
        if self._closed:
            return
        # Never earlier than the engine has been told: clocks of callers may be a hair behind.
        now = max(self.clock(), self.engine.state.now)
        if self._alarm.take_due(now=now):
            events = [*events, TimerFired()]  # one turn for both
        for command in self._handled(events, now):
            self._carry_out(command)
        if self._recorder is not None:
            self._recorder.encode()
        self._arm()

    def _handled(self, events: Sequence[Event], now: float) -> list[Command]:
        """The engine's commands. Should an event be beyond it, those of all the others are carried
        out nevertheless: they hold the answers of other clients."""
        engine, recorder = self.engine, self._recorder
        commands: list[Command] = []
        while True:
            before = engine.events_seen
            try:
                given = engine.handle_all(events, now=now)
                if recorder is not None:
                    recorder.called(events, now, given)
                return [*commands, *given] if commands else given
            except Exception:
                log.exception("the engine could not handle an event")
                given = engine.state.runs + engine.state.commands
                if recorder is not None:
                    recorder.called(events, now, given)
                commands += given
                handled = engine.events_seen - before
                if not handled:  # nothing but lanes to be filled was left
                    return commands
                events = events[handled:]

    def _arm(self) -> None:
        at = self.engine.next_wakeup()
        if at is not None:
            # While every lane is busy only expiries are due. Their answers can wait for the next
            # arrival or the end of a batch, a moment: waking up costs more than the answer.
            idle = any(lane.running is None for lane in self.engine.state.lanes.values())
            self._alarm.set(at, patience=0.0 if idle else EXPIRY_PATIENCE)

    def _wake(self) -> None:
        at = self.engine.next_wakeup()
        # The loop's clock is coarse and may fire a hair early: wait for the rest.
        if at is not None and self.clock() < at:
            self._arm()
        elif at is not None:
            self.post(TimerFired())
            self.flush()

    # ── commands out ─────────────────────────────────────────────────────────────────────────

    def _carry_out(self, command: Command) -> None:
        match command:
            case Answer():
                self._answer(command)
            case FreeSlots():
                self._free(command.ids)
            case RunBatch():
                self._run(command.batch)
            case AbortBatch():
                handle = self._handles.get(command.batch.replica.id)
                if handle is not None:  # else it was lost in the same breath
                    handle.abort(command.batch.id)
            case StartReplica():
                self._start(command.replica)
            case StopReplica():
                self._stop(command)
            case ResizeLane():
                self._resize(command)

    def _answer(self, command: Answer) -> None:
        work = self._work.get(command.id)
        if work is None or work.done is None:
            return
        done, work.done = work.done, None
        try:
            done(command.outcome, work.outputs, work.timing)
        except Exception:
            log.exception("the answer to request %d could not be delivered", command.id)

    def _free(self, ids: tuple[int, ...]) -> None:
        for id in ids:
            work = self._work.pop(id, None)
            if work is not None and work.release is not None:
                work.release()
        if not self._work and self._idle_waiters:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _run(self, batch: Batch) -> None:
        payloads = [self._work[member.id].payload for member in batch.members]
        self._batches[batch.id] = batch
        self._handles[batch.replica.id].run(
            batch.id, [payload for payload in payloads if payload is not None]
        )

    def _start(self, replica: Replica) -> None:
        def report(report: Report) -> None:
            self._reported(replica, report)

        self._replicas[replica.id] = replica
        try:
            self._handles[replica.id] = self._launcher.start(replica, report)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                # Clients hold them all: no fault of the model's, so none of its five crashes.
                log.warning("no file descriptor for a replica of %s; it waits", replica.pool)
                self._loop.call_later(START_AGAIN_S, self._start_again, replica)
                return
            log.exception("replica %d of %s could not be started", replica.id, replica.pool)
            self._loop.call_soon(report, Lost(f"could not be started: {error}"))

    def _start_again(self, replica: Replica) -> None:
        if replica.id in self._replicas and not self._closed:
            self._start(replica)

    def _stop(self, command: StopReplica) -> None:
        replica = command.replica
        if command.kill:
            handle = self._handles.get(replica.id)
            if handle is not None:
                handle.kill()
            elif replica.id in self._replicas:  # it waits for a file descriptor
                lost = Lost("the server has no file descriptor left")
                self._loop.call_soon(self._reported, replica, lost)
        else:
            self._replicas.pop(replica.id, None)
            handle = self._handles.pop(replica.id, None)
            if handle is not None:
                handle.stop()
            self._launcher.stopped(replica)

    def _resize(self, command: ResizeLane) -> None:
        handles = [self._handles[r.id] for r in command.replicas if r.id in self._handles]
        waiting = {r.id for r in command.replicas if r.id in self._handles}
        self._resizing[command.lane] = (command.cores, waiting)
        for handle in handles:
            handle.resize(command.cores)
        self._resized(command.lane)

    def _resized(self, lane: str) -> None:
        cores, waiting = self._resizing[lane]
        if not waiting:
            del self._resizing[lane]
            self.post(LaneResized(lane, cores))

    # ── what replicas report ─────────────────────────────────────────────────────────────────

    def _reported(self, replica: Replica, report: Report) -> None:
        if replica.id not in self._replicas:
            return  # it was stopped
        match report:
            case Finished():
                self._finished(report)
            case Failed():
                del self._batches[report.batch]
                log.warning("%s failed on a batch: %s", replica.pool, report.detail)
                self.post(BatchFailed(report.batch, report.detail))
            case Aborted():
                del self._batches[report.batch]
                self.post(BatchAborted(report.batch))
            case Ready():
                refusal = self._launcher.ready(replica, report)
                if refusal is None:
                    self.post(ReplicaUp(replica.id))
                else:
                    self._gone(replica, Lost(refusal, permanent=True), stop=True)
            case Lost():
                self._gone(replica, report, stop=False)
            case Resized():
                if replica.lane in self._resizing:
                    self._resizing[replica.lane][1].discard(replica.id)
                    self._resized(replica.lane)
        self.flush()

    def _finished(self, report: Finished) -> None:
        # Copy before anything else: the replica's next batch overwrites its outputs.
        batch = self._batches.pop(report.batch)
        for member, outputs in zip(batch.members, report.outputs, strict=True):
            work = self._work.get(member.id)
            if work is not None and work.done is not None:
                work.outputs = tuple([(o.shape, bytes(o.data)) for o in outputs])
                work.timing = report.timing
        self._launcher.finished(batch, report.timing, self.clock() - batch.started)
        self.post(BatchFinished(report.batch, report.timing))

    def _gone(self, replica: Replica, report: Lost, *, stop: bool) -> None:
        del self._replicas[replica.id]
        handle = self._handles.pop(replica.id, None)
        if stop and handle is not None:
            handle.stop()
        for id in [id for id, batch in self._batches.items() if batch.replica.id == replica.id]:
            del self._batches[id]
        if replica.lane in self._resizing:
            self._resizing[replica.lane][1].discard(replica.id)
            self._resized(replica.lane)
        log.warning("replica %d of %s is lost: %s", replica.id, replica.pool, report.detail)
        self._launcher.lost(replica, report.detail)
        self.post(ReplicaLost(replica.id, report.detail, report.permanent))

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Stop every replica and answer nothing more."""
        self._closed = True
        self._alarm.clear()
        for handle in self._handles.values():
            handle.stop()
        self._handles.clear()
        self._replicas.clear()
        for work in self._work.values():
            if work.done is not None:
                done, work.done = work.done, None
                done(Outcome(Reason.DRAINING, self.clock()), None, None)
        self._free(tuple(self._work))
