"""Which ramps are active: what each brings, and what it costs.

Apparate's rounds (§3.3), on rows that were judged at every position (decision 0053). Every time is
a share of a pass of the whole model. A position's *rate* is the share of rows that would leave
there if it had the only ramp. From the rates follows what any ramps save. A ramp's *utility* is
what rows would lose without it: those that leave at it would leave later, the others would not pass
it by. (The paper counts savings against the model's end, its code against the next ramp's answers;
only this tells whether a ramp pays beside the others.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from slacktide.domain.read_only import read_only
from slacktide.planning.exits.accuracy_budget import Said, search_of
from slacktide.planning.exits.events import ExitsArranged, RampFacts
from slacktide.planning.exits.thresholds import most_wrong

COST, LEAST_COST = 0.0125, 0.001
"""Share of a pass that a ramp and its cut are taken to cost before any was measured, and least."""
GAIN = 0.01
"""Share of a pass that one more ramp must promise."""
MOVE = 0.03
"""Share of a pass by which other ramps must beat the active ones: judging begins anew."""


class PassTimes:
    """Where a pass spends its time, as measured; by arithmetic before that."""

    def __init__(self, facts: Sequence[RampFacts], earlier_times: PassTimes | None = None) -> None:
        """`earlier_times`: what was measured before."""
        self.front = {fact.position: fact.cost for fact in facts}
        """Share of the whole pass that lies in front of each position."""
        self.costs: dict[int, float] = {}
        """Costs of ramps that were measured, with their cuts."""
        self.overhead: float | None = None
        """Overhead of the last arrangement measured, as a share of the whole pass."""
        self.whole_s: Mapping[int, float] = {}
        """Seconds by rows."""
        self.chains: dict[tuple[int, ...], float] = {}
        """By ramps: the overhead of their chain when it was measured last."""
        self.budgets: tuple[float, ...] = ()
        """Time that the last requests left, in passes, ascending; those of a pass or more count as
        1. None: answers are in time at the end."""
        if earlier_times is not None:
            self.front.update({r: s for r, s in earlier_times.front.items() if r in self.front})
            self.costs = {r: cost for r, cost in earlier_times.costs.items() if r in self.front}
            self.overhead, self.whole_s = earlier_times.overhead, earlier_times.whole_s
            self.chains, self.budgets = earlier_times.chains.copy(), earlier_times.budgets

    def measure(self, arranged: ExitsArranged) -> None:
        """A chain was measured."""
        if not arranged.rows:
            return
        self.whole_s = dict(zip(arranged.rows, arranged.whole_s, strict=True))
        shares = np.array(arranged.stage_s) / np.array(arranged.whole_s)[:, None]
        *answers, end = shares.mean(0).tolist()
        self.overhead = self.chains[arranged.ramps] = end - 1.0
        for number, (ramp, answer) in enumerate(zip(arranged.ramps, answers, strict=True), 1):
            cost = max(LEAST_COST, self.overhead / len(answers))
            self.costs[ramp] = (self.costs.get(ramp, cost) + cost) / 2
            self.front[ramp] = min(max(answer - cost * number, 0.0), 1.0)

    def hurry(self, left_s: Iterable[float], end_s: float) -> None:
        """The last requests left so many seconds; answers of the end take at most `end_s`."""
        whole_s = end_s / (1.0 + max(0.0, self.overhead or 0.0))
        budgets = sorted(min(max(seconds / whole_s, 0.0), 1.0) for seconds in left_s)
        self.budgets = tuple(budgets) if budgets and budgets[0] < 1.0 else ()

    def cost(self, ramp: int) -> float:
        costs = self.costs
        return costs[ramp] if ramp in costs else sum(costs.values()) / len(costs) if costs else COST

    def fits(self, ramps: Sequence[int], budget: float) -> bool:
        """Whether these ramps cost no more than `budget`: as measured together, or else by one."""
        overhead = self.chains.get(tuple(ramps))
        if overhead is None:
            overhead = sum([self.cost(ramp) for ramp in ramps])
        return overhead <= budget + 1e-9

    def answers(self, ramps: Sequence[int]) -> list[float]:
        """When each ramp's answers are there, then those of the end."""
        answer_times, spent, last = [], 0.0, 0.0
        for ramp in ramps:
            spent += self.cost(ramp)
            last = max(last, self.front[ramp] + spent)
            answer_times.append(last)
        return [*answer_times, 1.0 + spent]

    def worth(self, ramps: Sequence[int]) -> list[float]:
        """What an answer of each ramp is worth on average, then one of the end: the share of a pass
        that it comes earlier than without ramps; to requests that leave less than a pass 1 if it is
        in time, else nothing."""
        answers = self.answers(ramps)
        if not self.budgets:
            return [1.0 - answer_time for answer_time in answers]
        number, hurried = len(self.budgets), bisect_left(self.budgets, 1.0)
        return [
            (max(0, hurried - bisect_left(self.budgets, at)) + (number - hurried) * (1.0 - at))
            / number
            for at in answers
        ]

    def saved(self, ramps: Sequence[int]) -> list[float]:
        """What a row that leaves at each saves; never rises from ramp to ramp."""
        *worth, end = self.worth(ramps)
        return [max(0.0, ramp_worth - end) for ramp_worth in worth]

    def guess(self, ramps: Sequence[int], rates: Mapping[int, float]) -> float:
        """What `ramps` save of a pass if each, alone, would let so many rows leave."""
        *worth, end = self.worth(ramps)
        leaving_share = saved = 0.0
        for ramp, ramp_worth in zip(ramps, worth, strict=True):
            gone = max(leaving_share, rates.get(ramp, 0.0))
            saved += (gone - leaving_share) * ramp_worth
            leaving_share = gone
        return saved + (1.0 - leaving_share) * end

    def seconds(self, rows: int) -> float:
        """Seconds of a whole pass of `rows` rows; 0: not known."""
        fitting = [measured_rows for measured_rows in self.whole_s if measured_rows >= rows]
        return self.whole_s[min(fitting, default=max(self.whole_s))] if self.whole_s else 0.0


def rates_alone(said: Said, loss: float) -> list[float]:
    """By column: the share of rows that would leave there if it were the only ramp."""
    unsure, agrees = said
    most = max(0, most_wrong(len(unsure), loss))
    below = np.partition(np.where(agrees, math.inf, unsure), most, axis=0)[most]
    rates: list[float] = (unsure < below).mean(0).tolist()
    return rates


def evenly_spaced(positions: Sequence[int], times: PassTimes, budget: float) -> tuple[int, ...]:
    """As many ramps as the budget has room for (§3.1)."""
    many = len(positions)
    for count in range(many, 0, -1):
        places = range(many, 2 * count * many, 2 * many)
        ramps = tuple([positions[at // (2 * count)] for at in places])
        if times.fits(ramps, budget):
            return ramps
    return ()


def best_ramps(
    positions: Sequence[int], times: PassTimes, budget: float, rates: Mapping[int, float]
) -> tuple[int, ...]:
    """Ramps that should save most, chosen one by one."""
    chosen: tuple[int, ...] = ()
    saved = times.guess(chosen, rates)
    while True:
        more = [tuple(sorted((*chosen, ramp))) for ramp in positions if ramp not in chosen]
        fitting = [ramps for ramps in more if times.fits(ramps, budget)]
        guesses = [(times.guess(ramps, rates), ramps) for ramps in fitting]
        best_saved, best = max(guesses, default=(0.0, ()))
        if best_saved <= saved + GAIN:
            return chosen
        chosen, saved = best, best_saved


def without_the_least(
    ramps: Sequence[int], times: PassTimes, rates: Mapping[int, float]
) -> tuple[int, ...]:
    """All but the one of the least utility."""
    fewer = combinations(ramps, len(ramps) - 1)
    return max(fewer, key=lambda candidate: times.guess(candidate, rates))


@read_only
class ExitsAnswer:
    """What was decided."""

    ramps: tuple[int, ...]
    thresholds: tuple[float, ...]
    reason: str
    """Why the ramps move, for people; empty: they stay."""


@read_only
class ExitsQuestion:
    """What is to be decided off the loop: thresholds, and in a round which ramps are active."""

    facts: tuple[RampFacts, ...]
    """Facts of the ramps at positions that may be active."""
    active: tuple[int, ...]
    said: Said
    """By the active ramps, of rows that were judged."""
    loss: float
    fresh: int
    """How many of the last rows are not in doubt."""
    budget: float
    times: PassTimes
    everywhere: Said | None = None
    """By the ramps of `facts`, of rows over a longer time; None: the ramps stay."""

    def answer(self) -> ExitsAnswer:
        """Thresholds for the active ramps, or for those that are to be active instead."""
        ramps, reason, said = self.active, "", self.said
        if self.everywhere is not None:
            ramps, reason = self.round(self.everywhere)
        if ramps != self.active and self.everywhere is not None:
            stay = set(ramps) <= {*self.active}
            positions = self.active if stay else [fact.position for fact in self.facts]
            unsure, agrees = self.said if stay else self.everywhere
            columns = [positions.index(ramp) for ramp in ramps]
            said = unsure[:, columns], agrees[:, columns]
        if not ramps or not len(said[0]):
            return ExitsAnswer(ramps, (0.0,) * len(ramps), reason)
        search = search_of(said, self.times.saved(ramps), self.loss, self.fresh)
        return ExitsAnswer(ramps, tuple(search.best().tolist()), reason)

    def round(self, everywhere: Said) -> tuple[tuple[int, ...], str]:
        """The ramps to be active, and why they move, for people."""
        names = {fact.position: f"ramp {fact.position} ({fact.name})" for fact in self.facts}
        times, used, reasons = self.times, self.active, []
        rates = dict(zip(names, rates_alone(everywhere, self.loss), strict=True))
        while used:
            fewer = without_the_least(used, times, rates)
            if times.guess(fewer, rates) < times.guess(used, rates):
                break
            reasons += [f"{names[r]}: costs more than it saves" for r in {*used} - {*fewer}]
            used = fewer
        best = best_ramps(tuple(names), times, self.budget, rates)
        if times.guess(best, rates) > times.guess(used, rates) + MOVE:
            gone, added = ({*used} - {*best}, "others save more"), ({*best} - {*used}, "saves more")
            for ramps, why in (gone, added):
                reasons += [f"{names[ramp]}: {why}" for ramp in sorted(ramps)]
            used = best
        return used, "; ".join(reasons)
