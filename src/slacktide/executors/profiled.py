"""`ProfiledExecutor`: answers from a profile, without running a model.

A product, not a test double: with it a whole server can be tried out (its policies, its limits, a
client) on hardware that is not there yet, or with a model that is not trained yet. Batches take as
long as the profile says; the answers have the declared shapes and are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from slacktide.domain import BatchFinished, BatchTiming, Replica, ReplicaUp
from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.engine.ports import BatchTimes
from slacktide.executors.loop_replica import LoopReplica
from slacktide.executors.ports import (
    InputArena,
    ModelSource,
    OpenedModel,
    OutputTensor,
    Payload,
    Reporter,
)


class ProfiledExecutor:
    """Waits instead of computing, by the loop's own timers: a loop with a virtual clock will do.

    `times` gives the profile of a replica, `interface` what its model takes and gives. Batches take
    their expected time; with a `generator`, a time drawn from the profile's distribution.
    `start_s` is how long a replica takes to be ready.
    """

    def __init__(
        self,
        times: Callable[[Replica], BatchTimes],
        interface: Callable[[Replica], ModelInterface],
        *,
        generator: np.random.Generator | None = None,
        start_s: float = 0.0,
    ) -> None:
        self._times = times
        self._interface = interface
        self._generator = generator
        self._start_s = start_s
        self._handles: list[ProfiledReplica] = []

    def start(
        self,
        replica: Replica,
        source: ModelSource,
        arena: InputArena,
        report: Reporter,
    ) -> ProfiledReplica:
        """Begin to start a replica; ReplicaUp is reported after `start_s` seconds."""
        handle = ProfiledReplica(
            replica, self._times(replica), self._interface(replica), self._generator, report
        )
        handle.ready_in(self._start_s)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        for handle in self._handles:
            handle.stop()
        self._handles.clear()


class ProfiledReplica(LoopReplica):
    """A `ReplicaHandle` that waits."""

    def __init__(
        self,
        replica: Replica,
        times: BatchTimes,
        interface: ModelInterface,
        generator: np.random.Generator | None,
        report: Reporter,
    ) -> None:
        super().__init__(replica, report)
        self._times = times
        self._interface = interface
        self._cores = max(1, len(replica.cores))
        self._generator = generator

    def ready_in(self, seconds: float) -> None:
        """Report ReplicaUp after this many seconds."""
        self._handle = self._loop.call_later(seconds, self._up)

    def run(self, batch: int, members: Sequence[Payload]) -> None:
        """Answer after the time that the profile gives for these rows and cores."""
        seconds = self._duration(sum(member.rows for member in members))
        self._batch = batch
        self._handle = self._loop.call_later(seconds, self._finish, batch, members, seconds)

    def resize(self, cores: tuple[int, ...]) -> None:
        """Takes effect with the next batch."""
        self._cores = max(1, len(cores))
        super().resize(cores)

    def _up(self) -> None:
        if self._report is not None:
            self._report(ReplicaUp(self._id), opened=OpenedModel(self._interface))

    def _duration(self, rows: int) -> float:
        if self._generator is None:
            return self._times.of(rows, self._cores).expected
        return self._times.of(rows, self._cores).quantile(float(self._generator.random()))

    def _finish(self, batch: int, members: Sequence[Payload], seconds: float) -> None:
        self._batch = None
        specs = self._interface.outputs
        outputs = [[self._zeros(spec, member) for spec in specs] for member in members]
        self._tell(BatchFinished(batch, BatchTiming(infer_s=seconds)), outputs)

    def _zeros(self, spec: TensorSpec, member: Payload) -> OutputTensor:
        """The declared shape with free axes of length one; empty elements for BYTES, whose lengths
        of zero are four zero bytes each."""
        axes = [1 if axis < 0 else axis for axis in spec.shape]
        if self._interface.batches:
            axes[0] = member.rows
        shape = tuple(axes)
        nbytes = math.prod(shape) * (spec.datatype.itemsize or 4)
        return OutputTensor(shape, memoryview(bytes(nbytes)))
