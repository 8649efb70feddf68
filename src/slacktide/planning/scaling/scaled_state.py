"""`ScaledModel`: the settings of a scaled model. `ScaledState`: its state in the planner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slacktide.planning.draft import UNBOUNDED, ModelBounds
from slacktide.planning.scaling.policies import make_scaling_policy
from slacktide.planning.scaling.rates import ExpectedArrivals
from slacktide.planning.scaling.view import (
    BatchSeconds,
    Expected,
    ModelView,
    ScalingLimits,
    ScalingTarget,
    Waiting,
)
from slacktide.planning.scoped import ScopeState


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """How one model is scaled."""

    limits: ScalingLimits
    policy: str = "vertical"
    """Name of its policy, one of `SCALING_POLICIES`, to which `options` belong."""
    options: Mapping[str, object] = field(default_factory=dict)


CHECK_INTERVAL = 0.005
"""Minimum seconds between two checks of the plan in force."""
CHECK_REQUESTS = 500
"""Waiting requests above which `CHECK_INTERVAL` grows in proportion, so that checks never take a
larger share of the time."""
VAIN_INTERVAL = 0.1
"""Seconds to the next check after a check whose new plan was no better."""


class ScaledState(ScopeState):
    """The state of one scaled model."""

    stated: ScaledModel

    def __init__(self, model: str, stated: ScaledModel, *, now: float) -> None:
        super().__init__(model, stated)
        self.limits = stated.limits
        """The stated limits, narrowed by the bounds of other planners."""
        self._bounds = UNBOUNDED
        self.policy = make_scaling_policy(stated.policy, stated.options)
        self.times: BatchSeconds | None = None
        """Batch times of the pool that served last, as the policy saw them; in a family, times of
        the smallest variant. None until a pool has served."""
        self.arrivals = ExpectedArrivals()
        self.arrived = 0
        """Rows that have arrived so far."""
        self.target: ScalingTarget | None = None
        self.pressure = 0.0
        self.due_at = now
        """Time at which its policy is asked next."""
        self.check_at = math.inf
        """Time at which the plan in force is checked next."""
        self.checked_until = -math.inf
        """The plan in force is not checked before this time."""

    def put_off(self, until: float) -> None:
        self.due_at = self.checked_until = until
        self.check_at = math.inf

    def bound(self, bounds: ModelBounds, *, now: float) -> bool:
        """Keep within `bounds` from now on. Returns whether they have changed."""
        if bounds == self._bounds:
            return False
        self._bounds = bounds
        limits = self.stated.limits
        if bounds.cores is not None and bounds.cores < limits.cores_max:
            limits = replace(limits, cores_max=max(limits.cores_min, bounds.cores))
        self.limits = limits
        self.due_at = now
        return True

    def schedule_check(self, *, now: float) -> None:
        """Check soon whether the plan in force is still good enough."""
        self.check_at = min(self.check_at, max(now, self.checked_until))

    def count_request(
        self, waiting: Waiting, earlier: Waiting | None, *, certain: bool, now: float
    ) -> None:
        """Count a request that is announced or submitted. `earlier`: the request as its notice
        announced it; `certain`: whether its deadline is known."""
        # A request that no number of cores can save counts neither as arrival nor as budget.
        can_be_saved = self._can_save(waiting, now=now)
        budget = waiting.deadline - max(now, waiting.ready_at) if can_be_saved else None
        if earlier is not None:
            # Until now it was counted as its notice said.
            counted = earlier.rows if self._can_save(earlier, now=earlier.ready_at) else 0
            rows = (waiting.rows if can_be_saved else 0) - counted
            self.arrivals.correct(rows, budget, now=now)
        elif can_be_saved:
            rows = waiting.rows
            self.arrivals.count(rows, budget if certain else None, now=now)
        else:
            return
        self.arrived += rows
        if can_be_saved:
            self.schedule_check(now=now)

    def _can_save(self, waiting: Waiting, *, now: float) -> bool:
        """Whether `waiting`, alone on the most cores it may have, would typically be on time."""
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
        """Whether the policy wants to plan before its period ends."""
        self.check_at = math.inf
        crowd = max(1.0, len(view.waiting) / CHECK_REQUESTS)
        self.checked_until = now + CHECK_INTERVAL * crowd
        return self.policy.is_urgent(view, now=now)

    def decide(self, view: ModelView, *, now: float) -> None:
        target = self.policy.decide(view, now=now)
        at_once = self.due_at > now
        if at_once and self.target is not None and target.is_no_larger(self.target):
            self.checked_until = now + VAIN_INTERVAL
        self.target = target
        self.pressure = view.pressure(now=now)
        self.due_at = now + self.policy.period
        self.check_at = math.inf
