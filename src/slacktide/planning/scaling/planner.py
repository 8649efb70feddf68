"""`ScalingPlanner`: number and cores of the replicas of every scaled model, and their batch caps.

- A model's policy is asked once in its period; when a replica of it has come up; and at once when
  it says (`ScalingPolicy.is_urgent`) that a request that can be saved would miss its deadline under
  the plan in force. That is looked into when requests come and when a batch has taken longer than
  expected, at most once in `CHECK_INTERVAL`, and less often while nothing comes of it.
- `LaneSizes` turns their targets into a plan; what could not be had at once is asked for again when
  a lane has let go of cores.
- The variant that a policy chooses becomes the plain route of its model, if that is a family which
  no planner of variants plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from slacktide.planning.bounds import ModelBounds
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as
from slacktide.planning.scaling.planners import make_planner
from slacktide.planning.scaling.rates import ExpectedArrivals
from slacktide.planning.scaling.sizes import LaneSizes, ScalingGroup, ScalingRequest
from slacktide.planning.scaling.view import (
    BatchSeconds,
    Expected,
    ModelView,
    ScalingLimits,
    ScalingTarget,
    Waiting,
    view_of,
)
from slacktide.planning.variants.family import Family

OWNED = (PlanField.REPLICAS, PlanField.LANE_CORES, PlanField.BATCH_CAPS)


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """How one model is scaled."""

    limits: ScalingLimits
    planner: str = "vertical"
    """Name of its policy, one of `PLANNERS`, with its options."""
    options: Mapping[str, object] = field(default_factory=dict)


CHECK_INTERVAL = 0.005
"""Seconds from one look at the plan in force to the next, at least."""
CHECK_REQUESTS = 500
"""With more of them waiting it grows as they do: looking takes no larger part of the time."""
VAIN_INTERVAL = 0.1
"""Seconds until the next look after one that led to a plan that was no better."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """Where one model stands, for metrics and people."""

    target: ScalingTarget | None
    """The last one; None: its policy has not been asked yet."""
    lanes: Mapping[str, tuple[int, int]]
    """(cores confirmed, cores aimed at) by lane."""
    rate: float
    """Rows per second expected, of requests that some of the allowed cores could save."""
    budget: float
    """Seconds an expected arrival has left; infinite without deadlines."""


class _Model:
    """What is kept of one scaled model."""

    def __init__(self, stated: ScaledModel, *, now: float) -> None:
        self.stated = stated
        self.limits = stated.limits
        """Within the bounds that are stated beside it."""
        self.policy = make_planner(stated.planner, stated.options)
        self.times: BatchSeconds | None = None
        """Of the pool that came last, as its policy saw it last; of a family, of its smallest
        variant. None before that."""
        self.arrivals = ExpectedArrivals()
        self.arrived = 0
        self.target: ScalingTarget | None = None
        self.pressure = 0.0
        self.ask_at = now
        """When its policy is asked next."""
        self.check_at = math.inf
        """When the plan in force is looked into next."""
        self.checked_until = -math.inf
        """Not before."""

    def bound(self, bounds: ModelBounds | None) -> None:
        """From now on these hold; None: none."""
        self.limits = limits = self.stated.limits
        if bounds is not None and bounds.cores is not None and bounds.cores < limits.cores_max:
            self.limits = replace(limits, cores_max=max(limits.cores_min, bounds.cores))

    def check(self, *, now: float) -> None:
        """Something has come that the plan in force may not be good enough for."""
        self.check_at = min(self.check_at, max(now, self.checked_until))

    def see(self, waiting: Waiting, earlier: Waiting | None, *, certain: bool, now: float) -> None:
        """A request is announced, or submitted. `earlier`: what its notice said; `certain`:
        whether its deadline is known."""
        # What no cores can save is not planned for: it is neither arrival nor budget.
        can_be_saved = self._can_save(waiting, now=now)
        budget = waiting.deadline - max(now, waiting.ready_at) if can_be_saved else None
        if earlier is not None:
            # Until now it was taken for what its notice said.
            counted = earlier.rows if self._can_save(earlier, now=earlier.ready_at) else 0
            rows = (waiting.rows if can_be_saved else 0) - counted
            self.arrivals.here(rows, budget, now=now)
        elif can_be_saved:
            rows = waiting.rows
            self.arrivals.seen(rows, budget if certain else None, now=now)
        else:
            return
        self.arrived += rows
        if can_be_saved:
            self.check(now=now)

    def _can_save(self, waiting: Waiting, *, now: float) -> bool:
        """Whether `waiting` would typically be on time by itself, on the most cores it may have."""
        if self.times is None:
            return True
        alone = self.times.of(waiting.rows, self.limits.cores_max).expected
        return waiting.deadline - max(now, waiting.ready_at) >= alone

    def expected(self, *, now: float) -> Expected:
        arrivals = self.arrivals
        return Expected(
            arrivals.rate(now=now), arrivals.budget(now=now), self.arrived, arrivals.burst(now=now)
        )

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        """Whether a plan is wanted before its time."""
        self.check_at = math.inf
        crowd = max(1.0, len(view.waiting) / CHECK_REQUESTS)
        self.checked_until = now + CHECK_INTERVAL * crowd
        return self.policy.is_urgent(view, now=now)

    def decide(self, view: ModelView, *, now: float) -> None:
        target = self.policy.decide(view, now=now)
        at_once = self.ask_at > now
        if at_once and self.target is not None and target.is_no_larger(self.target):
            self.checked_until = now + VAIN_INTERVAL
        self.target = target
        self.pressure = view.pressure(now=now)
        self.ask_at = now + self.policy.period
        self.check_at = math.inf


class ScalingPlanner(Planner):
    """The planner of every model whose cores or replicas have a range."""

    name = "scaling"

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self.models: Mapping[str, ScaledModel] = {}
        """How models are scaled, by name."""
        self._sizes = LaneSizes(cores)
        self._models: dict[str, _Model] = {}
        self._families: dict[str, Family] = {}
        self._routed: dict[str, PoolId] = {}
        """Where the base's plain route of a family leads."""
        self._base = Plan()
        self._rebased = False
        """Whether the next plan is the first of a new base."""
        self._settle_at = math.inf
        """When cores that others have let go of are handed on."""
        self._fresh: dict[str, dict[int, Waiting]] = {}
        """What the engine is about to handle, by model and id."""
        self._due: list[tuple[_Model, str, ModelView]] = []
        """Which policies are to be asked, and what they see."""
        self._after: tuple[float, list[_Model], bool] | None = None
        """What comes of the last events once the engine has handled them: (when, models whose
        policies are asked again, whether to settle)."""
        self._at_work: str | None = None
        """The model whose policy is being asked something."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        families, owned = stated_as(Family, stated), set[Owned]()
        for name in stated_as(ScaledModel, stated):
            owned |= {(name, field) for field in OWNED}
            if name in families:
                alone = families[name].planner == "none"
                owned ^= {(name, PlanField.ROUTES if alone else PlanField.BATCH_CAPS)}
        return frozenset(owned)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Models that stay keep their sizes and what their policies know."""
        previous_models = self._models
        models = stated_as(ScaledModel, stated)
        self._models = {
            name: previous_models[name]
            if name in previous_models and previous_models[name].stated == scaled_model
            else _Model(scaled_model, now=now)
            for name, scaled_model in models.items()
        }
        self.models = models
        families, bounds = stated_as(Family, stated), stated_as(ModelBounds, stated)
        self._families = {name: families[name] for name in models if name in families}
        plain = [
            route for route in base.routes if route.client is None and route.application is None
        ]
        # The version that serves those who name none has the last word.
        plain.sort(key=lambda route: route.version is None)
        self._routed = {route.model: route.pool for route in plain if route.model in self._families}
        self._sizes.rebase(base, models)
        for name, model in self._models.items():
            model.ask_at = now
            model.bound(bounds.get(name))
        self._due.clear()
        self._rebased = self._rebased or base is not self._base
        self._base = base

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if self._after is not None:
            self._catch_up()
        self._fresh = {}
        again: list[_Model] = []
        settle = False
        for event in events:
            if isinstance(event, Submitted):
                self._see(event.request, snapshot, now)
            elif isinstance(event, Announced):
                self._see(event.notice, snapshot, now)
            elif isinstance(event, BatchFinished):
                # Later than expected, it may have put others in danger.
                running = snapshot.running(event.batch)
                if running is not None and now > running.expected_end:
                    model = self._models.get(running.batch.replica.pool.model)
                    if model is not None:
                        model.check(now=now)
                settle = settle or self._sizes.short  # a lane that goes may be gone then
            elif isinstance(event, ReplicaUp) and self._models:
                again += [
                    self._models[pool.id.model]
                    for pool in snapshot.pools.values()
                    if pool.id.model in self._models
                    and any(replica.replica.id == event.replica for replica in pool.replicas)
                ]
            elif isinstance(event, LaneResized):
                settle = True
        if again or settle:
            self._after = now, again, settle

    def _see(self, request: Request | Notice, snapshot: Snapshot, now: float) -> None:
        model = self._models.get(request.model)
        if model is None:
            return
        waiting = Waiting.of(request)
        fresh = self._fresh.setdefault(request.model, {})
        earlier = fresh.get(request.id)
        if earlier is None and (handled_request := snapshot.request(request.id)) is not None:
            earlier = Waiting.of(handled_request)
        fresh[request.id] = waiting
        certain = isinstance(request, Request) or request.planned_due is not None
        model.see(waiting, earlier, certain=certain, now=now)

    def _catch_up(self) -> None:
        """The engine has handled what was observed last: go into what comes of it."""
        assert self._after is not None
        now, again, settle = self._after
        for model in again:
            model.ask_at = min(model.ask_at, now)
        if settle:
            self._settle_at = now
        self._after = None

    def next_wakeup(self, snapshot: Snapshot) -> float:
        if self._after is not None:
            self._catch_up()
        at = self._settle_at
        for name, model in self._models.items():
            if (model.ask_at < at or model.check_at < at) and snapshot.is_served(name):
                at = min(at, model.ask_at, model.check_at)
        return at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        self._due.clear()
        for group in self._sizes.groups:
            for name in group.models:
                model = self._models[name]
                is_due = model.ask_at <= now
                if not is_due and model.check_at > now:
                    continue
                self._at_work = name
                view = self._view(group, name, snapshot)
                if view is not None and (is_due or model.is_urgent(view, now=now)):
                    self._due.append((model, name, view))
        self._at_work = None
        return bool(self._due) or self._settle_at <= now

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        for model, name, view in self._due:
            self._at_work = name
            model.decide(view, now=now)
        self._at_work = None
        self._due.clear()
        borrowing, self._rebased = self._rebased, False
        if not borrowing:
            self._settle_at = math.inf
        wishes = {
            name: ScalingRequest(model.limits, model.target, model.pressure)
            for name, model in self._models.items()
        }
        return self._led(self._sizes.plan(draft, wishes, snapshot, borrowing=borrowing))

    def _led(self, plan: Plan) -> Plan:
        """`plan` with the plain routes of families to the variants that their policies want."""
        variants = {
            name: model.target.variant
            for name, model in self._models.items()
            if self._chooses(name) and model.target is not None and model.target.variant
        }
        if not variants:
            return plan
        deployed = {deployment.pool for deployment in plan.deployments}

        def led(route: Route) -> Route:
            variant = variants.get(route.model)
            if variant is None or route.client is not None or route.application is not None:
                return route
            pool = route.pool._replace(variant=variant)
            return replace(route, pool=pool) if pool in deployed else route

        return replace(plan, routes=tuple([led(route) for route in plan.routes]))

    def _chooses(self, name: str) -> bool:
        """Whether the policy of a model chooses its variant."""
        family = self._families.get(name)
        return family is not None and family.planner == "none"

    def put_off(self, until: float) -> str | None:
        """See `Planner`. All other policies are asked as before."""
        name, self._at_work = self._at_work, None
        if name is not None:
            model = self._models[name]
            model.ask_at = model.checked_until = until
            model.check_at = math.inf
        return name

    def status(self, snapshot: Snapshot) -> dict[str, ScalingStatus]:
        """Where each scaled model stands."""
        statuses = {}
        for group in self._sizes.groups:
            sizes = {
                name: (len(lane.cores), len(lane.target))
                for name in self._sizes.lanes(group)
                if (lane := snapshot.lanes.get(name)) is not None
            }
            for name in group.models:
                model = self._models[name]
                expected = model.expected(now=snapshot.now)
                statuses[name] = ScalingStatus(model.target, sizes, expected.rate, expected.budget)
        return statuses

    def _view(self, group: ScalingGroup, name: str, snapshot: Snapshot) -> ModelView | None:
        model, now = self._models[name], snapshot.now
        family, runs = self._families.get(name), self._routed.get(name)
        variants = family.variants if family else ()
        accuracies = {variant.name: variant.accuracy for variant in variants}
        smallest = next(iter(accuracies), "")
        for pool in snapshot.serving(name):
            if pool.id.variant == smallest or not family:
                model.times = pool.times
        if runs is not None and model.target is not None and self._chooses(name):
            runs = runs._replace(variant=model.target.variant or runs.variant)
        return view_of(
            snapshot,
            name,
            self._sizes.lanes(group),
            model.limits,
            model.expected(now=now),
            fresh=self._fresh.get(name, {}),
            runs=runs,
            accuracies=accuracies if self._chooses(name) else {},
            beside={
                neighbour: self._models[neighbour].expected(now=now)
                for neighbour in group.models
                if neighbour != name
            },
        )
