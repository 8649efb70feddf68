"""Forecasts that set the number of replicas: the next minute's load, the replicas needed, costs.

`MinuteForecast`: the load of the next minute, from the last minute.

A replica takes seconds to start, so one busy second must not start it. The rate is the largest of

- the rate of the last five seconds, so that a step is followed soon. Shorter bursts end before a
  replica could help. Time before the first view counts as idle, so the first requests start no
  replica;
- a high quantile of the rates in the five-second pieces of the last minute, for recurring bursts;
- the rate of the last piece plus its growth while a replica starts, at most twice the highest rate.
  Growth per piece is the lower quartile of the steps between pieces, so a steady rise is met on
  time, while single steps and chance are ignored.

The budget is the time that a request has left on arrival: the median of the last minute, weighted
by how long each budget was in force. Time without a known budget counts as time with the longest
budget. So a short budget counts only if it lasts; if it passes within seconds, more cores are
enough. Budgets that no plan could keep are left out.

`replicas_needed`: how many replicas carry a steady load, in closed form.

Take n replicas, each running one batch of at most b rows at a time. A request waits for the next
free replica, at worst l(b) / n if their batches start at even intervals, and then runs in a batch
of b. The replicas carry λ rows a second within a budget of q seconds if for some b

    n · b / l(b) ≥ λ + z · √(B · λ / q)    and    (1 + 1 / n) · l(b) ≤ q, or b = 1

b = 1 is allowed even if there is no time to wait for a replica, because batches cannot be smaller:
a request is then on time only if it finds a replica idle.

The square root is the headroom for chance. If arrivals vary D times as much as a Poisson process,
their count in the time q varies by √(D λ q), and the excess must be served within that time
(square-root staffing). B is D · k², where k is the number of standard deviations that the view's
`burst` allows for (`RateOptions.burst_deviations`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from slacktide.planning.scaling.rates import ArrivalCounts
from slacktide.planning.scaling.view import ModelView

PIECE = 5.0
"""Seconds; long enough that chance moves a rate of 20 rows per second by at most a tenth."""
RATE_QUANTILE = 0.9
RISE_QUANTILE = 0.25
BUDGET_QUANTILE = 0.5
_MOST_GROWTH = 2.0


class MinuteForecast:
    """The load of the next minute, from the views of the last `window` seconds."""

    __slots__ = ("_budgets", "_counts", "_pieces", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._pieces = max(1, int(window / PIECE))
        self._counts = ArrivalCounts(max(window, PIECE))
        self._budgets: deque[tuple[float, float]] = deque()
        """(start, budget), oldest first."""

    def note(self, view: ModelView, *, alone: float, now: float) -> None:
        """Take in a view. `alone`: seconds of the shortest batch within the limits. `now` never
        falls."""
        self._counts.note(view.arrived, now=now)
        if alone <= view.budget < math.inf:
            self._budgets.append((now, view.budget))
        while len(self._budgets) > 1 and self._budgets[1][0] <= now - self._window:
            self._budgets.popleft()

    def replicas(
        self, view: ModelView, seconds: Sequence[float], headroom: float, *, now: float
    ) -> int:
        """Take in `view` and return how many replicas the coming load needs."""
        self.note(view, alone=seconds[1], now=now)
        rate, budget = self.rate(view.start_time, now=now), self.budget(now=now)
        peak_rate = with_headroom(rate, budget, view, headroom)
        return replicas_needed(peak_rate, budget, seconds, view.limits.batch_max)

    def rate(self, ahead: float, *, now: float) -> float:
        """Return rows per second. `ahead`: seconds that a start takes."""
        last = self._counts.rows(now - PIECE, now) / PIECE
        rates = self._counts.rates(PIECE, self._pieces, now=now)
        if len(rates) < 4:
            return max([last, *rates])
        steps = sorted(after - before for before, after in pairwise(rates))
        rise = steps[int(RISE_QUANTILE * (len(steps) - 1))]
        # From the middle of the last piece to now is half a piece.
        risen = min(rates[-1] + rise * (0.5 + ahead / PIECE), _MOST_GROWTH * max(rates))
        return max(last, risen, sorted(rates)[int(RATE_QUANTILE * (len(rates) - 1))])

    def budget(self, *, now: float) -> float:
        """Return the seconds that arrivals will have left; infinite without feasible deadlines."""
        if not self._budgets:
            return math.inf
        ends = [*(at for at, _ in self._budgets), now][1:]
        lasting = sorted(
            (budget, max(end - at, 0.0))
            for (at, budget), end in zip(self._budgets, ends, strict=True)
        )
        remaining_s = BUDGET_QUANTILE * self._window
        for budget, seconds in lasting:
            remaining_s -= seconds
            if remaining_s <= 0.0:
                return budget
        return lasting[-1][0]


def with_headroom(rate: float, budget: float, view: ModelView, headroom: float) -> float:
    """Return λ + z · √(B · λ / q) in rows per second. `headroom` is z; B is the view's burst² ÷
    rate. An infinite budget needs no headroom."""
    spread = view.burst * view.burst / view.rate if view.rate > 0.0 else 1.0
    return rate + headroom * math.sqrt(spread * rate / budget)


def replicas_needed(rate: float, budget: float, seconds: Sequence[float], batch: int) -> int:
    """Return the fewest replicas that serve `rate` rows per second within `budget` seconds each.
    `seconds[rows]`: how long a batch takes, for all rows up to `batch`. At least 1; 0 if the budget
    is too short for a single row, so that no number suffices."""
    if seconds[1] > budget:
        return 0
    needed = 1
    while not any(
        needed * rows >= rate * seconds[rows]
        and (rows == 1 or (needed + 1) * seconds[rows] <= needed * budget)
        for rows in range(1, batch + 1)
    ):
        needed += 1
    return needed


class WindowMax:
    """The largest sample of the last `seconds`, so that sizes rise immediately and fall later."""

    __slots__ = ("_samples", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, int]] = deque()
        """(time, sample), falling: a new sample removes earlier ones that are no larger."""

    def most(self, sample: int, *, now: float) -> int:
        """Add a sample and return the largest one. `now` never falls."""
        samples = self._samples
        while samples and samples[-1][1] <= sample:
            samples.pop()
        samples.append((now, sample))
        while samples[0][0] < now - self._seconds:
            samples.popleft()
        return samples[0][1]


class ReplicaHistory:
    """Core-seconds over the last `window` seconds by number of replicas. Each period adds the
    fewest cores that each number would need. Cores are given back only after `patience` seconds, so
    the maximum over that time counts."""

    __slots__ = ("_patience", "_peaks", "_samples", "_window")

    def __init__(self, window: float, patience: float) -> None:
        self._window = window
        self._patience = patience
        self._peaks: dict[int, WindowMax] = {}
        self._samples: deque[tuple[float, Mapping[int, tuple[int, bool]]]] = deque()
        """(start, {number of replicas: (cores of all together, whether enough)}), oldest first."""

    def note(self, cores: Mapping[int, int | None], most_cores: int, *, now: float) -> None:
        """Add a sample: the `cores` that each replica would need, by number of replicas; None if
        even `most_cores` are too few."""
        by_count = {}
        for n, c in cores.items():
            peak = self._peaks.setdefault(n, WindowMax(self._patience))
            most = peak.most(most_cores if c is None else c, now=now)
            by_count[n] = (n * most, c is not None)
        self._samples.append((now, by_count))
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()

    def full(self, *, now: float) -> bool:
        """Whether the samples cover the whole window."""
        return bool(self._samples) and self._samples[0][0] <= now - self._window

    def cost(self, replicas: int, *, now: float) -> tuple[float, float]:
        """Return (core-seconds of `replicas`, share of the time for which they were too few)."""
        total = short = seconds = 0.0
        ends = [*(at for at, _ in self._samples), now][1:]
        for (at, by_count), end in zip(self._samples, ends, strict=True):
            if replicas in by_count:
                cores, enough = by_count[replicas]
                lasting = end - at
                total += cores * lasting
                seconds += lasting
                short += 0.0 if enough else lasting
        return total, short / seconds if seconds > 0.0 else 0.0
