"""`ExitsQuestion`: chooses the active ramps by their savings and costs, and their thresholds.

These are Apparate's rounds (§3.3), on rows judged at every position (decision 0053). All times are
shares of a pass of the whole model. The *rate* of a position is the share of rows that would leave
there if it had the only ramp; the savings of any set of ramps follow from the rates. The *utility*
of a ramp is the saving that would be lost without it: its rows would leave later, but other rows
would not spend time on it. (The paper counts savings against the model's end, its code against the
next ramp's answers; only utility shows whether a ramp pays beside the others.)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from slacktide.domain.read_only import read_only
from slacktide.planning.exits.accuracy_budget import RampVerdicts, search_of
from slacktide.planning.exits.events import ExitsArranged, RampFacts
from slacktide.planning.exits.guards import Guard
from slacktide.planning.exits.thresholds import CONFIDENCE, leaving, most_wrong

COST, LEAST_COST = 0.0125, 0.001
"""Share of a pass that a ramp and its cut are assumed to cost until this is measured; also a lower
bound on the measured cost."""
GAIN = 0.01
"""Share of a pass that one more ramp must save."""
PRECISION = 1.1
"""Factor by which a measured chain may exceed its budget: measurements are no better than that."""
SIZES = 64
"""Number of batches whose sizes count; a tenth of them may be smaller than `PassTimes.smallest`."""
MOVE = 0.03
"""Share of a pass by which new ramps must beat the active ramps, because judging starts over."""


class PassTimes:
    """Times within a pass, measured or, before that, calculated."""

    def __init__(self, facts: Sequence[RampFacts], earlier_times: PassTimes | None = None) -> None:
        """`earlier_times`: measurements to keep."""
        self.front = {fact.position: fact.cost for fact in facts}
        """Share of the whole pass that lies in front of each position."""
        self.costs: dict[int, float] = {}
        """Measured costs of ramps and their cuts."""
        self.overhead: float | None = None
        """Overhead of the last measured chain, as a share of the whole pass."""
        self.whole_s: Mapping[int, float] = {}
        """Seconds of the whole model, by rows."""
        self.chains: dict[tuple[int, ...], float] = {}
        """Last measured overhead of each chain, by its ramps."""
        self.arranged: ExitsArranged | None = None
        """The last measurement."""
        self.smallest = 1
        """Rows of the smallest usual batch, at which ramps must keep within their budget."""
        self._sizes: list[int] = []
        self.budgets: tuple[float, ...] = ()
        """Time that the last requests had left, as shares of a pass, ascending, at most 1; empty if
        all are on time at the model's end."""
        if earlier_times is not None:
            self.front.update({r: s for r, s in earlier_times.front.items() if r in self.front})
            self.costs = {r: cost for r, cost in earlier_times.costs.items() if r in self.front}
            self.overhead, self.whole_s = earlier_times.overhead, earlier_times.whole_s
            self.chains, self.budgets = earlier_times.chains.copy(), earlier_times.budgets
            self.arranged, self.smallest = earlier_times.arranged, earlier_times.smallest

    def measure(self, arranged: ExitsArranged) -> None:
        """Take the measurement of a chain."""
        if not arranged.rows:
            return
        self.arranged = arranged
        self.whole_s = dict(zip(arranged.rows, arranged.whole_s, strict=True))
        shares = np.array(arranged.stage_s) / np.array(arranged.whole_s)[:, None]
        *answers, mean = shares.mean(0).tolist()
        served = [at for at, rows in enumerate(arranged.rows) if rows <= self.smallest]
        end = max(mean, float(shares[max(served, default=0), -1]))
        self.overhead = self.chains[arranged.ramps] = end - 1.0
        for number, (ramp, answer) in enumerate(zip(arranged.ramps, answers, strict=True), 1):
            cost = max(LEAST_COST, (mean - 1.0) / len(answers))
            self.costs[ramp] = (self.costs.get(ramp, cost) + cost) / 2
            self.front[ramp] = min(max(answer - cost * number, 0.0), 1.0)

    def serve(self, rows: int) -> bool:
        """Note a batch of this size. Returns whether the last chain now costs more."""
        self._sizes.append(rows)
        if len(self._sizes) < SIZES:
            return False
        smallest, before = sorted(self._sizes)[SIZES // 10], self.overhead
        self._sizes.clear()
        if smallest == self.smallest or self.arranged is None or before is None:
            self.smallest = smallest
            return False
        self.smallest = smallest
        self.measure(self.arranged)
        return self.chains[self.arranged.ramps] > before

    def hurry(self, left_s: Iterable[float], end_s: float) -> None:
        """Take the seconds that the last requests had left. `end_s`: p99 time to a final answer."""
        whole_s = end_s / (1.0 + max(0.0, self.overhead or 0.0))
        budgets = sorted(min(max(seconds / whole_s, 0.0), 1.0) for seconds in left_s)
        self.budgets = tuple(budgets) if budgets and budgets[0] < 1.0 else ()

    def cost(self, ramp: int) -> float:
        costs = self.costs
        return costs[ramp] if ramp in costs else sum(costs.values()) / len(costs) if costs else COST

    def fits(self, ramps: Sequence[int], budget: float) -> bool:
        """Whether these ramps cost at most `budget`, measured together or else one by one."""
        overhead = self.chains.get(tuple(ramps))
        if overhead is not None:
            return overhead <= budget * PRECISION
        return sum([self.cost(ramp) for ramp in ramps]) <= budget + 1e-9

    def answers(self, ramps: Sequence[int]) -> list[float]:
        """Return when each ramp's answers, then the final answers, are ready."""
        answer_times, spent, last = [], 0.0, 0.0
        for ramp in ramps:
            spent += self.cost(ramp)
            last = max(last, self.front[ramp] + spent)
            answer_times.append(last)
        return [*answer_times, 1.0 + spent]

    def worth(self, ramps: Sequence[int]) -> list[float]:
        """Return the average worth of each ramp's answers, then of the final answers: the share of
        a pass by which an answer comes earlier than without ramps. To a request with less than a
        pass left, an answer is worth 1 if it is on time, else 0."""
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
        """Return the savings of a row that leaves at each ramp; non-increasing."""
        *worth, end = self.worth(ramps)
        return [max(0.0, ramp_worth - end) for ramp_worth in worth]

    def guess(self, ramps: Sequence[int], rates: Mapping[int, float]) -> float:
        """Return the share of a pass that `ramps` save. `rates`: see the top of this file."""
        *worth, end = self.worth(ramps)
        leaving_share = saved = 0.0
        for ramp, ramp_worth in zip(ramps, worth, strict=True):
            left_share = max(leaving_share, rates.get(ramp, 0.0))
            saved += (left_share - leaving_share) * ramp_worth
            leaving_share = left_share
        return saved + (1.0 - leaving_share) * end

    def seconds(self, rows: int) -> float:
        """Return the seconds of a whole pass of `rows` rows; 0: not measured."""
        fitting = [measured_rows for measured_rows in self.whole_s if measured_rows >= rows]
        return self.whole_s[min(fitting, default=max(self.whole_s))] if self.whole_s else 0.0


def rates_alone(
    verdicts: RampVerdicts,
    loss: float,
    guards: Sequence[Guard] = (),
    confidence: float = CONFIDENCE,
) -> list[float]:
    """Return the rate of each column: the share of rows that leave there if it is the only ramp."""
    unsure, agrees = leaving(verdicts[0]), verdicts[1]
    most = max(0, most_wrong(len(unsure), loss, confidence))
    below = np.partition(np.where(agrees, math.inf, unsure), most, axis=0)[most]
    for guard in guards:
        below = np.minimum(below, guard.highest())
    rates: list[float] = (unsure < below).mean(0).tolist()
    return rates


def evenly_spaced(
    positions: Sequence[int], times: PassTimes, budget: float, always: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return as many evenly spaced ramps as fit in the budget (§3.1), beside those in `always`."""
    positions = [position for position in positions if position not in always]
    many = len(positions)
    for count in range(many, 0, -1):
        places = range(many, 2 * count * many, 2 * many)
        ramps = (*always, *[positions[at // (2 * count)] for at in places])
        if times.fits(ramps, budget):
            return ramps
    return always if times.fits(always, budget) else ()


def best_ramps(
    positions: Sequence[int],
    times: PassTimes,
    budget: float,
    rates: Mapping[int, float],
    chosen: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the ramps that should save most, chosen greedily beside those in `chosen`."""
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
    """Return all ramps except the one of the least utility."""
    fewer = combinations(ramps, len(ramps) - 1)
    return max(fewer, key=lambda candidate: times.guess(candidate, rates))


@read_only
class ExitsAnswer:
    """Ramps and thresholds for a pool."""

    ramps: tuple[int, ...]
    thresholds: tuple[float, ...]
    reason: str
    """Why ramps move, for people; empty: they stay."""


@read_only
class ExitsQuestion:
    """A computation to run off the loop: thresholds and, in a round, the active ramps."""

    facts: tuple[RampFacts, ...]
    """Ramps that may be active."""
    active: tuple[int, ...]
    verdicts: RampVerdicts
    """Answers of the active ramps for judged rows."""
    loss: float
    fresh: int
    """Number of the last rows that are not in doubt."""
    budget: float
    times: PassTimes
    everywhere: RampVerdicts | None = None
    """Answers of all ramps in `facts` over a longer time; None: the ramps stay."""
    guards: tuple[Guard, ...] = ()
    """Conditions of classes, for the active ramps."""
    guards_everywhere: tuple[Guard, ...] = ()
    """Conditions of classes, for all ramps in `facts`."""
    confidence: float = CONFIDENCE
    """Confidence that the loss is within its limit."""
    remembers: bool = False
    """Whether position 0 gives remembered answers."""

    def answer(self) -> ExitsAnswer:
        """Return the ramps to be active, and their thresholds."""
        ramps, reason, verdicts, guards = self.active, "", self.verdicts, self.guards
        columns = list(range(len(ramps)))
        if self.everywhere is not None:
            ramps, reason = self.round(self.everywhere)
        if ramps != self.active and self.everywhere is not None:
            stay = set(ramps) <= {*self.active}
            positions = self.active if stay else [fact.position for fact in self.facts]
            unsure, agrees = self.verdicts if stay else self.everywhere
            guards = self.guards if stay else self.guards_everywhere
            columns = [positions.index(ramp) for ramp in ramps]
            verdicts = unsure[:, columns], agrees[:, columns]
        if not ramps or not len(verdicts[0]):
            return ExitsAnswer(ramps, (0.0,) * len(ramps), reason)
        conditions = [guard.search(columns) for guard in guards]
        saved = self.times.saved(ramps)
        search = search_of(verdicts, saved, self.loss, self.fresh, conditions, self.confidence)
        return ExitsAnswer(ramps, tuple(search.best().tolist()), reason)

    def round(self, everywhere: RampVerdicts) -> tuple[tuple[int, ...], str]:
        """Return the ramps to be active, and why they move, for people."""
        alone = rates_alone(everywhere, self.loss, self.guards_everywhere, self.confidence)
        rates = dict(zip([fact.position for fact in self.facts], alone, strict=True))
        if not self.remembers:
            return self._by_rates(rates, self.active)
        learnt = {position: rate for position, rate in rates.items() if position}
        without, _ = self._by_rates(learnt, tuple([ramp for ramp in self.active if ramp]))
        beside = best_ramps(tuple(learnt), self.times, self.budget, rates, (0,))
        choices = [without, *[r for r in ((0, *without), beside) if self._fits(r)]]
        saved = {ramps: self._saved(everywhere, ramps) for ramps in {*choices, self.active}}
        best = max(choices, key=saved.__getitem__)
        margin = 0.0 if {*best} <= {*self.active} else MOVE
        if saved[best] <= saved[self.active] + margin:
            return self.active, ""
        return best, f"{saved[best]:.0%} of a pass saved, not {saved[self.active]:.0%}"

    def _fits(self, ramps: tuple[int, ...]) -> bool:
        return self.times.fits(ramps, self.budget)

    def _saved(self, everywhere: RampVerdicts, ramps: tuple[int, ...]) -> float:
        """Return the share of a pass that ramps save with the best thresholds for these rows. Rates
        do not show this for remembered answers, because the rows that leave there are not those
        that leave at the ramps behind."""
        if not ramps:
            return 0.0
        positions = [fact.position for fact in self.facts]
        columns = [positions.index(ramp) for ramp in ramps]
        unsure, agrees = (part[:, columns] for part in everywhere)
        search = search_of(
            (unsure, agrees),
            self.times.saved(ramps),
            self.loss,
            len(unsure),
            [guard.search(columns) for guard in self.guards_everywhere],
            self.confidence,
        )
        return search.saving(search.best()) / len(unsure) + self.times.worth(ramps)[-1]

    def _by_rates(
        self, rates: Mapping[int, float], active: tuple[int, ...]
    ) -> tuple[tuple[int, ...], str]:
        """Return the ramps to be active among those in `rates`, and why they move."""
        names = {fact.position: f"ramp {fact.position} ({fact.name})" for fact in self.facts}
        times, used, reasons = self.times, active, []
        while used:
            fewer = without_the_least(used, times, rates)
            if times.guess(fewer, rates) < times.guess(used, rates):
                break
            reasons += [f"{names[r]}: costs more than it saves" for r in {*used} - {*fewer}]
            used = fewer
        best = best_ramps(tuple(rates), times, self.budget, rates)
        if times.guess(best, rates) > times.guess(used, rates) + MOVE:
            removed = {*used} - {*best}, "other ramps save more"
            added = {*best} - {*used}, "saves more"
            for ramps, why in (removed, added):
                reasons += [f"{names[ramp]}: {why}" for ramp in sorted(ramps)]
            used = best
        return used, "; ".join(reasons)
