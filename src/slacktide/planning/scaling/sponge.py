"""`sponge`: Sponge's optimiser as its published code runs it, to compare with.

For cores ascending, then batches ascending, the requests of one second, at the configured rate, are
laid end to end in batches of b. A pair is refused as soon as a batch has

    l(b, c) + q + cl_max > factor · SLO

q being the time of the batches before it; the first pair that is not refused is taken (Sponge §3.3,
Eq. 3: the fewest cores, then the smallest batch). Latencies count in whole milliseconds, rounded
down. cl_max is the SLO less the remaining SLO seen last, not a maximum over what is queued;
here the view's budget is what was seen. If nothing is found, everything stays as it is.

The queue itself is never looked at, batches need not keep up with the rate where the SLO is longer
than a second, and nothing is planned between two periods. `vertical` is the sound version.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.domain.options import Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class SpongeOptions(Options):
    """Options of `sponge`."""

    slo: float = option(
        1.0, "Time from sending to the answer, the same for every request.", unit=SECONDS, above=0
    )
    rate: float | None = option(None, "Requests per second; none: the expected rate.", above=0)
    factor: float = option(
        0.9,
        "Share of the SLO that is planned with. The paper states none; its code uses this one.",
        above=0,
    )
    period: float = option(1.0, "Time between two plans.", unit=SECONDS, above=0)


class Sponge(ScalingPolicy):
    """Chooses cores and batch by the printed objective."""

    Options = SpongeOptions

    def __init__(self, options: SpongeOptions) -> None:
        self._options = options
        self.period = options.period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """The first pair that is not refused, or what there is."""
        limits = view.limits
        found = self._first(view)
        if found is None:
            present = min((replica.cores for replica in view.replicas), default=limits.cores_min)
            found = (min(max(present, limits.cores_min), limits.cores_max), view.batch)
            reason = "none suffices"
        else:
            reason = "sponge"
        cores, batch = found
        replicas = min(max(len(view.replicas), limits.replicas_min), limits.replicas_max)
        return ScalingTarget(replicas=replicas, cores=cores, batch=batch, reason=reason)

    def _first(self, view: ModelView) -> tuple[int, int] | None:
        """(cores, batch); None if every pair is refused."""
        options, limits = self._options, view.limits
        requests = options.rate if options.rate is not None else view.rate
        on_the_way = max(0.0, options.slo - view.budget)
        for cores in range(limits.cores_min, limits.cores_max + 1):
            for batch in range(1, limits.batch_max + 1):
                # All batches take as long, so the last one is the one that is refused.
                taken = math.floor(1e3 * view.times.of(batch, cores).p99) * 1e-3
                if math.ceil(requests / batch) * taken + on_the_way <= options.factor * options.slo:
                    return cores, batch
        return None
