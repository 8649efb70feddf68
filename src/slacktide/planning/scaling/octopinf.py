"""`octopinf`: more or fewer replicas by utilisation alone, as OctopInf's autoscaler does it.

The paper has it add instances when containers reach their limits of throughput and remove them when
demand drops (OctopInf §III-A and §III-D), and gives no figures. Those here are of its published
code:

- it looks every 30 s; the rate is the largest over the last 15, 30 and 60 s, rounded up;
- up: one more while 0.8 · n · b / l(b, c) < rate;
- down, if none was to be added: one less while 0.7 · (n − 1) · b / l(b, c) ≥ rate;
- no step up within 150 s of the last change, and none down within 240 s;
- batch size and cores stay what they are: they belong to its periodical scheduler.

Readings. Its code tests a second pair of figures (0.95 and 0.9) against its preprocessors, which
have no counterpart here. It takes the 95th percentile of batch times; here it is the 99th. Its most
of four replicas is `limits.replicas_max` here. Deadlines play no part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.domain.options import OptionError, Options, option
from slacktide.domain.units import SECONDS
from slacktide.planning.scaling.rates import ArrivalCounts
from slacktide.planning.scaling.view import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class OctopInfOptions(Options):
    """Options of `octopinf`."""

    interval: float = option(30.0, "Time between two checks.", unit=SECONDS, above=0)
    windows: tuple[float, ...] = option(
        (15.0, 30.0, 60.0),
        "Times over which the rate is taken; the largest rate counts.",
        unit=SECONDS,
        above=0,
    )
    up_gap: float = option(
        150.0, "Least time from the last change to one upwards.", unit=SECONDS, least=0
    )
    down_gap: float = option(
        240.0, "Least time from the last change to one downwards.", unit=SECONDS, least=0
    )
    up_share: float = option(
        0.8,
        "Share of the replicas' throughput above which there are too few.",
        above=0,
        most=1,
    )
    down_share: float = option(
        0.7,
        "Share of the throughput that is left below which there are too many.",
        above=0,
        most=1,
    )

    def check(self) -> None:
        """The shares leave a gap, and there is a window."""
        if not self.windows:
            raise OptionError(("windows", "expected at least one time"))
        if self.down_share > self.up_share:
            expected = f"at most up_share, {self.up_share}"
            raise OptionError(("down_share", f"expected {expected}, got {self.down_share}"))


class OctopInf(ScalingPolicy):
    """Keeps the arrivals of the longest window and when it changed something last."""

    Options = OctopInfOptions

    def __init__(self, options: OctopInfOptions) -> None:
        self._options = options
        # Often enough for the shortest window; it decides every `interval` seconds.
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
        each = view.batch / view.times.of(view.batch, cores).p99
        there = min(max(len(view.replicas), limits.replicas_min), limits.replicas_max)
        needed = max(1, math.ceil(rate / (options.up_share * each)))
        kept = max(1, math.ceil(rate / (options.down_share * each)))
        replicas, reason = there, "within limits"
        if needed > there:
            if now - self._changed >= options.up_gap:
                replicas, reason = min(needed, limits.replicas_max), "throughput"
        elif kept < there and now - self._changed >= options.down_gap:
            replicas, reason = max(kept, limits.replicas_min), "demand dropped"
        if replicas != there:
            self._changed = now
        return ScalingTarget(replicas, cores, view.batch, reason=reason, needed=needed)
