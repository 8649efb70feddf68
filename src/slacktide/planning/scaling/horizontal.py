"""`horizontal`: as many replicas of a fixed size as the next minute needs.

A new replica serves only after `view.start_time`, so the number follows a forecast:

- up immediately to what the forecast needs (`forecast`), and by one more if the queue projection
  (queue_projection.py) finds late requests although no replica is starting;
- down once fewer replicas have been enough for `cool_down` seconds.

A starting replica does not help requests that are already on their way: they are late before the
replica serves. `joint` lets the other replicas grow meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slacktide.domain.options import Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.forecast import MinuteForecast, WindowMax
from slacktide.planning.scaling.queue_projection import SecondsByCores
from slacktide.planning.scaling.search import Search
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class HorizontalOptions(Options):
    """Options of `horizontal`."""

    cores: int | None = option(
        None, "Cores of each replica; none: the fewest that the limits allow.", least=1
    )
    period: float = option(1.0, "Time between plans.", unit=SECONDS, above=0)
    window: float = option(
        60.0, "Length of the history that the forecast uses.", unit=SECONDS, above=0
    )
    cool_down: float = option(
        60.0,
        "Time for which fewer replicas must have sufficed before one is stopped.",
        unit=SECONDS,
        least=0,
    )
    headroom: float = option(
        1.0, "Margin above the forecast rate, as a multiple of the expected burst.", least=0
    )
    p99: bool = option(
        True, "Whether to plan with the 99th percentile of batch times, not the typical time."
    )


class Horizontal(ScalingPolicy):
    """Chooses the number of replicas and a batch size for them."""

    Options = HorizontalOptions

    def __init__(self, options: HorizontalOptions) -> None:
        self._options = options
        self.period = options.period
        self._forecast = MinuteForecast(options.window)
        self._replicas = WindowMax(options.cool_down)

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        options, limits = self._options, view.limits
        cores = min(max(options.cores or limits.cores_min, limits.cores_min), limits.cores_max)
        seconds = SecondsByCores(view.times, most_rows=limits.batch_max, p99=options.p99)[cores]
        needed = self._forecast.replicas(view, seconds, options.headroom, now=now)

        search = Search(
            replace(view, limits=replace(limits, cores_min=cores, cores_max=cores)),
            now=now,
            horizon=options.period,
            p99=options.p99,
            delta=0.0,
        )
        configuration = search.first(cores=cores)
        current_count = len(view.replicas)
        starting = any(replica.ready_at > now for replica in view.replicas)
        more = current_count + 1 if configuration is None and not starting else 0
        target_count = max(needed, more, limits.replicas_min)
        held = self._replicas.most(min(target_count, limits.replicas_max), now=now)
        if configuration is None:
            configuration = search.most_saved(cores=cores)
        if held > current_count:
            reason = "misses" if more > needed else "forecast"
        else:
            reason = "enough" if held == target_count else "cool-down"
        return ScalingTarget(
            replicas=held,
            cores=cores,
            batch=configuration[1],
            late=search.late(*configuration),
            reason=reason,
            needed=needed,
        )
