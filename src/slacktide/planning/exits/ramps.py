"""Which ramps are active: what each brings, what it costs, and where another is tried.

Apparate's rounds (§3.3), on rows that were judged. Every time is a share of a pass of the whole
model. A ramp's utility is what the rows would lose if it alone were taken away: those that leave at
it would leave later, the others would not pass it by. (The paper counts savings against the model's
end, its code against the next ramp's answers; only this tells whether a ramp pays beside the
others.) Ramps that do not pay are taken away, and one is tried behind the last that pays; if all
pay, one is tried further in front. Where a trial has failed none follows for some rounds, twice as
many each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from slacktide.domain.read_only import read_only
from slacktide.planning.exits.events import ExitsArranged, RampFacts
from slacktide.planning.exits.promise import JudgedRow, search_of
from slacktide.planning.exits.thresholds import Array, ThresholdSearch, Tuned, most_wrong

COST = 0.0125
"""Share of a pass that a ramp and its cut are taken to cost before any was measured."""
LEAST_COST = 0.001
DOUBT = 6
"""A ramp that agrees on a share `a` of rows is taken to let a share `a` to this power leave: half
of them where it agrees on nine of ten. For first guesses only."""
WORSE = 0.98
"""Of what the ramps before saved: less is worse."""


class PassTimes:
    """Where a pass spends its time, as measured; by arithmetic before that."""

    def __init__(self, facts: Sequence[RampFacts]) -> None:
        self.front = {each.position: each.cost for each in facts}
        """Share of the whole pass that lies in front of each position."""
        self.costs: dict[int, float] = {}
        """Of ramps that were measured, with their cuts."""
        self.overhead: float | None = None
        """Of the last arrangement measured, a share of the whole pass."""
        self.rows: tuple[int, ...] = ()
        self.whole_s: tuple[float, ...] = ()

    def keep(self, known: PassTimes) -> None:
        """What was measured before; positions that are no more are left out."""
        at = self.front if self.front else known.front
        self.front = {ramp: known.front.get(ramp, self.front.get(ramp, 0.0)) for ramp in at}
        self.costs = {ramp: each for ramp, each in known.costs.items() if ramp in at}
        self.overhead, self.rows, self.whole_s = known.overhead, known.rows, known.whole_s

    def copy(self) -> PassTimes:
        made = PassTimes(())
        made.keep(self)
        return made

    def measure(self, arranged: ExitsArranged) -> None:
        """A chain was measured."""
        if not arranged.rows:
            return
        self.rows, self.whole_s = arranged.rows, arranged.whole_s
        shares = np.array(arranged.stage_s) / np.array(arranged.whole_s)[:, None]
        *answers, end = shares.mean(0).tolist()
        self.overhead = end - 1.0
        if not answers:
            return
        cost = max(LEAST_COST, self.overhead / len(answers))
        for number, (ramp, answer) in enumerate(zip(arranged.ramps, answers, strict=True)):
            known = self.costs.get(ramp, cost)
            self.costs[ramp] = (known + cost) / 2
            self.front[ramp] = min(max(answer - cost * (number + 1), 0.0), 1.0)

    def cost(self, ramp: int) -> float:
        if ramp in self.costs:
            return self.costs[ramp]
        return sum(self.costs.values()) / len(self.costs) if self.costs else COST

    def answers(self, ramps: Sequence[int]) -> list[float]:
        """When each ramp's answers are there, then those of the end."""
        found, spent = [], 0.0
        for ramp in ramps:
            spent += self.cost(ramp)
            found.append(self.front[ramp] + spent)
        return [*found, 1.0 + spent]

    def saved(self, ramps: Sequence[int]) -> list[float]:
        """What a row that leaves at each saves; falls from ramp to ramp."""
        *answers, end = self.answers(ramps)
        found: list[float] = []
        for each in answers:
            found.append(max(0.0, min(end - each, found[-1] if found else math.inf)))
        return found

    def seconds(self, rows: int) -> float:
        """Of a whole pass of so many rows; 0: not known."""
        known = [
            each
            for size, each in zip(self.rows, self.whole_s, strict=True)
            if size >= rows or size == self.rows[-1]
        ]
        return known[0] if known else 0.0


def first_ramps(
    facts: Sequence[RampFacts], times: PassTimes, budget: float, *, evenly: bool = False
) -> tuple[int, ...]:
    """Where to begin: the ramps that should save most for what is known of them; or, `evenly`, as
    many as may be, spaced evenly (§3.1)."""
    useful = [each for each in facts if times.front[each.position] + times.cost(each.position) < 1]
    if evenly:
        most = sum(np.cumsum([times.cost(each.position) for each in useful]) <= budget)
        places = np.linspace(0, len(useful) - 1, most + 2)[1:-1].astype(int)
        return tuple(sorted({useful[at].position for at in places}))
    chosen: tuple[int, ...] = ()
    while True:
        trials = [
            tuple(sorted((*chosen, each.position)))
            for each in useful
            if each.position not in chosen and _affordable((*chosen, each.position), times, budget)
        ]
        worth = {each.position: each.agreement**DOUBT for each in facts}
        best = max(trials, key=lambda ramps: _guess(ramps, times, worth), default=chosen)
        if _guess(best, times, worth) <= _guess(chosen, times, worth):
            return chosen
        chosen = best


def _affordable(ramps: Sequence[int], times: PassTimes, budget: float) -> bool:
    return sum(times.cost(each) for each in ramps) <= budget + 1e-9


def _guess(ramps: Sequence[int], times: PassTimes, worth: Mapping[int, float]) -> float:
    """What `ramps` would save of a whole pass if rows leave as their agreement promises."""
    left = saved = 0.0
    for ramp, answer in zip(ramps, times.answers(ramps), strict=False):
        gone = max(left, worth[ramp])
        saved += (gone - left) * (1.0 - answer)
        left = gone
    return saved + (1.0 - left) * (1.0 - times.answers(ramps)[-1])


@read_only
class RampsBefore:
    """What a trial replaced."""

    ramps: tuple[int, ...]
    saved: float


@dataclass(slots=True)
class Trials:
    """Where ramps were tried in vain, and what the one under way replaced."""

    round: int = 0
    until: dict[int, int] = field(default_factory=dict)
    """Position → the round before which it is not tried again."""
    failures: dict[int, int] = field(default_factory=dict)
    before: RampsBefore | None = None

    def copy(self) -> Trials:
        return Trials(self.round, dict(self.until), dict(self.failures), self.before)

    def failed(self, ramp: int) -> None:
        self.failures[ramp] = self.failures.get(ramp, 0) + 1
        self.until[ramp] = self.round + 2 ** (1 + self.failures[ramp])

    def may(self, ramp: int) -> bool:
        return self.until.get(ramp, 0) <= self.round


@read_only
class ExitsAnswer:
    """What was decided."""

    ramps: tuple[int, ...]
    thresholds: tuple[float, ...]
    trials: Trials
    reason: str
    """Why the ramps move, for people; empty: they stay."""


@read_only
class ExitsQuestion:
    """What is to be decided off the loop, on rows that were judged: thresholds, and in a round
    which ramps are active."""

    facts: tuple[RampFacts, ...]
    active: tuple[int, ...]
    rows: tuple[JudgedRow, ...]
    loss: float
    fresh: int
    budget: float
    times: PassTimes
    trials: Trials

    rounds: bool
    """Whether the ramps may move."""

    def answer(self) -> ExitsAnswer:
        """Thresholds for the active ramps, or for those that are to be active instead."""
        search = self._search(self.active)
        tuned = search.best()
        ramps, reason, trials = self.active, "", self.trials.copy()
        if self.rounds:
            ramps, reason = self.round(search, tuned, trials)
        staying = tuple(each for each in ramps if each in self.active)
        if staying != self.active:
            tuned = self._search(staying).best() if staying else Tuned(())
        found = dict(zip(staying, tuned.thresholds, strict=True))
        return ExitsAnswer(ramps, tuple(found.get(each, 0.0) for each in ramps), trials, reason)

    def round(
        self, search: ThresholdSearch, tuned: Tuned, trials: Trials
    ) -> tuple[tuple[int, ...], str]:
        """The ramps to be active, and why, for people; empty: they stay. `trials` is brought up to
        date."""
        trials.round += 1
        known = [sum(ramp in row.ramps for row in self.rows) for ramp in self.active]
        if any(most_wrong(each, self.loss) < 0 for each in known):
            return self.active, ""  # too early to tell
        saved = tuned.saved - sum(self.times.cost(each) for each in self.active)
        before, trials.before = trials.before, None
        if before is not None and saved < WORSE * before.saved:
            for ramp in set(self.active) - set(before.ramps):
                trials.failed(ramp)
            return before.ramps, "the ramps before saved more"
        utility = utilities(search, tuned, self.times, self.active)
        bad = [ramp for ramp, each in zip(self.active, utility, strict=True) if each < 0.0]
        if bad:
            for ramp in bad:
                trials.failed(ramp)
            kept = [each for each in self.active if each not in bad]
            names = ", ".join(self.name(each) for each in bad)
            reason = f"{names}: cost more than they save"
            new = self._behind(kept, bad, tuned, trials)
            if new is not None:
                kept, reason = sorted((*kept, new)), f"{reason}; {self.name(new)} is tried"
            return tuple(kept), reason
        moved = self._in_front(utility, trials.may)
        if moved is not None:
            trials.before = RampsBefore(self.active, saved)
            return moved
        return self.active, ""

    def name(self, ramp: int) -> str:
        """With its tensor."""
        return next((f"{ramp} ({f.name})" for f in self.facts if f.position == ramp), str(ramp))

    def _search(self, ramps: Sequence[int]) -> ThresholdSearch:
        return search_of(self.rows, ramps, self.times.saved(ramps), self.loss, self.fresh)

    def _behind(
        self, kept: Sequence[int], bad: Sequence[int], tuned: Tuned, trials: Trials
    ) -> int | None:
        """A position to try behind the last ramp that pays, by the most that it can bring.

        No more rows can leave at it than leave at the next ramp that was taken away and at those in
        front of that; behind the last of them, than are left. None: none can pay."""
        left = dict(zip(self.active, tuned.exits, strict=True))
        last = max(kept, default=-1)
        reach = 1.0 - sum(left[each] for each in kept)
        places = [each for each in self.facts if each.position > last and each.position not in bad]
        bounds = [last, *(each for each in bad if each > last), math.inf]
        intervals = [
            ([each for each in places if low < each.position < high], high)
            for low, high in pairwise(bounds)
        ]
        end = self.times.answers(kept)[-1]

        def most(fact: RampFacts, high: float) -> float:
            rate = reach
            if high < math.inf:
                rate = min(reach, sum(left[each] for each in bad if last < each <= high))
            rate = min(rate, fact.agreement)
            cost = self.times.cost(fact.position)
            answer = self.times.answers(kept)[len(kept) - 1] if kept else 0.0
            answer = max(answer, self.times.front[fact.position]) + cost
            return rate * (end - answer) - (reach - rate) * cost

        while any(among for among, _ in intervals):
            middles = [(among[len(among) // 2], high) for among, high in intervals if among]
            best, high = max(middles, key=lambda each: most(*each))
            affordable = _affordable((*kept, best.position), self.times, self.budget)
            if most(best, high) > 0.0 and affordable and trials.may(best.position):
                return best.position
            intervals = [(among[len(among) // 2 + 1 :], high) for among, high in intervals]
        return None

    def _in_front(
        self, utility: Sequence[float], may: Callable[[int], bool]
    ) -> tuple[tuple[int, ...], str] | None:
        """Every ramp pays: one more in front of the best, or the worst one position earlier."""
        if not self.active:
            return None
        places = [each.position for each in self.facts]
        order = sorted(range(len(self.active)), key=lambda at: utility[at])

        def earlier(ramp: int) -> int | None:
            at = places.index(ramp)
            new = places[at - 1] if at else None
            return None if new is None or new in self.active or not may(new) else new

        best = self.active[order[-1]]
        new = earlier(best)
        if new is not None and _affordable((*self.active, new), self.times, self.budget):
            return tuple(sorted((*self.active, new))), f"{self.name(new)} is tried beside the rest"
        for at in order[: max(1, len(order) - 1)]:
            new = earlier(self.active[at])
            if new is not None:
                others = [each for each in self.active if each != self.active[at]]
                reason = f"{self.name(new)} is tried instead of {self.name(self.active[at])}"
                return tuple(sorted((*others, new))), reason
        return None


def utilities(
    search: ThresholdSearch, tuned: Tuned, times: PassTimes, ramps: Sequence[int]
) -> list[float]:
    """What each ramp brings to a row, on average: a share of a pass."""
    found = []
    thresholds: Array = np.array(tuned.thresholds)
    leaves = search.leaves(thresholds)
    answers = np.array(times.answers(ramps))
    for at, ramp in enumerate(ramps):
        without = thresholds.copy()
        without[at] = 0.0
        reached = leaves >= at
        later = answers[search.leaves(without)[reached]] - times.cost(ramp)
        found.append(float((later - answers[leaves[reached]]).sum()) / search.rows)
    return found
