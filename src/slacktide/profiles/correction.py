"""`Correction`: learns from running batches how their times differ from a profile.

A profile is measured once, on a quiet machine. Afterwards clocks throttle, other programs run,
inputs differ. For each finished batch this class gets one number, ln(observed / profiled). It keeps

- `overall`, the shift of everything (the machine is slower today),
- `cell_shifts`, the further shift of each cell of the grid (this size was measured badly),
- `upper`, a factor on the profile's spread ln(p99 / p50), and `lower`, the log distance from the
  median down to the 1st percentile.

**Robust.** The shift follows the clipped residual: a run that takes a hundred times as long moves
it as far as one that takes 22 % longer. (Huber's location estimate, streaming; exponential average
for small residuals, median for large ones.) The spreads follow quantiles, which only count
exceedances (Robbins and Monro 1951: a step up for each run above the p99, and a 99 times smaller
step down for each run below it).

**One cell or all?** A residual is split in the ratio of two variances, as in a Kalman filter: the
uncertainty of the machine's speed, `0.5² / (1 + n) + 0.002` after n batches, and of the cell's
profile, `0.1² / (1 + n_cell)`. So the first batches move everything (sizes that have not run
follow), a new size on a known machine mostly changes its own cell, and a later drift moves
everything again.

**Drift or scatter?** `RUN` residuals of one sign in a row (chance: 1 in 128) show that the level
has moved. Until the sign changes, the shift learns three times as fast, and the spreads stay fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slacktide.profiles import reading
from slacktide.profiles.reading import ProfileError

BOUND = math.log(10.0)
"""Predictions stay within a factor of ten of the profile, or of the value that two trials have put
in its place."""
MOST_BASE = math.log(1e6)
GAIN = 0.05
"""Share of a residual that is learnt in the long run."""
CLIP = 0.2
"""Largest residual that counts in full (log): 22 %."""
RUN = 8
FAST_GAIN = 3 * GAIN
SPREAD_GAIN = 0.05
LOWEST_SPREAD = math.log(1.01)
"""Minimum spread: without any, P(on time) would be a step; a quiet machine shows 1 %."""

_KEYS = ("base", "overall", "own", "upper", "lower", "batches", "evidence", "run")
_MACHINE_VARIANCE = 0.5**2
_MACHINE_WANDER = 0.002
_CELL_VARIANCE = 0.1**2
_CELL_MEMORY = 30.0
"""Limit of a cell's evidence, in batches, so that it can always be corrected."""
_UNMEASURED = -0.75
"""Evidence of a column that was predicted, not measured: its cells may be off by twice as much."""
_LOW_LEVEL = 0.1
_LOW_POSITION = -math.log(9.0) / math.log(99.0)
"""Position of the 10 % level in a log-logistic distribution whose 1 % level is at −1."""


class Place(NamedTuple):
    """The place of a batch on the grid: between two batch sizes, in one column of cores."""

    low: int
    high: int
    """Indices of the batch sizes around its rows; equal at a known size and beyond either end."""
    weight: float
    """Share of `high`; `low` has the rest."""
    column: int


class Correction:
    """Log shifts and spreads for a grid of `sizes` × `columns` cells. Constant time and memory."""

    __slots__ = (
        "_evidence", "_run", "_upper_most", "base", "batches", "cell_shifts", "lower", "overall",
        "upper",
    )  # fmt: skip

    def __init__(self, sizes: int, columns: int, *, upper: float, lower: float) -> None:
        """`upper`: the profile's typical ln(p99 / p50). `lower`: first value of that attribute."""
        self.base = 0.0
        """Shift of the whole profile by trials (log); `overall` stays within a bound around it."""
        self.overall = 0.0
        self.cell_shifts = [[0.0] * columns for _ in range(sizes)]
        self.upper = 1.0
        self.lower = lower
        self.batches = 0
        self._evidence = [[0.0] * columns for _ in range(sizes)]
        self._upper_most = max(1.0, BOUND / upper)
        self._run = 0

    def shift(self, size: int, column: int) -> float:
        """Log factor on the profile at this cell, within `base` ± ln 10."""
        return self._bounded(self.overall + self.cell_shifts[size][column])

    def shifts(self) -> list[list[float]]:
        """All shifts, (sizes, columns); a copy."""
        return [[self._bounded(self.overall + shift) for shift in row] for row in self.cell_shifts]

    def observe(self, log_ratio: float, place: Place, spread: float) -> None:
        """Learn ln(observed / profiled) of one batch at `place`. `spread` is the profile's ln(p99 /
        p50) there."""
        low, high, weight, column = place
        centre = (1.0 - weight) * self.shift(low, column) + weight * self.shift(high, column)
        residual = log_ratio - centre
        sign = (residual > 0.0) - (residual < 0.0)
        self._run = sign * (1 + abs(self._run)) if sign * self._run > 0 else sign
        moved = abs(self._run) >= RUN
        if not moved:
            self._learn_spread(residual, spread)
        evidence = self._evidence[low][column] * (1.0 - weight)
        evidence += self._evidence[high][column] * weight
        gain, first = FAST_GAIN if moved else GAIN, 1.0 / (evidence + 5.0)
        step = (gain if gain >= first else first) * _within(residual, -CLIP, CLIP)
        machine = _MACHINE_VARIANCE / (1.0 + self.batches) + _MACHINE_WANDER
        cell = _CELL_VARIANCE / (1.0 + evidence)
        share = cell / (machine + cell)
        self.overall = self._bounded(self.overall + step * (1.0 - share))
        for size, part in ((low, 1.0 - weight), (high, weight)):
            if part > 0.0:
                shifts = self.cell_shifts[size]
                shifts[column] = _within(shifts[column] + step * share * part, -BOUND, BOUND)
                counts = self._evidence[size]
                counts[column] = _within(counts[column] + part, _UNMEASURED, _CELL_MEMORY)
        self.batches += 1

    def insert(self, column: int, shifts: Sequence[float]) -> None:
        """Insert a column that was not measured, with first guesses at its cells' shifts."""
        for size, shift in enumerate(shifts):
            self.cell_shifts[size].insert(column, _within(shift, -BOUND, BOUND))
            self._evidence[size].insert(column, _UNMEASURED)

    def to_dict(self) -> dict[str, object]:
        """The learnt state, JSON-ready."""
        return {
            "base": self.base,
            "overall": self.overall,
            "own": [list(row) for row in self.cell_shifts],
            "upper": self.upper,
            "lower": self.lower,
            "batches": self.batches,
            "evidence": [list(row) for row in self._evidence],
            "run": self._run,
        }

    def restore(self, data: object) -> None:
        """Continue from a `to_dict` of a grid of this shape. Raises ProfileError, naming the field,
        for anything else."""
        fields = reading.mapping(data, "correction", _KEYS)
        shifts = reading.rows(fields["own"], "correction.own", reading.number)
        evidence = reading.rows(fields["evidence"], "correction.evidence", reading.number)
        shape = [len(row) for row in self.cell_shifts]
        for name, grid in (("own", shifts), ("evidence", evidence)):
            if [len(row) for row in grid] != shape:
                raise ProfileError(f"correction.{name}: expected {len(shape)} rows of {shape[0]}")
        self.base = _within(reading.number(fields["base"], "correction.base"), -MOST_BASE, 0.0)
        self.overall = reading.number(fields["overall"], "correction.overall")
        self.upper = reading.number(fields["upper"], "correction.upper")
        self.lower = reading.number(fields["lower"], "correction.lower")
        self.batches = reading.whole_number(fields["batches"], "correction.batches")
        self._run = reading.whole_number(fields["run"], "correction.run")
        if not (self.upper > 0.0 and self.lower > 0.0 and self.batches >= 0):
            raise ProfileError("correction: expected upper and lower > 0, and batches >= 0")
        self.cell_shifts = [list(row) for row in shifts]
        self._evidence = [list(row) for row in evidence]

    def discount(self, log_step: float) -> None:
        """Predict everything faster by `log_step`, without an observation."""
        self.overall = self._bounded(self.overall - log_step)

    def settle(self, shift: float) -> None:
        """Forget everything learnt: all times are e^`shift` times the profile's."""
        self.base = self.overall = _within(shift, -MOST_BASE, 0.0)
        self.cell_shifts = [[0.0] * len(row) for row in self.cell_shifts]
        self._evidence = [[0.0] * len(row) for row in self._evidence]
        self.batches = self._run = 0

    def _bounded(self, shift: float) -> float:
        return _within(shift, self.base - BOUND, self.base + BOUND)

    def _learn_spread(self, residual: float, spread: float) -> None:
        gain = 1.0 / (self.batches + 10.0)
        if gain < SPREAD_GAIN:
            gain = SPREAD_GAIN
        above = 1.0 if residual > self.upper * spread else 0.0
        upper = self.upper * math.exp(gain * (above - 0.01))
        self.upper = _within(upper, 0.1, self._upper_most)
        below = 1.0 if residual < self.lower * _LOW_POSITION else 0.0
        lower = self.lower * math.exp(gain * (below - _LOW_LEVEL))
        self.lower = _within(lower, LOWEST_SPREAD / 2, BOUND)


def _within(value: float, least: float, most: float) -> float:
    """Clamp `value`; `min` and `max` would cost as much as the rest of an observation."""
    return most if value > most else value if value >= least else least
