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

from slacktide.domain import BatchTiming, Replica
from slacktide.executors.arena import map_read_only
from slacktide.executors.details import client_detail
from slacktide.executors.padded_io import split_padded
from slacktide.executors.ports import (
    Aborted,
    Failed,
    Finished,
    InputArena,
    Lost,
    ModelSource,
    OutputTensor,
    Payload,
    Ready,
    Report,
    Resized,
)
from slacktide.executors.providers import ModelError
from slacktide.executors.session import ModelSession


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
        report: Callable[[Report], None],
    ) -> InProcessReplica:
        """Begin to open the model; Ready or Lost is reported later."""
        handle = InProcessReplica(
            asyncio.get_running_loop(), map_read_only(arena.fd), report, self._handles.discard
        )
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
            handle.lost(Lost(str(error), permanent=True))
        except Exception as error:  # out of memory, a disk error: another try may do better
            handle.lost(Lost(client_detail(error, source.path, source.root)))


class InProcessReplica:
    """A `ReplicaHandle` without a process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arena: memoryview,
        report: Callable[[Report], None],
        ended: Callable[[InProcessReplica], None],
    ) -> None:
        self._loop = loop
        self._ended = ended
        self._arena = arena
        self._report: Callable[[Report], None] | None = report
        self._session: ModelSession | None = None
        self._waiting: tuple[int, asyncio.Handle] | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def descriptor(self) -> int | None:
        return None

    def opened(self, session: ModelSession) -> None:
        if self._report is not None:
            self._session = session
            self._report(Ready(session.interface))

    def lost(self, report: Lost) -> None:
        self._tell(report)
        self._end()

    def run(self, batch: int, members: Sequence[Payload]) -> None:
        """Run these members as soon as the loop comes round."""
        session = self._session
        if session is None:
            if self._report is None:
                return  # stopped or lost: nobody is told any more
            raise RuntimeError("a replica was given a batch before it was ready")
        if not members:
            raise ValueError("a batch needs members")
        self._waiting = (batch, self._loop.call_soon(self._execute, session, batch, members))

    def abort(self, batch: int) -> None:
        """Stop the batch if it has not begun."""
        if self._waiting is not None and self._waiting[0] == batch:
            self._waiting[1].cancel()
            self._waiting = None
            self._loop.call_soon(self._tell, Aborted(batch))

    def resize(self, cores: tuple[int, ...]) -> None:
        """Nothing moves: the model runs on the loop's core, whatever the lane has."""
        self._loop.call_soon(self._tell, Resized(cores))

    def stop(self) -> None:
        self._end()

    def kill(self) -> None:
        if self._report is not None:
            self._loop.call_soon(self._report, Lost("stopped"))
            self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting[1].cancel()
            self._waiting = None
        self._session = None
        self._report = None
        self._arena = memoryview(b"")  # the mapping would keep the memory of all payloads
        self._ended(self)

    def _tell(self, report: Report) -> None:
        if self._report is not None:
            self._report(report)

    def _execute(self, session: ModelSession, batch: int, members: Sequence[Payload]) -> None:
        self._waiting = None
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
            self._tell(Failed(batch, session.detail(error)))
            return
        timing = BatchTiming(
            result.input_s,
            result.infer_s,
            time.perf_counter() - begin,
            time.thread_time() - cpu,
        )
        self._tell(Finished(batch, outputs, timing))


def _open_warm(source: ModelSource) -> ModelSession:
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    return session
