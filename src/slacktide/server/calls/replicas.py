"""`ReplicaSupervisor`: starts, resizes and stops a driver's replicas, and handles their reports.

Reports go to the engine immediately.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from slacktide.domain import (
    Batch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    BatchTiming,
    Cancelled,
    Event,
    ExitReport,
    PoolId,
    PublishExits,
    Reason,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    ResizeLane,
    RowsReleased,
    StopReplica,
    TellCircuit,
)
from slacktide.executors.ports import (
    NO_FAULTS,
    NOTHING_REMEMBERED,
    Arranged,
    BatchOrder,
    BatchOutputs,
    FeaturesSeen,
    MemberFault,
    MembersReleased,
    OpenedModel,
    Payload,
    PicturesDamaged,
    ReplicaHandle,
    Report,
    Reporter,
    Resized,
    RowsKept,
    RowsMismatch,
)
from slacktide.exits import SessionMemory
from slacktide.models.resize_tracker import ResizeTracker
from slacktide.planning.exits import ExitsArranged

log = logging.getLogger("slacktide.driver")

START_AGAIN_S = 1.0
"""Seconds until a replica that found no free file descriptor is started again."""


def arranged(replica: Replica, event: Arranged) -> ExitsArranged:
    """Return the planners' event for a replica's new stages."""
    details = (event.revision, event.ramps, event.detail, event.rows, event.whole_s, event.stage_s)
    return ExitsArranged(replica.pool, replica.id, *details)


class Launcher(Protocol):
    """Starts replicas and is notified of their events."""

    def start(self, replica: Replica, report: Reporter) -> ReplicaHandle: ...

    def ready(self, replica: Replica, opened: OpenedModel) -> str | None:
        """Called when a replica is warm. Returns why to refuse it for good, or None."""

    def lost(self, replica: Replica, event: ReplicaLost, *, out_of_memory: bool) -> None: ...

    def stopped(self, replica: Replica) -> None:
        """Called when a replica is stopped on purpose; it reports nothing more."""

    def finished(
        self, batch: Batch, timing: BatchTiming, seconds: float, exits: ExitReport | None = None
    ) -> None:
        """Called when a batch is done, `seconds` after it was sent. `exits`: report of its
        ramps."""

    def early_exits(self, replica: Replica, event: Arranged | FeaturesSeen) -> None:
        """Called when a replica begins to run its batches through other stages, or reports features
        to learn ramps from."""

    def rows_mismatch(self, replica: Replica, event: RowsMismatch) -> None:
        """Called when an output has more or fewer rows than the input."""

    def pictures_damaged(self, replica: Replica, event: PicturesDamaged) -> None:
        """Called when pictures of a batch may be damaged."""

    def circuit(self, command: TellCircuit) -> None:
        """Called when a version becomes unavailable or available again."""


class ReplicaSupervisor:
    """Replicas by id, from StartReplica to StopReplica or their end. Belongs to the driver's
    loop."""

    def __init__(
        self,
        launcher: Launcher,
        clock: Callable[[], float],
        *,
        keep: Callable[[Batch, Sequence[Request], BatchOutputs, BatchTiming], None],
        post: Callable[[Event | ExitsArranged], None],
        flush: Callable[[], None],
    ) -> None:
        """`keep` stores results of batch members; `post` and `flush` are the driver's."""
        self._launcher = launcher
        self._clock = clock
        self._keep = keep
        self._post = post
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._handles: dict[int, ReplicaHandle] = {}
        self._replicas: dict[int, Replica] = {}
        self._batches: dict[int, Batch] = {}
        self._last_members: dict[int, tuple[Request, ...]] = {}
        """By replica: members of its last batch with early exits."""
        self._mismatches: dict[int, str] = {}
        """Message about an output with the wrong number of rows, by id of the running batch."""
        self._memories: dict[PoolId, SessionMemory[bytes]] = {}
        """Remembered answers of pools, until their last replica is stopped."""
        self._logged_pids: set[int | None] = set()
        """Processes whose end was already logged. Replicas may share a process."""
        self.resizes = ResizeTracker(clock, post)

    def descriptor(self, id: int) -> int | None:
        """File descriptor that becomes readable when the replica reports; None if there is none."""
        handle = self._handles.get(id)
        return None if handle is None else handle.descriptor

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    def start(self, replica: Replica) -> None:
        report = partial(self._reported, replica)
        self._replicas[replica.id] = replica
        try:
            self._handles[replica.id] = self._launcher.start(replica, report)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                # Clients hold all file descriptors, so this start is not one of the model's five
                # crashes.
                log.warning(
                    "no file descriptor left for a replica of %s: starting it later", replica.pool
                )
                self._loop.call_later(START_AGAIN_S, self._start_again, replica.id)
                return
            log.exception("replica %d of %s could not be started", replica.id, replica.pool)
            lost = ReplicaLost(replica.id, f"could not be started: {error}")
            self._loop.call_soon(report, lost)

    def _start_again(self, id: int) -> None:
        replica = self._replicas.get(id)
        if replica is not None:
            self.start(replica)

    def stop(self, command: StopReplica) -> None:
        replica = command.replica
        if command.kill:
            handle = self._handles.get(replica.id)
            if handle is not None:
                if handle.pid is not None:
                    self._logged_pids.add(handle.pid)
                runs = any(batch.replica.id == replica.id for batch in self._batches.values())
                why = "hung on a batch" if runs else "did not start in time"
                log.warning("replica %d of %s %s: killing it", replica.id, replica.pool, why)
                handle.kill()
            elif replica.id in self._replicas:  # waiting for a file descriptor
                lost = ReplicaLost(replica.id, "the server has no file descriptor left")
                self._loop.call_soon(self._reported, replica, lost)
        else:
            self._replicas.pop(replica.id, None)
            handle = self._handles.get(replica.id)
            if handle is not None:
                handle.stop()
            self._let_go(replica)
            if not any(running.pool == replica.pool for running in self._replicas.values()):
                self._memories.pop(replica.pool, None)
            self.resizes.gone(replica.lane, replica.id)
            self._launcher.stopped(replica)

    def run(self, batch: Batch, payloads: list[Payload]) -> None:
        handle = self._handles.get(batch.replica.id)
        if handle is not None:  # else it was lost meanwhile
            self._batches[batch.id] = batch
            handle.run(
                BatchOrder(
                    *(batch.id, payloads, 0, batch.leaving, batch.held),
                    remembered=self._remembered(batch),
                    refreshes=batch.refreshes,
                )
            )

    def _remembered(self, batch: Batch) -> Mapping[int, bytes]:
        """Return the remembered answers of members, by place; see `BatchOrder.remembered`."""
        memory = self._memories.get(batch.replica.pool)
        if memory is None:
            return NOTHING_REMEMBERED
        return {
            place: memory.recall(member.session, member.frame, now=batch.started) or b""
            for place, member in enumerate(batch.members)
            if member.session and member.rows == 1
        }

    def publish(self, command: PublishExits) -> None:
        handle, policy = self._handles.get(command.replica.id), command.policy
        if policy.remember_frames and policy.pool not in self._memories:
            memory = SessionMemory[bytes](policy.remember_frames, policy.remember_s)
            self._memories[policy.pool] = memory
        if handle is not None:  # else it was lost in the same turn
            handle.publish(policy)

    def abort(self, batch: Batch) -> None:
        handle = self._handles.get(batch.replica.id)
        if handle is not None:  # else it was lost in the same turn
            handle.abort(batch.id)

    def resize(self, command: ResizeLane) -> None:
        ids = [replica.id for replica in command.replicas]
        handles = {id: self._handles[id] for id in ids if id in self._handles}
        for id in ids:
            if id in self._replicas and id not in handles:  # waiting for a file descriptor
                self._replicas[id] = replace(self._replicas[id], cores=command.cores)
        self.resizes.begin(command.lane, command.cores, handles)
        for handle in handles.values():
            handle.resize(command.cores)

    def close(self) -> None:
        """Stop every replica and ignore later reports."""
        for handle in self._handles.values():
            handle.stop()
        self._handles.clear()
        self._replicas.clear()

    # ── reports of replicas ─────────────────────────────────────────────────────────────────

    def _reported(
        self,
        replica: Replica,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        if replica.id not in self._replicas:
            return  # stopped
        match event:
            case Resized():
                self.resizes.reported(replica.lane, replica.id, event, intended=replica.cores)
            case BatchFinished():
                self._finished(event, outputs, faults)
            case MembersReleased():
                self._released(event, outputs)
            case BatchFailed():
                del self._batches[event.batch]
                self._mismatches.pop(event.batch, None)
                log.warning("%s failed on a batch: %s", replica.pool, event.detail)
                self._post(event)
            case BatchAborted():
                batch = self._batches.pop(event.batch)
                if event.exits is not None:  # all members had been answered, and others waited
                    seconds = self._clock() - batch.started
                    timing = BatchTiming(infer_s=seconds)
                    self._launcher.finished(batch, timing, seconds, event.exits)
                self._post(event)
            case Arranged():
                self._launcher.early_exits(replica, event)
                if not event.untimed:
                    self._post(arranged(replica, event))
            case FeaturesSeen():
                self._features_seen(replica, event)
            case RowsKept():
                self._keep_rows(event)
            case RowsMismatch():
                self._mismatches[event.batch] = event.detail
                self._launcher.rows_mismatch(replica, event)
            case PicturesDamaged():
                self._launcher.pictures_damaged(replica, event)
            case ReplicaUp():
                assert opened is not None
                refusal = self._launcher.ready(replica, opened)
                if refusal is None:
                    self._post(event)
                else:
                    self._handles[replica.id].stop()
                    self._lost(replica, ReplicaLost(replica.id, refusal, permanent=True))
            case ReplicaLost():
                self._lost(replica, event, out_of_memory=out_of_memory)
        self._flush()

    def _features_seen(self, replica: Replica, event: FeaturesSeen) -> None:
        members = self._last_members.get(replica.id, ())
        names = [member.application for member in members for _ in range(member.rows)]
        if len(names) == event.rows:
            event = replace(event, applications=tuple(names))
        self._launcher.early_exits(replica, event)

    def _keep_rows(self, event: RowsKept) -> None:
        batch = self._batches[event.batch]
        memory = self._memories.get(batch.replica.pool)
        if memory is None:
            return
        for place, content in event.contents.items():
            member = batch.members[place]
            memory.keep(member.session, member.frame, batch.started, content, len(content))

    def _finished(
        self, event: BatchFinished, outputs: BatchOutputs, faults: Mapping[int, MemberFault]
    ) -> None:
        batch = self._batches.pop(event.batch)
        if event.exits is not None:
            self._last_members[batch.replica.id] = batch.members
        mismatch = self._mismatches.pop(event.batch, "")
        if mismatch and batch.members[0].parent is not None:  # pipelines rely on row counts
            faults = {0: MemberFault(mismatch, of_glue=True)}
        if faults:  # mostly bad images: only these members fail
            for member, fault in faults.items():
                reason = Reason.RUNTIME_ERROR if fault.of_glue else Reason.BAD_INPUT
                self._post(Cancelled(batch.members[member].id, reason, fault.detail))
        self._keep(batch, batch.members, outputs, event.timing)
        seconds = self._clock() - batch.started
        self._launcher.finished(batch, event.timing, seconds, event.exits)
        self._post(event)

    def _released(self, event: MembersReleased, outputs: BatchOutputs) -> None:
        batch = self._batches[event.batch]
        members = [batch.members[place] for place in event.members]
        self._keep(batch, members, outputs, BatchTiming(infer_s=self._clock() - batch.started))
        self._post(RowsReleased(batch.id, tuple([member.id for member in members]), event.ramp))

    def _lost(self, replica: Replica, event: ReplicaLost, *, out_of_memory: bool = False) -> None:
        del self._replicas[replica.id]
        self._last_members.pop(replica.id, None)
        handle = self._handles.get(replica.id)
        pid = None if handle is None else handle.pid
        if pid not in self._logged_pids:
            log.warning("replica %d of %s is lost: %s", replica.id, replica.pool, event.detail)
        if pid is not None:
            self._logged_pids.add(pid)
        self._let_go(replica)
        for id in [id for id, batch in self._batches.items() if batch.replica.id == replica.id]:
            del self._batches[id]
            self._mismatches.pop(id, None)
        self.resizes.gone(replica.lane, replica.id)
        self._launcher.lost(replica, event, out_of_memory=out_of_memory)
        self._post(event)

    def _let_go(self, replica: Replica) -> None:
        handle = self._handles.pop(replica.id, None)
        if handle is not None and self._logged_pids:
            self._logged_pids &= {handle.pid for handle in self._handles.values()}
