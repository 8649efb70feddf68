"""`PoolRecipe`: how a pool's parts are made, as plain data.

One way to make them, so that a server, a replay of what it recorded and a simulation hold the same
objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slacktide.engine.ports import BatchTimes, PoolParts, PoolView
from slacktide.engine.samples import SampleCounts, Sampling
from slacktide.profiles import ClassedTimes
from slacktide.scheduling.policies import make_scheduler


@dataclass(frozen=True, slots=True)
class PoolRecipe:
    """A policy by name, its options, and the pool's weight on a shared lane."""

    scheduler: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that are stated; the others have their defaults. JSON-ready."""
    share: float = 1.0
    profiling: float = 0.0
    """Part of its lanes' time in which finished requests may run again, to learn their lengths."""

    def parts(
        self,
        times: BatchTimes,
        *,
        max_batch: int,
        view: PoolView,
        counts: SampleCounts | None = None,
    ) -> PoolParts:
        """A fresh scheduler that asks `times`. Raises PolicyError as `make_scheduler` does.

        `counts`: where samples are counted, if they are to be counted on from before.
        """
        scheduler = make_scheduler(
            self.scheduler, self.options, max_batch=max_batch, times=times, view=view
        )
        sampling = None
        if self.profiling > 0.0 and isinstance(times, ClassedTimes):
            sampling = Sampling(times.wants, self.profiling, counts or SampleCounts())
        return PoolParts(scheduler, times, self.share, sampling)
