"""The autoscaler: when to ask the planners, and what plan comes of their wishes.

Theory of operation. A driver calls `before` with the events it is about to hand to the engine, and
puts the plan that may come of it in front of them; it delivers TimerFired at `next_wakeup`. So a
request that needs more cores finds the lane grown, or growing, before admission looks at it; and as
plans are events like others, a recording replays without any planner.

- A model's planner is asked once in its period; when a replica of it has come up; and at once when
  it says (`Watchful.misses`) that somebody who can be saved would miss a deadline under the plan in
  force. That is looked into when requests come and when a batch has taken longer than expected, at
  most once in `check_interval`, and less often while nothing comes of it.
- `Sizing` turns their wishes into a plan; what could not be had at once is asked for again when a
  lane has let go of cores.

It reads the engine's state and never changes it. A base plan (`elastic.py`) comes from whoever
loads models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from slacktide.planning.scaling.elastic import Group
from slacktide.planning.scaling.planners import make_planner
from slacktide.planning.scaling.rates import ExpectedArrivals, RateOptions
from slacktide.planning.scaling.sizing import Asked, Sizing
from slacktide.planning.scaling.view import (
    BatchSeconds,
    ModelView,
    ScalingLimits,
    Waiting,
    Watchful,
    Wish,
)
from slacktide.planning.scaling.views import Expected, coming, pools_of, pressure, view_of


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
    check_requests: int = 500
    """With more of them waiting it grows as they do, so that looking takes no larger part of the
    time."""
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
    """Rows per second expected, of requests that some of the allowed cores could save."""
    budget: float
    """Seconds an expected arrival has left; infinite without deadlines."""


class _Model:
    """What is kept of one scaled model."""

    def __init__(self, stated: ScaledModel, *, now: float) -> None:
        self.stated = stated
        self.planner = make_planner(stated.planner, stated.options)
        self.times: BatchSeconds | None = None
        """Of the pool that came last, as its planner saw it last; None before that."""
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

    def can_save(self, one: Waiting, *, now: float) -> bool:
        """Whether `one` would typically be on time by itself, on the most cores it may have."""
        if self.times is None:
            return True
        alone = self.times.expected(one.rows, self.stated.limits.cores_max)
        return one.deadline - max(now, one.ready_at) >= alone

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
        self._sizing = Sizing(engine, cores)
        self._settings = settings or AutoscalerSettings()
        self._models: dict[str, _Model] = {}
        self._plan = Plan()
        """In force, or about to be."""
        self._rebasing = False
        """Whether a rebased plan is yet to be put in force."""
        self._settle_at = math.inf
        """When the ledger is gone through again."""
        self._at_work: str | None = None
        """The model whose planner is being asked something."""

    # ── what a driver calls ──────────────────────────────────────────────────────────────────

    def rebase(self, base: Plan, models: Mapping[str, ScaledModel], *, now: float) -> Plan:
        """The plan to put in force where `base` is wanted, with `models` scaled; by name.

        Models that stay keep their sizes and what their planners know. The driver must hand the
        plan to the engine; until it does, nothing else is planned. Raises OptionError.
        """
        known = self._models
        self._models = {
            name: known[name]
            if name in known and known[name].stated == stated
            else _Model(stated, now=now)
            for name, stated in models.items()
        }
        self._sizing.rebase(base, models)
        for model in self._models.values():
            model.ask_at = now
        self._plan = self._sizing.plan(self._asked(), borrowing=True)
        self._rebasing = True
        return self._plan

    def before(self, events: Sequence[Event], *, now: float) -> Sequence[PlanChanged]:
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
                settle = settle or self._sizing.short  # a lane that goes may be gone then
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

    def put_off(self, until: float) -> str | None:
        """`before` has raised: if a planner is to blame, it is not asked again before `until`, and
        all others at once. The model whose it is; None if none is."""
        name, self._at_work = self._at_work, None
        if name is not None:
            model = self._models[name]
            model.ask_at = model.checked_until = until
            model.check_at = math.inf
        return name

    def standings(self, *, now: float) -> dict[str, Standing]:
        """Where each scaled model stands."""
        found = {}
        lanes = self._engine.state.lanes
        for group in self._sizing.groups:
            sizes = {
                name: (len(lanes[name].cores), len(lanes[name].target))
                for name in self._sizing.lanes(group)
                if name in lanes
            }
            for name in group.models:
                model = self._models[name]
                expected = model.expected(now=now)
                found[name] = Standing(model.wish, sizes, expected.rate, expected.budget)
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
        coming_now = fresh.setdefault(request.model, {})
        announced = coming_now.get(request.id)
        if announced is None and (entry := self._engine.state.ledger.entries.get(request.id)):
            announced = coming(entry.request)
        coming_now[request.id] = one
        # What no cores can save is not planned for: it is neither arrival nor budget.
        worth_it = model.can_save(one, now=now)
        budget = one.deadline - max(now, one.ready_at) if worth_it else None
        if announced is not None:
            # Until now it was taken for what its notice said.
            counted = announced.rows if model.can_save(announced, now=announced.ready_at) else 0
            rows = (one.rows if worth_it else 0) - counted
            model.arrivals.here(rows, budget, now=now)
        elif worth_it:
            told = isinstance(request, Request) or request.planned_due is not None
            rows = one.rows
            model.arrivals.seen(rows, budget if told else None, now=now)
        else:
            return
        model.arrived += rows
        if worth_it:
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

    def _look(
        self, fresh: Mapping[str, Mapping[int, Waiting]], now: float
    ) -> tuple[PlanChanged, ...]:
        asked = False
        for group in self._sizing.groups:
            for name in group.models:
                model = self._models[name]
                due = model.ask_at <= now
                if not due and model.check_at > now:
                    continue
                self._at_work = name
                view = self._view(group, name, fresh.get(name, {}), now)
                if view is None:
                    continue
                if due or self._missed(model, view, now):
                    self._ask(model, view, now, at_once=not due)
                    asked = True
        self._at_work = None
        if not asked and self._settle_at > now:
            return ()
        self._settle_at = math.inf
        plan = self._sizing.plan(self._asked())
        if plan == self._plan:
            return ()
        self._plan = plan
        return (PlanChanged(plan),)

    def _view(
        self, group: Group, name: str, fresh: Mapping[int, Waiting], now: float
    ) -> ModelView | None:
        model = self._models[name]
        for pool in pools_of(self._engine, name):
            model.times = pool.times
        beside = {
            other: self._models[other].expected(now=now) for other in group.models if other != name
        }
        return view_of(
            self._engine,
            name,
            self._sizing.lanes(group),
            model.stated.limits,
            model.expected(now=now),
            fresh=fresh,
            beside=beside,
            now=now,
        )

    def _missed(self, model: _Model, view: ModelView, now: float) -> bool:
        """Whether a plan is wanted before its time."""
        model.check_at = math.inf
        crowd = max(1.0, len(view.waiting) / self._settings.check_requests)
        model.checked_until = now + self._settings.check_interval * crowd
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

    def _asked(self) -> dict[str, Asked]:
        return {
            name: Asked(model.stated.limits, model.wish, model.pressure)
            for name, model in self._models.items()
        }


def _no_larger(wish: Wish, than: Wish) -> bool:
    return wish.replicas * wish.cores <= than.replicas * than.cores and wish.batch == than.batch
