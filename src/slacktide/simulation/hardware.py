"""The simulated hardware: carries out commands, and says when what they set off will have happened.

A replica is up some time after its start, a lane has other cores some time after they were last
asked for, and a batch ends when its `Execution` says. What is left of a batch whose lane is resized
takes as much more or less time as predictions say of all of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from slacktide.domain import (
    AbortBatch,
    Batch,
    BatchAborted,
    BatchFinished,
    Command,
    LaneResized,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    ResizeLane,
    RunBatch,
    StartReplica,
    StopReplica,
)
from slacktide.engine import BatchTimes, Engine
from slacktide.profiles import BatchLatency, ShapedTimes, TimeDistribution
from slacktide.simulation.items import DrawnRequest, Failure, SimulationError


class Execution(Protocol):
    """How long batches truly take: the hardware knows, the policies do not."""

    def seconds(self, batch: Batch, cores: int) -> float:
        """The time of `batch` on a lane of `cores` cores, ≥ 0. Infinite: it hangs.

        Asked once, when the batch starts.
        """
        ...


class AsExpected:
    """Every batch takes just what its profile expects."""

    def __init__(self, times: BatchTimes) -> None:
        self._times = times

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._times.of(batch.rows, cores).expected


class ByProfile:
    """Batch times drawn from a profile, by rows and by the members' shape."""

    def __init__(self, times: BatchTimes, generator: np.random.Generator) -> None:
        """`times` should be a copy of its own: what a policy learns does not change the truth."""
        self._times = times
        self._generator = generator

    def seconds(self, batch: Batch, cores: int) -> float:
        return scatter(self._times, batch, cores).quantile(self._generator.random())


def scatter(times: BatchTimes, batch: Batch, cores: int) -> TimeDistribution:
    """The time of `batch` if predictions are right. How sure they are of that is not part of it."""
    asked = times.scatter if isinstance(times, ShapedTimes) else times.of
    return asked(batch.rows, cores, batch.members)


class ByLength:
    """Members are padded to the longest of them, l_B = c0 + c1·k·max(l), on any number of cores.

    They must be `DrawnRequest`s.
    """

    def __init__(self, latency: BatchLatency) -> None:
        self._latency = latency

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._latency.seconds(batch.rows, max(map(length_of, batch.members)))


class ByModel:
    """Each model on hardware of its own."""

    def __init__(self, executions: Mapping[str, Execution]) -> None:
        self._executions = executions

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._executions[batch.replica.pool.model].seconds(batch, cores)


def length_of(request: Request) -> float:
    """The true length of `request`. Raises SimulationError if none was drawn for it."""
    if not isinstance(request, DrawnRequest):
        raise SimulationError(f"request {request.id} has no length of its own")
    return request.length


class CoreMeter:
    """Allocated cores over time, the confirmed sizes of all lanes together: busy or not.

    What a run is charged for. Remembers only changes.
    """

    def __init__(self) -> None:
        self._since: list[float] = []
        self._cores: list[int] = []

    def see(self, cores: int, *, now: float) -> None:
        """So many from `now` on; `now` never falls."""
        if not self._cores or cores != self._cores[-1]:
            self._since.append(now)
            self._cores.append(cores)

    def seconds(self, start: float, end: float) -> float:
        """Core seconds from `start` to `end`, which may lie after the last change."""
        first = max(bisect_right(self._since, start) - 1, 0)
        last = bisect_left(self._since, end)
        edges = [max(start, since) for since in self._since[first:last]]
        spans = pairwise((*edges, end))
        cores = self._cores[first:last]
        return math.fsum(
            count * (to - since) for count, (since, to) in zip(cores, spans, strict=True)
        )

    def means(self, edges: Sequence[float]) -> tuple[float, ...]:
        """Mean cores between every two of n ascending `edges`: n − 1 numbers."""
        return tuple(self.seconds(a, b) / (b - a) for a, b in pairwise(edges))


Report = ReplicaUp | ReplicaLost | LaneResized | BatchFinished | BatchAborted

Put = Callable[[float, Report], None]
"""(absolute seconds, what the engine is to get then)."""


@dataclass(slots=True)
class _Running:
    """A batch that runs. Absolute seconds."""

    batch: Batch
    cores: int
    since: float
    """When it began to run on these cores."""
    ends_at: float
    """Infinite: it hangs."""


class Hardware:
    """Replicas and batches under one engine."""

    def __init__(
        self, engine: Engine, execution: Execution, put: Put, *, start_s: float, resize_s: float
    ) -> None:
        """A replica is up `start_s` seconds after its start; a lane is resized after `resize_s`."""
        self.batches = 0
        """Batches that have started."""
        self.rows = 0
        """Rows in them."""
        self.busy_s = 0.0
        """Core seconds that batches took until they ended, however they ended."""
        self.allocated = CoreMeter()
        """Cores that lanes have had, busy or not."""
        self._engine = engine
        self._execution = execution
        self._put = put
        self._start_s = start_s
        self._resize_s = resize_s
        self._cores: Mapping[str, int] = {}
        """Confirmed, by lane."""
        self._replicas: dict[int, Replica] = {}
        """Started and neither lost nor stopped."""
        self._running: dict[int, _Running] = {}
        """By batch id."""
        self._resizes: dict[str, tuple[float, tuple[int, ...]]] = {}
        """The last that was asked for each lane and is under way: when it is done, and what."""

    def carry_out(self, command: Command, *, now: float) -> None:
        """Do what the engine wants done, answers and slots apart."""
        match command:
            case RunBatch():
                self._run(command.batch, now)
            case AbortBatch():
                self._put(now, BatchAborted(command.batch.id))
            case StartReplica():
                self._replicas[command.replica.id] = command.replica
                self._put(now + self._start_s, ReplicaUp(command.replica.id))
            case StopReplica():
                if command.kill:
                    self._put(now, ReplicaLost(command.replica.id, "killed"))
                else:
                    del self._replicas[command.replica.id]
            case ResizeLane():
                self._resizes[command.lane] = (now + self._resize_s, command.cores)
                self._put(now + self._resize_s, LaneResized(command.lane, command.cores))

    def happens(self, report: Report, *, now: float) -> bool:
        """Whether this comes to pass; False if something else has come before it."""
        match report:
            case BatchFinished():
                running = self._running.get(report.batch)
                # Else its lane was resized, and it ends sooner or later.
                return running is not None and running.ends_at == now and self._end(running, now)
            case BatchAborted():
                running = self._running.get(report.batch)
                return running is not None and self._end(running, now)
            case ReplicaLost():
                return self._gone(report.replica, now)
            case LaneResized():
                under_way = self._resizes.get(report.lane)
                if under_way is not None and under_way != (now, report.cores):
                    return False  # something else was asked for meanwhile
                self._resizes.pop(report.lane, None)
                self._moved(report, now)
        return True

    def fails(self, failure: Failure, *, now: float) -> ReplicaLost | None:
        """Have the replica die that `failure` means; None if there is none."""
        for replica in self._replicas.values():
            if replica.lane == failure.lane and failure.model in (None, replica.pool.model):
                lost = ReplicaLost(replica.id, failure.detail, failure.permanent)
                return lost if self._gone(replica.id, now) else None
        return None

    def lanes_changed(self, cores: Mapping[str, int], now: float) -> None:
        """From now on lanes have so many cores, by name."""
        self._cores = cores
        self.allocated.see(sum(cores.values()), now=now)

    def _run(self, batch: Batch, now: float) -> None:
        cores = self._cores[batch.replica.lane] or 1
        seconds = self._execution.seconds(batch, cores)
        if not seconds >= 0.0:
            raise SimulationError(f"a batch of {batch.rows} rows takes {seconds} s")
        self.batches += 1
        self.rows += batch.rows
        running = self._running[batch.id] = _Running(batch, cores, now, now + seconds)
        self._put_end(running)

    def _put_end(self, running: _Running) -> None:
        if running.ends_at < math.inf:
            self._put(running.ends_at, BatchFinished(running.batch.id))

    def _moved(self, report: LaneResized, now: float) -> None:
        """What runs on the lane goes on with other cores."""
        for running in self._running.values():
            replica, rows = running.batch.replica, running.batch.rows
            cores = len(report.cores) or 1
            if replica.lane != report.lane or cores == running.cores:
                continue
            times = self._engine.snapshot().pools[replica.pool].times
            before = times.of(rows, running.cores).expected
            after = times.of(rows, cores).expected
            if before > 0.0:
                running.ends_at = now + (running.ends_at - now) * after / before
            self.busy_s += (now - running.since) * running.cores
            running.since, running.cores = now, cores
            self._put_end(running)

    def _end(self, running: _Running, now: float) -> bool:
        del self._running[running.batch.id]
        self.busy_s += (now - running.since) * running.cores
        return True

    def _gone(self, id: int, now: float) -> bool:
        """Whether replica `id` is lost now; False if it was lost or stopped before."""
        if self._replicas.pop(id, None) is None:
            return False
        for running in tuple(self._running.values()):
            if running.batch.replica.id == id:
                self._end(running, now)
        return True
