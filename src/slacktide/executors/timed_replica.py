"""`TimedReplica`: a replica that is started without an engine, to time one batch at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence

from slacktide.domain import (
    BatchFailed,
    BatchFinished,
    ExitPolicy,
    PoolId,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.loop_watch import patience
from slacktide.executors.onnx_file import DEFAULT_MAX_BATCH
from slacktide.executors.ports import (
    NO_FAULTS,
    Arranged,
    BatchOrder,
    BatchOutputs,
    Executor,
    MemberFault,
    ModelSource,
    OpenedModel,
    Payload,
    PicturesDamaged,
    Report,
    Resized,
    RowsMismatch,
)
from slacktide.executors.synthetic_inputs import batch_of
from slacktide.profiles import CpuShare

_replica_ids = itertools.count(1_000_000_000)
"""Far above a server's ids, which start at 0, because both may use one executor."""


class MeasuringError(Exception):
    """The model could not be measured. `permanent`: trying again cannot help."""

    def __init__(self, detail: str, *, permanent: bool = False) -> None:
        super().__init__(detail)
        self.permanent = permanent


class BatchError(Exception):
    """The model raised an error on a batch. Its replica still runs."""


class TimedReplica:
    """A replica under test: `run` times a batch. Belongs to a running loop."""

    def __init__(
        self,
        executor: Executor,
        source: ModelSource,
        cores: tuple[int, ...],
        device: str,
        arena: Arena,
        clock: Callable[[], float],
        patience_s: float,
    ) -> None:
        """Start the replica. The caller keeps the executor."""
        self.cores = len(cores)
        self.inputs: Sequence[Payload] = ()
        """Requests of one row each, from which batches are made. Set before the first `run`."""
        self.size = 0
        """Image size of batches; 0: unchanged."""
        self.outputs: BatchOutputs = ()
        """Outputs of the last batch."""
        self.faults = NO_FAULTS
        """Faults of the last batch."""
        self.cpu = CpuShare()
        """CPU time of all batches. Replace it to reset."""
        self._clock = clock
        self.patience_s = patience_s
        """Longest duration of a start or a run."""
        self._batches = itertools.count()
        self._loss: ReplicaLost | None = None
        self._model: OpenedModel | None = None
        self._is_killed = False
        self._is_moving = False
        self._next_report: asyncio.Future[tuple[float, Report]] | None = None
        self._expect()
        limit = DEFAULT_MAX_BATCH if source.max_batch is None else max(1, source.max_batch)
        pool = PoolId(source.name, source.version)
        replica = Replica(next(_replica_ids), pool, "profile", cores, limit, device)
        self._handle = executor.start(replica, source, arena, self._report)

    async def ready(self) -> OpenedModel:
        """Wait until the replica is warm. Raises MeasuringError if it fails or takes too long."""
        _, report = await self._next("start")
        if not isinstance(report, ReplicaUp) or self._model is None:
            raise MeasuringError(f"unexpected answer to a start: {report}")
        return self._model

    async def resize(self, cores: tuple[int, ...]) -> None:
        """Move the replica. Raises MeasuringError if it lacks cores, dies or takes too long."""
        self._expect()
        self._is_moving = True
        self._handle.resize(cores)
        _, report = await self._next(f"move to {len(cores)} cores")
        self._is_moving = False
        if not isinstance(report, Resized):
            raise MeasuringError(f"unexpected answer to a resize: {report}")
        if report.detail:
            raise MeasuringError(report.detail)
        self.cores = len(cores)

    async def run(self, rows: int) -> float:
        """Run a batch of `rows` requests. Returns the seconds from `run` to the report.

        Raises BatchError if the model fails, MeasuringError if the replica dies or takes too long.
        """
        batch = next(self._batches)
        members = batch_of(rows, self.inputs)
        self._expect()
        begin = self._clock()
        self._handle.run(BatchOrder(batch, members, self.size))
        end, report = await self._next(f"run a batch of {rows}")
        if isinstance(report, BatchFailed):
            raise BatchError(report.detail)
        if not isinstance(report, BatchFinished):
            raise MeasuringError(f"unexpected answer to a batch: {report}")
        self.cpu.add(report.timing)
        return max(end - begin, 1e-9)  # a coarse clock may not have moved

    async def arrange(self, policy: ExitPolicy) -> Arranged:
        """Cut the model at a policy's ramps, and wait for the times of the stages. Raises
        MeasuringError if that fails."""
        self._expect()
        self._handle.publish(policy)
        _, report = await self._next("cut the model into stages")
        if not isinstance(report, Arranged):
            raise MeasuringError(f"unexpected answer: {report}")
        if report.untimed:
            raise MeasuringError(f"timing the stages failed: {report.untimed}")
        if report.detail:
            raise MeasuringError(report.detail)
        return report

    def close(self) -> None:
        """Stop the replica, unless it is dead."""
        if self._loss is None and not self._is_killed:
            self._handle.stop()

    def _expect(self) -> None:
        self._next_report = asyncio.get_running_loop().create_future()

    async def _next(self, step: str) -> tuple[float, Report]:
        assert self._next_report is not None
        if self._loss is None:
            try:
                async with patience(self.patience_s):
                    at, report = await self._next_report
            except TimeoutError:
                self._is_killed = True
                self._handle.kill()
                raise MeasuringError(f"took more than {self.patience_s:g} s to {step}") from None
            if not isinstance(report, ReplicaLost):
                return at, report
        assert self._loss is not None
        raise MeasuringError(self._loss.detail, permanent=self._loss.permanent)

    def _report(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        """Take a report. Called on the loop, so the clock is read before anything else runs."""
        now = self._clock()
        if isinstance(event, RowsMismatch | PicturesDamaged):
            return  # wrong rows show in the outputs; damaged pictures matter to clients only
        if isinstance(event, Resized) and not self._is_moving:
            return  # reports the cores at the start
        if isinstance(event, Arranged) and not (event.rows or event.detail or event.untimed):
            return  # the stages are open; their times follow
        if isinstance(event, ReplicaLost):
            self._loss = event
        self._model = opened or self._model
        self.outputs, self.faults = outputs, faults
        if self._next_report is not None and not self._next_report.done():
            self._next_report.set_result((now, event))
