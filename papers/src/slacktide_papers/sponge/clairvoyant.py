"""For each whole second, the fewest cores with which no request that could be on time is late.

A yardstick: it knows every arrival and the network beforehand, and changes its cores only when a
second begins, at no cost. One lane runs one batch at a time. If a batch runs on into the next
second, its remaining part takes as long as the same part of this batch takes on the new cores.

It is exact if requests become ready in the order of their deadlines, as on one link with one SLO.
Then an optimal schedule exists that runs them in that order, in batches of neighbours (an exchange
removes any other order, or gap in a batch, at no loss). So a state consists of the requests done,
the running batch, the share of this batch that is left, and the cost. Of two states that differ
only in this share, the state with less left is never worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BatchSeconds = Callable[[int, int], float]
"""(rows, cores) -> seconds of a batch."""

State = tuple[int, int]
"""(requests done, rows in the running batch or 0)."""

_After: TypeAlias = dict[State, tuple[Floats, Integers]]
"""By state: (share left of its batch, previous state), each by cores and cost."""

SPREAD = 48
"""Core seconds by which a state may be dearer than the cheapest state of its second and still be
kept; far more than it takes to make up for any backlog."""


@dataclass(frozen=True, slots=True)
class Clairvoyant:
    """The cheapest choice of cores."""

    cores: tuple[int, ...]
    """Cores of each second."""
    served: int
    """Requests on time: as many as could be on time with `cores_max` throughout."""

    @property
    def mean_cores(self) -> float:
        return sum(self.cores) / len(self.cores)


def clairvoyant(
    ready: Sequence[float],
    deadlines: Sequence[float],
    seconds: BatchSeconds,
    *,
    cores_max: int,
    batch_max: int,
    duration: int,
    cores_min: int = 1,
) -> Clairvoyant:
    """The fewest cores in each second from 0 to `duration`, for requests that arrive at `ready`.
    First, as few requests as possible are left out, so that `cores_max` cores serve the rest on
    time. `ready` and `deadlines` must ascend (ValueError). After `duration`, cores cost nothing."""
    if any(b < a for column in (ready, deadlines) for a, b in pairwise(column)):
        raise ValueError("ready and deadlines: expected both to ascend")
    alone = [seconds(rows, cores_max) for rows in range(1, batch_max + 1)]
    served = servable(ready, deadlines, alone)
    times = np.array(
        [
            [seconds(rows, cores) for cores in range(cores_min, cores_max + 1)]
            for rows in range(1, batch_max + 1)
        ]
    )
    search = _Search(
        np.array([ready[i] for i in served]), np.array([deadlines[i] for i in served]), times
    )
    more = cores_min - 1
    return Clairvoyant(tuple(cores + more for cores in search.cores(duration)), len(served))


def servable(
    ready: Sequence[float], deadlines: Sequence[float], alone: Sequence[float]
) -> list[int]:
    """The most requests that one lane can finish on time: their indices, ascending. `alone[k - 1]`
    is the time of a batch of k."""
    count = len(ready)
    # By number of requests decided; the more are left out, the earlier the lane is free.
    fronts: list[dict[int, tuple[float, int, int]]] = [{} for _ in range(count + 1)]
    fronts[0][0] = (-np.inf, 0, 0)  # left out -> (free at, rows of the last batch, left out before)
    for i in range(count):
        best = np.inf
        for out in sorted(fronts[i]):
            free = fronts[i][out][0]
            if free >= best:
                continue  # leaving out fewer frees the lane as early
            if best <= ready[i]:
                break  # being free before the next request is ready gains nothing
            best = free
            _improve(fronts[i + 1], out + 1, (free, 0, out))
            for rows, batch_s in enumerate(alone[: count - i], start=1):
                end = max(free, ready[i + rows - 1]) + batch_s
                if end > deadlines[i]:
                    break
                _improve(fronts[i + rows], out, (end, rows, out))
    served: list[int] = []
    i, out = count, min(fronts[count])
    while i:
        _, rows, before = fronts[i][out]
        served += range(i - 1, i - 1 - rows, -1)
        i, out = i - max(rows, 1), before
    return served[::-1]


def _improve(
    front: dict[int, tuple[float, int, int]], out: int, entry: tuple[float, int, int]
) -> None:
    incumbent = front.get(out)
    if incumbent is None or entry[0] < incumbent[0]:
        front[out] = entry


def _take(best: Floats, origins: Integers, values: Floats, origin: Integers | int) -> None:
    """Replace entries of `best`, and their `origins`, by smaller `values`, in place."""
    better = values < best
    np.copyto(best, values, where=better)
    np.copyto(origins, origin, where=better)


def _keep(after: _After, state: State, carried: Floats, origin: Integers) -> None:
    if state in after:
        _take(*after[state], carried, origin)
    else:
        after[state] = (carried.copy(), origin.copy())


class _Search:
    """Searches second by second, over all numbers of cores in one pass. Arrays are by rows, cores
    and cost: [K, C, W]. A state between two seconds is (requests done, running rows). Its array
    gives, for each cost, the share of the running batch that is left; infinite: this cost is
    impossible."""

    def __init__(self, ready: Floats, deadlines: Floats, times: Floats) -> None:
        self._ready = ready
        self._deadlines = deadlines
        self._times = times
        self._rows, self._most = times.shape
        self._width = SPREAD

    def cores(self, duration: int) -> tuple[int, ...]:
        """The cheapest choice for each second, as a number: 1 stands for the fewest cores
        allowed."""
        idle = np.full(self._width, np.inf)
        idle[0] = 0.0
        states, remaining = [(0, 0)], idle[None, :]
        steps: list[tuple[int, Integers]] = []
        over = float(self._deadlines[-1]) if len(self._deadlines) else 0.0
        for second in range(max(duration, math.ceil(over))):
            after = self._second(second, states, remaining)
            states, remaining, origin, shift = self._settle(after, charged=second < duration)
            steps.append((shift, origin))
        return self._trace(steps, remaining)[:duration]

    def _second(self, second: int, states: list[State], remaining: Floats) -> _After:
        """States at the end of a second: share left and previous state, by cores and cost."""
        begin, end = float(second), float(second + 1)
        first = min(done for done, _ in states)
        # Only requests that are ready before the second ends can start in it.
        last = int(np.searchsorted(self._ready, end))
        size = max(last, max(done + rows for done, rows in states)) - first
        shape = (self._most, self._width)
        free = np.full((size + self._rows + 1, *shape), np.inf)
        source = np.zeros((size + self._rows + 1, *shape), dtype=np.int64)
        after: _After = {}
        for number, (done, rows) in enumerate(states):
            if not rows:
                now = np.where(remaining[number] < np.inf, begin, np.inf)
                _take(free[done - first], source[done - first], now, number)
                continue
            spent = remaining[number][None, :] * self._times[rows - 1][:, None]
            ends = begin + spent
            deadline = self._deadlines[done]
            within = np.where(ends <= min(end, deadline), ends, np.inf)
            _take(free[done + rows - first], source[done + rows - first], within, number)
            if deadline > end:
                carried = (ends - end) / self._times[rows - 1][:, None]
                over = np.where((ends > end) & (ends < np.inf), carried, np.inf)
                _keep(after, (done, rows), over, np.full(shape, number))
        for at in range(size + 1):
            done = first + at
            now = free[at]
            if not np.isfinite(now).any():
                continue
            if done == len(self._ready) or self._deadlines[done] > end:
                _keep(after, (done, 0), np.where(now < np.inf, 0.0, np.inf), source[at])
            most = min(self._rows, last - done)
            if most <= 0:
                continue
            starts = np.maximum(now[None], self._ready[done : done + most, None, None])
            ends = starts + self._times[:most, :, None]
            deadline = self._deadlines[done]
            within = np.where(ends <= min(end, deadline), ends, np.inf)
            _take(free[at + 1 : at + 1 + most], source[at + 1 : at + 1 + most], within, source[at])
            if deadline > end:
                over = (ends > end) & (starts < end)
                carried = np.where(over, (ends - end) / self._times[:most, :, None], np.inf)
                for rows in range(1, most + 1):
                    if over[rows - 1].any():
                        _keep(after, (done, rows), carried[rows - 1], source[at])
        return after

    def _settle(self, after: _After, *, charged: bool) -> tuple[list[State], Floats, Integers, int]:
        """(states, share left by cost, cores and previous state by cost, cost of the first column).
        Adds the chosen cores to the cost, then keeps the cheapest `width` costs. A second that is
        not charged gets the most cores."""
        chosen = slice(None) if charged else slice(-1, None)
        states = sorted(after)
        carried = np.stack([after[state][0][chosen] for state in states])
        source = np.stack([after[state][1][chosen] for state in states])
        count, most, width = carried.shape
        moved = np.full((count, most, width + most - 1), np.inf)
        before = np.zeros(moved.shape, dtype=np.int64)
        for added_cores in range(most):  # each core more costs one more
            moved[:, added_cores, added_cores : added_cores + width] = carried[:, added_cores]
            before[:, added_cores, added_cores : added_cores + width] = source[:, added_cores]
        choice = moved.argmin(axis=1)  # cores − 1
        best = np.take_along_axis(moved, choice[:, None], axis=1)[:, 0]
        number = np.take_along_axis(before, choice[:, None], axis=1)[:, 0]
        cheapest = int(np.isfinite(best).any(axis=0).argmax())
        cut = slice(cheapest, cheapest + width)
        remaining = np.full((count, width), np.inf)
        origin = np.zeros((count, width), dtype=np.int64)
        selected = best[:, cut]
        remaining[:, : selected.shape[1]] = selected
        code = number * (self._most + 1) + choice + 1
        origin[:, : selected.shape[1]] = code[:, cut]
        # Dearer, with no less left than a cheaper entry: useless.
        lower = np.minimum.accumulate(remaining, axis=1)
        useless = np.zeros_like(remaining, dtype=bool)
        useless[:, 1:] = remaining[:, 1:] >= lower[:, :-1]
        remaining[useless] = np.inf
        alive = np.isfinite(remaining).any(axis=1)
        return (
            [state for state, lives in zip(states, alive, strict=True) if lives],
            remaining[alive],
            origin[alive],
            cheapest,
        )

    def _trace(self, steps: list[tuple[int, Integers]], remaining: Floats) -> tuple[int, ...]:
        """The choice for each second (numbers from 1), traced back from the cheapest end."""
        cost = int(np.isfinite(remaining).any(axis=0).argmax())
        state = int(np.isfinite(remaining[:, cost]).argmax())
        chosen: list[int] = []
        for shift, origin in reversed(steps):
            state, cores = divmod(int(origin[state, cost]), self._most + 1)
            chosen.append(cores)
            cost += shift + 1 - cores
        return tuple(reversed(chosen))
