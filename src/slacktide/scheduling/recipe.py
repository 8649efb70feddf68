"""`PoolRecipe`: how a pool's parts are made, as plain data.

One way to make them, so that a server, a replay of what it recorded and a simulation hold the same
objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slacktide.engine.ports import BatchTimes, PoolParts, PoolView
from slacktide.scheduling.policies import make_scheduler


@dataclass(frozen=True, slots=True)
class PoolRecipe:
    """A policy by name, its options, and the pool's weight on a shared lane."""

    scheduler: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Those that are stated; the others have their defaults. JSON-ready."""
    share: float = 1.0

    def parts(self, times: BatchTimes, *, max_batch: int, view: PoolView) -> PoolParts:
        """A fresh scheduler that asks `times`. Raises PolicyError as `make_scheduler` does."""
        scheduler = make_scheduler(
            self.scheduler, self.options, max_batch=max_batch, times=times, view=view
        )
        return PoolParts(scheduler, times, self.share)
