"""`Snapshot`: what drivers, planners, metrics, simulations and recordings read of an engine.

Making one costs next to nothing: its parts are copies, made when they are first read. It belongs to
one moment: once the engine has been handed another event, a part that was not read before raises
RuntimeError. `freeze` reads all of them, for whatever takes longer (a planner off the loop), and
`to_plain` writes them as JSON values, for whatever is elsewhere (a web page, a controller above
several machines).
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
from slacktide.engine.ledger import ModelCounts, State
from slacktide.engine.phases import ReplicaState
from slacktide.engine.state import EngineState
from slacktide.profiles import BatchTimes, batch_sizes


@read_only
class RunningBatch:
    """A batch on its lane."""

    batch: Batch
    cores: int
    """How many it is expected to run on from now on."""
    steady: bool
    """Whether that has been so since it began."""
    expected_end: float
    """Absolute seconds."""
    unmeasured: bool = False
    """Whether it is a request whose run time could not be judged."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """One lane. What cores are confirmed, aimed at and held: see `engine/lanes.py`."""

    name: str
    device: str
    cores: tuple[int, ...]
    target: tuple[int, ...]
    held: tuple[int, ...]
    leaving: bool
    """It is in no plan any more and goes after its last batch."""
    serves: bool
    """Whether a replica that is up may be given a batch on it."""
    free_at: float
    """When it is expected to start another batch, absolute seconds; now if it is free."""
    running: RunningBatch | None
    missed: Mapping[str, int] = field(default_factory=dict)
    """Windows of its timetable that closed without a batch though a request had waited, by model;
    models that missed none are left out."""


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica of a pool."""

    replica: Replica
    state: ReplicaState
    staying: bool
    """Whether it is in the plan."""
    ready_at: float
    """When it serves, absolute seconds: now if it is up, else the expected end of its start."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool: its queue, its replicas, its predictions."""

    id: PoolId
    max_batch: int
    cores: int
    """Of the smallest lane that serves it."""
    in_service: bool
    """Whether it serves or is about to: it is in the plan, and its circuit is not open."""
    circuit: Circuit
    start_time: float
    """Seconds that its last replica took to come up."""
    queued: int
    """Requests that its scheduler holds."""
    held: int
    """Answered requests that are kept to be run again alone."""
    free_in: float
    """Seconds until a lane of it is expected to be free; 0 if one is, infinite without any."""
    times: BatchTimes
    """Its predictions. They go on learning, but for those of a frozen snapshot."""
    replicas: tuple[ReplicaSnapshot, ...]
    unmeasured: int = 0
    """Requests that wait because their run time cannot be judged."""
    rescued: int = 0
    """Requests that it had no time for and handed to a smaller variant, since it was made."""


@read_only
class ServedBy:
    """What a request's time depends on where it is routed, whatever waits there."""

    max_batch: int
    cores: int
    """Of the smallest lane."""
    replicas: int
    times: BatchTimes


class Snapshot:
    """One moment of an engine. Read-only."""

    # What has been read; on the class, so that making one costs three assignments.
    _lanes: Mapping[str, LaneSnapshot] | None = None
    _pools: dict[PoolId, PoolSnapshot] | None = None
    _requests: Mapping[PoolId, Counter[State]] | None = None
    _counts: Mapping[str, ModelCounts] | None = None
    _waiting: dict[PoolId, Sequence[Request | Notice]] | None = None

    def __init__(self, state: EngineState, now: float) -> None:
        """`now`: the moment that times refer to, at or after the engine's last event."""
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
        """Every pool, the latest at the end."""
        if self._state is None and self._pools is not None:
            return self._pools
        return {id: self._pool(pool) for id, pool in self._live().pools.items()}

    @property
    def requests(self) -> Mapping[PoolId, Counter[State]]:
        """How many requests of each pool are in which state."""
        if self._requests is None:
            counters: dict[PoolId, Counter[State]] = {}
            for entry in self._live().ledger.entries.values():
                counters.setdefault(entry.pool.id, Counter())[entry.state] += 1
            self._requests = counters
        return self._requests

    @property
    def counts(self) -> Mapping[str, ModelCounts]:
        """How the requests of each model have ended so far."""
        if self._counts is None:
            counts = self._live().ledger.counts.items()
            self._counts = {m: replace(sums, by_reason=dict(sums.by_reason)) for m, sums in counts}
        return self._counts

    def serving(self, model: str) -> list[PoolSnapshot]:
        """The pools of `model` that are in service, the latest at the end."""
        if self._state is None and self._pools is not None:
            return [p for p in self._pools.values() if p.id.model == model and p.in_service]
        pools = self._live().pools.values()
        return [self._pool(p) for p in pools if p.id.model == model and _in_service(p)]

    def is_served(self, model: str) -> bool:
        """Whether any pool of `model` is in service; costs less than `serving`."""
        pools = self._live().pools.values()
        return any(p.id.model == model and _in_service(p) for p in pools)

    def waiting(self, pool: PoolId) -> Sequence[Request | Notice]:
        """What waits in one pool: what its scheduler has queued, in its order, then what it cannot
        judge, what is to be run again alone, and the notices of what is announced."""
        if self._waiting is None:
            self._waiting = {}
        pending = self._waiting.get(pool)
        if pending is None:
            state = self._live()
            live = state.pools[pool]
            pending = live.scheduler.pending()
            unmeasured = () if live.unmeasured is None else live.unmeasured.requests()
            if unmeasured or live.quarantine or live.announced:
                entries = state.ledger.entries.values() if live.announced else ()
                pending = (
                    *pending,
                    *unmeasured,
                    *live.quarantine,
                    *(e.request for e in entries if e.state is State.ANNOUNCED and e.pool is live),
                )
            self._waiting[pool] = pending
        return pending

    def request(self, id: int) -> Request | Notice | None:
        """A request that is announced, waits or runs, by its id."""
        entry = self._live().ledger.entries.get(id)
        return None if entry is None else entry.request

    def running(self, batch: int) -> RunningBatch | None:
        """A batch that runs, by its id."""
        running = self._live().running.get(batch)
        return None if running is None else _running(running)

    def batches(self) -> list[RunningBatch]:
        """Every batch that runs."""
        return [_running(running) for running in self._live().running.values()]

    def pool_for(self, request: Request | Notice) -> PoolSnapshot | None:
        """Where a request is routed; None if its model is not served."""
        pool = self._live().routes.pool_for(request)
        return None if pool is None else self._pool(pool)

    def served_by(self, request: Request | Notice) -> ServedBy | None:
        """Of `pool_for`, what costs next to nothing to read."""
        pool = self._live().routes.pool_for(request)
        if pool is None:
            return None
        return ServedBy(pool.max_batch, pool.cores, len(pool.placements), pool.times)

    def detach(self) -> Snapshot:
        """One whose lanes, pools, requests and counts may be read after the engine has gone on.
        Predictions go on learning; single requests, batches and what waits are not in it."""
        detached = copy(self)
        detached._lanes, detached._requests = self.lanes, self.requests
        detached._counts, detached._pools = self.counts, dict(self.pools)
        detached._state = None
        return detached

    def freeze(self) -> Snapshot:
        """One with every part read and predictions copied, which stays as it is. Only single
        requests and batches are not found by their ids any more."""
        frozen = self.detach()
        pools = frozen.pools.items()
        frozen._waiting = {id: self.waiting(id) for id, _ in pools}
        frozen._pools = {id: replace(pool, times=deepcopy(pool.times)) for id, pool in pools}
        return frozen

    def to_plain(self) -> dict[str, Any]:
        """All of it as JSON values, a time that is infinite as null."""
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
            raise RuntimeError("the engine has gone on: what was not read before is gone")
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
    """`value`, of those that a snapshot holds, as JSON values."""
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
