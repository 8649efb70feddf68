"""How many replicas carry a steady load, in closed form.

n replicas, each with one batch of at most b rows at a time, that arrivals meet at any moment: a
request waits for the next replica to be free, at worst l(b) / n if they run evenly apart, and then
runs in a batch of b. They carry λ rows a second within a budget of q seconds if for some b

    n · b / l(b) ≥ λ + z · √(B · λ / q)    and    (1 + 1 / n) · l(b) ≤ q, or b = 1

Single rows are run even where there is no time to wait for a replica: who then finds one idle is on
time, and there is nothing better to do.

The root is the room for chance: of arrivals that vary D times as much as a Poisson process, the
count in the time q varies by √(D λ q), and what comes beyond the mean must be served within that
time (square-root staffing). B is D times the square of the standard deviations that the view's
`burst` counts (`RateOptions.burst_deviations`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.planning.scaling.view import ModelView


def with_room(rate: float, budget: float, view: ModelView, headroom: float) -> float:
    """λ + z · √(B · λ / q); rows per second.

    `headroom` is z; B is burst² ÷ rate of the view. An infinite budget needs no room.
    """
    spread = view.burst * view.burst / view.rate if view.rate > 0.0 else 1.0
    return rate + headroom * math.sqrt(spread * rate / budget)


def replicas_needed(rate: float, budget: float, seconds: Sequence[float], batch: int) -> int:
    """The fewest replicas that serve `rate` rows per second within `budget` seconds each.

    `seconds[rows]`: how long a batch takes, for all rows up to `batch`. At least 1; 0 if no number
    of replicas would do, as the budget is too short for a single row.
    """
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
