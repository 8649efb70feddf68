"""Executors without processes: their replicas live on the driver's loop.

`InProcessExecutor` runs tiny models, for which the hop to a worker costs more than the model. The
price: while a batch runs, the loop does nothing else (a 20 µs model is welcome, a 2 ms one delays
every other answer by 2 ms); a crash of the model crashes the server; a running batch can be
neither stopped nor killed; the lane's cores are not used.

`ProfiledExecutor` answers from a profile, without a model. With it you can try out a whole server
(policies, limits, a client) before the hardware or the trained model exists. Batches take as long
as the profile says; answers are zeros of the declared shapes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from slacktide.domain import (
    BatchAborted,
    BatchFailed,
    BatchFinished,
    BatchTiming,
    ExitPolicy,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.domain.crops import Glue
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.crops import FrameArenas
from slacktide.executors.hand_over.arena import Arena, map_read_only
from slacktide.executors.hand_over.tensor_io import (
    RowCountError,
    cut_outputs,
    lay_out,
    zero_outputs,
)
from slacktide.executors.onnx_runtime import ModelError, client_detail
from slacktide.executors.ports import (
    NO_FAULTS,
    Arranged,
    BatchOrder,
    BatchOutputs,
    MemberFault,
    ModelSource,
    OpenedModel,
    PicturesDamaged,
    ReplicaHandle,
    Report,
    Reporter,
    Resized,
    RowsMismatch,
)
from slacktide.executors.session import ModelSession
from slacktide.executors.shared_replicas import SharedReplicas
from slacktide.profiles import BatchTimes


class LoopReplica:
    """The base of replicas without a process. Implements `ReplicaHandle` except `run`."""

    pid: int | None = None
    descriptor: int | None = None

    def __init__(self, replica: Replica, report: Reporter) -> None:
        self.loop = asyncio.get_running_loop()
        self._id = replica.id
        self._report: Reporter | None = report
        self._batch: int | None = None
        """The batch that `_handle` will run or finish."""
        self._handle: asyncio.Handle | None = None

    def abort(self, batch: int) -> None:
        """Stop the batch, unless it is finished or cannot be stopped any more."""
        if self._batch == batch and self._handle is not None:
            self._cancel()
            self.loop.call_soon(self.tell, BatchAborted(batch))

    def publish(self, policy: ExitPolicy) -> None:
        """Refuse: early answers would have to wait for the loop, which the batch blocks."""
        detail = "early_exit: only worker processes can answer early"
        self.loop.call_soon(self.tell, Arranged(policy.revision, policy.ramps, detail))

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        """Do nothing: these replicas cut no crops out of frames."""

    def detach(self, number: int) -> None:
        """Do nothing: nothing was attached."""

    def resize(self, cores: tuple[int, ...]) -> None:
        """Move nothing: the loop's own core does the work."""
        self.loop.call_soon(self.tell, Resized(cores))

    def stop(self) -> None:
        self._cancel()
        self._report = None

    def kill(self) -> None:
        report = self._report
        if report is not None:
            self.stop()
            self.loop.call_soon(report, ReplicaLost(self._id, "killed"))

    def tell_up(self, opened: OpenedModel) -> None:
        """Report that the replica serves."""
        if self._report is not None:
            self._report(ReplicaUp(self._id), opened=opened)

    def tell(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        """Report an event, unless the replica has been stopped. Do not call it from inside `start`
        of the executor or `run` of the replica."""
        if self._report is not None:
            self._report(event, outputs, faults=faults)

    def _cancel(self) -> None:
        self._batch = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class InProcessExecutor:
    """Opens and warms up models in a thread, and runs them on the loop with one thread each."""

    def __init__(self) -> None:
        self._openings: set[asyncio.Task[None]] = set()
        self._handles: set[InProcessReplica] = set()
        self._shared = SharedReplicas(self._start)

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> ReplicaHandle:
        start = self._shared.start if source.image_size else self._start
        return start(replica, source, arena, report)

    def _start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> InProcessReplica:
        handle = InProcessReplica(replica, map_read_only(arena.fd), report, self._handles.discard)
        self._handles.add(handle)
        task = asyncio.get_running_loop().create_task(self._open(handle, source))
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)
        return handle

    async def close(self) -> None:
        """Close every model. Waits for models that are still being opened."""
        for handle in tuple(self._handles):
            handle.stop()
        await asyncio.gather(*self._openings)

    async def _open(self, handle: InProcessReplica, source: ModelSource) -> None:
        try:
            handle.opened(await asyncio.to_thread(_open_warm, source))
        except ModelError as error:
            handle.lost(str(error), permanent=True)
        except Exception as error:  # out of memory, a disk error: another try may succeed
            handle.lost(client_detail(error, source.path, source.root))


class InProcessReplica(LoopReplica):
    """A `ReplicaHandle` whose batches run on the loop itself, not on its lane's cores."""

    def __init__(
        self,
        replica: Replica,
        arena: memoryview,
        report: Reporter,
        ended: Callable[[InProcessReplica], None],
    ) -> None:
        super().__init__(replica, report)
        self._ended = ended
        self._arena = arena
        self._frames = FrameArenas()
        self._session: ModelSession | None = None

    def opened(self, session: ModelSession) -> None:
        if self._report is not None:
            self._session = session
            if self._frames.by_number:
                session.read_frames(self._frames)
            self.tell_up(session.opened())

    def lost(self, detail: str, *, permanent: bool = False) -> None:
        self.tell(ReplicaLost(self._id, detail, permanent))
        self.stop()

    def run(self, order: BatchOrder) -> None:
        session = self._session
        if session is None:
            if self._report is None:
                return  # stopped or lost
            raise RuntimeError("a replica was given a batch before it was ready")
        if not order.members:
            raise ValueError("a batch needs members")
        self._batch = order.batch
        self._handle = self.loop.call_soon(self._execute, session, order)

    def attach(self, number: int, frames: Arena, glue: Glue) -> None:
        self._frames.attach(number, map_read_only(frames.fd), glue)
        if self._session is not None:
            self._session.read_frames(self._frames)

    def detach(self, number: int) -> None:
        self._frames.detach(number)

    def stop(self) -> None:
        super().stop()
        self._session = None
        self._frames = FrameArenas()
        self._arena = memoryview(b"")  # the mapping would keep the memory of all payloads
        self._ended(self)

    def _execute(self, session: ModelSession, order: BatchOrder) -> None:
        batch = order.batch
        self._batch = self._handle = None
        cpu = time.thread_time()
        try:
            result = session.run(order.members, self._arena, size=order.size)
            begin, inputs = time.perf_counter(), result.inputs
            batches = session.interface.batches
            columns = [
                lay_out(array, spec, result.rows, batches, inputs.lengths)
                for array, spec in zip(result.arrays, session.interface.outputs, strict=True)
            ]
            outputs = cut_outputs([(bytes(data), runs) for data, runs in columns])
        except Exception as error:  # whatever a model may raise; the server continues
            if isinstance(error, RowCountError):
                self.tell(RowsMismatch(batch, str(error)))
            self.tell(BatchFailed(batch, session.detail(error)))
            return
        cpu_s, output_s = time.thread_time() - cpu, time.perf_counter() - begin
        timing = BatchTiming(inputs.input_s, result.infer_s, output_s, cpu_s, cpu_s)
        if result.mismatch:
            self.tell(RowsMismatch(batch, result.mismatch))
        if inputs.damaged:
            self.tell(PicturesDamaged(batch, inputs.damaged))
        self.tell(BatchFinished(batch, timing), outputs, inputs.faults)


def _open_warm(source: ModelSource) -> ModelSession:
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    return session


class ProfiledExecutor:
    """Waits for the expected time of each batch instead of computing.

    It uses the loop's timers, so a loop with a virtual clock works too. `times` gives a replica's
    profile, `interface` the interface of its model.
    """

    def __init__(
        self, times: Callable[[Replica], BatchTimes], interface: Callable[[Replica], ModelInterface]
    ) -> None:
        self._times = times
        self._interface = interface
        self._handles: list[ProfiledReplica] = []

    def start(
        self, replica: Replica, source: ModelSource, arena: Arena, report: Reporter
    ) -> ProfiledReplica:
        """Start a replica. ReplicaUp is reported at the loop's next turn."""
        handle = ProfiledReplica(replica, self._times(replica), self._interface(replica), report)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        for handle in self._handles:
            handle.stop()
        self._handles.clear()


class ProfiledReplica(LoopReplica):
    """A `ReplicaHandle` that waits instead of computing."""

    def __init__(
        self, replica: Replica, times: BatchTimes, interface: ModelInterface, report: Reporter
    ) -> None:
        super().__init__(replica, report)
        self._times = times
        self._interface = interface
        self._cores = max(1, len(replica.cores))
        self._handle = self.loop.call_soon(self.tell_up, OpenedModel(interface))

    def run(self, order: BatchOrder) -> None:
        """Answer after the profile's time for these rows and cores."""
        rows = sum(member.rows for member in order.members)
        seconds = self._times.of(rows, self._cores).expected
        self._batch = order.batch
        self._handle = self.loop.call_later(seconds, self._finish, order, seconds)

    def resize(self, cores: tuple[int, ...]) -> None:
        """Use the times of these cores from the next batch on."""
        self._cores = max(1, len(cores))
        super().resize(cores)

    def _finish(self, order: BatchOrder, seconds: float) -> None:
        self._batch = None
        outputs = [zero_outputs(self._interface, member.rows) for member in order.members]
        self.tell(BatchFinished(order.batch, BatchTiming(infer_s=seconds)), outputs)
