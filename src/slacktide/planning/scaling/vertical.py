"""`vertical`: the fewest cores per replica with which no request is late (Sponge §3, made sound).

Every period, and immediately when the queue would miss a deadline under the plan in force, the
target is the cheapest configuration that `Search` finds. The policy asks for more cores
immediately. It gives cores back only once no plan of the last `scale_down_delay` seconds needed
them: doing so too early misses deadlines, too late costs a few core-seconds.

**Guarantee.** Suppose that batches take the predicted time, arrivals come as expected, and the
model has its lane to itself. Then no waiting, announced or expected request is late before the next
plan, except those that the target counts as `late`. There are such requests only if no number of
cores saves all, or if the rate exceeds what the most cores can serve. Requests whose budget lies
between the typical time and the 99th percentile keep the cores that they need (`p50_rescue`).
`queue_projection` lists what the guarantee ignores.
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
    """Return the fewest cores on which all borderline requests are on time if they run next and
    take the typical time; the least allowed if there are none. A request is borderline if, on the
    most cores, its budget covers the typical time but not the 99th percentile.

    On these cores such a request is on time more often than not, and the scheduler runs it. So the
    policy must not take these cores away.
    """
    times, limits = view.times, view.limits
    most = limits.cores_max
    free = min((max(replica.free_at, replica.ready_at) for replica in view.replicas), default=now)
    alone: dict[int, tuple[float, float]] = {}
    """(typical, 99th percentile) seconds on the most cores, by rows."""
    cores = limits.cores_min
    for waiting in _requests_of(view, now):
        budget = waiting.deadline - max(now, free, waiting.ready_at)
        alone_seconds = alone.get(waiting.rows)
        if alone_seconds is None:
            time = times.of(waiting.rows, most)
            alone_seconds = alone[waiting.rows] = time.expected, time.p99
        if alone_seconds[0] <= budget < alone_seconds[1]:
            while cores < most and times.of(waiting.rows, cores).expected > budget:
                cores += 1
    return cores


def _requests_of(view: ModelView, now: float) -> Iterator[Waiting]:
    yield from view.waiting
    if view.rate > 0.0:
        # A request expected after all running batches end; `Search` judges earlier requests.
        ready_at = max([now, *(replica.free_at for replica in view.replicas)])
        yield Waiting(ready_at, ready_at + view.budget)


@dataclass(frozen=True, slots=True)
class VerticalOptions(Options):
    """Options of `vertical`."""

    period: float = option(
        1.0,
        "Time between plans, and how far ahead arrivals are expected.",
        unit=SECONDS,
        above=0,
    )
    scale_down_delay: float = option(
        0.5,
        "Time for which fewer cores must have sufficed before some are released.",
        unit=SECONDS,
        least=0,
        aliases=("patience",),
    )
    p99: bool = option(
        True, "Whether to plan with the 99th percentile of batch times, not the typical time."
    )
    row_cost: float = option(
        0.01,
        "Cost of each further row in a batch, in cores; so small that it only breaks ties.",
        least=0,
        aliases=("delta",),
    )

    def search(self, view: ModelView, *, now: float) -> Search:
        """Return the search for configurations of `view` under these options."""
        return Search(view, now=now, horizon=self.period, p99=self.p99, delta=self.row_cost)


class Vertical(ScalingPolicy):
    """Chooses cores and batch size, and keeps the number of replicas."""

    Options = VerticalOptions

    def __init__(self, options: VerticalOptions) -> None:
        self._options = options
        self.period = options.period
        self._cores = WindowMax(options.scale_down_delay)

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Choose the cheapest configuration that saves all requests, else the best that saves
        most."""
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
        held = min(self._cores.most(configuration[0], now=now), limits.cores_max)
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
        """See `ScalingPolicy`. Assumes that all replicas have the cores of the smallest."""
        if not view.replicas:
            return False
        options = self._options
        search = options.search(view, now=now)
        cores = min(replica.cores for replica in view.replicas)
        hopeless = search.queue.hopeless
        if search.late(cores, view.batch, most=hopeless) > hopeless:
            return True
        return options.p99 and cores < p50_rescue(view, now=now)
