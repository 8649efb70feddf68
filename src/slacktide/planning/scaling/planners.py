"""Scaling planners by name: `make_planner("static", {"cores": 8})`.

Each model gets a planner of its own, which may keep what it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from slacktide._version import PAPERS
from slacktide.domain.registry import Registry
from slacktide.planning.planner import PlannerError
from slacktide.planning.scaling.baselines import OctopInf, Sponge, Static
from slacktide.planning.scaling.horizontal import Horizontal
from slacktide.planning.scaling.joint import Joint
from slacktide.planning.scaling.vertical import Vertical
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget

PLANNERS: Registry[ScalingPolicy] = Registry(
    "planner",
    {
        "horizontal": Horizontal,
        "joint": Joint,
        "octopinf": OctopInf,
        "sponge": Sponge,
        "static": Static,
        "vertical": Vertical,
    },
    aliases={"paper": "sponge"},
    absent=dict.fromkeys(("fa2", "vpa"), PAPERS),
)
"""Every planner, by name: its class is made of its options."""


class GuardedPolicy(ScalingPolicy):
    """A policy that others wrote, held to its contract. Raises ValueError for a breach, as the
    policy itself may raise anything: its model then keeps what it has, and is asked about later."""

    def __init__(self, name: str, policy: ScalingPolicy) -> None:
        self._name = name
        self._made = policy

    @property
    def period(self) -> float:  # type: ignore[override]  # of a class, an attribute
        """Period of the guarded policy."""
        period = self._made.period
        if not period > 0.0:
            raise ValueError(f"planner {self._name!r}: expected a period above 0, got {period!r}")
        return period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """What the other wants, known to be within the limits."""
        target, limits = self._made.decide(view, now=now), view.limits
        if not (
            isinstance(target, ScalingTarget)
            and limits.cores_min <= target.cores <= limits.cores_max
            and limits.replicas_min <= target.replicas <= limits.replicas_max
            and 1 <= target.batch <= limits.batch_max
            and target.variant in ("", *[variant.name for variant in view.variants])
        ):
            expected = f"expected a target within {limits}, got {target!r:.200}"
            raise ValueError(f"planner {self._name!r} broke its contract: {expected}")
        return target

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        """What the other says."""
        return bool(self._made.is_urgent(view, now=now))


def make_planner(name: str, options: Mapping[str, object]) -> ScalingPolicy:
    """A fresh planner for one model; one that is not built in is guarded. Raises OptionError if the
    planner or an option is unknown (with the nearest one that exists) or a value is of the wrong
    type or out of range, and PlannerError if a class of others cannot be made."""
    planner, checked = PLANNERS.find(name), PLANNERS.read(name, options)
    if planner.built_in:
        return planner.make(checked)
    try:
        guarded = GuardedPolicy(name, planner.make(checked))
        guarded.period  # noqa: B018  # raises if it cannot be
    except Exception as error:  # it is foreign code
        cause = f"{type(error).__name__}: {error}"
        raise PlannerError(f"planner {name!r} cannot be made: {cause}") from error
    return guarded
