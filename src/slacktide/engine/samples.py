"""`Samples`: what one pool holds to be run again alone, and the lane time it has earned for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slacktide.domain import Request

SAVED_S = 10.0
"""Seconds whose share may be saved up, so that idle hours do not add up to a burst."""


@dataclass(slots=True)
class SampleCounts:
    """What samples have cost so far. Only rises; may outlive a pool."""

    singled: int = 0
    """Requests that ran alone though a batch was proposed, since lanes were never idle."""
    run: int = 0
    """Samples that ran."""
    run_s: float = 0.0
    """Lane time they took, seconds."""
    delayed: int = 0
    """Requests that came while a sample ran, and waited for its end."""
    delayed_s: float = 0.0
    """How long they waited for that, together, seconds."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which requests of a pool are run again alone, and how much of the time."""

    wants: Callable[[Request], bool]
    """Whether a run of this request alone would teach something. Pure."""
    share: float
    """Of the time of the pool's lanes, above 0 and at most 1."""
    counts: SampleCounts = field(default_factory=SampleCounts)

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")


class Samples:
    """A token bucket of seconds, and the requests that wait for it, oldest first."""

    __slots__ = ("_at", "_credit", "held", "rules", "singled_at")

    def __init__(self, rules: Sampling) -> None:
        self.rules = rules
        self.held: deque[Request] = deque()
        self.singled_at = -math.inf
        """When a request was singled out last: whoever waited then has waited for it."""
        self._credit = 0.0
        self._at = -math.inf

    def affordable_at(self, seconds: float, *, lanes: int, now: float) -> float:
        """When a run of `seconds` will have been earned; `now` if it has."""
        rate = self.rules.share * lanes
        if self._at > -math.inf:
            # One run must always be within reach, however long it is.
            most = max(rate * SAVED_S, seconds)
            self._credit = min(self._credit + rate * (now - self._at), most)
        self._at = now
        missing = seconds - self._credit
        # The last bit of a product must not make the lane be looked at for ever.
        return now if missing <= 1e-9 * seconds else now + missing / rate

    def pay(self, seconds: float) -> None:
        """A sample has taken so long."""
        self._credit -= seconds
