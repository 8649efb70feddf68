"""Lane time that a pool may spend on runs its policy does not propose, and what it spends it on."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slacktide.domain import Request

SAVED_S = 10.0
"""Seconds whose share may be saved up, so that idle hours do not add up to a burst."""

TRIAL_EVERY = 8
"""Refusals without a run before a trial."""
TRIAL_SHARE = 0.1
"""Part of a shared lane's time for trials for which the others have no time."""


class TimeShare:
    """A token bucket of seconds: a share of the time of a pool's lanes, saved up for a while."""

    __slots__ = ("_at", "_credit", "_share")

    def __init__(self, share: float, *, saved_s: float = 0.0) -> None:
        """`saved_s`: seconds whose share is there from the start."""
        self._share = share
        self._credit = share * saved_s
        self._at = -math.inf

    def affordable_at(self, seconds: float, *, lanes: int, now: float) -> float:
        """When a run of `seconds` > 0 will have been earned; `now` if it has, inf if never."""
        if not self._share:
            return math.inf
        rate = self._share * lanes
        if self._at > -math.inf:
            # One run must always be within reach, however long it is.
            most = max(rate * SAVED_S, seconds)
            self._credit = min(self._credit + rate * (now - self._at), most)
        self._at = now
        missing = seconds - self._credit
        # The last bit of a product must not make the lane be looked at for ever.
        return now if missing <= 1e-9 * seconds else now + missing / rate

    def pay(self, seconds: float) -> None:
        """A run has taken so long. It leaves no debt beyond itself: others may have run before it
        because no other work was there."""
        self._credit = max(self._credit, 0.0) - seconds


@dataclass(slots=True)
class SoloCounts:
    """What solo runs have cost so far. Only rises; may outlive a pool."""

    isolated: int = 0
    """Requests that ran alone though a batch was proposed, since lanes were never idle."""
    run: int = 0
    """Requests that ran again."""
    run_s: float = 0.0
    """Lane time they took, seconds."""
    delayed: int = 0
    """Requests that came while one ran again, and waited for its end."""
    delayed_s: float = 0.0
    """How long they waited for that, together, seconds."""


@dataclass(frozen=True, slots=True)
class SoloProfiling:
    """Which requests of a pool run alone, and how much of the time."""

    wants: Callable[[Request], bool]
    """Whether a run of this request alone would teach something. Pure."""
    share: float
    """Of the time of the pool's lanes, above 0 and at most 1."""
    counts: SoloCounts = field(default_factory=SoloCounts)

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")


class SoloRuns(TimeShare):
    """What one pool holds, oldest first, and the time that it may take."""

    __slots__ = ("held", "isolated_at", "rules")

    def __init__(self, rules: SoloProfiling) -> None:
        super().__init__(rules.share)
        self.rules = rules
        self.held: deque[Request] = deque()
        self.isolated_at = -math.inf
        """When a request was isolated last: what waited then has waited for it."""


@dataclass(slots=True)
class Trials:
    """Refusals and trials of one pool (engine/trials.py)."""

    every: int = TRIAL_EVERY
    refused: int = 0
    """Refusals since the last run."""
    ratio: float = 0.0
    """Seconds by prediction of the last trial, if it was far off; else 0."""
    tried: bool = False
    """Whether there was a trial of the present predictions."""
    time: TimeShare = field(default_factory=lambda: TimeShare(TRIAL_SHARE, saved_s=SAVED_S))
