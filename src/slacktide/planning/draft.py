"""`Draft`: a plan that passes from planner to planner, with bounds for the planners that follow.

A planner never writes the fields that its own bounds limit, so no field of the plan has two owners.
Bounds stay inside the composer: neither the engine nor a recording sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slacktide.domain import Plan


@dataclass(frozen=True, slots=True)
class ModelBounds:
    """Limits that planners of one model must respect."""

    largest: str = ""
    """Largest variant that may be chosen; empty: any. All variants stay loaded: requests may still
    ask for a larger one, and late requests still move to smaller ones."""
    smallest: str = ""
    """Smallest variant that may be chosen; empty: any."""
    cores: int | None = None
    """Maximum cores per lane, but never below the minimum in the settings; None: as the settings
    state."""
    exits: bool = True
    """Whether rows may leave at early exits."""


UNBOUNDED = ModelBounds()


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan in the making. Each planner receives it from the planner before it."""

    plan: Plan
    bounds: Mapping[str, ModelBounds]
    """By model, for the planners that follow."""

    def bounded(self, bounds: Mapping[str, ModelBounds]) -> Draft:
        """Return this draft with `bounds` added. A smallest variant of an earlier planner stays."""
        merged = dict(self.bounds)
        for model, model_bounds in bounds.items():
            smallest = self.bounds.get(model, UNBOUNDED).smallest or model_bounds.smallest
            merged[model] = replace(model_bounds, smallest=smallest)
        return Draft(self.plan, merged)
