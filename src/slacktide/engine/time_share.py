"""Shares of lane time for runs that a policy does not propose: solo runs and trials."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slacktide.domain import Request

SAVED_S = 10.0
"""A pool saves up at most its share of this many seconds, so that idle hours allow no burst."""

TRIAL_EVERY = 8
"""Number of refusals in a row before a trial."""
TRIAL_SHARE = 0.1
"""Share of a lane's time for trials that take longer than the lane's other models can wait."""


class TimeShare:
    """A token bucket of seconds: a share of the time of a pool's lanes, saved up to a limit."""

    __slots__ = ("_at", "_credit", "_share")

    def __init__(self, share: float, *, saved_s: float = 0.0) -> None:
        """`saved_s`: the share of this many seconds is available from the start."""
        self._share = share
        self._credit = share * saved_s
        self._at = -math.inf

    def affordable_at(self, seconds: float, *, lanes: int, now: float) -> float:
        """When a run of `seconds` > 0 is affordable; `now` if it already is, inf if never."""
        if not self._share:
            return math.inf
        rate = self._share * lanes
        if self._at > -math.inf:
            # However long a run is, it must become affordable in the end.
            most = max(rate * SAVED_S, seconds)
            self._credit = min(self._credit + rate * (now - self._at), most)
        self._at = now
        missing = seconds - self._credit
        # The tolerance keeps rounding errors from dispatching the lane again and again.
        return now if missing <= 1e-9 * seconds else now + missing / rate

    def pay(self, seconds: float) -> None:
        """Pay for a run. Earlier debts are forgiven, because runs on idle lanes may exceed the
        share."""
        self._credit = max(self._credit, 0.0) - seconds


@dataclass(slots=True)
class SoloCounts:
    """Totals of solo runs so far. They may outlive a pool."""

    isolated: int = 0
    """Requests that ran alone instead of in a proposed batch, because no lane became idle."""
    run: int = 0
    """Requests that ran again after their answer."""
    run_s: float = 0.0
    """Lane time of the requests that ran again, in seconds."""
    delayed: int = 0
    """Requests that arrived while another one ran again, and waited for its end."""
    delayed_s: float = 0.0
    """Total wait of the delayed requests, in seconds."""


@dataclass(frozen=True, slots=True)
class SoloProfiling:
    """Rules for the solo runs of one pool."""

    wants: Callable[[Request], bool]
    """Whether a run of this request alone would teach something. Pure."""
    share: float
    """Share of the lanes' time that solo runs may take, above 0 and at most 1."""
    counts: SoloCounts = field(default_factory=SoloCounts)

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")


class SoloRuns(TimeShare):
    """The held requests of one pool, oldest first, and their share of lane time."""

    __slots__ = ("held", "isolated_at", "rules")

    def __init__(self, rules: SoloProfiling) -> None:
        super().__init__(rules.share)
        self.rules = rules
        self.held: deque[Request] = deque()
        self.isolated_at = -math.inf
        """When a request was last isolated. Requests that arrived earlier have waited for it."""


@dataclass(slots=True)
class Trials:
    """Counts of refusals and trials of one pool (engine/trials.py)."""

    every: int = TRIAL_EVERY
    refused: int = 0
    """Refusals since the last run."""
    ratio: float = 0.0
    """Measured ÷ predicted seconds of the last trial if it was far off, else 0."""
    tried: bool = False
    """Whether the present predictions have had a trial."""
    time: TimeShare = field(default_factory=lambda: TimeShare(TRIAL_SHARE, saved_s=SAVED_S))
