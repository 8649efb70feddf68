"""`FakeExecutor`: replicas without a model, whose batches take time only on a `FakeClock`.

executor = FakeExecutor(interface, seconds=lambda rows, cores: 0.002 * rows / cores)
with slacktide.Server("models", executors={"worker": executor}) as server:
    ...
assert executor.batches
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slacktide.domain import (
    BatchFinished,
    BatchTiming,
    ExitPolicy,
    Glue,
    ModelInterface,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.executors import (
    Arena,
    BatchOrder,
    BatchOutputs,
    ModelSource,
    OpenedModel,
    Outputs,
    Payload,
    Report,
    Reporter,
    Resized,
    zero_outputs,
)


class FakeClock:
    """A monotonic clock that only a test advances."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FakeExecutor:
    """An `Executor` that records its calls and answers zeros at the loop's next turn."""

    start_s = 0.1
    """Seconds on the clock until a replica is up."""

    def __init__(
        self,
        interface: ModelInterface,
        seconds: Callable[[int, int], float] = lambda rows, cores: 0.001,
        clock: FakeClock | None = None,
    ) -> None:
        """`interface`: inputs and outputs of every model. `seconds`: time of a batch, by rows and
        cores."""
        self.interface = interface
        self.seconds = seconds
        self.clock = FakeClock() if clock is None else clock
        self.replicas: list[FakeReplica] = []
        """All replicas, in the order they were started."""
        self.sources: list[ModelSource] = []
        """The model of each replica."""
        self.batches: list[tuple[int, int]] = []
        """Rows and cores of every batch."""
        self.resizes: list[tuple[int, ...]] = []
        """Cores of every resize."""
        self.closed = False

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> FakeReplica:
        self.sources.append(source)
        handle = self.make(replica, report)
        self.replicas.append(handle)
        handle.tell(self.start_s, self.up(replica), opened=OpenedModel(self.interface))
        return handle

    async def close(self) -> None:
        self.closed = True

    def make(self, replica: Replica, report: Reporter) -> FakeReplica:
        """Create a replica. Subclasses may override it."""
        return FakeReplica(self, replica, report)

    def up(self, replica: Replica) -> Report:
        """The report at the end of a replica's start."""
        return ReplicaUp(replica.id)

    def outcome(self, order: BatchOrder, cores: int) -> tuple[float, Report]:
        """Seconds that a batch takes, and the report at its end."""
        seconds = self.seconds(sum(member.rows for member in order.members), cores)
        return seconds, BatchFinished(order.batch, BatchTiming(infer_s=seconds))

    def answer(self, member: Payload) -> Outputs:
        """Outputs of one member of a batch: zeros."""
        return zero_outputs(self.interface, member.rows)


class FakeReplica:
    """A `ReplicaHandle` of a `FakeExecutor`."""

    pid: int | None = None
    descriptor: int | None = None

    def __init__(self, executor: FakeExecutor, replica: Replica, report: Reporter) -> None:
        self.executor = executor
        self.replica = replica
        self.cores = len(replica.cores)
        self.state = "running"
        """`running`, `stopped` or `killed`."""
        self._report = report

    def tell(
        self,
        after: float,
        event: Report,
        outputs: BatchOutputs = (),
        opened: OpenedModel | None = None,
    ) -> None:
        """In the loop's next turn, move the clock on by `after` seconds and report `event`."""

        def happen() -> None:
            self.executor.clock.now += after
            if self.state == "running":
                self._report(event, outputs, opened=opened)

        asyncio.get_running_loop().call_soon(happen)

    def run(self, order: BatchOrder) -> None:
        self.executor.batches.append((sum(member.rows for member in order.members), self.cores))
        seconds, report = self.executor.outcome(order, self.cores)
        answered = isinstance(report, BatchFinished)
        self.tell(seconds, report, [*map(self.executor.answer, order.members)] if answered else ())

    def publish(self, policy: ExitPolicy) -> None:
        """Do nothing: no request leaves early."""

    def abort(self, batch: int) -> None:
        """Do nothing: the batch finishes at the loop's next turn."""

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Do nothing: crops are answered like other rows."""

    def detach(self, number: int) -> None:
        """Do nothing."""

    def resize(self, cores: tuple[int, ...]) -> None:
        self.cores = len(cores)
        self.executor.resizes.append(cores)
        self.tell(0.0001, Resized(cores))

    def stop(self) -> None:
        self.state = "stopped"

    def kill(self) -> None:
        if self.state == "running":
            self.state = "killed"
            lost = ReplicaLost(self.replica.id, "killed")
            asyncio.get_running_loop().call_soon(self._report, lost)
