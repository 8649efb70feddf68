"""`static`: so many cores and replicas from the start, whatever comes. What Sponge's `static-8` and
`static-16` are (Sponge §4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.domain.options import Options, option
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class StaticOptions(Options):
    """Options of `static`. None: the most that the model's limits allow."""

    cores: int | None = option(None, "Cores of each replica; none: the most allowed.", least=1)
    replicas: int | None = option(None, "Replicas; none: the most allowed.", least=1)
    batch: int | None = option(None, "Most rows in a batch; none: the most allowed.", least=1)


class Static(ScalingPolicy):
    """Always the same target, kept within the limits."""

    period = math.inf

    Options = StaticOptions

    def __init__(self, options: StaticOptions) -> None:
        self._options = options

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        options, limits = self._options, view.limits
        return ScalingTarget(
            replicas=_within(options.replicas, limits.replicas_min, limits.replicas_max),
            cores=_within(options.cores, limits.cores_min, limits.cores_max),
            batch=_within(options.batch, 1, limits.batch_max),
            reason="static",
        )


def _within(value: int | None, least: int, most: int) -> int:
    return most if value is None else min(max(value, least), most)
