"""Scaling planners by name: `make_planner("static", {"cores": 8})`.

A planner's options are the fields of its options class, checked as in `scheduling/options.py`. Each
model gets a planner of its own, which may keep what it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from slacktide.planning.scaling.baselines import (
    Fa2,
    Fa2Options,
    Static,
    StaticOptions,
    Vpa,
    VpaOptions,
)
from slacktide.planning.scaling.horizontal import Horizontal, HorizontalOptions
from slacktide.planning.scaling.joint import Joint, JointOptions
from slacktide.planning.scaling.octopinf import OctopInf, OctopInfOptions
from slacktide.planning.scaling.paper import Paper, PaperOptions
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions
from slacktide.planning.scaling.view import ScalingPlanner
from slacktide.scheduling.options import checked_options, entry_named


class PlannerError(ValueError):
    """An unknown planner or option, or a bad value. The caller's mistake; the text says which."""


@dataclass(frozen=True, slots=True)
class PlannerKind:
    """A planner that can be named: its options class and how it is made from options."""

    name: str
    options: type[Any]
    make: Callable[[Any], ScalingPlanner]


PLANNERS: Mapping[str, PlannerKind] = {
    kind.name: kind
    for kind in (
        PlannerKind("fa2", Fa2Options, Fa2),
        PlannerKind("horizontal", HorizontalOptions, Horizontal),
        PlannerKind("joint", JointOptions, Joint),
        PlannerKind("octopinf", OctopInfOptions, OctopInf),
        PlannerKind("paper", PaperOptions, Paper),
        PlannerKind("static", StaticOptions, Static),
        PlannerKind("vertical", VerticalOptions, Vertical),
        PlannerKind("vpa", VpaOptions, Vpa),
    )
}
"""Every planner, by name."""


def make_planner(name: str, options: Mapping[str, object]) -> ScalingPlanner:
    """A fresh planner for one model.

    Raises PlannerError if the planner or an option is unknown (with the nearest one that exists) or
    a value is of the wrong type or out of range.
    """
    checked = planner_options(name, options)
    return PLANNERS[name].make(checked)


def planner_options(name: str, options: Mapping[str, object]) -> Any:
    """The options object of planner `name`, defaults filled in. Raises as `make_planner` does."""
    kind = entry_named("planner", name, PLANNERS, PlannerError)
    return checked_options(f"planner {name!r}", kind.options, options, PlannerError)


def planner_defaults(name: str) -> dict[str, object]:
    """Every option of planner `name` with its default. Raises PlannerError if there is none."""
    options = planner_options(name, {})
    return {field.name: getattr(options, field.name) for field in fields(options)}
