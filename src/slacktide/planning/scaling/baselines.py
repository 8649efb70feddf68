"""`static`, a fixed size; `sponge`, Sponge's own optimiser (§4); `octopinf`, OctopInf's autoscaler.

`static`: the same cores and replicas at any load (`static-8` and `static-16` in the paper).

`sponge`: Sponge's optimiser as its published code runs it. It tries pairs of cores c and batch size
b, cores ascending, then batches ascending. It lays the requests of one second, at the configured
rate, end to end in batches of b, and refuses the pair as soon as a batch has

    l(b, c) + q + cl_max > factor · SLO

where q is the time of the batches before it, and takes the first pair that is not refused (Sponge
§3.3, Eq. 3: the fewest cores, then the smallest batch). Latencies are rounded down to milliseconds.
The cl_max of the published code is the SLO minus the last request's remaining SLO, not a maximum
over the queue; ours is the SLO minus the view's budget. If all pairs are refused, nothing changes.

`sponge` never looks at the queue, does not require that batches keep up with the rate if the SLO is
longer than a second, and plans nothing between two periods. `vertical` is the sound version.

`octopinf` scales replicas by utilisation alone, as OctopInf's autoscaler does.

The paper adds instances when containers reach their throughput limits and removes them when demand
drops (OctopInf §III-A and §III-D), but gives no figures. These figures are from its published code:

- it checks every 30 s; the rate is the largest over the last 15, 30 and 60 s, rounded up;
- as long as 0.8 · n · b / l(b, c) < rate, it adds a replica;
- otherwise, as long as 0.7 · (n − 1) · b / l(b, c) ≥ rate, it removes a replica;
- it adds none within 150 s of the last change, and removes none within 240 s;
- it leaves batch size and cores as they are: its periodical scheduler decides them.

Differences: its code tests a second pair of figures (0.95 and 0.9) against its preprocessors, which
have no counterpart here. Its batch times are 95th percentiles, ours are 99th. It runs at most four
replicas; here `limits.replicas_max` applies. Deadlines play no part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.domain.options import OptionError, Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.rates import ArrivalCounts
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class SpongeOptions(Options):
    """Options of `sponge`."""

    slo: float = option(
        1.0,
        "Time from sending a request to its answer, equal for all requests.",
        unit=SECONDS,
        above=0,
    )
    rate: float | None = option(
        None, "Requests per second to plan for; none: the expected rate.", above=0
    )
    factor: float = option(
        0.9,
        "Share of the SLO to plan with. The paper states none; its code has this default.",
        above=0,
    )
    period: float = option(1.0, "Time between plans.", unit=SECONDS, above=0)


class Sponge(ScalingPolicy):
    """Chooses cores and batch size as Sponge's published code does."""

    Options = SpongeOptions

    def __init__(self, options: SpongeOptions) -> None:
        self._options = options
        self.period = options.period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Choose the first pair that is not refused; if there is none, keep the present pair."""
        limits = view.limits
        configuration = self._first(view)
        if configuration is None:
            present = min((replica.cores for replica in view.replicas), default=limits.cores_min)
            configuration = (min(max(present, limits.cores_min), limits.cores_max), view.batch)
            reason = "none suffices"
        else:
            reason = "sponge"
        cores, batch = configuration
        replicas = min(max(len(view.replicas), limits.replicas_min), limits.replicas_max)
        return ScalingTarget(replicas=replicas, cores=cores, batch=batch, reason=reason)

    def _first(self, view: ModelView) -> tuple[int, int] | None:
        """Return (cores, batch); None if every pair is refused."""
        options, limits = self._options, view.limits
        requests = options.rate if options.rate is not None else view.rate
        on_the_way = max(0.0, options.slo - view.budget)
        for cores in range(limits.cores_min, limits.cores_max + 1):
            for batch in range(1, limits.batch_max + 1):
                # All batches take equally long, so the last one decides.
                time = math.floor(1e3 * view.times.of(batch, cores).p99) * 1e-3
                if math.ceil(requests / batch) * time + on_the_way <= options.factor * options.slo:
                    return cores, batch
        return None


@dataclass(frozen=True, slots=True)
class StaticOptions(Options):
    """Options of `static`. None means the most that the limits allow."""

    cores: int | None = option(None, "Cores of each replica; none: the upper limit.", least=1)
    replicas: int | None = option(None, "Number of replicas; none: the upper limit.", least=1)
    batch: int | None = option(None, "Maximum rows in a batch; none: the upper limit.", least=1)


class Static(ScalingPolicy):
    """Always chooses the same target, within the limits."""

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


@dataclass(frozen=True, slots=True)
class OctopInfOptions(Options):
    """Options of `octopinf`."""

    interval: float = option(30.0, "Time between checks.", unit=SECONDS, above=0)
    windows: tuple[float, ...] = option(
        (15.0, 30.0, 60.0),
        "Windows over which the rate is averaged; the largest rate is used.",
        unit=SECONDS,
        above=0,
    )
    up_gap: float = option(
        150.0, "Shortest time from the last change to an increase.", unit=SECONDS, least=0
    )
    down_gap: float = option(
        240.0, "Shortest time from the last change to a decrease.", unit=SECONDS, least=0
    )
    up_share: float = option(
        0.8, "Share of the replicas' throughput above which a replica is added.", above=0, most=1
    )
    down_share: float = option(
        0.7,
        "Share of the throughput of one fewer replica below which a replica is removed.",
        above=0,
        most=1,
    )

    def check(self) -> None:
        """Raise OptionError if there is no window, or the shares leave no gap."""
        if not self.windows:
            raise OptionError(("windows", "expected at least one time"))
        if self.down_share > self.up_share:
            expected = f"at most up_share, {self.up_share}"
            raise OptionError(("down_share", f"expected {expected}, got {self.down_share}"))


class OctopInf(ScalingPolicy):
    """Scales replicas by the arrivals within its windows and the time since its last change."""

    Options = OctopInfOptions

    def __init__(self, options: OctopInfOptions) -> None:
        self._options = options
        # Arrivals are noted often enough for the shortest window; decisions come every `interval`.
        self.period = min(options.interval, *options.windows)
        self._counts = ArrivalCounts(max(options.windows))
        self._due = -math.inf
        self._changed = -math.inf
        self._target = ScalingTarget(0, 0, 0)

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        self._counts.note(view.arrived, now=now)
        if now >= self._due:
            self._due = now + self._options.interval
            self._target = self._decided(view, now=now)
        return self._target

    def _decided(self, view: ModelView, *, now: float) -> ScalingTarget:
        options, limits = self._options, view.limits
        rate = max(math.ceil(self._counts.rate(w, now=now)) for w in options.windows)
        present = view.replicas[0].cores if view.replicas else limits.cores_min
        cores = min(max(present, limits.cores_min), limits.cores_max)
        replica_rate = view.batch / view.times.of(view.batch, cores).p99
        current_count = min(max(len(view.replicas), limits.replicas_min), limits.replicas_max)
        needed = max(1, math.ceil(rate / (options.up_share * replica_rate)))
        retained_count = max(1, math.ceil(rate / (options.down_share * replica_rate)))
        replicas, reason = current_count, "within limits"
        if needed > current_count:
            if now - self._changed >= options.up_gap:
                replicas, reason = min(needed, limits.replicas_max), "throughput"
        elif retained_count < current_count and now - self._changed >= options.down_gap:
            replicas, reason = max(retained_count, limits.replicas_min), "demand dropped"
        if replicas != current_count:
            self._changed = now
        return ScalingTarget(replicas, cores, view.batch, reason=reason, needed=needed)
