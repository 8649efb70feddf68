"""`vpa`: sizes an instance by its past CPU usage, like the Kubernetes Vertical Pod Autoscaler.

From its documentation: usage is sampled once a minute into a decaying histogram; a sample's weight
is the number of the instance's cores. The histogram gives a target (90th percentile), a lower bound
(median) and an upper bound (95th), each with a margin of 15 %. With a history of h confidence
intervals, the lower bound is multiplied by (1 + 0.001 / h)^−2, the upper one by 1 + 1 / h. Once a
minute the updater evicts an instance that is outside its bounds, so it stops and starts again with
the target. The autoscaler sees neither deadlines nor the network.

Two things are ours. The usage of a busy instance follows from its profile: a batch needs as many
CPU seconds on c cores as on one, so it uses l(b, 1) / l(b, c) cores. And an instance is evicted
even if it is the only one (`--min-replicas=1`); otherwise nothing would ever change here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.domain import SECONDS, Options, option
from slacktide.planning.scaling import ModelView, ScalingPolicy, ScalingTarget

FIRST = 0.01
RATIO = 1.05
_LONGEST = 100.0
"""Half-lives after which weights are rescaled to a new reference time, so that none overflows."""


class UsageHistogram:
    """Weights of samples of CPU usage, in cores; older samples count less.

    Buckets grow exponentially. A sample weighs 2^(time / half-life) as much as one at time 0, so
    stored weights need not be aged (vertical-pod-autoscaler, documentation of its recommender:
    first bucket of 0.01 cores, each 5 % wider than the one before, half-life of 24 hours).
    """

    def __init__(self, half_life: float) -> None:
        """`half_life` in seconds, above 0."""
        self._half_life = half_life
        self._weights: dict[int, float] = {}
        self._reference: float | None = None

    def add(self, usage: float, weight: float, *, now: float) -> None:
        """Count `usage` ≥ 0 cores, seen at `now`, with `weight` > 0."""
        if self._reference is None:
            self._reference = now
        age = (now - self._reference) / self._half_life
        if age > _LONGEST:
            self._weights = {bucket: mass * 2.0**-age for bucket, mass in self._weights.items()}
            self._reference, age = now, 0.0
        bucket = _bucket(usage)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight * 2.0**age

    def percentile(self, share: float) -> float:
        """Upper end of the bucket below which `share` (0 to 1) of the weight lies, in cores. 0
        while there is no sample."""
        total = sum(self._weights.values())
        below = 0.0
        for bucket in sorted(self._weights):
            below += self._weights[bucket]
            if below >= share * total:
                return _start(bucket + 1)
        return 0.0


def _bucket(usage: float) -> int:
    """Number of the bucket; bucket i ≥ 0 begins at FIRST · (RATIO^i − 1) / (RATIO − 1)."""
    return int(math.log(usage * (RATIO - 1.0) / FIRST + 1.0, RATIO) + 1e-9)


def _start(bucket: int) -> float:
    return FIRST * (RATIO**bucket - 1.0) / (RATIO - 1.0)


TARGET, LOWER, UPPER = 0.9, 0.5, 0.95
"""Percentiles of usage."""
MARGIN = 1.15
_LOOKS = 20
"""Observations of the instance for each sample, in place of a real counter of CPU seconds."""


@dataclass(frozen=True, slots=True)
class VpaOptions(Options):
    """The defaults are those of the autoscaler's documentation."""

    sample: float = option(
        60.0,
        "Time between two samples of usage, and between two checks of the updater.",
        unit=SECONDS,
        above=0,
    )
    half_life: float = option(
        86_400.0, "Time after which a sample counts half.", unit=SECONDS, above=0
    )
    confidence: float = option(
        86_400.0,
        "Length of history with which the upper bound is still doubled.",
        unit=SECONDS,
        above=0,
    )


class Vpa(ScalingPolicy):
    """One instance, restarted with another size when its usage has left the bounds."""

    Options = VpaOptions

    def __init__(self, options: VpaOptions) -> None:
        self._options = options
        self.period = options.sample / _LOOKS
        self._histogram = UsageHistogram(options.half_life)
        self._begin: float | None = None
        self._sample_due = math.inf
        self._looks: list[float] = []

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Keep the present size, or restart with the target."""
        limits = view.limits
        cores = view.replicas[0].cores if view.replicas else limits.cores_max
        current = min(max(cores, limits.cores_min), limits.cores_max)
        keep = ScalingTarget(limits.replicas_min, current, limits.batch_max, reason="within bounds")
        up = [replica for replica in view.replicas if replica.ready_at <= now]
        if not up:
            return keep
        busy = up[0].free_at > now
        if self._begin is None and busy:  # history begins with the first work
            self._begin, self._sample_due = now, now + self._options.sample
        # Cores that a running batch keeps busy: its CPU seconds ÷ its duration.
        alone, parallel_s = (view.times.of(view.batch, count).expected for count in (1, cores))
        self._looks.append(alone / parallel_s if busy else 0.0)
        if now < self._sample_due:
            return keep
        self._histogram.add(sum(self._looks) / len(self._looks), cores, now=now)
        self._looks.clear()
        self._sample_due = now + self._options.sample
        lower, target, upper = self.bounds(now=now)
        chosen = min(max(math.ceil(target), limits.cores_min), limits.cores_max)
        if chosen == cores or lower <= cores <= upper:
            return keep
        return ScalingTarget(keep.replicas, chosen, keep.batch, reason="evicted", restart=True)

    def bounds(self, *, now: float) -> tuple[float, float, float]:
        """(lower bound, target, upper bound) in cores, after the first sample."""
        assert self._begin is not None
        history = (now - self._begin) / self._options.confidence
        at = self._histogram.percentile
        return (
            at(LOWER) * MARGIN * (1.0 + 0.001 / history) ** -2,
            at(TARGET) * MARGIN,
            at(UPPER) * MARGIN * (1.0 + 1.0 / history),
        )
