"""What planners of replicas go by: the load of the next minute, what carries it, and the past.

`MinuteForecast`: the load of the next minute, as far as the last one tells.

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

`replicas_needed`: how many replicas carry a steady load, in closed form.

n replicas, each with one batch of at most b rows at a time, that arrivals meet at any moment: a
request waits for the next replica to be free, at worst l(b) / n if they run evenly apart, and then
runs in a batch of b. They carry λ rows a second within a budget of q seconds if for some b

    n · b / l(b) ≥ λ + z · √(B · λ / q)    and    (1 + 1 / n) · l(b) ≤ q, or b = 1

Single rows are run even where there is no time to wait for a replica: a request that then finds one
idle is on time, and there is nothing better to do.

The root is the room for chance: of arrivals that vary D times as much as a Poisson process, the
count in the time q varies by √(D λ q), and what comes beyond the mean must be served within that
time (square-root staffing). B is D times the square of the standard deviations that the view's
`burst` counts (`RateOptions.burst_deviations`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
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

    def replicas(
        self, view: ModelView, seconds: Sequence[float], headroom: float, *, now: float
    ) -> int:
        """How many replicas the load to come needs, see `replicas_needed`, once `view` is noted."""
        self.note(view, alone=seconds[1], now=now)
        rate, budget = self.rate(view.start_time, now=now), self.budget(now=now)
        room = with_room(rate, budget, view, headroom)
        return replicas_needed(room, budget, seconds, view.limits.batch_max)

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
        remaining_s = BUDGET_QUANTILE * self._window
        for budget, seconds in lasting:
            remaining_s -= seconds
            if remaining_s <= 0.0:
                return budget
        return lasting[-1][0]


def with_room(rate: float, budget: float, view: ModelView, headroom: float) -> float:
    """λ + z · √(B · λ / q); rows per second. `headroom` is z; B is burst² ÷ rate of the view. An
    infinite budget needs no room."""
    spread = view.burst * view.burst / view.rate if view.rate > 0.0 else 1.0
    return rate + headroom * math.sqrt(spread * rate / budget)


def replicas_needed(rate: float, budget: float, seconds: Sequence[float], batch: int) -> int:
    """The fewest replicas that serve `rate` rows per second within `budget` seconds each.
    `seconds[rows]`: how long a batch takes, for all rows up to `batch`. At least 1; 0 if no number
    of replicas would do, as the budget is too short for a single row."""
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
    """The largest of what was wanted within the last `seconds`: sizes rise at once, fall later."""

    __slots__ = ("_seconds", "_wanted")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()
        """(when, how much) of those that no later one surpassed, so falling."""

    def most(self, sample: int, *, now: float) -> int:
        """The largest since `seconds` ago, `sample` included. `now` never falls."""
        held = self._wanted
        while held and held[-1][1] <= sample:
            held.pop()
        held.append((now, sample))
        while held[0][0] < now - self._seconds:
            held.popleft()
        return held[0][1]


class ReplicaHistory:
    """Core-seconds by number of replicas, over the last `window` seconds. Fed once a period with
    the fewest cores each number of replicas would need. Cores are given back only after `patience`
    seconds, so what counts is the most cores of that time."""

    __slots__ = ("_held", "_patience", "_samples", "_window")

    def __init__(self, window: float, patience: float) -> None:
        self._window = window
        self._patience = patience
        self._held: dict[int, WindowMax] = {}
        self._samples: deque[tuple[float, Mapping[int, tuple[int, bool]]]] = deque()
        """(from when, (cores of all, whether enough) by number of replicas), oldest first."""

    def note(self, cores: Mapping[int, int | None], most_cores: int, *, now: float) -> None:
        """Cores of each replica by number of replicas; None where even `most_cores` are too few."""
        by_count = {}
        for n, c in cores.items():
            held = self._held.setdefault(n, WindowMax(self._patience))
            most = held.most(most_cores if c is None else c, now=now)
            by_count[n] = (n * most, c is not None)
        self._samples.append((now, by_count))
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()

    def full(self, *, now: float) -> bool:
        """Whether the whole window is known."""
        return bool(self._samples) and self._samples[0][0] <= now - self._window

    def cost(self, replicas: int, *, now: float) -> tuple[float, float]:
        """(core-seconds, share of the time in which they would have been too few)."""
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
