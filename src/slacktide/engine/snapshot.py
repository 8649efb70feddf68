"""`Snapshot`: a read-only view of an engine, for drivers, planners, metrics and recordings.

It costs next to nothing to make: its parts are copied when they are first read. It belongs to one
moment: once the engine has handled another event, reading a new part raises RuntimeError. `freeze`
reads all parts, for slow readers (a planner in a thread); `to_plain` converts them to JSON values,
for remote readers (a web page, a controller of several machines).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from slacktide.domain import Batch, Circuit, Notice, PoolId, Reason, Replica, Request
from slacktide.domain.read_only import read_only
from slacktide.engine.lanes import Lane, Placement, Pool, Running
from slacktide.engine.phases import ReplicaState
from slacktide.engine.request_table import ModelCounts, State
from slacktide.engine.state import EngineState
from slacktide.profiles import BatchTimes, batch_sizes


@read_only
class RunningBatch:
    """A batch on a lane."""

    batch: Batch
    cores: int
    """Cores that it is expected to run on from now on."""
    steady: bool
    """Whether `cores` is the same as when the batch started."""
    expected_end: float
    """Absolute seconds."""
    unmeasured: bool = False
    """Whether the batch is one request whose run time could not be predicted."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane. See `Lane` for `cores`, `target` and `held`."""

    name: str
    device: str
    cores: tuple[int, ...]
    target: tuple[int, ...]
    held: tuple[int, ...]
    leaving: bool
    """Whether it has left the plan and goes after its last batch."""
    serves: bool
    """Whether a replica on it can be given a batch."""
    free_at: float
    """Expected start of its next batch, in absolute seconds; now if it is free."""
    running: RunningBatch | None
    missed: Mapping[str, int] = field(default_factory=dict)
    """Windows of its timetable that closed without a batch although a request had waited, by model;
    only models that missed any."""


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica of a pool."""

    replica: Replica
    state: ReplicaState
    staying: bool
    """Whether its placement stays after its batch."""
    ready_at: float
    """When it can serve, in absolute seconds: now if it is up, else the expected end of its
    start."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool: its queue, its replicas, its predictions."""

    id: PoolId
    max_batch: int
    cores: int
    """Cores of the smallest lane that serves it."""
    in_service: bool
    """Whether it serves now or will later: it is in the plan, and its version is available."""
    circuit: Circuit
    start_time: float
    """Seconds that its last start took."""
    queued: int
    """Requests in its scheduler's queue."""
    held: int
    """Answered requests held to run again alone."""
    free_in: float
    """Seconds until one of its lanes should be free; 0 if one is, infinite without any."""
    times: BatchTimes
    """Its predictions. They go on learning, except in a frozen snapshot."""
    replicas: tuple[ReplicaSnapshot, ...]
    unmeasured: int = 0
    """Waiting requests whose run time cannot be predicted."""
    rescued: int = 0
    """Requests that it has handed to a smaller variant for lack of time."""


@read_only
class ServedBy:
    """The facts about a pool that determine a request's run time there, apart from its queue."""

    max_batch: int
    cores: int
    """Cores of the smallest lane."""
    replicas: int
    times: BatchTimes


class Snapshot:
    """A read-only view of one moment of an engine."""

    # Parts that were read. They are class attributes, so that making a snapshot takes only three
    # assignments.
    _lanes: Mapping[str, LaneSnapshot] | None = None
    _pools: dict[PoolId, PoolSnapshot] | None = None
    _requests: Mapping[PoolId, Counter[State]] | None = None
    _counts: Mapping[str, ModelCounts] | None = None
    _waiting: dict[PoolId, Sequence[Request | Notice]] | None = None

    def __init__(self, state: EngineState, now: float) -> None:
        """`now`: the time that durations refer to, at or after the engine's last event."""
        self.now = now
        self._state: EngineState | None = state
        self._cause = state.cause

    @property
    def lanes(self) -> Mapping[str, LaneSnapshot]:
        """Every lane, by name."""
        if self._lanes is None:
            lanes = self._live().lanes
            self._lanes = {name: _lane(lane, self.now) for name, lane in lanes.items()}
        return self._lanes

    @property
    def pools(self) -> Mapping[PoolId, PoolSnapshot]:
        """Every pool, the newest last."""
        if self._state is None and self._pools is not None:
            return self._pools
        return {id: self._pool(pool) for id, pool in self._live().pools.items()}

    @property
    def requests(self) -> Mapping[PoolId, Counter[State]]:
        """Number of requests by pool and state."""
        if self._requests is None:
            counters: dict[PoolId, Counter[State]] = {}
            for entry in self._live().request_table.entries.values():
                counters.setdefault(entry.pool.id, Counter())[entry.state] += 1
            self._requests = counters
        return self._requests

    @property
    def counts(self) -> Mapping[str, ModelCounts]:
        """Outcomes so far, by model."""
        if self._counts is None:
            counts = self._live().request_table.counts.items()
            self._counts = {m: replace(sums, by_reason=dict(sums.by_reason)) for m, sums in counts}
        return self._counts

    def serving(self, model: str) -> list[PoolSnapshot]:
        """The pools of `model` that are in service, the newest last."""
        if self._state is None and self._pools is not None:
            return [p for p in self._pools.values() if p.id.model == model and p.in_service]
        pools = self._live().pools.values()
        return [self._pool(p) for p in pools if p.id.model == model and _in_service(p)]

    def is_served(self, model: str) -> bool:
        """Whether any pool of `model` is in service; cheaper than `serving`."""
        pools = self._live().pools.values()
        return any(p.id.model == model and _in_service(p) for p in pools)

    def waiting(self, pool: PoolId) -> Sequence[Request | Notice]:
        """The requests that wait in one pool: the scheduler's queue in its order, requests without
        a prediction, requests that run again alone, and notices."""
        if self._waiting is None:
            self._waiting = {}
        pending = self._waiting.get(pool)
        if pending is None:
            state = self._live()
            live = state.pools[pool]
            pending = live.scheduler.pending()
            unmeasured = () if live.unmeasured is None else live.unmeasured.requests()
            if unmeasured or live.quarantine or live.announced:
                entries = state.request_table.entries.values() if live.announced else ()
                pending = (
                    *pending,
                    *unmeasured,
                    *live.quarantine,
                    *(e.request for e in entries if e.state is State.ANNOUNCED and e.pool is live),
                )
            self._waiting[pool] = pending
        return pending

    def request(self, id: int) -> Request | Notice | None:
        """An announced, waiting or running request by id; None if there is none."""
        entry = self._live().request_table.entries.get(id)
        return None if entry is None else entry.request

    def running(self, batch: int) -> RunningBatch | None:
        """A running batch by id; None if there is none."""
        running = self._live().running.get(batch)
        return None if running is None else _running(running)

    def batches(self) -> list[RunningBatch]:
        """All running batches."""
        return [_running(running) for running in self._live().running.values()]

    def pool_for(self, request: Request | Notice) -> PoolSnapshot | None:
        """The pool that a request is routed to; None if its model is not served."""
        pool = self._live().routes.pool_for(request)
        return None if pool is None else self._pool(pool)

    def served_by(self, request: Request | Notice) -> ServedBy | None:
        """Like `pool_for`, with only the facts that are cheap to find; None if the model is not
        served."""
        pool = self._live().routes.pool_for(request)
        if pool is None:
            return None
        return ServedBy(pool.max_batch, pool.cores, len(pool.placements), pool.times)

    def detach(self) -> Snapshot:
        """A copy whose lanes, pools, requests and counts stay readable after further events. Its
        predictions go on learning. It cannot return single requests, batches or waiting
        requests."""
        detached = copy(self)
        detached._lanes, detached._requests = self.lanes, self.requests
        detached._counts, detached._pools = self.counts, dict(self.pools)
        detached._state = None
        return detached

    def freeze(self) -> Snapshot:
        """A complete copy that never changes. It only lacks single requests and batches by id."""
        frozen = self.detach()
        pools = frozen.pools.items()
        frozen._waiting = {id: self.waiting(id) for id, _ in pools}
        frozen._pools = {id: replace(pool, times=deepcopy(pool.times)) for id, pool in pools}
        return frozen

    def to_plain(self) -> dict[str, Any]:
        """All of it as JSON values, with null for infinite times."""
        pools = [
            {
                **_plain(pool),
                "waiting": _plain(self.waiting(id)),
                "states": {state.value: n for state, n in self.requests.get(id, {}).items()},
            }
            for id, pool in self.pools.items()
        ]
        return {
            "now": self.now,
            "lanes": _plain(tuple(self.lanes.values())),
            "pools": pools,
            "outcomes": {model: _plain(counts) for model, counts in self.counts.items()},
        }

    def _live(self) -> EngineState:
        state = self._state
        if state is None or state.cause != self._cause:
            raise RuntimeError("the engine has moved on: only parts read before are available")
        return state

    def _pool(self, pool: Pool) -> PoolSnapshot:
        if self._pools is None:
            self._pools = {}
        snapshot = self._pools.get(pool.id)
        if snapshot is None:
            snapshot = self._pools[pool.id] = PoolSnapshot(
                pool.id,
                pool.max_batch,
                pool.cores,
                _in_service(pool),
                pool.crashes.circuit,
                pool.start_time,
                len(pool.scheduler),
                0 if pool.solo is None else len(pool.solo.held),
                pool.free_in(now=self.now),
                pool.times,
                tuple([self._replica(placement) for placement in pool.placements]),
                0 if pool.unmeasured is None else len(pool.unmeasured),
                pool.rescued,
            )
        return snapshot

    def _replica(self, placement: Placement) -> ReplicaSnapshot:
        ready = self.now
        if placement.state is not ReplicaState.UP:
            starting = placement.state is ReplicaState.STARTING
            begun = placement.since if starting else placement.until
            ready = max(ready, begun + placement.pool.start_time)
        staying = not placement.phase.retiring
        return ReplicaSnapshot(placement.replica, placement.state, staying, ready)


def _in_service(pool: Pool) -> bool:
    return not pool.removed and pool.down_reason is None


def _running(running: Running) -> RunningBatch:
    return RunningBatch(
        running.batch, running.cores, running.steady, running.expected_end, running.unmeasured
    )


def _lane(lane: Lane, now: float) -> LaneSnapshot:
    return LaneSnapshot(
        lane.name,
        lane.device,
        lane.cores,
        lane.target,
        lane.held,
        lane.removed,
        any(placement.phase.serves and not placement.standby for placement in lane.placements),
        now + max(0.0, lane.free_in(now=now)),
        None if lane.running is None else _running(lane.running),
        {} if lane.windows is None else dict(lane.windows.missed),
    )


def _plain(value: Any) -> Any:
    """Convert a part of a snapshot to JSON values."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Reason():
            return value.label
        case Enum():
            return value.value
        case PoolId():
            return str(value)
        case PoolSnapshot():
            named = {field.name: getattr(value, field.name) for field in fields(value)}
            times, cores = named.pop("times"), value.cores
            sizes = batch_sizes(value.max_batch)
            batches = {rows: times.of(rows, cores) for rows in sizes}
            named["seconds"] = {rows: (time.expected, time.p99) for rows, time in batches.items()}
            return _plain(named)
        case Mapping():
            return {str(_plain(key)): _plain(member) for key, member in value.items()}
        case tuple() | list():
            return [_plain(member) for member in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
