"""The autoscaler: when to ask the planners, and what plan comes of their wishes.

Theory of operation. A driver calls `before` with the events it is about to hand to the engine, and
puts the plan that may come of it in front of them; it delivers TimerFired at `next_wakeup`. So a
request that needs more cores finds the lane grown, or growing, before admission looks at it; and as
plans are events like others, a recording replays without any planner.

- A model's planner is asked once in its period; when a replica of it has come up; and at once when
  it says (`Watchful.misses`) that somebody who can be saved would miss a deadline under the plan in
  force. That is looked into when requests come and when a batch has taken longer than expected, at
  most once in `check_interval`, and less often while nothing comes of it.
- The wishes of models that share lanes are made one: the most replicas, the most cores.
- The core ledger turns wishes into cores (`ledger.py`); what it could not give at once is asked for
  again when a lane has let go of some.

It reads the engine's state and never changes it. A base plan (`elastic.py`) comes from whoever
loads models.
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
    PlanChanged,
    ReplicaUp,
    Request,
    Submitted,
)
from slacktide.engine import Engine
from slacktide.scaling.elastic import Group, Sized, groups_of, resized
from slacktide.scaling.ledger import Claim, CoreLedger, Holding, shares
from slacktide.scaling.planners import make_planner
from slacktide.scaling.rates import ExpectedArrivals, RateOptions
from slacktide.scaling.view import ModelView, ScalingLimits, Waiting, Watchful, Wish
from slacktide.scaling.views import Expected, coming, holds_up, pools_of, pressure, view_of


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """How one model is scaled."""

    limits: ScalingLimits
    planner: str = "vertical"
    """One of `PLANNERS`, with its options."""
    options: Mapping[str, object] = field(default_factory=dict)
    rates: RateOptions = RateOptions()


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """How often the plan in force is looked into between two plans. Seconds."""

    check_interval: float = 0.005
    """At the soonest after the last look."""
    vain_interval: float = 0.1
    """The same after a look that led to a plan that was no better."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one model stands, for metrics and people."""

    wish: Wish | None
    """The last one; None: its planner has not been asked yet."""
    lanes: Mapping[str, tuple[int, int]]
    """(cores confirmed, cores aimed at) by lane."""
    rate: float
    """Rows per second expected."""
    budget: float
    """Seconds an expected arrival has left; infinite without deadlines."""
    conditions: tuple[str, ...]
    """What keeps the plan from being what was wished for, in words."""


class _Model:
    """What is kept of one scaled model."""

    def __init__(self, stated: ScaledModel, *, now: float) -> None:
        self.stated = stated
        self.planner = make_planner(stated.planner, stated.options)
        self.arrivals = ExpectedArrivals(stated.rates)
        self.arrived = 0
        self.wish: Wish | None = None
        self.pressure = 0.0
        self.ask_at = now
        """When its planner is asked next."""
        self.check_at = math.inf
        """When the plan in force is looked into next."""
        self.checked_until = -math.inf
        """Not before."""

    def expected(self, *, now: float) -> Expected:
        arrivals = self.arrivals
        return Expected(
            arrivals.rate(now=now),
            arrivals.budget(now=now),
            self.arrived,
            arrivals.burst(now=now),
        )


class Autoscaler:
    """Pure; one for each engine."""

    def __init__(
        self, engine: Engine, cores: Sequence[int], settings: AutoscalerSettings | None = None
    ) -> None:
        """`cores`: processor numbers that lanes may have."""
        self._engine = engine
        self._ledger = CoreLedger(cores)
        self._settings = settings or AutoscalerSettings()
        self._models: dict[str, _Model] = {}
        self._base = Plan()
        self._groups: tuple[Group, ...] = ()
        self._lanes: dict[Group, dict[str, int]] = {}
        """Lanes of each group and the generation of their replicas, under the plan in force."""
        self._plan = Plan()
        """In force, or about to be."""
        self._rebasing = False
        """Whether a rebased plan is yet to be put in force."""
        self._short = False
        """Whether a lane has been given fewer cores than its share."""
        self._settle_at = math.inf
        """When the ledger is gone through again."""
        self._unconfirmed: dict[str, float] = {}
        """Lanes whose resize is under way, and since when."""

    # ── what a driver calls ──────────────────────────────────────────────────────────────────

    def rebase(self, base: Plan, models: Mapping[str, ScaledModel], *, now: float) -> Plan:
        """The plan to put in force where `base` is wanted, with `models` scaled; by name.

        Models that stay keep their sizes and what their planners know. The driver must hand the
        plan to the engine; until it does, nothing else is planned. Raises PlannerError.
        """
        known = self._models
        self._models = {
            name: known[name]
            if name in known and known[name].stated == stated
            else _Model(stated, now=now)
            for name, stated in models.items()
        }
        before = {group.lanes[0]: lanes for group, lanes in self._lanes.items()}
        self._base = base
        self._groups = groups_of(base, models)
        self._lanes = {
            group: before.get(group.lanes[0], dict.fromkeys(group.lanes, 0))
            for group in self._groups
        }
        for model in self._models.values():
            model.ask_at = now
        self._plan = self._planned(borrowing=True)
        self._rebasing = True
        return self._plan

    def before(self, events: Sequence[Event], *, now: float) -> Sequence[Event]:
        """What to hand to the engine before `events`: a new plan, or nothing."""
        again: list[_Model] = []
        fresh: dict[str, dict[int, Waiting]] = {}
        rebased = settle = False
        for event in events:
            if isinstance(event, Submitted):
                self._see(event.request, fresh, now)
            elif isinstance(event, Announced):
                self._see(event.notice, fresh, now)
            elif isinstance(event, BatchFinished):
                self._see_end(event, now)
                settle = settle or self._short  # a lane that goes may be gone then
            elif isinstance(event, ReplicaUp):
                again += self._models_of_replica(event.replica)
            elif isinstance(event, LaneResized):
                settle = True
            elif isinstance(event, PlanChanged):
                rebased = rebased or event.plan == self._plan
        if rebased:
            self._rebasing = False
            return ()
        found = () if self._rebasing else self._look(fresh, now)
        # The engine is yet to be told of these: they are gone into once it has been.
        for model in again:
            model.ask_at = min(model.ask_at, now)
        if settle:
            self._settle_at = now
        return found

    def next_wakeup(self) -> float | None:
        """When TimerFired must be delivered for it (absolute seconds); None if it waits for
        nothing."""
        if self._rebasing:
            return None
        at = self._settle_at
        for name, model in self._models.items():
            if pools_of(self._engine, name):
                at = min(at, model.ask_at, model.check_at)
        return at if at < math.inf else None

    def standings(self, *, now: float) -> dict[str, Standing]:
        """Where each scaled model stands."""
        found = {}
        lanes = self._engine.state.lanes
        for group in self._groups:
            sizes = {
                name: (len(lanes[name].cores), len(lanes[name].target))
                for name in self._lanes[group]
                if name in lanes
            }
            for name in group.models:
                model = self._models[name]
                expected = model.expected(now=now)
                found[name] = Standing(
                    model.wish,
                    sizes,
                    expected.rate,
                    expected.budget,
                    tuple(self._conditions(model, sizes, now)),
                )
        return found

    # ── what is seen ─────────────────────────────────────────────────────────────────────────

    def _see(
        self, request: Request | Notice, fresh: dict[str, dict[int, Waiting]], now: float
    ) -> None:
        """A request is announced, or submitted."""
        model = self._models.get(request.model)
        if model is None:
            return
        one = coming(request)
        budget = one.deadline - max(now, one.ready_at)
        coming_now = fresh.setdefault(request.model, {})
        if request.id in self._engine.state.ledger.entries or request.id in coming_now:
            # It was announced, and taken for one row.
            model.arrived += one.rows - 1
            model.arrivals.here(one.rows - 1, budget, now=now)
        else:
            told = isinstance(request, Request) or request.planned_due is not None
            model.arrived += one.rows
            model.arrivals.seen(one.rows, budget if told else None, now=now)
        coming_now[request.id] = one
        model.check_at = min(model.check_at, max(now, model.checked_until))

    def _see_end(self, event: BatchFinished, now: float) -> None:
        """A batch ends; later than expected, it may have put others in danger."""
        running = self._engine.state.running.get(event.batch)
        if running is None or now <= running.expected_end:
            return
        model = self._models.get(running.batch.replica.pool.model)
        if model is not None:
            model.check_at = min(model.check_at, max(now, model.checked_until))

    def _models_of_replica(self, id: int) -> list[_Model]:
        pools = self._engine.state.pools.values()
        return [
            self._models[pool.id.model]
            for pool in pools
            if pool.id.model in self._models and any(p.replica.id == id for p in pool.placements)
        ]

    # ── what is decided ──────────────────────────────────────────────────────────────────────

    def _look(self, fresh: Mapping[str, Mapping[int, Waiting]], now: float) -> tuple[Event, ...]:
        asked = False
        for group in self._groups:
            for name in group.models:
                model = self._models[name]
                due = model.ask_at <= now
                if not due and model.check_at > now:
                    continue
                view = self._view(group, name, fresh.get(name, {}), now)
                if view is None:
                    continue
                if due or self._missed(model, view, now):
                    self._ask(model, view, now, at_once=not due)
                    asked = True
        if not asked and self._settle_at > now:
            return ()
        self._settle_at = math.inf
        plan = self._planned()
        if plan == self._plan:
            return ()
        self._plan = plan
        self._note_resizes(plan, now)
        return (PlanChanged(plan),)

    def _view(
        self, group: Group, name: str, fresh: Mapping[int, Waiting], now: float
    ) -> ModelView | None:
        model = self._models[name]
        beside = {
            other: self._models[other].expected(now=now) for other in group.models if other != name
        }
        return view_of(
            self._engine,
            name,
            tuple(self._lanes[group]),
            model.stated.limits,
            model.expected(now=now),
            fresh=fresh,
            beside=beside,
            now=now,
        )

    def _missed(self, model: _Model, view: ModelView, now: float) -> bool:
        """Whether a plan is wanted before its time."""
        model.check_at = math.inf
        model.checked_until = now + self._settings.check_interval
        planner = model.planner
        return isinstance(planner, Watchful) and planner.misses(view, now=now)

    def _ask(self, model: _Model, view: ModelView, now: float, *, at_once: bool) -> None:
        wish = model.planner.decide(view, now=now)
        if at_once and model.wish is not None and _no_larger(wish, model.wish):
            model.checked_until = now + self._settings.vain_interval
        model.wish = wish
        model.pressure = pressure(view, now=now)
        model.ask_at = now + model.planner.period
        model.check_at = math.inf

    # ── what comes of it ─────────────────────────────────────────────────────────────────────

    def _planned(self, *, borrowing: bool = False) -> Plan:
        """The base plan, sized by the latest wishes as far as the ledger allows."""
        state = self._engine.state
        elastic = {lane for group in self._groups for lane in group.lanes}
        claims = [
            Claim(lane.name, len(lane.cores), len(lane.cores), math.inf)
            for lane in self._base.lanes
            if lane.device == "cpu" and lane.name not in elastic
        ]
        first: list[Claim] = []
        further: list[Claim] = []
        for group in self._groups:
            wanted, pressed = self._wanted(group), self._pressure(group)
            limits = self._limits(group)
            for number, (lane, size) in enumerate(wanted.items()):
                claim = Claim(lane, limits.cores_min, max(limits.cores_min, size), pressed)
                (first if number < limits.replicas_min else further).append(claim)
        claims += first + further
        given = shares(claims, len(self._ledger))
        order = sorted((one for one in claims if one.lane in given), key=lambda one: -one.pressure)
        holdings = {
            lane.name: Holding(lane.cores, lane.target, lane.held)
            for lane in state.lanes.values()
            if lane.device == "cpu"
        }
        cores = self._ledger.cores_for(
            {one.lane: given[one.lane] for one in order},
            holdings,
            preferred={lane.name: lane.cores for lane in self._base.lanes},
            borrowing=[one.lane for one in order if borrowing and one.lane not in holdings],
        )
        for claim in claims:  # a lane is opened with its least or not yet
            if claim.lane not in holdings and len(cores.get(claim.lane, ())) < claim.least:
                cores.pop(claim.lane, None)
        self._short = any(len(cores.get(lane, ())) < count for lane, count in given.items())
        sized = [self._sized(group, cores) for group in self._groups]
        for each in sized:
            self._lanes[each.group] = dict(each.lanes)
        return resized(self._base, sized, cores)

    def _wanted(self, group: Group) -> dict[str, int]:
        """Cores wished for each lane that the group is to have, those that stay first."""
        state, lanes = self._engine.state, self._lanes[group]
        wishes = [wish for name in group.models if (wish := self._models[name].wish) is not None]
        base = {lane.name: len(lane.cores) for lane in self._base.lanes}
        if not wishes:
            return {
                name: len(state.lanes[name].target) if name in state.lanes else base[name]
                for name in lanes
            }
        serving = {n for n in lanes if n in state.lanes and holds_up(state.lanes[n])}
        names = sorted(lanes, key=lambda name: name not in serving)
        count = max(wish.replicas for wish in wishes)
        names = names[:count]
        names += group.lane_names(names, count - len(names))
        return {
            name: max(
                wish.cores if name in serving else wish.start_cores or wish.cores for wish in wishes
            )
            for name in names
        }

    def _sized(self, group: Group, cores: Mapping[str, tuple[int, ...]]) -> Sized:
        state, before = self._engine.state, self._lanes[group]
        wishes = {name: wish for name in group.models if (wish := self._models[name].wish)}
        anew = any(wish.restart for wish in wishes.values())
        lanes = {}
        for name in self._wanted(group):
            if name in cores:
                lane = state.lanes.get(name)
                changed = lane is not None and len(lane.target) != len(cores[name])
                lanes[name] = before.get(name, 0) + (anew and changed)
        caps = {
            pool.id: wish.batch
            for name, wish in wishes.items()
            for pool in pools_of(self._engine, name)
        }
        return Sized(group, lanes, caps)

    def _pressure(self, group: Group) -> float:
        return max(self._models[name].pressure for name in group.models)

    def _limits(self, group: Group) -> ScalingLimits:
        """Those of the group's models together."""
        all_limits = [self._models[name].stated.limits for name in group.models]
        return replace(
            all_limits[0],
            cores_min=max(limits.cores_min for limits in all_limits),
            cores_max=max(limits.cores_max for limits in all_limits),
            replicas_min=max(limits.replicas_min for limits in all_limits),
            replicas_max=max(limits.replicas_max for limits in all_limits),
        )

    # ── what is told ─────────────────────────────────────────────────────────────────────────

    def _note_resizes(self, plan: Plan, now: float) -> None:
        lanes = self._engine.state.lanes
        under_way = {
            spec.name
            for spec in plan.lanes
            if spec.name in lanes and set(lanes[spec.name].cores) != set(spec.cores)
        }
        self._unconfirmed = {name: self._unconfirmed.get(name, now) for name in under_way}

    def _conditions(
        self, model: _Model, sizes: Mapping[str, tuple[int, int]], now: float
    ) -> list[str]:
        wish = model.wish
        found: list[str] = []
        if wish is None:
            return found
        most = max((aimed for _, aimed in sizes.values()), default=0)
        if most < wish.cores:
            found.append(f"wants {wish.cores} cores a replica, {most} can be had")
        if len(sizes) < wish.replicas:
            found.append(f"wants {wish.replicas} replicas, there is room for {len(sizes)}")
        if wish.needed > model.stated.limits.replicas_max:
            allowed = model.stated.limits.replicas_max
            found.append(f"needs {wish.needed} replicas, {allowed} are allowed")
        for name, (cores, aimed) in sizes.items():
            if cores != aimed and name in self._unconfirmed:
                since = now - self._unconfirmed[name]
                found.append(
                    f"lane {name}: {cores} to {aimed} cores not confirmed for {since:.3g} s"
                )
        return found


def _no_larger(wish: Wish, than: Wish) -> bool:
    return wish.replicas * wish.cores <= than.replicas * than.cores and wish.batch == than.batch
