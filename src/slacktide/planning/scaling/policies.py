"""Scaling policies by name: `make_scaling_policy("static", {"cores": 8})`.

Each model gets its own policy object, which may keep state.
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

SCALING_POLICIES: Registry[ScalingPolicy] = Registry(
    "scaling policy",
    {
        "horizontal": Horizontal,
        "joint": Joint,
        "octopinf": OctopInf,
        "sponge": Sponge,
        "static": Static,
        "vertical": Vertical,
    },
    group="scaling_policies",
    aliases={"paper": "sponge"},
    absent=dict.fromkeys(("fa2", "vpa"), PAPERS),
)
"""Scaling policies by name. Each class is constructed from its options."""


class GuardedPolicy(ScalingPolicy):
    """A policy that is not built in, checked against the contract. A breach raises ValueError: as
    after any error of a policy, the model keeps its size until the policy is asked again."""

    def __init__(self, name: str, policy: ScalingPolicy) -> None:
        self._name = name
        self._policy = policy

    @property
    def period(self) -> float:  # type: ignore[override]  # the base has an attribute
        """Period of the guarded policy."""
        period = self._policy.period
        if not period > 0.0:
            raise ValueError(
                f"scaling policy {self._name!r}: expected a period above 0, got {period!r}"
            )
        return period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Return the target of the guarded policy, checked against the limits."""
        target, limits = self._policy.decide(view, now=now), view.limits
        if not (
            isinstance(target, ScalingTarget)
            and limits.cores_min <= target.cores <= limits.cores_max
            and limits.replicas_min <= target.replicas <= limits.replicas_max
            and 1 <= target.batch <= limits.batch_max
            and target.variant in ("", *[variant.name for variant in view.variants])
        ):
            expected = f"expected a target within {limits}, got {target!r:.200}"
            raise ValueError(f"scaling policy {self._name!r} broke its contract: {expected}")
        return target

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        """Ask the guarded policy."""
        return bool(self._policy.is_urgent(view, now=now))


def make_scaling_policy(name: str, options: Mapping[str, object]) -> ScalingPolicy:
    """Make a policy for one model; one that is not built in is guarded. Raises OptionError for an
    unknown policy or option (with the nearest valid name) or a bad value, and PlannerError if a
    policy that is not built in cannot be made."""
    policy, checked = SCALING_POLICIES.find(name), SCALING_POLICIES.read(name, options)
    if policy.built_in:
        return policy.make(checked)
    try:
        guarded = GuardedPolicy(name, policy.make(checked))
        guarded.period  # noqa: B018  # raises if it is invalid
    except Exception as error:  # foreign code may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise PlannerError(f"scaling policy {name!r} cannot be made: {cause}") from error
    return guarded
