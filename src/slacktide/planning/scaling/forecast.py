"""`MinuteForecast`: the load of the next minute, as far as the last one tells.

What takes seconds to start must be decided on more than the last second. The rate is the largest of

- the rate of the last five seconds, so that a step is followed soon; shorter bursts are over before
  a replica could help; what is not known of them counts as nothing, so that the first requests of
  all start none,
- a high quantile of the rates of the last minute in such pieces: bursts that come again,
- the last of those pieces, risen on for the time that a start takes by the lower quartile of the
  steps from each piece to the next, at most to twice the highest: a load that rises steadily is
  met on time; a single step, or chance, is no rise.

The budget is the median of those of the last minute, weighted by how long each was in force; what
is not known of that minute counts as the longest. So short budgets count once they last: what
passes within seconds is left to cores. Budgets that no plan could keep are left out.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from slacktide.planning.scaling.rates import ArrivalCounts
from slacktide.planning.scaling.view import ModelView

PIECE = 5.0
"""Seconds: long enough that chance moves a rate of 20 rows a second by no more than a tenth."""
RATE_QUANTILE = 0.9
RISE_QUANTILE = 0.25
BUDGET_QUANTILE = 0.5
_MOST_GROWTH = 2.0


class MinuteForecast:
    """Fed with every view; looks back over `window` seconds."""

    __slots__ = ("_budgets", "_counts", "_pieces", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._pieces = max(1, int(window / PIECE))
        self._counts = ArrivalCounts(max(window, PIECE))
        self._budgets: deque[tuple[float, float]] = deque()
        """(from when, budget), oldest first."""

    def note(self, view: ModelView, *, alone: float, now: float) -> None:
        """`alone`: seconds of the shortest batch that the limits allow. `now` never falls."""
        self._counts.note(view.arrived, now=now)
        if alone <= view.budget < math.inf:
            self._budgets.append((now, view.budget))
        while len(self._budgets) > 1 and self._budgets[1][0] <= now - self._window:
            self._budgets.popleft()

    def rate(self, ahead: float, *, now: float) -> float:
        """Rows per second; `ahead`: seconds that a start takes."""
        last = self._counts.rows(now - PIECE, now) / PIECE
        rates = self._counts.rates(PIECE, self._pieces, now=now)
        if len(rates) < 4:
            return max([last, *rates])
        steps = sorted(after - before for before, after in pairwise(rates))
        rise = steps[int(RISE_QUANTILE * (len(steps) - 1))]
        # Half a piece from the middle of the last to now.
        risen = min(rates[-1] + rise * (0.5 + ahead / PIECE), _MOST_GROWTH * max(rates))
        return max(last, risen, sorted(rates)[int(RATE_QUANTILE * (len(rates) - 1))])

    def budget(self, *, now: float) -> float:
        """Seconds that arrivals will have left; infinite if no deadline could be kept."""
        if not self._budgets:
            return math.inf
        ends = [*(at for at, _ in self._budgets), now][1:]
        lasting = sorted(
            (budget, max(end - at, 0.0))
            for (at, budget), end in zip(self._budgets, ends, strict=True)
        )
        left = BUDGET_QUANTILE * self._window
        for budget, seconds in lasting:
            left -= seconds
            if left <= 0.0:
                return budget
        return lasting[-1][0]
