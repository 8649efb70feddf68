"""How unsure a row may be and still leave: thresholds of the active ramps, from judged rows.

Rows that ran on to the model's end say, for any thresholds, where they would have left and whether
that answer would have been the model's: the search runs no model. One ramp after the other is set
to the best place beside the others, which a running sum over its rows finds exactly, greedily: each
ramp is the first once, the others follow front to end, and of what comes of it the best is gone
over again until nothing is gained. Apparate's search (§3.2, Algorithm 1) moves ramps by steps of
uncertainty instead, which is scaled otherwise at every ramp. Scores have a sign, for a row that
leaves earlier may be right where it was wrong before.

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

CONFIDENCE = 0.8
"""That the loss is within what may be lost, from what was seen (docs/internals/exits.md)."""
SWEEPS = 6


def most_likely(rows: int, share: float, chance: float) -> int:
    """The most of `rows` so that at most as many are with `chance` at most, if each is with chance
    `share`, within (0, 1); −1 if even none is likelier."""
    total, term, most = 0.0, rows * math.log1p(-share), -1
    while most < rows:
        total += math.exp(term)
        if total > chance:
            break
        most += 1
        term += math.log((rows - most) * share / ((most + 1) * (1.0 - share))) if most < rows else 0
    return most


def most_wrong(rows: int, loss: float, confidence: float = CONFIDENCE) -> int:
    """The most of `rows` that may have been wrong so that their share is, with `confidence`, at
    most `loss` (the one-sided bound of Clopper and Pearson); −1: there are too few rows to tell."""
    return most_likely(rows, loss, 1.0 - confidence)


class ThresholdSearch:
    """One question: the thresholds for these rows."""

    def __init__(
        self,
        uncertainty: Array,
        agrees: Array,
        saved: Sequence[float],
        most: float,
        *,
        price: Array | None = None,
        blur: int = 0,
    ) -> None:
        """`uncertainty` and `agrees`: [rows, ramps], front to end; an uncertainty is infinite where
        the row was not seen by the ramp. `saved`: what leaving at each ramp saves, not increasing.
        `most`: how much may be wrong; a row that is wrong at a ramp counts `price` [rows, ramps]
        (None: 1), spread over `blur` rows that are a little surer and as many that are less sure:
        else thresholds settle just in front of wrong rows, and promise what they do not keep."""
        self.rows, self.ramps = uncertainty.shape
        self.most = most + 1e-9
        self.uncertainty = uncertainty
        self._saved = np.append(np.asarray(saved, float), 0.0)
        self._wrong = np.zeros((self.rows, self.ramps + 1))
        self._wrong[:, :-1] = np.where(agrees, 0.0, 1.0 if price is None else price)
        self._order = np.argsort(uncertainty, axis=0, kind="stable")
        self._seen: list[int] = np.isfinite(uncertainty).sum(0).tolist()
        if blur:
            self._blur(blur)
        self._each = np.arange(self.rows)

    def leaves(self, thresholds: Array) -> Array:
        """By row: the first ramp at which it leaves; their number where none."""
        leaves: Array = np.ones((self.rows, self.ramps + 1), bool)
        np.less(self.uncertainty, thresholds, out=leaves[:, :-1])
        first: Array = leaves.argmax(1)
        return first

    def saving(self, thresholds: Array) -> float:
        """Sum of what all rows save."""
        return float(self._saved[self.leaves(thresholds)].sum())

    def cost(self, thresholds: Array) -> float:
        """Sum of the costs of all wrong answers."""
        return float(self._wrong[self._each, self.leaves(thresholds)].sum())

    def best(self) -> Array:
        """The thresholds that save most; of a ramp at which no row may leave 0."""
        candidates = []
        for first in range(self.ramps):
            thresholds: Array = np.zeros(self.ramps)
            for ramp in (first, *(ramp for ramp in range(self.ramps) if ramp != first)):
                thresholds = self.placed(thresholds, ramp)
            candidates.append(thresholds)
        return self.polished(max(candidates, key=self.saving))

    def polished(self, thresholds: Array) -> Array:
        """Each ramp placed anew beside the others, last to first, while that saves more."""
        saving = self.saving(thresholds)
        for _ in range(SWEEPS):
            for ramp in reversed(range(self.ramps)):
                thresholds = self.placed(thresholds, ramp)
            before, saving = saving, self.saving(thresholds)
            if saving <= before:
                break
        return thresholds

    def placed(self, thresholds: Array, ramp: int) -> Array:
        """With the threshold of one ramp where it saves most, given the others."""
        placed = thresholds.copy()
        placed[ramp] = 0.0
        leaves = self.leaves(placed)
        rows = self._order[: self._seen[ramp], ramp]
        rows = rows[leaves[rows] > ramp]
        if not len(rows):
            return placed
        later = leaves[rows]
        cost = float(self._wrong[self._each, leaves].sum()) + np.cumsum(
            self._wrong[rows, ramp] - self._wrong[rows, later]
        )
        unsure = self.uncertainty[rows, ramp]
        may_end: Array = cost <= self.most
        may_end[:-1] &= unsure[1:] > unsure[:-1]
        saves = np.where(may_end, np.cumsum(self._saved[ramp] - self._saved[later]), 0.0)
        best = int(saves.argmax())
        if saves[best] > 0.0:
            placed[ramp] = np.nextafter(unsure[best], math.inf)
        elif self.cost(placed) > self.most:
            return thresholds  # it is right where a later one is wrong
        return placed

    def _blur(self, rows: int) -> None:
        for ramp, row_count in enumerate(self._seen):
            order = self._order[:row_count, ramp]
            at = np.flatnonzero(self._wrong[order, ramp])
            low, high = np.maximum(at - rows, 0), np.minimum(at + rows + 1, row_count)
            wrong_shares = self._wrong[order[at], ramp] / (high - low)
            edges: Array = np.zeros(row_count + 1)
            np.add.at(edges, low, wrong_shares)
            np.subtract.at(edges, high, wrong_shares)
            self._wrong[order, ramp] = np.cumsum(edges[:-1])
