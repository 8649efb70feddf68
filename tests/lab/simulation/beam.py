"""A clairvoyant schedule for small cases: it knows every length and every arrival to come.

A beam search. A state is a lane that is free at some instant, with some requests pending and some
answered in time. From it lead all batches of one family (for each length x among the pending and
each size k: the first k no longer than x, in deadline order, that would be on time), and doing
nothing until the next arrival: only where nothing else can be done, or, if waiting is allowed,
always. Time is cut into slices shorter than any batch; of each slice the `width` most promising
states live on. What is found is a schedule that exists, hence a lower bound of the best one.

`Request`s, engine and policies play no part: the case is arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from slacktide.profiles import BatchLatency
from slacktide.scheduling.tables import size_grid

MOST_LENGTHS = 8
"""Lengths x tried in one state: those of all requests pending, or so many of them, by rank."""

PENDING_WORTH = 0.3
"""What a request that could still be answered adds to the promise of a state."""

TIME_WORTH = 0.1
"""What the time of a row in the largest batch of the shortest adds, where a state is that much
earlier. Ten times as much costs up to eight points of what is found; both are flat near here."""


@dataclass(frozen=True, slots=True)
class Case:
    """The requests of one lane, in the order of their arrivals. Raises ValueError if unsorted."""

    latency: BatchLatency
    max_batch: int
    arrivals: tuple[float, ...]
    """Seconds, ascending."""
    deadlines: tuple[float, ...]
    lengths: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.arrivals) == len(self.deadlines) == len(self.lengths):
            raise ValueError("arrivals, deadlines and lengths must be equally many")
        if list(self.arrivals) != sorted(self.arrivals):
            raise ValueError("arrivals must be in order")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes to try, ascending."""
        padded = [size for size in self.latency.sizes if size < self.max_batch]
        return (*padded, self.max_batch) if padded else size_grid(self.max_batch)


@dataclass(frozen=True, slots=True)
class _State:
    at: float
    """When the lane is free."""
    pending: tuple[int, ...]
    """Requests that are here and could still be on time, by deadline."""
    arrived: int
    """How many requests have come."""
    finished: int


def best_finish(case: Case, *, width: int = 100, may_wait: bool = False) -> int:
    """How many requests the best schedule found answers in time. Raises ValueError if width < 1."""
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    if not case.arrivals:
        return 0
    slice_s = 0.99 * case.latency.seconds(1, min(case.lengths))
    if slice_s <= 0.0:
        raise ValueError("a batch must take some time")
    begin = case.arrivals[0]
    slices: dict[int, set[_State]] = {0: {_moved(case, begin, (), 0, 0)}}
    best = 0
    while slices:
        index = min(slices)
        end = begin + (index + 1) * slice_s
        states = _most_promising(slices.pop(index), width, end, case)
        for state in states:
            best = max(best, state.finished)
            for following in _following(case, state, may_wait=may_wait):
                # Waiting may end in this very slice: then it comes up once more.
                at = max(index, int((following.at - begin) / slice_s))
                slices.setdefault(at, set()).add(following)
    return best


def _most_promising(states: set[_State], width: int, end: float, case: Case) -> list[_State]:
    """At most `width` states, those that have answered much and have time and requests left."""
    if len(states) <= width:
        return list(states)
    per_request = case.latency.seconds(case.max_batch, min(case.lengths)) / case.max_batch

    def promise(state: _State) -> tuple[float, float, tuple[int, ...]]:
        ahead = PENDING_WORTH * len(state.pending) + TIME_WORTH * (end - state.at) / per_request
        return state.finished + ahead, -state.at, state.pending

    return sorted(states, key=promise, reverse=True)[:width]


def _following(case: Case, state: _State, *, may_wait: bool) -> list[_State]:
    """Every state that one step leads to."""
    states = []
    for members in _batches(case, state):
        took = case.latency.seconds(len(members), max(case.lengths[i] for i in members))
        gone = set(members)
        remaining = tuple(i for i in state.pending if i not in gone)
        states.append(
            _moved(case, state.at + took, remaining, state.arrived, state.finished + len(members))
        )
    if (may_wait or not states) and state.arrived < len(case.arrivals):
        at = max(state.at, case.arrivals[state.arrived])
        states.append(_moved(case, at, state.pending, state.arrived, state.finished))
    return states


def _batches(case: Case, state: _State) -> set[tuple[int, ...]]:
    """The batches that may start: all members on time."""
    latency, deadlines = case.latency, case.deadlines
    lengths = sorted({case.lengths[i] for i in state.pending})
    if len(lengths) > MOST_LENGTHS:
        last = len(lengths) - 1
        lengths = [lengths[last * i // (MOST_LENGTHS - 1)] for i in range(MOST_LENGTHS)]
    batches = set()
    for longest in lengths:
        fitting = [i for i in state.pending if case.lengths[i] <= longest]
        for size in case.sizes:
            end = state.at + latency.seconds(size, longest)
            able = [i for i in fitting if deadlines[i] >= end][:size]
            if able:
                batches.add(tuple(able))
            if size >= len(fitting):
                break
    return batches


def _moved(case: Case, at: float, pending: Sequence[int], arrived: int, finished: int) -> _State:
    """The state at `at`: with those who have come by then, without those who are too late."""
    latency, lengths, deadlines = case.latency, case.lengths, case.deadlines
    now_here = bisect_right(case.arrivals, at)
    everybody = [*pending, *range(arrived, now_here)]
    able = [i for i in everybody if deadlines[i] >= at + latency.seconds(1, lengths[i])]
    return _State(at, tuple(sorted(able, key=lambda i: (deadlines[i], i))), now_here, finished)
