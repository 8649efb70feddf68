"""`InProcessExecutor`: models that run in the server's own process, on its loop.

For tiny models, where the hop to a worker costs more than the model. The price is stated, not
hidden: while a batch runs, the loop does nothing else (a 20 µs model is welcome, a 2 ms one delays
every other answer by 2 ms); a crash in the model takes the server with it; a running batch can be
neither stopped nor killed; the lane's cores are not used, since the work is done on the loop's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from slacktide.domain import (
    BatchFailed,
    BatchFinished,
    BatchTiming,
    Replica,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.executors.arena import map_read_only
from slacktide.executors.loop_replica import LoopReplica
from slacktide.executors.onnx_runtime import ModelError, client_detail
from slacktide.executors.ports import (
    InputArena,
    ModelSource,
    OpenedModel,
    OutputTensor,
    Payload,
    Reporter,
)
from slacktide.executors.session import ModelSession
from slacktide.executors.tensor_io import split_padded


class InProcessExecutor:
    """Opens and warms models in a thread, runs them on the loop with one thread each."""

    def __init__(self) -> None:
        self._openings: set[asyncio.Task[None]] = set()
        self._handles: set[InProcessReplica] = set()

    def start(
        self,
        replica: Replica,
        source: ModelSource,
        arena: InputArena,
        report: Reporter,
    ) -> InProcessReplica:
        """Begin to open the model; ReplicaUp or ReplicaLost is reported later."""
        handle = InProcessReplica(replica, map_read_only(arena.fd), report, self._handles.discard)
        self._handles.add(handle)
        task = asyncio.get_running_loop().create_task(self._open(handle, source))
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)
        return handle

    async def close(self) -> None:
        """Forget every model; waits for those still being opened."""
        for handle in tuple(self._handles):
            handle.stop()
        await asyncio.gather(*self._openings)

    async def _open(self, handle: InProcessReplica, source: ModelSource) -> None:
        try:
            handle.opened(await asyncio.to_thread(_open_warm, source))
        except ModelError as error:
            handle.lost(str(error), permanent=True)
        except Exception as error:  # out of memory, a disk error: another try may do better
            handle.lost(client_detail(error, source.path, source.root))


class InProcessReplica(LoopReplica):
    """A `ReplicaHandle` whose batches run on the loop itself, whatever cores its lane has."""

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
        self._session: ModelSession | None = None

    def opened(self, session: ModelSession) -> None:
        if self._report is not None:
            self._session = session
            self._report(ReplicaUp(self._id), opened=OpenedModel(session.interface))

    def lost(self, detail: str, *, permanent: bool = False) -> None:
        self._tell(ReplicaLost(self._id, detail, permanent))
        self.stop()

    def run(self, batch: int, members: Sequence[Payload]) -> None:
        """Run these members as soon as the loop comes round."""
        session = self._session
        if session is None:
            if self._report is None:
                return  # stopped or lost: nothing is reported any more
            raise RuntimeError("a replica was given a batch before it was ready")
        if not members:
            raise ValueError("a batch needs members")
        self._batch = batch
        self._handle = self._loop.call_soon(self._execute, session, batch, members)

    def stop(self) -> None:
        super().stop()
        self._session = None
        self._arena = memoryview(b"")  # the mapping would keep the memory of all payloads
        self._ended(self)

    def _execute(self, session: ModelSession, batch: int, members: Sequence[Payload]) -> None:
        self._batch = self._handle = None
        cpu = time.thread_time()
        try:
            result = session.run(members, self._arena)
            begin = time.perf_counter()
            batches = session.interface.batches
            columns = [
                split_padded(array, spec, result.rows, batches, result.lengths)
                for array, spec in zip(result.arrays, session.interface.outputs, strict=True)
            ]
            outputs = [
                [OutputTensor(shape, data) for shape, data in member]
                for member in zip(*columns, strict=True)
            ]
        except Exception as error:  # whatever a model may raise; the server lives on
            self._tell(BatchFailed(batch, session.detail(error)))
            return
        timing = BatchTiming(
            result.input_s,
            result.infer_s,
            time.perf_counter() - begin,
            time.thread_time() - cpu,
        )
        self._tell(BatchFinished(batch, timing), outputs)


def _open_warm(source: ModelSource) -> ModelSession:
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    return session
