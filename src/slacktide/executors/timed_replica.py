"""`TimedReplica`: a replica driven one batch at a time, by a stopwatch instead of an engine."""

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
"""Far from a server's own, which count from 0: both may use one executor."""


class MeasuringError(Exception):
    """The model could not be measured. `permanent`: trying again cannot help."""

    def __init__(self, detail: str, *, permanent: bool = False) -> None:
        super().__init__(detail)
        self.permanent = permanent


class BatchError(Exception):
    """The model raised on a batch; its replica lives on."""


class TimedReplica:
    """One replica under test: `run` a batch size, get seconds. Belongs to a running loop."""

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
        """Start it, on an executor that stays the caller's."""
        self.cores = len(cores)
        self.inputs: Sequence[Payload] = ()
        """Requests of one row each, to make batches of; to be set before the first `run`."""
        self.size = 0
        """That their images run at; 0: as they are."""
        self.outputs: BatchOutputs = ()
        self.faults = NO_FAULTS
        """Both of the last batch."""
        self.cpu = CpuShare()
        """Sums over all batches; replace it to start again."""
        self._clock = clock
        self.patience_s = patience_s
        """Longest that a start or a run may take."""
        self._batches = itertools.count()
        self._lost: ReplicaLost | None = None
        self._opened: OpenedModel | None = None
        self._given_up = False
        self._moving = False
        self._waiting: asyncio.Future[tuple[float, Report]] | None = None
        self._expect()
        limit = DEFAULT_MAX_BATCH if source.max_batch is None else max(1, source.max_batch)
        pool = PoolId(source.name, source.version)
        replica = Replica(next(_replica_ids), pool, "profile", cores, limit, device)
        self._handle = executor.start(replica, source, arena, self._report)

    async def ready(self) -> OpenedModel:
        """Wait until it is warm. Raises MeasuringError if it cannot start or takes too long."""
        _, report = await self._next("start")
        if not isinstance(report, ReplicaUp) or self._opened is None:
            raise MeasuringError(f"unexpected answer to a start: {report}")
        return self._opened

    async def resize(self, cores: tuple[int, ...]) -> None:
        """Move it. Raises MeasuringError if it does not get these cores, dies or takes too long."""
        self._expect()
        self._moving = True
        self._handle.resize(cores)
        _, report = await self._next(f"move to {len(cores)} cores")
        self._moving = False
        if not isinstance(report, Resized):
            raise MeasuringError(f"unexpected answer to a resize: {report}")
        if report.detail:
            raise MeasuringError(report.detail)
        self.cores = len(cores)

    async def run(self, rows: int) -> float:
        """Seconds from `run` to the report of a batch of `rows` requests.

        Raises BatchError if the model raises, MeasuringError if it dies or takes too long.
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
        """Have it cut its model at a policy's ramps, and wait for what the stages take. Raises
        MeasuringError if it cannot."""
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
        """Stop it, unless it is dead already."""
        if self._lost is None and not self._given_up:
            self._handle.stop()

    def _expect(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()

    async def _next(self, step: str) -> tuple[float, Report]:
        assert self._waiting is not None
        if self._lost is None:
            try:
                async with patience(self.patience_s):
                    at, report = await self._waiting
            except TimeoutError:
                self._given_up = True
                self._handle.kill()
                raise MeasuringError(f"took more than {self.patience_s:g} s to {step}") from None
            if not isinstance(report, ReplicaLost):
                return at, report
        assert self._lost is not None
        raise MeasuringError(self._lost.detail, permanent=self._lost.permanent)

    def _report(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        """Called on the loop: the clock is read here, before anything else gets a turn."""
        now = self._clock()
        if isinstance(event, RowsMismatch | PicturesDamaged):
            return  # the outputs show rows, and pictures are counted for clients
        if isinstance(event, Resized) and not self._moving:
            return  # it has less than it was started with, or the rest: no resize is under way
        if isinstance(event, Arranged) and not (event.rows or event.detail or event.untimed):
            return  # it is open: what it takes is told later
        if isinstance(event, ReplicaLost):
            self._lost = event
        self._opened = opened or self._opened
        self.outputs, self.faults = outputs, faults
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((now, event))
