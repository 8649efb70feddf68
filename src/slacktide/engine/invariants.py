"""`check_invariants`: properties of an engine that hold after every event. For tests."""

from __future__ import annotations

import math
from collections import Counter

from slacktide.domain import Circuit, Leaving, Request
from slacktide.engine.early_exits import is_wanted
from slacktide.engine.engine import Engine
from slacktide.engine.idle_work import HELD
from slacktide.engine.phases import Phase, ReplicaState
from slacktide.engine.request_table import State
from slacktide.engine.state import EngineState


class InvariantError(Exception):
    """The engine's state contradicts itself; the message says how."""


def check_invariants(engine: Engine) -> None:
    """Raise InvariantError if the engine's state contradicts itself. Changes nothing."""
    _conservation(engine)
    _one_place_each(engine)
    _crashes(engine)
    _pools(engine)
    _lanes(engine)
    _placements(engine)
    _circuits(engine)
    _early_exits(engine)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def _conservation(engine: Engine) -> None:
    """Requests = ended + in flight, for every model, and the table holds those in flight."""
    table = engine.state.request_table
    unanswered = Counter(
        entry.request.model
        for entry in table.entries.values()
        if not (entry.answered or entry.state in (State.ENDED, State.HELD))
    )
    for model, counts in table.counts.items():
        _require(
            counts.requests == counts.ended + counts.in_flight,
            f"{model}: {counts.requests} requests, {counts.ended} ended, "
            f"{counts.in_flight} in flight",
        )
        _require(
            counts.in_flight == unanswered[model],
            f"{model}: {counts.in_flight} in flight, {unanswered[model]} in the table",
        )


_PLACES = {
    State.QUEUED: "queues",
    State.UNMEASURED: "unmeasured queues",
    State.QUARANTINED: "quarantine",
    State.RUNNING: "batches",
    State.HELD: "held",
    State.ENDED: "batches",
}
"""Place of a request in each state; an announced one is in no queue."""


def _places(state: EngineState) -> dict[str, Counter[int]]:
    """How often each request occurs in each place, by id."""
    pools = state.pools.values()
    return {
        "queues": Counter(r.id for pool in pools for r in pool.scheduler.pending()),
        "quarantine": Counter(r.id for pool in pools for r in pool.quarantine),
        "batches": Counter(m.id for run in state.running.values() for m in run.batch.members),
        "held": Counter(r.id for pool in pools if pool.solo for r in pool.solo.held),
        "unmeasured queues": Counter(
            r.id for pool in pools if pool.unmeasured for r in pool.unmeasured.requests()
        ),
    }


def _one_place_each(engine: Engine) -> None:
    """Every open request is in exactly the place of its state."""
    entries, places = engine.state.request_table.entries, _places(engine.state)
    for place, requests in places.items():
        twice = [id for id, count in requests.items() if count > 1]
        _require(not twice, f"requests {twice} are in the {place} twice")
    for id, entry in entries.items():
        current_places = [place for place, requests in places.items() if requests[id]]
        expected = [_PLACES[entry.state]] if entry.state in _PLACES else []
        _require(current_places == expected, f"request {id} is {entry.state}, in {current_places}")
        announced = not isinstance(entry.request, Request)
        _require(announced == (entry.state is State.ANNOUNCED), f"request {id} has a wrong type")
    strays = set().union(*places.values()) - entries.keys()
    _require(not strays, f"requests {sorted(strays)} are queued or running, but not in the table")


def _crashes(engine: Engine) -> None:
    """A crash counts the members of its batch that are still to be judged."""
    unjudged = Counter(
        entry.crash
        for entry in engine.state.request_table.entries.values()
        if entry.crash is not None and entry.state in (State.QUARANTINED, State.RUNNING)
    )
    for crash, count in unjudged.items():
        _require(crash.unjudged == count, f"a crash of {crash.pool.id}: {count} are unjudged")


def _pools(engine: Engine) -> None:
    """Each pool's counters and flags agree with its requests."""
    state = engine.state
    for pool in state.pools.values():
        pending = len(pool.scheduler.pending())
        _require(len(pool.scheduler) == pending, f"{pool.id}: counts {len(pool.scheduler)}")
        coming = sum(
            entry.pool is pool and entry.state is State.ANNOUNCED
            for entry in state.request_table.entries.values()
        )
        _require(pool.announced == coming, f"{pool.id}: counts {pool.announced} notices")
        nothing = not (pending or coming or pool.quarantine or pool.unmeasured is not None)
        nothing = nothing and pool.scheduler.next_expiry() is None
        _require(nothing or not pool.quiet, f"{pool.id} is marked quiet, but has work")
        _require(pool.solo is None or len(pool.solo.held) <= HELD, f"{pool.id} holds too many")
        runs = sum(r.unmeasured and r.placement.pool is pool for r in state.running.values())
        alone = pool.unmeasured is not None and pool.unmeasured.is_running
        _require(runs == alone, f"{pool.id} runs {runs} unmeasured requests")


def _lanes(engine: Engine) -> None:
    """A lane runs one batch at a time, within its limits, on a replica that is up."""
    state = engine.state
    on_lanes = {lane.running.batch.id for lane in state.lanes.values() if lane.running}
    _require(on_lanes == set(state.running), f"lanes run {on_lanes}, not {set(state.running)}")
    for running in state.running.values():
        batch, placement = running.batch, running.placement
        _require(placement.lane.running is running, f"batch {batch.id} is not on its lane")
        _require(placement.state is ReplicaState.UP, f"batch {batch.id} runs on no live replica")
        rows = sum(member.rows for member in batch.members)
        _require(rows == batch.rows <= batch.replica.max_batch, f"batch {batch.id}: {rows} rows")
        _require(
            len({member.signature for member in batch.members}) == 1,
            f"batch {batch.id} mixes shapes",
        )
        _require(not (batch.solo and running.waiting), f"batch {batch.id}: solo, but awaited")
        waiting = sum(
            state.request_table.entries[m.id].state is State.RUNNING for m in batch.members
        )
        _require(waiting == running.waiting, f"batch {batch.id}: {waiting} members wait")

    for lane in state.lanes.values():
        grows = len(lane.target) > len(lane.cores)
        _require(grows or lane.awaited_until == math.inf, f"{lane.name} awaits cores that it has")
        _require(
            {*lane.cores, *lane.target} <= {*lane.held}, f"{lane.name} does not hold its cores"
        )
        least = min(len(lane.target), len(lane.cores)) or 1
        _require(lane.size == least, f"{lane.name} counts on {lane.size} cores, not {least}")
        _require(
            lane.running is None or lane.running.cores == lane.size,
            f"{lane.name}: its batch counts on a different number of cores",
        )


def _placements(engine: Engine) -> None:
    """Pools and lanes agree on what is placed where."""
    state = engine.state
    by_pool = {id(p) for pool in state.pools.values() for p in pool.placements}
    by_lane = {id(p) for lane in state.lanes.values() for p in lane.placements}
    _require(by_pool == by_lane, "pools and lanes disagree on placements")
    for lane in state.lanes.values():
        emptied = lane.removed and lane.running is None and not lane.placements
        _require(not emptied, f"{lane.name} has left the plan and is empty, but still exists")
    for pool in state.pools.values():
        _require(not pool.removed or bool(pool.placements), f"{pool.id} has left, but exists")
        staying = [p for p in pool.placements if not (p.phase.leaves or p.standby)]
        _require(pool.lanes == max(1, len(staying)), f"{pool.id} counts on {pool.lanes} lanes")
        for placement in pool.placements:
            replica, lane = placement.replica, placement.lane
            _require(
                placement.state is placement.phase.replica, f"replica {replica.id} has two states"
            )
            _require(replica.cores == lane.usable, f"replica {replica.id} has wrong cores")
            cap = min(placement.cap, pool.max_batch)
            _require(replica.max_batch == cap, f"replica {replica.id} has a wrong cap")


def _circuits(engine: Engine) -> None:
    """A pool whose circuit is open is down, and a pool that is down serves nothing."""
    for pool in engine.state.pools.values():
        history = pool.crashes
        down, circuit = pool.down_reason is not None, history.circuit
        _require(down or circuit is not Circuit.OPEN, f"{pool.id}: open, but not down")
        _require(not (down and circuit is Circuit.CLOSED), f"{pool.id}: down, but closed")
        _require(
            (history.retry_at < math.inf) <= (circuit is Circuit.OPEN), f"{pool.id}: retry time"
        )
        if circuit is Circuit.OPEN:
            stopping = (Phase.RESTARTING, Phase.HUNG)
            phases = [p.phase for p in pool.placements if not p.parked]
            live = [phase for phase in phases if not (phase.retiring or phase in stopping)]
            _require(not live, f"{pool.id} is unavailable but keeps replicas")
        if down:
            _require(
                not (pool.quarantine or len(pool.scheduler) or pool.unmeasured),
                f"{pool.id} is down, but holds requests",
            )
            serving = any(p.phase.serves for p in pool.placements)
            _require(not serving, f"{pool.id} is down, but serves")


def _early_exits(engine: Engine) -> None:
    """Policies are the plan's, judged batches run on, and spare batches stop for others."""
    state = engine.state
    planned = {policy.pool: policy for policy in engine.plan.exits}
    for pool in state.pools.values() if engine.plan_done else ():
        _require(pool.exits == planned.get(pool.id), f"{pool.id} has a wrong exit policy")
    for running in state.running.values():
        batch = running.batch
        runs_on = batch.leaving is Leaving.RUN_ON
        _require(runs_on or not (batch.judged or running.may_stop), f"batch {batch.id}: rows leave")
        _require(not (batch.judged and running.may_stop), f"judged batch {batch.id} may be stopped")
        _require(
            not running.spare or (running.may_stop and not running.waiting),
            f"batch {batch.id} is spare, but requests wait for it",
        )
        is_needed = running.spare and is_wanted(running.placement.lane)
        _require(not is_needed, f"batch {batch.id} is spare, but other requests need its lane")
