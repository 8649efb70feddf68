"""`fa2`: more or fewer instances of one core each, as Sponge's comparison does it (Sponge §4, after
FA2, RTAS 2022).

What is searched is what its code searches: for instances ascending, for batch sizes ascending, the
first that suffices; so the fewest instances with the smallest batch. What suffices is read so that
it holds, for the code asks for two things that do not:

- throughput: n · b / l(b, 1) ≥ rate. The code counts the batches of one remaining SLO and compares
  them with the requests of a second.
- latency: a request that just misses a batch waits for that one to end and then runs in the next,
  2 · l(b, 1) ≤ budget. The code lets the requests of a whole second come at once and adds the
  batches that they need to that of the request itself; with the throughput above, those that come
  while a batch runs fit into the next.
- Its 0.9 of the SLO is left out: the budget of the view leans towards the short ones already.

Where nothing suffices the code keeps what there is; here all instances run single requests, which
is what an autoscaler of one-core instances can do for tight deadlines. How long a new instance
takes to serve (10 s in Sponge §4) is the driver's to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain import SECONDS, Options, option
from slacktide.planning.scaling import ModelView, ScalingPolicy, ScalingTarget


@dataclass(frozen=True, slots=True)
class Fa2Options(Options):
    """Options of `fa2`."""

    period: float = option(1.0, "Time between two plans.", unit=SECONDS, above=0)


class Fa2(ScalingPolicy):
    """Fewest one-core instances that carry the rate within the budget. Keeps nothing."""

    Options = Fa2Options

    def __init__(self, options: Fa2Options) -> None:
        self.period = options.period

    def decide(self, view: ModelView, *, now: float) -> ScalingTarget:
        """Instances of `limits.cores_min` cores, which is meant to be one."""
        limits = view.limits
        cores = limits.cores_min
        seconds = [view.times.of(batch, cores).expected for batch in range(1, limits.batch_max + 1)]
        for replicas in range(limits.replicas_min, limits.replicas_max + 1):
            for batch, batch_s in enumerate(seconds, start=1):
                if 2.0 * batch_s <= view.budget and replicas * batch >= view.rate * batch_s:
                    return ScalingTarget(replicas, cores, batch, reason="fewest")
        return ScalingTarget(limits.replicas_max, cores, 1, reason="none suffices")
