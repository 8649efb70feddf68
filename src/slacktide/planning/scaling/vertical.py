"""`vertical`: the fewest cores of each replica with no request late (Sponge §3, made sound).

Every period, and at once when the queue would miss a deadline under the plan in force, the cheapest
configuration that `Search` finds is the target. More cores are asked for without waiting. Fewer
are asked for only after every plan of the last `scale_down_delay` seconds would have done with
them: what is given back too early costs deadlines, what is given back late costs a few
core-seconds.

**What is promised.** If batches take what is predicted, arrivals come as expected and the lane is
the model's own, no request that waits, is announced or is expected is late before the next plan,
unless `late` in the target says so; and where it says so, it is because no number of cores within
the limits saves all of them (or the rate is beyond what they can serve). Requests whose budget lies
between the typical time and the 99th percentile keep the cores they need for it
(`p50_rescue`). See `queue_projection` for what is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slacktide.domain.options import Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.forecast import WindowMax
from slacktide.planning.scaling.search import Search
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget, Waiting


def p50_rescue(view: ModelView, *, now: float) -> int:
    """The fewest cores of a replica on which each request that is lost by the 99th percentile,
    but not by the typical time, typically ends in time if it runs next; the least allowed if there
    is none.

    Such a request will, more often than not, be on time on those cores, and never on fewer. A
    scheduler runs it, so a planner should not take its cores away.
    """
    times, limits = view.times, view.limits
    most = limits.cores_max
    free = min((max(replica.free_at, replica.ready_at) for replica in view.replicas), default=now)
    alone: dict[int, tuple[float, float]] = {}
    """By rows: (typical, 99th percentile) on the most cores."""
    cores = limits.cores_min
    for waiting in _all_that_come(view, now):
        budget = waiting.deadline - max(now, free, waiting.ready_at)
        alone_seconds = alone.get(waiting.rows)
        if alone_seconds is None:
            time = times.of(waiting.rows, most)
            alone_seconds = alone[waiting.rows] = time.expected, time.p99
        if alone_seconds[0] <= budget < alone_seconds[1]:
            while cores < most and times.of(waiting.rows, cores).expected > budget:
                cores += 1
    return cores


def _all_that_come(view: ModelView, now: float) -> Iterator[Waiting]:
    yield from view.waiting
    if view.rate > 0.0:
        # Once what runs has ended: what it delays is the walk's business.
        ready_at = max([now, *(replica.free_at for replica in view.replicas)])
        yield Waiting(ready_at, ready_at + view.budget)


@dataclass(frozen=True, slots=True)
class VerticalOptions(Options):
    """Options of `vertical`."""

    period: float = option(
        1.0,
        "Time between two plans; also how far ahead arrivals are expected.",
        unit=SECONDS,
        above=0,
    )
    scale_down_delay: float = option(
        0.5,
        "Time for which fewer cores must have been enough before some are given back.",
        unit=SECONDS,
        least=0,
        aliases=("patience",),
    )
    p99: bool = option(
        True, "Whether to plan with the 99th percentile of batch times, not the typical time."
    )
    row_cost: float = option(
        0.01,
        "Cost of a further row in a batch, in cores: small, so that it only breaks ties.",
        least=0,
        aliases=("delta",),
    )

    def search(self, view: ModelView, *, now: float) -> Search:
        """What becomes of the requests of `view` under these options."""
        return Search(view, now=now, horizon=self.period, p99=self.p99, delta=self.row_cost)


class Vertical(ScalingPolicy):
    """Chooses cores and batch; leaves the number of replicas as it is."""

    Options = VerticalOptions

    def __init__(self, options: VerticalOptions) -> None:
        self._options = options
        self.period = options.period
        self._wanted = WindowMax(options.scale_down_delay)

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """The cheapest configuration that saves all, or the one that saves most."""
        options, limits = self._options, view.limits
        search = options.search(view, now=now)
        configuration = search.first(cores=limits.cores_min)
        reason = "deadlines"
        if configuration is None:
            configuration = search.most_saved(cores=limits.cores_min)
            reason = "overload"
        if options.p99:
            chance = p50_rescue(view, now=now)
            if chance > configuration[0]:
                configuration = search.first(cores=chance) or search.most_saved(cores=chance)
                reason = "chance"
        held = min(self._wanted.most(configuration[0], now=now), limits.cores_max)
        if held > configuration[0]:
            configuration = search.first(cores=held) or search.most_saved(cores=held)
            reason = "patience"
        cores, batch = configuration
        return ScalingTarget(
            replicas=min(max(len(view.replicas), limits.replicas_min), limits.replicas_max),
            cores=cores,
            batch=batch,
            late=search.late(cores, batch),
            reason=reason,
        )

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        """See `ScalingPolicy`. Replicas are taken to have as many cores as the smallest of them."""
        if not view.replicas:
            return False
        options = self._options
        search = options.search(view, now=now)
        cores = min(replica.cores for replica in view.replicas)
        hopeless = search.queue.hopeless
        if search.late(cores, view.batch, most=hopeless) > hopeless:
            return True
        return options.p99 and cores < p50_rescue(view, now=now)
