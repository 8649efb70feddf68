"""`SharedReplicas`: replicas of one file that differ only in image size, and share one session.

Variants of a file by image size need no sessions of their own, because each batch states its size.
So the first such replica on a lane starts a real one, and later ones join it. To a driver each is a
separate replica: it starts, runs batches, moves and stops independently. But if the real replica is
lost, or any replica that shares it is killed, all are lost. The loss is blamed on the replica that
ran a batch or, if none did, on the last to join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from slacktide.domain import ExitPolicy, Replica, ReplicaLost, ReplicaUp
from slacktide.domain.crops import Glue
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import (
    Arranged,
    BatchOrder,
    BatchOutputs,
    FeaturesSeen,
    MembersReleased,
    ModelSource,
    OpenedModel,
    PicturesDamaged,
    ReplicaHandle,
    Report,
    Reporter,
    Resized,
    RowsMismatch,
)


class SharedReplicas:
    """The shared replicas of one executor."""

    def __init__(
        self, start: Callable[[Replica, ModelSource, Arena, Reporter], ReplicaHandle]
    ) -> None:
        """`start` starts a real replica."""
        self._start = start
        self._shared: dict[Hashable, _Shared] = {}

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> SizedReplica:
        """Like `Executor.start`, for a source with an `image_size`."""
        pool = replica.pool._replace(variant="")
        key = (replica.lane, replica.device, pool, source.path, arena)
        shared = self._shared.get(key)
        if shared is None:
            shared = _Shared(replica.cores, lambda: self._shared.pop(key))
            shared.handle = self._start(replica, source, arena, shared.report)
            self._shared[key] = shared
        return shared.join(replica, source.image_size, report)


class _Shared:
    """The real replica behind the replicas of one file on one lane."""

    handle: ReplicaHandle

    def __init__(self, cores: tuple[int, ...], ended: Callable[[], object]) -> None:
        """`ended` is called once, when no replica may join any more."""
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._members: dict[int, SizedReplica] = {}
        self._running: dict[int, SizedReplica] = {}
        """Replicas by the batch that they run."""
        self._opened: OpenedModel | None = None
        self._attached: set[int] = set()
        self._cores = cores
        self._resized: Resized | None = Resized(cores)
        """The last report of a move to `_cores`; None during the move."""

    def join(self, replica: Replica, size: int, report: Reporter) -> SizedReplica:
        member = self._members[replica.id] = SizedReplica(self, replica.id, size, report)
        if self._opened is not None:
            self._loop.call_soon(member.up, self._opened)
        if replica.cores != self._cores or (self._resized and self._resized.detail):
            self.resize(member, replica.cores)
        return member

    def run(self, member: SizedReplica, order: BatchOrder) -> None:
        self.handle.run(BatchOrder(order.batch, order.members, member.size))
        self._running[order.batch] = member

    def resize(self, member: SizedReplica, cores: tuple[int, ...]) -> None:
        """Move once for all replicas: replicas that request the same cores share one report."""
        if cores != self._cores:
            self._cores, self._resized = cores, None
            self.handle.resize(cores)
        elif self._resized is not None:
            self._loop.call_soon(member.tell, self._resized)

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Attach once for all replicas."""
        if number not in self._attached:
            self._attached.add(number)
            self.handle.attach(number, frames, glue)

    def detach(self, number: int) -> None:
        if number in self._attached:
            self._attached.discard(number)
            self.handle.detach(number)

    def leave(self, member: SizedReplica) -> None:
        if self._members.pop(member.id, None) is not None and not self._members:
            self._ended()
            self.handle.stop()

    def report(self, event: Report, outputs: BatchOutputs = (), **more: Any) -> None:
        """Pass on a report of the real replica. Implements `Reporter`."""
        members = tuple(self._members.values())
        if isinstance(event, ReplicaUp):
            self._opened = opened = more["opened"]
            for member in members:
                member.up(opened)
        elif isinstance(event, Resized):
            self._resized = event
            for member in members:
                member.tell(event)
        elif isinstance(event, RowsMismatch | PicturesDamaged):
            if event.batch in self._running:
                self._running[event.batch].tell(event)
        elif isinstance(event, ReplicaLost):
            self._members.clear()
            self._ended()
            # The replica that runs a batch is reported last. Until then its lane seems busy, so
            # that the other replicas, which are lost too, get no batch.
            busy = set(self._running.values())
            ordered = sorted(members, key=lambda member: member in busy)
            for member in ordered:
                shared = member is not ordered[-1]
                member.tell(replace(event, replica=member.id, shared=shared), **more)
        elif isinstance(event, MembersReleased | Arranged | FeaturesSeen):
            raise TypeError(f"{event} from a model without ramps")
        elif (runner := self._running.pop(event.batch, None)) is not None:
            runner.tell(event, outputs, **more)


class SizedReplica:
    """A `ReplicaHandle`, whose batches have images of one size."""

    def __init__(self, shared: _Shared, id: int, size: int, report: Reporter) -> None:
        self.id = id
        self.size = size
        self._shared = shared
        self._report: Reporter | None = report

    @property
    def pid(self) -> int | None:
        return self._shared.handle.pid

    @property
    def descriptor(self) -> int | None:
        return self._shared.handle.descriptor

    def run(self, order: BatchOrder) -> None:
        """Run a batch with images of this replica's size. No member leaves early."""
        self._shared.run(self, order)

    def publish(self, policy: ExitPolicy) -> None:
        detail = "early_exit: variants by image size share one session, which has no ramps"
        refusal = Arranged(policy.revision, policy.ramps, detail)
        asyncio.get_running_loop().call_soon(self.tell, refusal)

    def abort(self, batch: int) -> None:
        self._shared.handle.abort(batch)

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        self._shared.attach(number, frames, glue)

    def detach(self, number: int) -> None:
        self._shared.detach(number)

    def resize(self, cores: tuple[int, ...]) -> None:
        self._shared.resize(self, cores)

    def stop(self) -> None:
        self._report = None
        self._shared.leave(self)

    def kill(self) -> None:
        if self._report is not None:
            self._shared.handle.kill()

    def up(self, opened: OpenedModel) -> None:
        self.tell(ReplicaUp(self.id), opened=opened)

    def tell(self, event: Report, outputs: BatchOutputs = (), **more: Any) -> None:
        """Report an event, unless the replica was stopped or lost."""
        report = self._report
        if isinstance(event, ReplicaLost):
            self._report = None
        if report is not None:
            report(event, outputs, **more)
