"""`ScalingPlanner`: number and cores of the replicas of every scaled model, and their batch caps.

- A model's policy is asked for a target once per period, when a replica has come up, and as soon as
  `ScalingPolicy.is_urgent` finds a request that would be late but can still be saved. The planner
  checks this when requests come and when a batch took longer than expected, at most once in
  `CHECK_INTERVAL`, and less often while the new plans are no better.
- `LaneSizes` turns the targets of all policies into a plan, and does so again when a lane has given
  up cores that were not free before.
- The variant that a policy chooses becomes the target of its model's *plain* route (for any client
  and application), if the model is a family without a planner of variants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import (
    Announced,
    BatchFinished,
    Event,
    LaneResized,
    Notice,
    Plan,
    PoolId,
    ReplicaUp,
    Request,
    Route,
    Submitted,
)
from slacktide.engine import Snapshot
from slacktide.planning.draft import UNBOUNDED, Draft
from slacktide.planning.lanes.lane_sizes import LaneSizes, ScalingRequest
from slacktide.planning.planner import JobDone, Owned, PlanField, Stated, stated_as
from slacktide.planning.scaling.scaled_state import ScaledModel, ScaledState
from slacktide.planning.scaling.view import ModelView, ScalingTarget, Waiting, view_of
from slacktide.planning.scoped import ScopedPlanner
from slacktide.planning.variants.family import Family

OWNED = (PlanField.REPLICAS, PlanField.LANE_CORES, PlanField.BATCH_CAPS)


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """The status of one model, for metrics and people."""

    target: ScalingTarget | None
    """The last target; None: the policy has not been asked yet."""
    lanes: Mapping[str, tuple[int, int]]
    """(cores confirmed, cores aimed at) by lane."""
    rate: float
    """Expected rows per second. Counts only requests that some allowed number of cores can save."""
    budget: float
    """Seconds that an expected request will have until its deadline; infinite without deadlines."""


class ScalingPlanner(ScopedPlanner[str, ScaledState]):
    """The planner of every model whose cores or replicas have a range."""

    name = "scaling"

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        super().__init__()
        self.models: Mapping[str, ScaledModel] = {}
        """How models are scaled, by name."""
        self._sizes = LaneSizes(cores)
        self._families: dict[str, Family] = {}
        self._plain_pools: dict[str, PoolId] = {}
        """Pool of the base plan's route without client or application, by family."""
        self._base = Plan()
        self._rebased = False
        """Whether the next plan is the first from a new base plan."""
        self._resize_at = math.inf
        """Time at which cores that lanes have given up are handed on."""
        self._incoming: dict[str, dict[int, Waiting]] = {}
        """Requests that the engine is about to handle, by model and id."""
        self._due_views: dict[str, ModelView] = {}
        """Views of the models whose policies must be asked."""
        self._pending: tuple[float, list[ScaledState], bool] | None = None
        """Work for when the engine has handled the last events: (time, models whose policies are
        asked again, whether lanes are resized)."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        families, owned = stated_as(Family, stated), set[Owned]()
        for name in stated_as(ScaledModel, stated):
            owned |= {(name, field) for field in OWNED}
            if name in families:
                alone = families[name].planner == "none"
                owned ^= {(name, PlanField.ROUTES if alone else PlanField.BATCH_CAPS)}
        return frozenset(owned)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        self.models = models = stated_as(ScaledModel, stated)
        self.keep_states(models, lambda name, model: ScaledState(name, model, now=now))
        families = stated_as(Family, stated)
        self._families = {name: families[name] for name in models if name in families}
        plain = [
            route for route in base.routes if route.client is None and route.application is None
        ]
        # The route for requests that name no version comes last, and so decides.
        plain.sort(key=lambda route: route.version is None)
        self._plain_pools = {
            route.model: route.pool for route in plain if route.model in self._families
        }
        self._sizes.rebase(base, models)
        for state in self.states.values():
            state.due_at = now
        self._due_views.clear()
        self._rebased = self._rebased or base is not self._base
        self._base = base

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        self._catch_up()
        self._incoming = {}
        due_states: list[ScaledState] = []
        resize = False
        for event in events:
            if isinstance(event, Submitted):
                self._count_request(event.request, snapshot, now)
            elif isinstance(event, Announced):
                self._count_request(event.notice, snapshot, now)
            elif isinstance(event, BatchFinished):
                # A batch that took longer than expected may have put others in danger.
                running = snapshot.running(event.batch)
                if running is not None and now > running.expected_end:
                    state = self.states.get(running.batch.replica.pool.model)
                    if state is not None:
                        state.schedule_check(now=now)
                resize = resize or self._sizes.short  # a lane that was leaving may be gone now
            elif isinstance(event, ReplicaUp) and self.states:
                due_states += [
                    self.states[pool.id.model]
                    for pool in snapshot.pools.values()
                    if pool.id.model in self.states
                    and any(replica.replica.id == event.replica for replica in pool.replicas)
                ]
            elif isinstance(event, LaneResized):
                resize = True
        if due_states or resize:
            self._pending = now, due_states, resize

    def _count_request(self, request: Request | Notice, snapshot: Snapshot, now: float) -> None:
        state = self.states.get(request.model)
        if state is None:
            return
        waiting = Waiting.of(request)
        fresh = self._incoming.setdefault(request.model, {})
        earlier = fresh.get(request.id)
        if earlier is None and (handled_request := snapshot.request(request.id)) is not None:
            earlier = Waiting.of(handled_request)
        fresh[request.id] = waiting
        certain = isinstance(request, Request) or request.planned_due is not None
        state.count_request(waiting, earlier, certain=certain, now=now)

    def _catch_up(self) -> None:
        """Act on the consequences of the last events, which the engine has handled by now."""
        if self._pending is None:
            return
        now, due_states, resize = self._pending
        for state in due_states:
            state.due_at = min(state.due_at, now)
        if resize:
            self._resize_at = now
        self._pending = None

    def next_wakeup(self, snapshot: Snapshot) -> float:
        self._catch_up()
        at = self._resize_at
        for name, state in self.states.items():
            if (state.due_at < at or state.check_at < at) and snapshot.is_served(name):
                at = min(at, state.due_at, state.check_at)
        return at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        self._due_views.clear()
        for name, state in self.states.items():
            is_due = state.due_at <= now
            if is_due or state.check_at <= now:
                self._active = state
                view = self._view(name, snapshot)
                if view is not None and (is_due or state.is_urgent(view, now=now)):
                    self._due_views[name] = view
        self._active = None
        return bool(self._due_views) or self._resize_at <= now

    def write(self, state: ScaledState, draft: Draft, snapshot: Snapshot, *, now: float) -> Draft:
        """Decide for one model; `plan` writes the decisions for all together."""
        view = self._due_views.pop(state.model, None)
        bounds = draft.bounds.get(state.model, UNBOUNDED)
        if state.bound(bounds, now=now) and not self._rebased:
            view = self._view(state.model, snapshot)
        if view is not None:
            state.decide(view, now=now)
        return draft

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        super().plan(snapshot, draft, now=now)
        self._due_views.clear()
        borrowing, self._rebased = self._rebased, False
        if not borrowing:
            self._resize_at = math.inf
        requests = {
            name: ScalingRequest(state.limits, state.target, state.pressure)
            for name, state in self.states.items()
        }
        plan = self._sizes.plan(draft.plan, requests, snapshot, borrowing=borrowing)
        return replace(draft, plan=self._routed(plan))

    def _routed(self, plan: Plan) -> Plan:
        """Return `plan`, its plain routes leading to the variants that policies have chosen."""
        variants = {
            name: state.target.variant
            for name, state in self.states.items()
            if self._chooses(name) and state.target is not None and state.target.variant
        }
        if not variants:
            return plan
        deployed = {deployment.pool for deployment in plan.deployments}

        def routed(route: Route) -> Route:
            variant = variants.get(route.model)
            if variant is None or route.client is not None or route.application is not None:
                return route
            pool = route.pool._replace(variant=variant)
            return replace(route, pool=pool) if pool in deployed else route

        return replace(plan, routes=tuple([routed(route) for route in plan.routes]))

    def _chooses(self, name: str) -> bool:
        """Whether the policy of a model chooses its variant."""
        family = self._families.get(name)
        return family is not None and family.planner == "none"

    def status(self, snapshot: Snapshot) -> dict[str, ScalingStatus]:
        """Return the status of each scaled model."""
        statuses = {}
        for group in self._sizes.groups:
            sizes = {
                name: (len(lane.cores), len(lane.target))
                for name in self._sizes.lanes(group)
                if (lane := snapshot.lanes.get(name)) is not None
            }
            for name in group.models:
                state = self.states[name]
                expected = state.expected(now=snapshot.now)
                statuses[name] = ScalingStatus(state.target, sizes, expected.rate, expected.budget)
        return statuses

    def _view(self, name: str, snapshot: Snapshot) -> ModelView | None:
        group = self._sizes.group_of(name)
        if group is None:
            return None
        state, now = self.states[name], snapshot.now
        family, pool_id = self._families.get(name), self._plain_pools.get(name)
        variants = family.variants if family else ()
        accuracies = {variant.name: variant.accuracy for variant in variants}
        smallest = next(iter(accuracies), "")
        for pool in snapshot.serving(name):
            if pool.id.variant == smallest or not family:
                state.times = pool.times
        if pool_id is not None and state.target is not None and self._chooses(name):
            pool_id = pool_id._replace(variant=state.target.variant or pool_id.variant)
        return view_of(
            snapshot,
            name,
            self._sizes.lanes(group),
            state.limits,
            state.expected(now=now),
            fresh=self._incoming.get(name, {}),
            runs=pool_id,
            accuracies=accuracies if self._chooses(name) else {},
            beside={
                neighbour: self.states[neighbour].expected(now=now)
                for neighbour in group.models
                if neighbour != name
            },
        )
