"""`slacktide serve`, with a line for what becomes of frames in the file that BENCH_FRAME_LOG names.

    batch MODEL SECONDS INPUT_S INFER_S OUTPUT_S WHOLE_S FRAME …   one was reported, and of what
    ended ID SECONDS                                               a frame has its outcome
    freed ID SECONDS LOOP_S CHILDREN                               what the loop has spent so far

SECONDS are of the clock that all processes of a machine share. `LOOP_S` is CPU time in the machine
above the engine and in the driver's half of it, over all frames and their CHILDREN.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from slacktide.cli.main import main as serve
from slacktide.domain import Batch, BatchTiming, ExitReport
from slacktide.models.replica_launcher import ReplicaLauncher
from slacktide.pipelines import Frames
from slacktide.server import app
from slacktide.server.calls import driver
from slacktide.server.frames import ServedFrames

LOG = open(os.environ["BENCH_FRAME_LOG"], "a", buffering=1)  # noqa: SIM115  (for good)
SPENT = {"loop": 0.0, "children": 0}


def timed(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same; its time counts."""

    def wrapped(*args: Any, **named: Any) -> Any:
        begin = time.thread_time()
        try:
            return method(*args, **named)
        finally:
            SPENT["loop"] += time.thread_time() - begin

    return wrapped


class TimedFrames(Frames):
    """The machine, with a watch."""

    handle = timed(Frames.handle)
    expire = timed(Frames.expire)


class TimedDriver(driver.Driver):
    """The server's, with that machine: compiled packages do not look for it by its name."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.runtime.frames = TimedFrames(self.engine)


class WatchedFrames(ServedFrames):
    """The driver's half, with watch and pen."""

    child_answered = timed(ServedFrames.child_answered)
    _prepare = timed(ServedFrames.prepare)
    _answer = timed(ServedFrames.answer)
    _free = timed(ServedFrames.free)

    def prepare(self, command: Any) -> None:
        SPENT["children"] += 1
        self._prepare(command)

    def answer(self, command: Any) -> None:
        before = self._requests.answer
        self._requests.answer = lambda command: None  # the reply is every call's
        self._answer(command)
        self._requests.answer = before
        before(command)
        LOG.write(f"ended {command.id} {time.perf_counter()}\n")

    def free(self, id: int) -> None:
        before = self._requests.free
        self._requests.free = lambda ids: None  # every call's as well
        self._free(id)
        self._requests.free = before
        before((id,))
        LOG.write(f"freed {id} {time.perf_counter()} {SPENT['loop']} {SPENT['children']}\n")


class WatchedLauncher(ReplicaLauncher):
    """The server's, with a pen."""

    def finished(
        self, batch: Batch, timing: BatchTiming, seconds: float, exits: ExitReport | None = None
    ) -> None:
        parts = f"{timing.input_s} {timing.infer_s} {timing.output_s} {seconds}"
        frames = " ".join(str(member.parent) for member in batch.members)
        LOG.write(f"batch {batch.replica.pool.model} {time.perf_counter()} {parts} {frames}\n")
        super().finished(batch, timing, seconds, exits)


def main() -> None:
    """Run the command line with these in the place of the server's."""
    app.ReplicaLauncher = WatchedLauncher
    driver.ServedFrames = WatchedFrames
    app.Driver = TimedDriver
    serve()
