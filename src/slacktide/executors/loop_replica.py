"""`LoopReplica`: what replicas without a process have in common. They live on the driver's loop."""

from __future__ import annotations

import asyncio

from slacktide.domain import BatchAborted, Replica, ReplicaLost
from slacktide.executors.ports import BatchOutputs, Report, Reporter, Resized


class LoopReplica:
    """The part of a `ReplicaHandle` that is the same for all of them; `run` is missing."""

    pid: int | None = None
    descriptor: int | None = None

    def __init__(self, replica: Replica, report: Reporter) -> None:
        self._loop = asyncio.get_running_loop()
        self._id = replica.id
        self._report: Reporter | None = report
        self._batch: int | None = None
        """The batch that `_handle` will run, or finish."""
        self._handle: asyncio.Handle | None = None

    def abort(self, batch: int) -> None:
        """Stop the batch, unless it is finished or cannot be stopped any more."""
        if self._batch == batch and self._handle is not None:
            self._cancel()
            self._loop.call_soon(self._tell, BatchAborted(batch))

    def resize(self, cores: tuple[int, ...]) -> None:
        """Nothing moves: the loop's own core does the work."""
        self._loop.call_soon(self._tell, Resized(cores))

    def stop(self) -> None:
        self._cancel()
        self._report = None

    def kill(self) -> None:
        report = self._report
        if report is not None:
            self.stop()
            self._loop.call_soon(report, ReplicaLost(self._id, "killed"))

    def _tell(self, event: Report, outputs: BatchOutputs = ()) -> None:
        if self._report is not None:
            self._report(event, outputs)

    def _cancel(self) -> None:
        self._batch = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
