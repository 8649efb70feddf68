"""The simulated hardware: carries out commands, and schedules the reports of their effects.

A replica is up a fixed time after its start, a lane has new cores a fixed time after the command to
resize it, and a batch ends when its `Execution` says. If a lane is resized, the remaining time of
its batch changes by the ratio of the predicted times of the whole batch.

A replica whose model has early exits (`EarlyExits`) opens the ramps of a new policy while it runs,
and uses them from the next batch on. Thresholds also apply from the next batch on, as in a live
server.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from slacktide.domain import (
    AbortBatch,
    Batch,
    BatchAborted,
    BatchFinished,
    Command,
    ExitPolicy,
    LaneResized,
    PoolId,
    PublishExits,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    ResizeLane,
    RowsReleased,
    RunBatch,
    StartReplica,
    StopReplica,
)
from slacktide.engine import Engine
from slacktide.lab.simulation.exit_courses import EarlyExits, ExitCourse
from slacktide.lab.simulation.items import DrawnRequest, Failure, SimulationError
from slacktide.planning.exits import ExitsArranged, RampsJudged, RampsLearnt
from slacktide.profiles import BatchLatency, BatchTimes, ExitTimes, ShapedTimes, TimeDistribution


class Execution(Protocol):
    """How long batches truly take: the hardware knows, the policies do not."""

    def seconds(self, batch: Batch, cores: int) -> float:
        """Return the seconds of `batch` on a lane of `cores` cores, ≥ 0; infinite if it hangs.
        Called once, when the batch starts."""


class AsExpected:
    """An `Execution` in which every batch takes the expected time of its profile."""

    def __init__(self, times: BatchTimes) -> None:
        self._times = times

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._times.of(batch.rows, cores).expected


class ByProfile:
    """An `Execution` that draws batch times from a profile, by rows and the members' shape."""

    def __init__(self, times: BatchTimes, generator: np.random.Generator) -> None:
        """`times` should be a separate copy, so that a learning policy does not change it."""
        self._times = times
        self._generator = generator

    def seconds(self, batch: Batch, cores: int) -> float:
        return scatter(self._times, batch, cores).quantile(self._generator.random())


def scatter(times: BatchTimes, batch: Batch, cores: int) -> TimeDistribution:
    """Return the predicted distribution of the time of `batch`, as if the prediction were sure."""
    if isinstance(times, ExitTimes):
        times = times.inner
    distribution_of = times.scatter if isinstance(times, ShapedTimes) else times.of
    return distribution_of(batch.rows, cores, batch.members)


class ByLength:
    """An `Execution` that pads members to the longest: l_B = c0 + c1·k·max(l), on any number of
    cores. Members must be `DrawnRequest`s."""

    def __init__(self, latency: BatchLatency) -> None:
        self._latency = latency

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._latency.seconds(batch.rows, max(map(length_of, batch.members)))


class ByPool:
    """An `Execution` with a separate `Execution` for each pool."""

    def __init__(self, executions: Mapping[PoolId, Execution]) -> None:
        self._executions = executions

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._executions[batch.replica.pool].seconds(batch, cores)


def length_of(request: Request) -> float:
    """Return the true length of `request`. Raises SimulationError if none was drawn for it."""
    if not isinstance(request, DrawnRequest):
        raise SimulationError(f"request {request.id} has no length of its own")
    return request.length


class CoreMeter:
    """Allocated cores over time, for which a run is charged: the sum of the confirmed sizes of all
    lanes, busy or not. Stores only changes."""

    def __init__(self) -> None:
        self._since: list[float] = []
        self._cores: list[int] = []

    def see(self, cores: int, *, now: float) -> None:
        """Set the number of cores from `now` on; `now` never decreases."""
        if not self._cores or cores != self._cores[-1]:
            self._since.append(now)
            self._cores.append(cores)

    def seconds(self, start: float, end: float) -> float:
        """Return the core seconds from `start` to `end`; `end` may lie after the last change."""
        first = max(bisect_right(self._since, start) - 1, 0)
        last = bisect_left(self._since, end)
        edges = [max(start, since) for since in self._since[first:last]]
        spans = pairwise((*edges, end))
        cores = self._cores[first:last]
        return math.fsum(
            count * (to - since) for count, (since, to) in zip(cores, spans, strict=True)
        )

    def means(self, edges: Sequence[float]) -> tuple[float, ...]:
        """Return the mean cores between neighbours of n ascending `edges`: n − 1 numbers."""
        return tuple(self.seconds(a, b) / (b - a) for a, b in pairwise(edges))


Report = (
    ReplicaUp
    | ReplicaLost
    | LaneResized
    | RowsReleased
    | BatchFinished
    | BatchAborted
    | ExitsArranged
    | RampsJudged
    | RampsLearnt
)

Put = Callable[[float, Report], None]
"""Called with absolute seconds, and the report that the engine or planners get at that time."""

ARRANGE_S = 0.5
"""Seconds from the publication of a policy with other ramps until the model has opened them."""


@dataclass(slots=True)
class _Running:
    """A running batch. Instants are absolute seconds."""

    batch: Batch
    cores: int
    since: float
    """Instant at which the batch began to run on these cores."""
    ends_at: float
    """Infinite if the batch hangs."""
    course: ExitCourse | None = None
    """Stages that the batch runs in, with its exits; None if it runs unsplit."""
    stretched: float = 1.0
    """Factor on the times of the course, from resizes of the lane."""
    released: list[tuple[float, RowsReleased]] = field(default_factory=list)
    """Releases of rows that are still to come, by absolute seconds."""

    def into(self, now: float) -> float:
        """Return the seconds of the course, unstretched, that have passed by `now`."""
        assert self.course is not None
        return self.course.seconds - (self.ends_at - now) / self.stretched


def _opened_by(policy: ExitPolicy) -> tuple[tuple[int, ...], int]:
    """Return what a replica has to open for a policy: ramps, and the revision of their weights."""
    return policy.ramps, policy.revision


class Hardware:
    """Replicas and batches under one engine."""

    def __init__(
        self,
        engine: Engine,
        execution: Execution,
        put: Put,
        *,
        start_s: float,
        resize_s: float,
        exits: Mapping[str, EarlyExits] | None = None,
    ) -> None:
        """A replica is up `start_s` seconds after its start; a resize takes `resize_s` seconds.
        `exits`: by name, the models with early exits."""
        self.batches = 0
        """Batches that have started."""
        self.rows = 0
        """Rows in all started batches."""
        self.busy_s = 0.0
        """Core seconds of all batches that have ended, for whatever reason."""
        self.allocated = CoreMeter()
        """Allocated cores over time, busy or not."""
        self._engine = engine
        self._execution = execution
        self._put = put
        self._start_s = start_s
        self._resize_s = resize_s
        self._cores: Mapping[str, int] = {}
        """Confirmed number of cores, by lane."""
        self._replicas: dict[int, Replica] = {}
        """By id: replicas that were started and neither lost nor stopped."""
        self._running: dict[int, _Running] = {}
        """By batch id."""
        self._exits = exits or {}
        self._policies: dict[int, ExitPolicy] = {}
        """By replica: the policy that was published last."""
        self._thresholds: dict[int, dict[int, float]] = {}
        """By replica and ramp position: thresholds of that policy and of ramps still open."""
        self._open_ramps: dict[int, tuple[int, ...]] = {}
        """By replica: the ramps that its model has open."""
        self._resizes: dict[str, tuple[float, tuple[int, ...]]] = {}
        """By lane: the last resize still under way, as (instant when it is done, new cores)."""

    def carry_out(self, command: Command, *, now: float) -> None:
        """Carry out a command of the engine; answers and slots are ignored."""
        match command:
            case RunBatch():
                self._run(command.batch, now)
            case AbortBatch():
                self._abort(command.batch.id, now)
            case PublishExits():
                self._publish(command.replica, command.policy, now)
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
        """Return whether `report`, whose time has come, still holds; False if it is outdated."""
        match report:
            case BatchFinished():
                running = self._running.get(report.batch)
                # If `ends_at` differs, the lane was resized and the batch ends at another time.
                if running is None or running.ends_at != now:
                    return False
                if (course := running.course) is not None:
                    for event in (course.everywhere, course.learnt):
                        if event is not None:
                            self._put(now, event)
                    if course.ended is not None:
                        course.ended()
                return self._end(running, now)
            case BatchAborted():
                running = self._running.get(report.batch)
                return running is not None and self._end(running, now)
            case RowsReleased():
                running = self._running.get(report.batch)
                return running is not None and (now, report) in running.released
            case ExitsArranged():
                policy = self._policies.get(report.replica)
                is_gone = report.replica not in self._replicas
                opened = report.ramps, report.revision
                if is_gone or policy is None or _opened_by(policy) != opened:
                    return False  # another policy has been published meanwhile
                self._open_ramps[report.replica] = report.ramps
            case ReplicaLost():
                return self._gone(report.replica, now)
            case LaneResized():
                under_way = self._resizes.get(report.lane)
                if under_way is not None and under_way != (now, report.cores):
                    return False  # another resize has been ordered meanwhile
                self._resizes.pop(report.lane, None)
                self._moved(report, now)
        return True

    def fails(self, failure: Failure, *, now: float) -> ReplicaLost | None:
        """Let the replica that `failure` names die; return None if there is no such replica."""
        for replica in self._replicas.values():
            if replica.lane == failure.lane and failure.model in (None, replica.pool.model):
                lost = ReplicaLost(replica.id, failure.detail, failure.permanent)
                return lost if self._gone(replica.id, now) else None
        return None

    def lanes_changed(self, cores: Mapping[str, int], now: float) -> None:
        """Set the confirmed cores of all lanes, by name."""
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
        ramps = self._open_ramps.get(batch.replica.id, ())
        policy = self._policies.get(batch.replica.id)
        if policy is not None and (ramps or policy.features) and seconds < math.inf:
            if policy.ramps != ramps:  # the ramps of the policy are not open yet
                by_ramp = self._thresholds[batch.replica.id]
                thresholds = tuple([by_ramp.get(ramp, 0.0) for ramp in ramps])
                policy = replace(policy, ramps=ramps, thresholds=thresholds, costs=())
            course = self._exits[batch.replica.pool.model].course(batch, policy, seconds)
            running.course, running.ends_at = course, now + course.seconds
            running.released = [(now + after, event) for after, event in course.released]
        self._put_end(running)

    def _put_end(self, running: _Running) -> None:
        for at, event in running.released:
            self._put(at, event)
        if running.ends_at < math.inf:
            course = running.course
            exits = course.report if course is not None and course.report.ramps else None
            self._put(running.ends_at, BatchFinished(running.batch.id, exits=exits))

    def _abort(self, id: int, now: float) -> None:
        """Stop a batch: one that runs in stages before its next stage, any other immediately."""
        running = self._running.get(id)
        if running is None or running.course is None:
            self._put(now, BatchAborted(id))
            return
        course, into = running.course, running.into(now)
        stages = (*course.report.stage_s, course.seconds)
        after = next((stage for stage in stages if stage >= into), course.seconds)
        at = running.ends_at - (course.seconds - after) * running.stretched
        self._put(max(at, now), BatchAborted(id, exits=course.until(after)))

    def _publish(self, replica: Replica, policy: ExitPolicy, now: float) -> None:
        exits = self._exits.get(replica.pool.model)
        if exits is None or replica.id not in self._replicas:
            return
        before = self._policies.get(replica.id)
        self._policies[replica.id] = policy
        by_ramp = self._thresholds.get(replica.id, {})
        self._thresholds[replica.id] = policy.thresholds_after(by_ramp)
        if _opened_by(policy) != (((), policy.revision) if before is None else _opened_by(before)):
            self._put(now + ARRANGE_S, exits.arranged(replica, policy))

    def _moved(self, report: LaneResized, now: float) -> None:
        """Continue the batch that runs on a resized lane with its new number of cores."""
        for running in self._running.values():
            replica, rows = running.batch.replica, running.batch.rows
            cores = len(report.cores) or 1
            if replica.lane != report.lane or cores == running.cores:
                continue
            times = self._engine.snapshot().pools[replica.pool].times
            before = times.of(rows, running.cores).expected
            after = times.of(rows, cores).expected
            if before > 0.0:
                longer = after / before
                running.ends_at = now + (running.ends_at - now) * longer
                running.stretched *= longer
                running.released = [
                    (now + (at - now) * longer, event) for at, event in running.released if at > now
                ]
            self.busy_s += (now - running.since) * running.cores
            running.since, running.cores = now, cores
            self._put_end(running)

    def _end(self, running: _Running, now: float) -> bool:
        del self._running[running.batch.id]
        self.busy_s += (now - running.since) * running.cores
        return True

    def _gone(self, id: int, now: float) -> bool:
        """Remove replica `id` and its batch. Return False if it was lost or stopped before."""
        if self._replicas.pop(id, None) is None:
            return False
        self._policies.pop(id, None)
        self._thresholds.pop(id, None)
        self._open_ramps.pop(id, None)
        for running in tuple(self._running.values()):
            if running.batch.replica.id == id:
                self._end(running, now)
        return True
