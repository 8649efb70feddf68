"""`static`: so many cores and replicas from the start, whatever comes. What Sponge's `static-8` and
`static-16` are (Sponge §4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.planning.scaling.view import ModelView, Wish


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """None: the most that the model's limits allow. Raises ValueError, naming the field."""

    cores: int | None = None
    replicas: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "replicas", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")


class Static:
    """Always the same wish, kept within the limits."""

    def __init__(self, options: StaticOptions) -> None:
        self._options = options

    @property
    def period(self) -> float:
        """It never changes its mind."""
        return math.inf

    def decide(self, view: ModelView, *, now: float) -> Wish:
        options, limits = self._options, view.limits
        return Wish(
            replicas=_within(options.replicas, limits.replicas_min, limits.replicas_max),
            cores=_within(options.cores, limits.cores_min, limits.cores_max),
            batch=_within(options.batch, 1, limits.batch_max),
            reason="static",
        )


def _within(value: int | None, least: int, most: int) -> int:
    return most if value is None else min(max(value, least), most)
