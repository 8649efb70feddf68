"""Which ramps are active: what each brings, what it costs, and where another is tried.

Apparate's rounds (§3.3), on rows that were judged. Every time is a share of a pass of the whole
model. A ramp's *utility* is what the rows would lose if it alone were taken away: those that leave
at it would leave later, the others would not pass it by. (The paper counts savings against the
model's end, its code against the next ramp's answers; only this tells whether a ramp pays beside
the others.) Its *rate* is the share of rows that would leave at it if it were the only one. Where
rows were judged at every position (decision 0057) all rates are counted, and all ramps are chosen
anew. Else only active ramps have rates: deeper ramps have higher ones, so that of the next deeper
ramp bounds what a position can bring that was not tried (the paper sums over intervals of ramps
that were taken away). A position that has failed is tried again after some rounds, twice as many
each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slacktide.domain.read_only import read_only
from slacktide.planning.exits.events import ExitsArranged, RampFacts
from slacktide.planning.exits.promise import JudgedRow, columns, search_of
from slacktide.planning.exits.thresholds import Array, ThresholdSearch, Tuned, most_wrong

COST, LEAST_COST = 0.0125, 0.001
"""Share of a pass that a ramp and its cut are taken to cost before any was measured, and least."""
DOUBT = 6
"""A ramp that agrees on a share `a` of rows is taken to have the rate `a` to this power: half where
it agrees on nine of ten. For first guesses only."""
GAIN = 0.01
"""Share of a pass that one more ramp must promise."""
MOVE = 0.03
"""The same of other ramps than those that are active: what was judged counts anew."""
SMOOTH = 0.3
"""Weight of the last round: one window's rows say little of ramps that few rows leave at."""
TELLING = 256
"""Judged rows of every active ramp, none in doubt, from which a round may be decided."""


class PassTimes:
    """Where a pass spends its time, as measured; by arithmetic before that."""

    def __init__(self, facts: Sequence[RampFacts], known: PassTimes | None = None) -> None:
        """`known`: what was measured before."""
        self.front = {each.position: each.cost for each in facts}
        """Share of the whole pass that lies in front of each position."""
        self.costs: dict[int, float] = {}
        """Of ramps that were measured, with their cuts."""
        self.overhead: float | None = None
        """Of the last arrangement measured, a share of the whole pass."""
        self.whole_s: Mapping[int, float] = {}
        """Seconds by rows."""
        self.chains: dict[tuple[int, ...], float] = {}
        """By ramps: the overhead of their chain when it was measured last."""
        if known is not None:
            self.front.update({r: s for r, s in known.front.items() if r in self.front})
            self.costs = {r: each for r, each in known.costs.items() if r in self.front}
            self.overhead, self.whole_s = known.overhead, known.whole_s
            self.chains = known.chains.copy()

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

    def cost(self, ramp: int) -> float:
        known = self.costs
        return known[ramp] if ramp in known else sum(known.values()) / len(known) if known else COST

    def fits(self, ramps: Sequence[int], budget: float) -> bool:
        """Whether these ramps cost no more than `budget`: as measured together, or else by one."""
        found = self.chains.get(tuple(ramps))
        if found is None:
            found = sum([self.cost(each) for each in ramps])
        return found <= budget + 1e-9

    def answers(self, ramps: Sequence[int]) -> list[float]:
        """When each ramp's answers are there, then those of the end."""
        found, spent, last = [], 0.0, 0.0
        for ramp in ramps:
            spent += self.cost(ramp)
            last = max(last, self.front[ramp] + spent)
            found.append(last)
        return [*found, 1.0 + spent]

    def saved(self, ramps: Sequence[int]) -> list[float]:
        """What a row that leaves at each saves; never rises from ramp to ramp."""
        *answers, end = self.answers(ramps)
        return [max(0.0, end - each) for each in answers]

    def guess(self, ramps: Sequence[int], rates: Mapping[int, float]) -> float:
        """What `ramps` save of a pass if each, alone, would let so many rows leave."""
        *answers, end = self.answers(ramps)
        left = saved = 0.0
        for ramp, answer in zip(ramps, answers, strict=True):
            gone = max(left, rates[ramp])
            saved += (gone - left) * (1.0 - answer)
            left = gone
        return saved + (1.0 - left) * (1.0 - end)

    def seconds(self, rows: int) -> float:
        """Of a whole pass of so many rows; 0: not known."""
        fitting = [each for each in self.whole_s if each >= rows]
        return self.whole_s[min(fitting, default=max(self.whole_s))] if self.whole_s else 0.0


def rates_alone(
    rows: Collection[JudgedRow], positions: Sequence[int], loss: float
) -> dict[int, float]:
    """By position: the share of `rows` that would leave there if it were the only ramp."""
    unsure, agrees = columns(tuple(rows), positions)
    most = max(0, most_wrong(len(rows), loss))
    found: dict[int, float] = {}
    for column, ramp in enumerate(positions):
        wrong = unsure[~agrees[:, column], column]
        below = np.partition(wrong, most)[most] if len(wrong) > most else math.inf
        found[ramp] = int((unsure[:, column] < below).sum()) / len(rows)
    return found


def first_ramps(
    facts: Sequence[RampFacts],
    times: PassTimes,
    budget: float,
    rates: Mapping[int, float] | None = None,
    *,
    evenly: bool = False,
    least: float = 0.0,
) -> tuple[int, ...]:
    """Where to begin: the ramps that should save most, by the share of rows that each would let
    leave or else what its agreement lets guess of it; or, `evenly`, as many as the budget has room
    for, spaced evenly (§3.1)."""
    useful = [r for each in facts if times.front[r := each.position] + times.cost(r) < 1.0]
    if evenly:
        most = sum(times.fits(useful[: at + 1], budget) for at in range(len(useful)))
        places = np.linspace(0, len(useful) - 1, most + 2)[1:-1].astype(int)
        return tuple(sorted({useful[at] for at in places}))
    if rates is None:
        rates = {each.position: each.agreement**DOUBT for each in facts}
    chosen: tuple[int, ...] = ()
    while True:
        best = max(
            with_one_more(chosen, useful, times, budget),
            key=lambda ramps: times.guess(ramps, rates),
            default=chosen,
        )
        if times.guess(best, rates) <= times.guess(chosen, rates) + least:
            return chosen
        chosen = best


def with_one_more(
    ramps: Sequence[int], among: Sequence[int], times: PassTimes, budget: float
) -> list[tuple[int, ...]]:
    """Every way to add one ramp within the budget."""
    more = [tuple(sorted((*ramps, each))) for each in among if each not in ramps]
    return [each for each in more if times.fits(each, budget)]


@dataclass(slots=True)
class Trials:
    """What is known of positions from having been tried."""

    round: int = 0
    rates: dict[int, float] = field(default_factory=dict)
    """As measured, smoothed over rounds."""
    utility: dict[int, float] = field(default_factory=dict)
    """The same."""
    until: dict[int, int] = field(default_factory=dict)
    """Position → the round before which it is not tried again."""
    failures: dict[int, int] = field(default_factory=dict)

    def copy(self) -> Trials:
        rates, utility = dict(self.rates), dict(self.utility)
        return Trials(self.round, rates, utility, dict(self.until), dict(self.failures))

    def note(self, found: dict[int, float], ramp: int, new: float) -> None:
        """What a round has measured of an active ramp."""
        found[ramp] = found[ramp] + SMOOTH * (new - found[ramp]) if ramp in found else new

    def failed(self, ramp: int) -> None:
        self.failures[ramp] = self.failures.get(ramp, 0) + 1
        self.utility.pop(ramp, None)
        self.until[ramp] = self.round + 2 ** (2 + self.failures[ramp])

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
    """How many of the last rows are not in doubt."""
    budget: float
    times: PassTimes
    trials: Trials
    rounds: bool
    """Whether the ramps may move."""
    everywhere: tuple[JudgedRow, ...] = ()
    """Rows that were judged at every position, over a longer time; none: too few for a round."""

    def answer(self) -> ExitsAnswer:
        """Thresholds for the active ramps, or for those that are to be active instead."""
        search = self._search(self.active, self.rows)
        tuned = search.best()
        ramps, reason, trials = self.active, "", self.trials.copy()
        if self.rounds:
            ramps, reason = self.round(search, tuned, trials)
        staying = tuple([each for each in ramps if self.everywhere or each in self.active])
        if staying != self.active:
            rows = self.everywhere if set(staying) - {*self.active} else self.rows
            tuned = self._search(staying, rows).best() if staying else Tuned(())
        found = dict(zip(staying, tuned.thresholds, strict=True))
        return ExitsAnswer(ramps, tuple([found.get(r, 0.0) for r in ramps]), trials, reason)

    def round(
        self, search: ThresholdSearch, tuned: Tuned, trials: Trials
    ) -> tuple[tuple[int, ...], str]:
        """The ramps to be active, and why, for people; empty: they stay. Notes in `trials` what it
        learns."""
        trials.round += 1
        chains = Counter([row.ramps for row in self.rows])
        told = [sum(n for of, n in chains.items() if ramp in of) for ramp in self.active]
        if min((*told, self.fresh)) < TELLING:
            return self.active, ""
        thresholds: Array = np.array(tuned.thresholds)
        utility = self.utilities(search, thresholds)
        for at, ramp in enumerate(self.active):
            trials.note(trials.utility, ramp, utility[ramp])
            if not self.everywhere:
                alone = search.placed(np.zeros(len(self.active)), at)[at]
                rate = np.count_nonzero(search.uncertainty[:, at] < alone) / search.rows
                trials.note(trials.rates, ramp, rate)
        smooth = {ramp: trials.utility[ramp] for ramp in self.active}
        bad: list[int] = []
        while utility:
            # One by one: two ramps that stand in for each other both seem to be of no use.
            worst = min(utility, key=lambda ramp: smooth[ramp])
            if smooth[worst] >= 0.0 or utility[worst] >= 0.0:
                break
            bad.append(worst)
            trials.failed(worst)
            thresholds[self.active.index(worst)] = 0.0
            utility = self.utilities(search, thresholds, without=bad)
        kept = tuple([each for each in self.active if each not in bad])
        places = [r for each in self.facts if trials.may(r := each.position)]
        rates = self._rates(trials)
        if self.everywhere:
            may = [each for each in self.facts if each.position in (*kept, *places)]
            options, least = [first_ramps(may, self.times, self.budget, rates, least=GAIN)], MOVE
        else:
            options, least = with_one_more(kept, places, self.times, self.budget), GAIN
            if not bad and len(kept) > 1:
                others = [each for each in kept if each != min(kept, key=lambda r: smooth[r])]
                options += with_one_more(others, places, self.times, self.budget)
        best = max(options, key=lambda ramps: self.times.guess(ramps, rates), default=kept)
        reasons = [f"{self._names(bad)}: costs more than it saves"] if bad else []
        if self.times.guess(best, rates) > self.times.guess(kept, rates) + least:
            for ramp in set(kept) - set(best):
                if not self.everywhere:
                    trials.failed(ramp)
                reasons.append(f"{self._names([ramp])}: saves least")
            reasons.append(f"{self._names(set(best) - set(kept))}: is tried")
            kept = best
        return kept, "; ".join(reasons)

    def utilities(
        self, search: ThresholdSearch, thresholds: Array, without: Collection[int] = ()
    ) -> dict[int, float]:
        """What each ramp, but for some, brings to a row, on average: a share of a pass."""
        found = {}
        costs = [0.0 if each in without else self.times.cost(each) for each in self.active]
        spent = np.cumsum(costs)
        answers = np.append([self.times.front[ramp] for ramp in self.active] + spent, 1 + spent[-1])
        leaves = search.leaves(thresholds)
        for at, ramp in enumerate(self.active):
            if ramp not in without:
                others = thresholds.copy()
                others[at] = 0.0
                reached = leaves >= at
                later = answers[search.leaves(others)[reached]] - costs[at]
                found[ramp] = float((later - answers[leaves[reached]]).sum()) / search.rows
        return found

    def _rates(self, trials: Trials) -> dict[int, float]:
        """What is to be hoped for, by position: as measured, unless it may have changed; else what
        its agreement lets guess, but no more than the next deeper one that is active."""
        if self.everywhere:
            return rates_alone(self.everywhere, [each.position for each in self.facts], self.loss)
        found, bound = {}, 1.0
        for fact in reversed(self.facts):
            ramp = fact.position
            known = trials.rates.get(ramp)
            if ramp in self.active and known is not None:
                bound = found[ramp] = known
            elif known is not None and not trials.may(ramp):
                found[ramp] = known
            else:
                found[ramp] = min(bound, fact.agreement**DOUBT)
        return found

    def _names(self, ramps: Collection[int]) -> str:
        names = {each.position: each.name for each in self.facts}
        return ", ".join(f"ramp {ramp} ({names[ramp]})" for ramp in sorted(ramps))

    def _search(self, ramps: Sequence[int], rows: Sequence[JudgedRow]) -> ThresholdSearch:
        return search_of(rows, ramps, self.times.saved(ramps), self.loss, self.fresh)
