"""`fa2`: scales the number of one-core instances, as in Sponge's comparison (Sponge §4, after FA2,
RTAS 2022).

The search is that of Sponge's code: by instances ascending, then by batch sizes ascending, up to
the first pair that suffices. It finds the fewest instances, with the smallest batch. Two of the
code's tests for "suffices" are unsound and replaced here; a third difference follows:

- throughput: n · b / l(b, 1) ≥ rate. The code compares the batches that fit into one remaining SLO
  with the requests of a second.
- latency: a request that just misses a batch waits for that batch to end and runs in the next one,
  2 · l(b, 1) ≤ budget. The code assumes that all requests of a second arrive simultaneously, and
  adds the batches for them to the request's own. With the throughput above, requests that arrive
  while a batch runs fit into the next.
- The code's factor 0.9 on the SLO is left out: the view's budget already favours short deadlines.

If nothing suffices, the code changes nothing; here all instances run single requests, the most that
an autoscaler of one-core instances can do for tight deadlines. The driver sets how long a new
instance takes before it serves (10 s in Sponge §4).
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain import SECONDS, Options, option
from slacktide.planning.scaling import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class Fa2Options(Options):
    """Options of `fa2`."""

    period: float = option(1.0, "Time between plans.", unit=SECONDS, above=0)


class Fa2(ScalingPolicy):
    """Fewest one-core instances that carry the rate within the budget. Has no state."""

    Options = Fa2Options

    def __init__(self, options: Fa2Options) -> None:
        self.period = options.period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """The target; instances have `limits.cores_min` cores, which should be 1."""
        limits = view.limits
        cores = limits.cores_min
        seconds = [view.times.of(batch, cores).expected for batch in range(1, limits.batch_max + 1)]
        for replicas in range(limits.replicas_min, limits.replicas_max + 1):
            for batch, batch_s in enumerate(seconds, start=1):
                if 2.0 * batch_s <= view.budget and replicas * batch >= view.rate * batch_s:
                    return ScalingTarget(replicas, cores, batch, reason="fewest")
        return ScalingTarget(limits.replicas_max, cores, 1, reason="none suffices")
