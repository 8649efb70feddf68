"""Replicas: how they come up, are lost, hang, restart and are given up."""

from __future__ import annotations

import math

from slacktide.domain import (
    Circuit,
    Deployment,
    DriverStalled,
    Reason,
    Replica,
    ReplicaLost,
    ReplicaUp,
    StartReplica,
    StopReplica,
    TellCircuit,
)
from slacktide.engine.batches import Batches
from slacktide.engine.early_exits import ExitRules
from slacktide.engine.idle_work import IdleWork
from slacktide.engine.lanes import Lane, Placement, Pool, PoolCrash
from slacktide.engine.phases import Phase, ReplicaState, Step
from slacktide.engine.state import EngineState


class ReplicaLifecycle:
    """Handles ReplicaUp, ReplicaLost and DriverStalled; starts, stops and kills replicas."""

    def __init__(
        self, state: EngineState, batches: Batches, idle: IdleWork, exits: ExitRules
    ) -> None:
        self._state = state
        self._batches = batches
        self._idle = idle
        self._exits = exits
        self.next_due = math.inf
        """Next time at which a replica restarts, or has taken too long to start; inf: never."""
        self._by_id: dict[int, Placement] = {}
        self._next_id = 0

    def place(self, pool: Pool, lane: Lane, deployment: Deployment) -> None:
        """Place `pool` on `lane`, and start its first replica there if it may have one."""
        placement = Placement(pool, lane, deployment, self._state.settings.fairness_window)
        pool.placements.append(placement)
        lane.placements.append(placement)
        pool.count_lanes()
        placement.adapt()
        self._start_if_due(placement)

    def leave(self, placement: Placement, *, at_once: bool) -> None:
        """Take a placement out of the plan: now (`at_once`), or once its pool is up elsewhere."""
        if at_once or not placement.phase.serves:
            self.detach(placement)
        elif placement.phase is Phase.UP:  # otherwise an earlier plan has removed it
            placement.go(Step.LEAVE)
            placement.pool.count_lanes()

    def detach(self, placement: Placement) -> None:
        """Delete a placement; if it runs a batch, do so after the batch."""
        if placement.busy:
            if not placement.phase.retiring:
                placement.go(Step.RETIRE)
            placement.pool.count_lanes()
            return
        placement.pool.placements.remove(placement)
        placement.pool.count_lanes()
        placement.lane.placements.remove(placement)
        if placement.pool.removed and not placement.pool.placements:
            self._state.pools.pop(placement.pool.id, None)
        if placement.state is not ReplicaState.BACKOFF:
            self._by_id.pop(placement.replica.id, None)
            self._stop(placement, kill=placement.phase.dying)

    def restart(self, placement: Placement) -> None:
        """Replace the replica by a new one; if it runs a batch, do so after the batch."""
        if placement.state is ReplicaState.BACKOFF or placement.phase.dying:
            return  # a new replica starts in any case
        if placement.busy:
            if placement.phase is Phase.UP:
                placement.go(Step.RESTART)
            return
        self._park(placement)
        self._start_if_due(placement)

    def retire_on(self, lane: Lane) -> None:
        """On a free lane, delete or restart the placements that had to wait for its batch."""
        for placement in tuple(lane.placements):
            if placement.phase is Phase.RESTARTING:
                self.restart(placement)
            elif placement.phase is Phase.RETIRING:
                self.detach(placement)

    def up(self, event: ReplicaUp) -> None:
        placement = self._by_id.get(event.replica)
        if placement is None:
            return  # it was stopped before this report arrived
        if placement.state is not ReplicaState.STARTING:
            raise ValueError(f"replica {event.replica} is already up")
        placement.go(Step.CAME_UP)
        placement.until = math.inf
        self._reckon()
        self._exits.came_up(placement)
        pool, now = placement.pool, self._state.now
        pool.ever_up = True
        pool.start_time, placement.since = now - placement.since, now
        if pool.down_reason is not None:  # from now on requests show whether it works
            pool.down_reason = None
            self._tell(pool)
        self._state.mark(placement.lane)
        for sibling in tuple(pool.placements):
            if sibling.phase is Phase.LEAVING:
                self.detach(sibling)
                self._state.mark(sibling.lane)

    def lost(self, event: ReplicaLost) -> None:
        placement = self._by_id.pop(event.replica, None)
        if placement is None:
            return  # it was stopped before this report arrived
        state, pool = self._state, placement.pool
        detail, permanent = event.detail, event.permanent
        before = placement.phase
        if before is Phase.STALLED:
            detail = f"it was not up within {state.settings.start_limit:g} s"
            # The next start would take as long, and the version's loading waits for it.
            permanent = permanent or not pool.ever_up
        elif before.dying:
            detail = "it hung and was killed"
        placement.go(Step.LOST)
        placement.until = math.inf
        state.mark(placement.lane)
        running = placement.lane.running
        crash = PoolCrash(pool, state.now, detail)
        again = False
        if running is not None and running.placement is placement:
            guilty = before.dying and event.computed
            again = self._batches.lost(running.batch, crash, guilty=guilty)
        if before.leaves:
            self.detach(placement)
        if pool.crashes.circuit is Circuit.OPEN:
            return  # its last batch, or an earlier one that hung, has opened the circuit
        if permanent and not before.leaves:
            # If the version was up before, its file may be missing only for a while.
            self._give_up(pool, detail, for_good=not pool.ever_up)
        else:
            if not (again or event.shared):
                pool.crashes.crashed(crash)
            placement.until = state.now + pool.crashes.pause(now=state.now)
        state.to_review.append(pool)

    def reconsider(self) -> None:
        """Open or close circuits after an event, and start the replicas on trial."""
        state = self._state
        pools, state.to_review = state.to_review, []
        for pool in pools:
            crashes = pool.crashes
            fault = crashes.fault(now=state.now)
            if fault and crashes.circuit is not Circuit.OPEN:
                self._give_up(pool, fault)
            elif crashes.proved:
                crashes.close()
                self._tell(pool)
            for placement in pool.placements:
                if placement.parked:
                    self._start_if_due(placement)
        self._reckon()

    def _give_up(self, pool: Pool, reason: str, *, for_good: bool = False) -> None:
        """Make a version unavailable: stop its replicas and refuse its waiting requests."""
        pool.down_reason = reason
        retry_s = pool.crashes.open(now=self._state.now, for_good=for_good)
        for placement in tuple(pool.placements):
            if for_good or placement.phase.leaves:
                self.detach(placement)
                if placement.lane.removed:  # and perhaps empty now
                    self._state.mark(placement.lane)
            elif placement.busy:  # it is parked after its batch or the replica's death
                if placement.phase is Phase.UP:
                    placement.go(Step.RESTART)
            else:
                self._park(placement)
        self._state.reject_waiting(pool, Reason.UNAVAILABLE, reason)
        self._idle.drop_held(pool)
        self._tell(pool, retry_s)

    def _park(self, placement: Placement) -> None:
        """Stop the replica, if any, without starting a new one."""
        if placement.state is not ReplicaState.BACKOFF:
            self._by_id.pop(placement.replica.id, None)
            self._stop(placement, kill=placement.phase.dying)
            placement.go(Step.STOP)
        placement.until = math.inf

    def _start_if_due(self, placement: Placement) -> None:
        """Start a replica unless the version is unavailable or already has one on trial."""
        crashes = placement.pool.crashes
        on_trial = any(
            not (sibling.parked or sibling.phase.leaves or sibling.phase is Phase.RESTARTING)
            for sibling in placement.pool.placements
            if sibling is not placement
        )
        if crashes.circuit is Circuit.CLOSED or (crashes.circuit is Circuit.TRIAL and not on_trial):
            self._start(placement)

    def _tell(self, pool: Pool, retry_s: float | None = None) -> None:
        state, reason = self._state, pool.down_reason or ""
        notification = TellCircuit(pool.id, pool.crashes.circuit, reason, retry_s, state.cause)
        state.commands.append(notification)

    def check_timers(self) -> None:
        """Restart replicas after their pause; kill any whose start or batch takes too long."""
        state = self._state
        now = state.now
        for pool in state.pools.values():
            if pool.crashes.retry_at <= now:
                pool.crashes.begin_trial()
                state.to_review.append(pool)
            for placement in pool.placements:
                if placement.until <= now:
                    if placement.state is ReplicaState.BACKOFF:
                        self._start(placement)
                    else:
                        placement.until = math.inf
                        self._kill(placement)
        self._reckon()
        for running in state.running.values():
            if running.hang_at <= now and not running.placement.phase.dying:
                self._kill(running.placement)

    def driver_stalled(self, event: DriverStalled) -> None:
        """The driver could not read reports for some time: extend the time limits of starting and
        busy replicas by that time. Nothing is learnt from their batches, whose end is unknown."""
        state = self._state
        for running in state.running.values():
            running.hang_at += event.seconds
            running.steady = False
        for pool in state.pools.values():
            for placement in pool.placements:
                if placement.state is ReplicaState.STARTING:
                    placement.until += event.seconds
        self._reckon()

    def _start(self, placement: Placement) -> None:
        """Start the next replica of this placement. It can run the largest batch that any plan may
        ask for."""
        state, pool, lane = self._state, placement.pool, placement.lane
        replica = Replica(
            self._next_id, pool.id, lane.name, lane.target, pool.max_batch, lane.device
        )
        self._next_id += 1
        placement.replica = replica
        placement.adapt()
        placement.go(Step.START)
        placement.generation = placement.planned_generation
        placement.since = state.now
        placement.until = state.now + state.settings.start_limit
        self.next_due = min(self.next_due, placement.until)
        self._by_id[replica.id] = placement
        state.commands.append(StartReplica(replica, state.cause))

    def _reckon(self) -> None:
        """Update `next_due`; placements change far more rarely than requests come."""
        pools = self._state.pools.values()
        times = [placement.until for pool in pools for placement in pool.placements]
        self.next_due = min([*times, *(pool.crashes.retry_at for pool in pools)], default=math.inf)

    def _kill(self, placement: Placement) -> None:
        placement.go(Step.KILL)
        self._stop(placement, kill=True)

    def _stop(self, placement: Placement, *, kill: bool) -> None:
        self._state.commands.append(StopReplica(placement.replica, kill, self._state.cause))
