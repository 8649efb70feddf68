from dataclasses import dataclass
from math import ceil

from slacktide.domain import Options, option
from slacktide.planning.scaling import ModelView, ScalingLimits, ScalingPolicy, ScalingTarget
from slacktide.testing import LinearTimes


@dataclass(frozen=True, slots=True)
class ByRateOptions(Options):
    load: float = option(0.7, "Share of its time that a replica may be busy.", above=0, most=1)


class ByRate(ScalingPolicy):
    Options = ByRateOptions

    def __init__(self, options: ByRateOptions) -> None:
        self.load = options.load

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        limits = view.limits
        batch = limits.batch_max
        rows_per_s = batch / view.times.of(batch, limits.cores_min).expected
        replicas = max(ceil(view.rate / (rows_per_s * self.load)), limits.replicas_min)
        return ScalingTarget(
            min(replicas, limits.replicas_max), limits.cores_min, batch, reason="rate"
        )


def test_replicas_follow_the_rate() -> None:
    limits = ScalingLimits(replicas_max=8)
    view = ModelView("m", (), (), 25.0, 1.0, 1, LinearTimes(0.0, 0.1), limits)
    assert ByRate(ByRateOptions(load=1.0)).decide(view, now=0.0).replicas == 3
