"""`joint`: replicas, cores, batch and variant together, on the fewest cores (n · c).

It works at two speeds. Cores change within milliseconds, so they follow the load of the next
second: `vertical` chooses them, and counts starting replicas from the moment they will be up. A
replica takes seconds to start, so the number of replicas follows the load of the next minute:

- **Forecast**: at least as many replicas as the forecast load requires if each has the most cores
  allowed (`forecast`). Missing replicas are started immediately.
- **Economy**: among the numbers of replicas that suffice, the one that would have cost the fewest
  core-seconds over the last `window` seconds if vertical scaling had followed the load. The number
  changes only if that saves the share `gain` on top of the cost of starting, and at least
  `cool_down` seconds after the last change. One replica is a candidate too: if more do not pay,
  `joint` does what `vertical` does.

While replicas start, the serving replicas grow; starting replicas get only the cores that they will
need.

**Variants.** It chooses the most accurate variant with which no waiting or expected request is
late; if there is none, the fastest. It returns to a more accurate one after `scale_down_delay`
seconds. The number of replicas is chosen for the most accurate variant, so that this variant fits
once all replicas serve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slacktide.domain.options import option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.forecast import MinuteForecast, ReplicaHistory, WindowMax
from slacktide.planning.scaling.queue_projection import SecondsByCores
from slacktide.planning.scaling.search import fewest_cores
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget, VariantView


@dataclass(frozen=True, slots=True)
class JointOptions(VerticalOptions):
    """The options of `vertical`, and options for the number of replicas."""

    window: float = option(
        60.0, "Length of the history that decides the number of replicas.", unit=SECONDS, above=0
    )
    cool_down: float = option(
        60.0,
        "Shortest time between changes in replica count made to save cores. Replicas that the load "
        "needed also stay this long.",
        unit=SECONDS,
        least=0,
    )
    gain: float = option(
        0.1,
        "Share of the core-seconds that a different number of replicas must save.",
        least=0,
        below=1,
    )
    headroom: float = option(
        1.0, "Margin above the forecast rate, as a multiple of the expected burst.", least=0
    )


SHORT_SHARE = 0.05
"""A number of replicas is considered only if the share of the window in which it was too small
exceeds the smallest such share by at most this."""


class Joint(ScalingPolicy):
    """Scales by the last minute's load, and by what each number of replicas would have cost."""

    Options = JointOptions

    def __init__(self, options: JointOptions) -> None:
        self._options = options
        self.period = options.period
        self._vertical = Vertical(options)
        self._serving = 0
        self._rank = WindowMax(options.scale_down_delay)
        """Rank of the chosen variant; 0 is the most accurate."""
        self._variant = ""
        self._forecast = MinuteForecast(options.window)
        self._floor = WindowMax(options.cool_down)
        self._history = ReplicaHistory(options.window, options.scale_down_delay)
        self._due = -math.inf
        self._changed = -math.inf
        self._count = 0
        self._start_cores = 0
        self._needed = 0
        self._reason = ""

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Choose cores for the next second and, every `period`, replicas for the next minute."""
        variants = sorted(view.variants, key=lambda variant: -variant.accuracy)
        if now >= self._due:
            # A plan may come 1 % early, so that urgent plans do not put off the next one.
            self._due = now + 0.99 * self._options.period
            aimed = replace(view, times=variants[0].times) if variants else view
            self._plan_replicas(aimed, now=now)
        view = self._without_leaving(view, now=now)
        serving = sum(replica.ready_at <= now for replica in view.replicas)
        if serving != self._serving:
            # Cores needed by another number of replicas say little about the present number.
            self._serving = serving
            self._vertical = Vertical(self._options)
        self._variant = self._chosen(view, variants, now=now)
        target = self._vertical.decide(self._as_it_runs(view), now=now)
        return replace(
            target,
            replicas=self._count,
            start_cores=self._start_cores,
            needed=self._needed,
            reason=self._reason or target.reason,
            variant=self._variant,
        )

    def is_urgent(self, view: ModelView, *, now: float) -> bool:
        return self._vertical.is_urgent(
            self._as_it_runs(self._without_leaving(view, now=now)), now=now
        )

    def _without_leaving(self, view: ModelView, *, now: float) -> ModelView:
        """Return `view` without the replicas that will be stopped. Starting replicas count with the
        cores of serving replicas, which they get as soon as they are up."""
        staying = sorted(view.replicas, key=lambda replica: replica.ready_at)[: self._count]
        cores = min((replica.cores for replica in staying if replica.ready_at <= now), default=0)
        return replace(
            view,
            replicas=tuple(
                replace(replica, cores=cores) if cores and replica.ready_at > now else replica
                for replica in staying
            ),
        )

    def _as_it_runs(self, view: ModelView) -> ModelView:
        """Return `view` with the times of the chosen variant."""
        for variant in view.variants:
            if variant.name == self._variant:
                return replace(view, times=variant.times)
        return view

    def _chosen(self, view: ModelView, variants: Sequence[VariantView], *, now: float) -> str:
        """Return the most accurate variant that has fitted for a while. `variants` are sorted by
        accuracy."""
        if not variants:
            return ""
        least = view.limits.cores_min
        fitting = (
            place
            for place, variant in enumerate(variants)
            if self._options.search(replace(view, times=variant.times), now=now).first(cores=least)
        )
        rank = next(fitting, None)
        if rank is None:
            rows, cores = view.limits.batch_max, view.limits.cores_max
            seconds = [variant.times.of(rows, cores).expected for variant in variants]
            rank = seconds.index(min(seconds))
        rank = min(self._rank.most(rank, now=now), len(variants) - 1)
        return variants[rank].name

    def _plan_replicas(self, view: ModelView, *, now: float) -> None:
        """Set the number of replicas, and the cores that new replicas start with."""
        options, limits = self._options, view.limits
        seconds = SecondsByCores(view.times, most_rows=limits.batch_max, p99=options.p99)
        self._needed = self._forecast.replicas(
            view, seconds[limits.cores_max], options.headroom, now=now
        )
        floor = min(
            self._floor.most(max(self._needed, limits.replicas_min), now=now), limits.replicas_max
        )
        cores = self._fewest_cores(view, now=now)
        self._history.note(cores, limits.cores_max, now=now)
        before = min(max(len(view.replicas), limits.replicas_min), limits.replicas_max)
        if floor > before:
            rate = self._forecast.rate(view.start_time, now=now)
            steady = replace(view, rate=rate, budget=self._forecast.budget(now=now))
            expected = self._fewest_cores(steady, now=now)
            count = min(
                range(floor, limits.replicas_max + 1),
                key=lambda n: (expected[n] is None, self._cost(n, before, expected, view), n),
            )
            self._change(count, before, expected[count] or limits.cores_max, now=now)
            self._reason = "forecast"
        else:
            count = self._cheapest(view, before, floor, cores, now=now)
            self._change(count, before, cores[count] or limits.cores_max, now=now)
            self._reason = "economy" if count != before else ""

    def _cost(
        self, count: int, before: int, cores: Mapping[int, int | None], view: ModelView
    ) -> float:
        """Return the core-seconds that `count` replicas take in a window, plus the core-seconds of
        starting the missing replicas."""
        size = cores[count] or view.limits.cores_max
        return size * (count * self._options.window + max(0, count - before) * view.start_time)

    def _change(self, count: int, before: int, start_cores: int, *, now: float) -> None:
        if count != before:
            self._changed = now
        self._count, self._start_cores = count, start_cores

    def _cheapest(
        self,
        view: ModelView,
        before: int,
        floor: int,
        cores: Mapping[int, int | None],
        *,
        now: float,
    ) -> int:
        """Return the number of replicas, at least `floor`, that is worth changing to; `before` if
        none is."""
        options = self._options
        history = self._history
        if now - self._changed < options.cool_down or not history.full(now=now):
            return before
        counts = range(floor, view.limits.replicas_max + 1)
        costs = {n: history.cost(n, now=now) for n in {before, *counts}}
        least_short = min(short for _, short in costs.values())
        enough = [n for n in counts if costs[n][1] <= least_short + SHORT_SHARE]

        def saving(count: int) -> float:
            starting = max(0, count - before) * (cores[count] or view.limits.cores_max)
            return costs[before][0] - costs[count][0] - starting * view.start_time

        best = max(enough, key=saving)
        if before in enough and saving(best) <= options.gain * costs[before][0]:
            return before
        if best < before:
            fewer = sorted(view.replicas, key=lambda replica: replica.ready_at)[:best]
            search = options.search(replace(view, replicas=tuple(fewer)), now=now)
            if search.first(cores=view.limits.cores_min) is None:
                return before
        return best

    def _fewest_cores(self, view: ModelView, *, now: float) -> dict[int, int | None]:
        """Return the fewest cores for one period's arrivals, by number of (idle) replicas."""
        idle = replace(view, waiting=(), replicas=(), start_time=0.0)
        return fewest_cores(idle, partial(self._options.search, now=now), now=now)
