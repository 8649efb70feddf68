"""`ExpectedArrivals`: how many rows will come soon, and how much time they will have left.

It counts each request that can still be on time, once, when it is first known. A request that no
number of cores can save must not claim cores. Work and memory per request are constant.

The rate is an exponential average over `window` seconds. A second average, over `burst_window`,
reacts sooner but is noisy. The mean square distance between the two shows how far chance or bursts
carry arrivals from the mean. For a Poisson process of rate λ averaged over τ, the distance is λ/2τ;
the measured distance is D·λ/2τ. D is near 0 for evenly spaced arrivals and above 1 for bursts. The
rate is the long average or, if larger, the short average less `doubt` times the square root of that
distance (D counts as at least 1).

The budget is a low quantile of the last budgets: a link treats the next request like the last, and
a plan for the typical budget would be late for half of the requests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from slacktide.domain.options import Options, option


@dataclass(frozen=True, slots=True)
class RateOptions(Options):
    """Settings of `ExpectedArrivals`. Raises OptionError that names the field."""

    window: float = option(10.0, "Seconds over which the rate is averaged.", above=0)
    margin: float = option(0.02, "Share added to the rate.", least=0)
    burst_window: float = option(
        1.0, "Seconds within which changes and bursts are detected.", above=0
    )
    burst_deviations: float = option(
        1.5, "Standard deviations by which a burst may exceed the rate.", least=0
    )
    doubt: float = option(
        1.0, "Standard deviations by which a change must exceed chance to count.", least=0
    )
    budget_quantile: float = option(
        0.1, "Quantile of recent budgets that is expected; 0: the shortest.", least=0, most=1
    )
    budget_window: float = option(
        2.0, "Seconds for which a budget is remembered; the last one always is.", above=0
    )


MOST_BUDGETS = 128
"""Budgets remembered: enough for a quantile, and few enough to sort for every plan."""

MOST_SPREAD = 16.0
"""Upper bound on measurements of D, so that a single step in the rate is not taken for bursts."""
SPREAD_WINDOWS = 20.0
"""Time over which D is averaged, in burst windows."""


class ExpectedArrivals:
    """A forecast of one model's next arrivals from its past ones."""

    __slots__ = ("_at", "_budgets", "_long", "_options", "_short", "_spread")

    def __init__(self, options: RateOptions | None = None) -> None:
        self._options = options or RateOptions()
        self._long = _Average(self._options.window)
        self._short = _Average(self._options.burst_window)
        self._at: float | None = None
        """Time of the last request."""
        self._spread = 1.0
        """Measured D; at first that of a Poisson process."""
        self._budgets: deque[tuple[float, float]] = deque(maxlen=MOST_BUDGETS)
        """(arrival, budget) of the last requests, oldest first."""

    def count(self, rows: int, budget: float | None, *, now: float) -> None:
        """Count a request that is announced, or submitted without a notice; call it once for each.
        `now` never falls. `budget`: seconds from the arrival of its body to its deadline; infinite
        for best effort, None if it is unknown until the body is here."""
        if self._at is not None and now > self._at:
            self._learn_spread(now - self._at, now)
        self._at = now
        self._long.add(rows, now=now)
        self._short.add(rows, now=now)
        if budget is not None:
            self._budgets.append((now, budget))

    def correct(self, further: int, budget: float | None, *, now: float) -> None:
        """Correct the count when an announced request's body comes with `further` rows more than
        announced (fewer if negative). `budget`: None if it is too late to be saved."""
        self._long.add(further, now=now)
        self._short.add(further, now=now)
        if budget is not None:
            self._budgets.append((now, budget))

    def rate(self, *, now: float) -> float:
        """Return the expected rows per second, with the margin."""
        long = self._long.rate(now=now)
        short = self._short.rate(now=now)
        chance = math.sqrt(max(1.0, self._spread) * short / (2.0 * self._options.burst_window))
        expected = max(long, short - self._options.doubt * chance)
        return expected * (1.0 + self._options.margin)

    def burst(self, *, now: float) -> float:
        """Return b such that arrivals may run ahead of the rate by b · √t rows within t seconds."""
        variance = self._spread * self._long.rate(now=now)
        return self._options.burst_deviations * math.sqrt(variance)

    def budget(self, *, now: float) -> float:
        """Return the seconds that an expected arrival will have left when it is ready; infinite
        before the first request."""
        budgets = self._budgets
        while len(budgets) > 1 and budgets[0][0] < now - self._options.budget_window:
            budgets.popleft()
        if not budgets:
            return math.inf
        ordered = sorted(budget for _, budget in budgets)
        return ordered[int(self._options.budget_quantile * (len(ordered) - 1))]

    def _learn_spread(self, gap: float, now: float) -> None:
        """Learn from `gap` seconds without arrivals how far the averages drift apart."""
        window = self._options.burst_window
        long = self._long.rate(now=now)
        if long == 0.0:
            return  # every announced request came too late
        start = self._short.rate(now=now - gap)
        # The mean over the gap of (start · exp(−t / window) − long)².
        once, twice = -math.expm1(-gap / window), -math.expm1(-2.0 * gap / window)
        square = start * start * twice / 2.0 - 2.0 * start * long * once
        measured = 2.0 * window * (square * window / gap + long * long) / long
        weight = -math.expm1(-gap / (SPREAD_WINDOWS * window))
        self._spread += weight * (min(max(measured, 0.0), MOST_SPREAD) - self._spread)


class _Average:
    """Rows per second; rows that are `window` seconds old count 1/e."""

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
        """Return the average (at first over the time so far); 0 before the first request."""
        if self._since is None:
            return 0.0
        # One request alone shows only "one row within the window, or within a second".
        seen_for = max(now - self._since, min(1.0, self._window))
        return max(0.0, self._faded(now)) / -math.expm1(-seen_for / self._window)

    def _faded(self, now: float) -> float:
        return self._rate * math.exp((self._at - now) / self._window)


_STEP = 0.5
"""Seconds between two stored counts."""


class ArrivalCounts:
    """Rows so far (`ModelView.arrived`) at every plan of the last `span` seconds. Policies that
    choose the number of replicas use them."""

    __slots__ = ("_at", "_rows", "_span")

    def __init__(self, span: float) -> None:
        self._span = span
        self._at: deque[float] = deque()
        self._rows: deque[int] = deque()

    def note(self, rows: int, *, now: float) -> None:
        """Note that `rows` have come so far. `now` never falls."""
        if len(self._at) > 1 and now - self._at[-2] < _STEP:
            self._at.pop()
            self._rows.pop()
        self._at.append(now)
        self._rows.append(rows)
        while len(self._at) > 1 and self._at[1] <= now - self._span:
            self._at.popleft()
            self._rows.popleft()

    def rows(self, since: float, until: float) -> float:
        """Return the rows that came from `since` to `until` (absolute seconds), interpolated."""
        return max(0.0, self._count(until) - self._count(since))

    def rate(self, window: float, *, now: float) -> float:
        """Return rows per second over the last `window` seconds, or over the time so far if that is
        shorter; 0 until there are two counts."""
        seconds = min(window, now - self._at[0]) if self._at else 0.0
        return self.rows(now - seconds, now) / seconds if seconds > 0.0 else 0.0

    def rates(self, window: float, count: int, *, now: float) -> list[float]:
        """Return rows per second in each of the last `count` complete windows, in order."""
        if not self._at:
            return []
        window_count = min(count, math.floor((now - self._at[0]) / window + 1e-9))
        edges = [now - window * i for i in range(window_count, -1, -1)]
        return [self.rows(a, b) / window for a, b in pairwise(edges)]

    def _count(self, at: float) -> float:
        after = bisect_right(self._at, at)
        if after == 0:
            return float(self._rows[0]) if self._rows else 0.0
        if after == len(self._at):
            return float(self._rows[-1])
        begin, end = self._at[after - 1], self._at[after]
        share = (at - begin) / (end - begin)
        return self._rows[after - 1] + share * (self._rows[after] - self._rows[after - 1])
