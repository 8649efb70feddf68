"""`ThresholdSearch`: finds the uncertainty below which rows may leave, for each active ramp.

Rows that ran to the model's end show, for any thresholds, where they would have left and whether
that answer was the model's, so the search runs no model. It sets each ramp in turn to the best
threshold given the others; a running sum over the ramp's rows finds it exactly. This is greedy:
each ramp is set first once, after which the others follow from front to end; the best outcome is
polished until nothing is gained. Apparate's search (§3.2, Algorithm 1) instead moves ramps by steps
of uncertainty, whose scale differs from ramp to ramp. A change may also remove wrong answers: a row
that now leaves earlier may be right where it was wrong before.

How many answers may differ comes from `most_wrong`: see "How the promise is kept" in
docs/internals/exits.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

CONFIDENCE, RUN_CONFIDENCE = 0.8, 0.65
"""Confidence that the true loss is within its limit (docs/internals/exits.md), if the promise is
for every window, and if it is for a whole run."""
SWEEPS = 6


def most_likely(rows: int, share: float, chance: float) -> int:
    """Return the largest k such that P(at most k of `rows` are hit) ≤ `chance`, if each row is hit
    with probability `share`, within (0, 1); −1 if there is none."""
    total, term, most = 0.0, rows * math.log1p(-share), -1
    while most < rows:
        total += math.exp(term)
        if total > chance:
            break
        most += 1
        term += math.log((rows - most) * share / ((most + 1) * (1.0 - share))) if most < rows else 0
    return most


def most_wrong(rows: int, loss: float, confidence: float = CONFIDENCE) -> int:
    """Return how many of `rows` may be wrong so that the true share is at most `loss` with
    `confidence` (the one-sided bound of Clopper and Pearson); −1: too few rows."""
    return most_likely(rows, loss, 1.0 - confidence)


def rows_needed(loss: float, confidence: float = CONFIDENCE) -> int:
    """Return how many rows `most_wrong` needs to allow thresholds at all."""
    return math.ceil(math.log(1.0 - confidence) / math.log1p(-loss))


def leaving(uncertainty: Array) -> Array:
    """Return uncertainties, infinite where a row may never leave (`NEVER`)."""
    possible: Array = np.where(uncertainty > 1.0, np.inf, uncertainty)
    return possible


class ThresholdSearch:
    """The search for one set of rows."""

    def __init__(
        self,
        uncertainty: Array,
        agrees: Array,
        saved: Sequence[float],
        most: float,
        *,
        price: Array | None = None,
        blur: int = 0,
        guards: Sequence[ThresholdSearch] = (),
    ) -> None:
        """`uncertainty` and `agrees`: [rows, ramps], front to end; infinite if the ramp did not see
        the row. `saved`: savings of a row that leaves at each ramp, non-increasing. `most`: largest
        total price of wrong answers. `price` [rows, ramps]: what a wrong answer costs (None: 1).
        The price is spread over the `blur` next surer rows and as many less sure rows; otherwise
        thresholds would settle just below wrong rows, and would not hold for new rows. `guards`:
        searches over other rows; thresholds must also keep to the largest total price of each."""
        self.rows, self.ramps = uncertainty.shape
        self.most = most + 1e-9
        self.uncertainty = uncertainty
        self._saved = np.append(np.asarray(saved, float), 0.0)
        self._wrong = np.zeros((self.rows, self.ramps + 1))
        self._wrong[:, :-1] = np.where(agrees, 0.0, 1.0 if price is None else price)
        self._order = np.argsort(uncertainty, axis=0, kind="stable")
        self._counts: list[int] = np.isfinite(uncertainty).sum(0).tolist()
        if blur:
            self._blur(blur)
        self._row_numbers = np.arange(self.rows)
        self._guards = guards

    def holds(self, thresholds: Array) -> bool:
        """Whether the price of wrong answers is within its limits."""
        return self.cost(thresholds) <= self.most and all(
            guard.holds(thresholds) for guard in self._guards
        )

    def leaves(self, thresholds: Array) -> Array:
        """Return the ramp at which each row leaves; the number of ramps if it does not."""
        leaves: Array = np.ones((self.rows, self.ramps + 1), bool)
        np.less(self.uncertainty, thresholds, out=leaves[:, :-1])
        first: Array = leaves.argmax(1)
        return first

    def saving(self, thresholds: Array) -> float:
        """Return the savings of all rows."""
        return float(self._saved[self.leaves(thresholds)].sum())

    def cost(self, thresholds: Array) -> float:
        """Return the price of all wrong answers."""
        return float(self._wrong[self._row_numbers, self.leaves(thresholds)].sum())

    def best(self) -> Array:
        """Return the thresholds that save most; 0 for ramps at which no row may leave."""
        candidates = []
        for first in range(self.ramps):
            thresholds: Array = np.zeros(self.ramps)
            for ramp in (first, *(ramp for ramp in range(self.ramps) if ramp != first)):
                thresholds = self.placed(thresholds, ramp)
            candidates.append(thresholds)
        return self.polished(max(candidates, key=self.saving))

    def polished(self, thresholds: Array) -> Array:
        """Return thresholds after placing each ramp anew, last to first, while that saves more."""
        saving = self.saving(thresholds)
        for _ in range(SWEEPS):
            for ramp in reversed(range(self.ramps)):
                thresholds = self.placed(thresholds, ramp)
            before, saving = saving, self.saving(thresholds)
            if saving <= before:
                break
        return thresholds

    def placed(self, thresholds: Array, ramp: int) -> Array:
        """Return thresholds in which the threshold of `ramp` saves most, given the others."""
        placed = thresholds.copy()
        placed[ramp] = 0.0
        rows, later, cost = self._costs(placed, ramp)
        if not len(rows):
            return placed if self.holds(placed) else thresholds
        unsure = self.uncertainty[rows, ramp]
        may_end: Array = cost[1:] <= self.most
        may_end[:-1] &= unsure[1:] > unsure[:-1]
        for guard in self._guards:
            guard_rows, _, guard_cost = guard._costs(placed, ramp)
            leaving_rows = guard.uncertainty[guard_rows, ramp].searchsorted(unsure, side="right")
            may_end &= guard_cost[leaving_rows] <= guard.most
        saves = np.where(may_end, np.cumsum(self._saved[ramp] - self._saved[later]), 0.0)
        best = int(saves.argmax())
        if saves[best] > 0.0:
            placed[ramp] = np.nextafter(unsure[best], math.inf)
        elif not self.holds(placed):
            return thresholds  # this ramp is right where a later one is wrong
        return placed

    def _costs(self, placed: Array, ramp: int) -> tuple[Array, Array, Array]:
        """For a ramp that has no threshold yet, return the rows that could leave at it, the surest
        first; the later ramp at which each of them leaves now; and the price of all wrong answers
        if the first 0, 1, … of them leave at this ramp."""
        leaves = self.leaves(placed)
        rows = self._order[: self._counts[ramp], ramp]
        rows = rows[leaves[rows] > ramp]
        later, cost = leaves[rows], np.empty(len(rows) + 1)
        cost[0] = self._wrong[self._row_numbers, leaves].sum()
        cost[1:] = cost[0] + np.cumsum(self._wrong[rows, ramp] - self._wrong[rows, later])
        return rows, later, cost

    def _blur(self, rows: int) -> None:
        for ramp, row_count in enumerate(self._counts):
            order = self._order[:row_count, ramp]
            at = np.flatnonzero(self._wrong[order, ramp])
            low, high = np.maximum(at - rows, 0), np.minimum(at + rows + 1, row_count)
            wrong_shares = self._wrong[order[at], ramp] / (high - low)
            edges: Array = np.zeros(row_count + 1)
            np.add.at(edges, low, wrong_shares)
            np.subtract.at(edges, high, wrong_shares)
            self._wrong[order, ramp] = np.cumsum(edges[:-1])
