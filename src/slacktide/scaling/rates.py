"""`ExpectedArrivals`: how many rows come in the near future, and how much time they will have left.

Fed with every request once, when it first becomes known. Constant work and memory per request.

The rate is an exponential average over `window` seconds, so a step is followed within that time. A
second one over `burst_window` sees bursts sooner but is noisy, so it counts only as far as chance
does not explain it: less `burst_doubt` standard deviations of a Poisson count of that length. The
larger of the two, raised by the share `margin`, is what is expected.

The budget is a low quantile of the last ones seen: what a link has just done to one request it
does to the next, and who plans for the typical budget is late for half of them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RateOptions:
    """Settings of `ExpectedArrivals`. Raises ValueError, naming the field, if out of range."""

    window: float = 10.0
    """Seconds over which the rate is averaged."""
    margin: float = 0.02
    """Share added to the rate, for bursts."""
    burst_window: float = 1.0
    """Seconds over which a burst is looked for."""
    burst_doubt: float = 2.0
    """Standard deviations by which a burst must exceed chance before it counts."""
    budget_quantile: float = 0.1
    """Which of the budgets seen last is expected; 0: the shortest."""
    budget_window: float = 2.0
    """Seconds for which a budget is remembered; the last one always is."""

    def __post_init__(self) -> None:
        for name in ("window", "burst_window", "budget_window"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a positive time, got {getattr(self, name)}")
        for name in ("margin", "burst_doubt"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if not 0.0 <= self.budget_quantile <= 1.0:
            raise ValueError(f"budget_quantile: expected 0 to 1, got {self.budget_quantile}")


MOST_BUDGETS = 128
"""Budgets remembered: enough for a quantile, little enough to sort for every plan."""


class ExpectedArrivals:
    """What one model's arrivals so far say of the next ones."""

    __slots__ = ("_budgets", "_burst", "_long", "_options")

    def __init__(self, options: RateOptions | None = None) -> None:
        self._options = options or RateOptions()
        self._long = _Average(self._options.window)
        self._burst = _Average(self._options.burst_window)
        self._budgets: deque[tuple[float, float]] = deque(maxlen=MOST_BUDGETS)
        """(when seen, budget), oldest first."""

    def seen(self, rows: int, budget: float, *, now: float) -> None:
        """A request of `rows` rows is known: announced, or submitted without a notice.

        Each request is told of once; `now` never falls. `budget`: its deadline less the moment its
        body is, or will be, here; infinite for best effort.
        """
        self._long.add(rows, now=now)
        self._burst.add(rows, now=now)
        self._budgets.append((now, budget))

    def rate(self, *, now: float) -> float:
        """Rows per second expected from now on, the margin for bursts included."""
        long = self._long.rate(now=now)
        burst = self._burst.rate(now=now)
        # An exponential average over τ of a Poisson process varies by √(rate / 2τ).
        chance = math.sqrt(burst / (2.0 * self._options.burst_window))
        expected = max(long, burst - self._options.burst_doubt * chance)
        return expected * (1.0 + self._options.margin)

    def budget(self, *, now: float) -> float:
        """Seconds that an expected arrival will have left when it is ready.

        Infinite before the first request. Negative if they come too late to be answered in time.
        """
        budgets = self._budgets
        while len(budgets) > 1 and budgets[0][0] < now - self._options.budget_window:
            budgets.popleft()
        if not budgets:
            return math.inf
        ordered = sorted(budget for _, budget in budgets)
        return ordered[int(self._options.budget_quantile * (len(ordered) - 1))]


class _Average:
    """Rows per second, what is `window` seconds old counting 1/e."""

    __slots__ = ("_at", "_rate", "_since", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._rate = 0.0
        self._at = 0.0
        self._since: float | None = None

    def add(self, rows: int, *, now: float) -> None:
        if self._since is None:
            self._since = self._at = now
        self._rate = self._faded(now) + rows / self._window
        self._at = now

    def rate(self, *, now: float) -> float:
        """0 before the first request; until the window has passed, the average so far."""
        if self._since is None:
            return 0.0
        # A first request alone says no more than "one row within the window or a second".
        seen_for = max(now - self._since, min(1.0, self._window))
        return self._faded(now) / -math.expm1(-seen_for / self._window)

    def _faded(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / self._window)
