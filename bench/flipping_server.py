"""`slacktide serve`, with one more scaling policy: `flip`, whose mind changes with every plan.

It asks for the most cores and the fewest in turn, `period` seconds each, whatever is needed: the
machinery of a resize runs as often as one likes, and nothing else is different.
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.cli.main import main as serve
from slacktide.domain.options import Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class FlipOptions(Options):
    """Options of `flip`."""

    period: float = option(0.05, "Time between two plans.", unit=SECONDS, above=0)


class Flip(ScalingPolicy):
    """A policy of the scaling planner."""

    Options = FlipOptions

    def __init__(self, options: FlipOptions) -> None:
        self.period = options.period
        self._most = False

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        self._most = not self._most
        limits = view.limits
        cores = limits.cores_max if self._most else limits.cores_min
        return ScalingTarget(limits.replicas_min, cores, limits.batch_max, reason="flip")


def main() -> None:
    """Run the command line with it among the planners."""
    SCALING_POLICIES.offer("flip", lambda: Flip)
    serve()
