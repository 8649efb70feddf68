"""Applies a plan: lanes, placements and routes, without dropping a request.

Order matters. New lanes and pools come first, so that routes can lead to them; then routes change
and waiting requests follow them; only then do old placements and pools go. Running batches stay
where they are, and their placements retire when these batches have ended. A pool that moves to
other lanes serves on its old lanes until it is up on a new lane.

A plan for a thousand clients arrives twice a second and changes only a few routes, so the parts
that are equal in both plans are skipped: placements if the deployments are the same, and waiting
requests if their client's route is the same and no pool came up or went down.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence, Set

from slacktide.domain import Circuit, Deployment, LaneSpec, Plan, PlanChanged, PoolId, Reason
from slacktide.engine.early_exits import ExitRules
from slacktide.engine.idle_work import IdleWork
from slacktide.engine.lanes import Lane, Pool
from slacktide.engine.phases import Step
from slacktide.engine.replicas import ReplicaLifecycle
from slacktide.engine.requests import Requests
from slacktide.engine.resizing import LaneResizing
from slacktide.engine.state import EngineState, RouteTable
from slacktide.engine.windows import windows_of


class Deploying:
    """Handles PlanChanged."""

    def __init__(
        self,
        state: EngineState,
        requests: Requests,
        replicas: ReplicaLifecycle,
        resizing: LaneResizing,
        idle: IdleWork,
        exits: ExitRules,
    ) -> None:
        self._state = state
        self._requests = requests
        self._replicas = replicas
        self._resizing = resizing
        self._idle = idle
        self._exits = exits
        self._applied: Plan | None = None
        """The plan in force; None while a plan is being applied, or after applying one has
        failed."""
        self._serving: Set[PoolId] = frozenset()
        """Pools that served when waiting requests were last moved along their routes."""

    def plan_changed(self, event: PlanChanged) -> None:
        state, plan = self._state, event.plan
        before, self._applied = self._applied, None
        state.lane_changes += 1
        self._shape_lanes(plan.lanes)
        deployed = {deployment.pool for deployment in plan.deployments if not deployment.standby}
        if before is not None and plan.deployments == before.deployments:
            clients: Set[str] | None = frozenset()
            if plan.routes != before.routes:
                table = RouteTable(state.pools, plan.routes, deployed)
                clients = table.clients_unlike(state.routes)
                state.routes = table
            if self._serving != self._pools_that_serve():  # routing by size depends on them
                clients = None
            if clients is None or clients:
                self._follow_routes(deployed, clients)
        else:
            self._place(plan.deployments)
            state.routes = RouteTable(state.pools, plan.routes, deployed)
            self._follow_routes(deployed)
            before = None
        if before is None or plan.lanes != before.lanes:
            self._remove_what_left(plan)
            state.to_review.extend(state.pools.values())  # a trial may have lost its placement
        self._exits.follow(plan.exits)
        self._applied = plan

    def tidy(self, lane: Lane) -> None:
        """On a free lane, remove or restart the placements that had to wait for its batch."""
        if lane.running is None:
            self._replicas.retire_on(lane)
            if lane.removed and not lane.placements:
                self._state.lanes.pop(lane.name, None)
                self._state.lane_changes += 1

    def _shape_lanes(self, specs: tuple[LaneSpec, ...]) -> None:
        state = self._state
        for spec in specs:
            lane = state.lanes.get(spec.name)
            if lane is None:
                lane = state.lanes[spec.name] = Lane(spec)
            else:
                self._resizing.aim(lane, spec.cores)
            lane.windows = windows_of(spec.timetable, lane.windows, state.now)
            lane.removed = False

    def _place(self, deployments: Sequence[Deployment]) -> None:
        state = self._state
        placed = {
            (p.pool.id, name): p for name, lane in state.lanes.items() for p in lane.placements
        }
        for deployment in deployments:
            id, lane = deployment.pool, state.lanes[deployment.lane]
            pool = state.pools.get(id)
            if pool is None:
                pool = Pool(id, deployment.max_batch, state.factory, state.settings)
                state.pools[id] = pool
            pool.removed = False
            if pool.crashes.circuit is Circuit.OPEN and pool.crashes.retry_at == math.inf:
                continue  # permanently unavailable
            placement = placed.get((id, deployment.lane))
            if placement is None:
                self._replicas.place(pool, lane, deployment)
                continue
            if placement.phase.leaves or placement.standby != deployment.standby:
                if placement.phase.leaves:
                    placement.go(Step.KEEP)
                placement.standby = deployment.standby
                pool.count_lanes()
                state.mark(lane)
            placement.cap = deployment.max_batch
            placement.planned_generation = deployment.generation
            placement.adapt()
            down = pool.crashes.circuit is Circuit.OPEN
            if down or placement.generation != placement.planned_generation:
                self._replicas.restart(placement)

    def _follow_routes(
        self, deployed: Container[PoolId], clients: Container[str] | None = None
    ) -> None:
        """Move waiting requests to the pools to which their routes lead now. Requests without a
        route stay where they are, and so do rescued requests while their pool is deployed.
        `clients`: clients whose routes have changed; None: any client's routes may have changed."""
        state = self._state
        self._serving = self._pools_that_serve()
        waiting = [e for e in state.waiting() if clients is None or e.request.client in clients]
        for entry in waiting:
            if entry.rescued and entry.pool.id in deployed:
                continue
            target = state.routes.pool_for(entry.request)
            if target is not None and target is not entry.pool and target.down_reason is None:
                self._requests.move(entry, target)

    def _pools_that_serve(self) -> Set[PoolId]:
        return {id for id, pool in self._state.pools.items() if pool.resident}

    def _remove_what_left(self, plan: Plan) -> None:
        state = self._state
        planned_places = {(deployment.pool, deployment.lane) for deployment in plan.deployments}
        pools = {pool for pool, _ in planned_places}
        for pool in tuple(state.pools.values()):
            staying = {p for p in pool.placements if (pool.id, p.lane.name) in planned_places}
            moved = bool(staying) and not any(p.phase.serves for p in staying)
            for placement in tuple(pool.placements):
                if placement not in staying:
                    # Two lanes may share cores for a moment: better than not serving.
                    self._replicas.leave(placement, at_once=not moved)
            if pool.id not in pools:
                pool.removed = True
                state.reject_waiting(pool, Reason.DRAINING, "the model is being unloaded")
                self._idle.drop_held(pool)
        for id in [i for i, pool in state.pools.items() if pool.removed and not pool.placements]:
            del state.pools[id]
        names = {spec.name for spec in plan.lanes}
        for lane in tuple(state.lanes.values()):
            lane.removed = lane.name not in names
            if lane.removed and lane.running is None and not lane.placements:
                del state.lanes[lane.name]
            else:
                state.mark(lane)
