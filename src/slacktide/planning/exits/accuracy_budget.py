"""`AccuracyBudget`: counts judged rows and wrong answers, and decides whether rows may leave.

The bound of `thresholds.py` holds if the next rows are like the last rows. This class handles rows
that are different. Rows leave only while (docs/internals/exits.md, "How the promise is kept")

- the last window has fewer wrong answers than allowed;
- over all rows so far, one more wrong answer would not exceed the loss. Each wrong row also stands
  for the unjudged rows since the judged row before it. As this is only an estimate, more batches
  are judged when fewer wrong answers are still allowed;
- rows are not in doubt. An alarm (more wrong answers among the last 16 than the loss explains) or a
  long pause puts them in doubt: then `FRESH` rows are judged anew, and tuning allows no wrong
  answer among them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from slacktide.domain import ExitReport
from slacktide.planning.exits.thresholds import (
    CONFIDENCE,
    RUN_CONFIDENCE,
    Array,
    ThresholdSearch,
    leaving,
    most_likely,
    most_wrong,
    rows_needed,
)

WINDOW, RUN_WINDOW, MOST_ROWS = 512, 2048, 8192
WINDOW_WRONG = 5
"""Wrong answers that a window may have; it determines the length of the window."""
ALARM_ROWS = 16
FALSE_ALARM = 0.02
"""Chance of a false alarm if the true loss is just within its limit."""
BLUR = 32
"""Rows on each side over which a wrong row's price is spread (see `ThresholdSearch`)."""
MARGIN = 0.8
"""Margin in standard deviations of the estimate, for about 80 % confidence."""
STEP = 0.7
"""Ratio between neighbouring steps of the share of judged batches."""
FRESH = 64
"""Rows judged anew before rows in doubt may leave."""


RampVerdicts: TypeAlias = tuple[Array, Array]
"""(uncertainty, agreement), each [rows, ramps], in the order of rows; if a ramp did not see a row,
its uncertainty is infinite and its agreement true."""


class JudgedWindow:
    """Answers of ramps for the last judged rows."""

    def __init__(self, rows: int, positions: int = 0) -> None:
        """`rows`: maximum number of rows to keep; `positions`: number of positions in the model."""
        self._most = rows
        self._resize(min(rows, FRESH), positions)
        self.added = 0
        """Rows so far."""

    def _resize(self, rows: int, positions: int) -> None:
        self._uncertainty: Array = np.full((rows, positions), np.inf)
        self._agrees: Array = np.ones((rows, positions), bool)

    def __len__(self) -> int:
        return min(self.added, len(self._uncertainty))

    def add(
        self,
        ramps: Sequence[int],
        unsure: Sequence[Sequence[float]] | Array,
        agrees: Sequence[Sequence[bool]] | Array,
    ) -> None:
        """Add the answers of the ramps at these positions, in the order of rows."""
        if (needed := self.added + len(unsure)) > (size := len(self._uncertainty)) < self._most:
            verdicts = self._uncertainty, self._agrees
            self._resize(min(self._most, max(needed, 2 * size)), self._uncertainty.shape[1])
            self._uncertainty[:size], self._agrees[:size] = verdicts
        newest = np.arange(self.added, self.added + len(unsure))[-len(self._uncertainty) :]
        at, self.added = newest % len(self._uncertainty), self.added + len(unsure)
        self._uncertainty[at], self._agrees[at] = np.inf, True
        self._uncertainty[at[:, None], ramps] = unsure[-len(at) :]
        self._agrees[at[:, None], ramps] = agrees[-len(at) :]

    def verdicts(self, ramps: Sequence[int]) -> RampVerdicts:
        """Return a copy of the answers of the ramps at these positions."""
        at = np.arange(self.added - len(self), self.added) % len(self._uncertainty)
        return self._uncertainty[at][:, ramps], self._agrees[at][:, ramps]


class AccuracyBudget:
    """The judged rows of one pool, and the wrong answers that are still allowed."""

    def __init__(self, loss: float, promise: str = "window") -> None:
        """`loss`: largest share of answers that may differ from the model's. `promise`: see
        `StatedExits`."""
        self.loss = loss
        least, self.confidence = {
            "window": (WINDOW, CONFIDENCE),
            "run": (RUN_WINDOW, RUN_CONFIDENCE),
        }[promise]
        self.window = min(MOST_ROWS, max(least, math.ceil(WINDOW_WRONG / loss)))
        self.rows = JudgedWindow(self.window)
        self.run = self.judged = 0
        """Rows that ran, and rows that were judged, so far."""
        self.wrong = 0
        """Rows so far that left with an answer other than the model's."""
        self.alarms = 0
        self._unjudged = 0
        """Unjudged rows since the last judged row."""
        self._estimate = self._variance = 0.0
        """Estimated number of wrong answers among all rows so far, and its variance."""
        self._wrong_at: deque[int] = deque()
        """Running numbers of the wrong rows within the window."""
        self._fresh_from = 0
        """Number of judged rows before the first row that is not in doubt."""
        self._alarm_at = max(2, most_likely(ALARM_ROWS, loss, 1.0 - FALSE_ALARM) + 2)
        self._stop_at = math.floor(loss * self.window)

    def add(self, report: ExitReport) -> bool:
        """Add judged rows, in order. Returns whether there is an alarm."""
        alarm = False
        self.rows.add(report.ramps, report.uncertainty, report.agrees)
        weight = 1.0 + self._unjudged / len(report.left)
        self.run += len(report.left)
        self._unjudged = 0
        for agrees, exit_index in zip(report.agrees, report.left, strict=True):
            self.judged += 1
            if exit_index >= 0 and not agrees[exit_index]:
                self.wrong += 1
                self._estimate += weight
                self._variance += weight * (weight - 1.0)
                self._wrong_at.append(self.judged)
                recent = self.wrong_among(ALARM_ROWS)
                if recent >= self._alarm_at:
                    alarm = True
                    self.alarms += 1
                    self.doubt(self.judged - ALARM_ROWS)
        while self._wrong_at and self._wrong_at[0] <= self.judged - self.window:
            self._wrong_at.popleft()
        return alarm

    def add_unjudged(self, rows: int) -> None:
        """Add rows that were not judged."""
        self.run += rows
        self._unjudged += rows

    def doubt(self, since: int | None = None) -> None:
        """Put the rows before this number in doubt; None: all so far."""
        self._fresh_from = self.judged if since is None else max(since, 0)

    def forget(self, positions: int, replacement: RampVerdicts | None = None) -> None:
        """Forget judged rows, which say nothing about the ramps that are active now. `replacement`:
        answers of ramps at all positions for other rows, which take their place."""
        self.rows = JudgedWindow(self.window, positions)
        if replacement is not None:
            self.rows.add(range(positions), *replacement)

    def wrong_among(self, rows: int) -> int:
        """Number of wrong answers among the last `rows` rows."""
        return sum(1 for row_number in self._wrong_at if row_number > self.judged - rows)

    @property
    def may_leave(self) -> bool:
        """Whether rows may leave at all."""
        return (
            len(self._wrong_at) < self._stop_at
            and self._allowed >= 1.0
            and self.judged >= self._fresh_from + (FRESH if self._fresh_from else 0)
        )

    @property
    def lacking(self) -> tuple[int, str]:
        """How many more judged rows are needed, at the least, before rows may leave, and why."""
        judged, fresh = len(self.rows), FRESH if self._fresh_from else 0
        few = rows_needed(self.loss, self.confidence) - judged
        if few > 0:
            return few, f"too few rows were judged: {judged}"
        if self.judged < self._fresh_from + fresh:
            return self._fresh_from + fresh - self.judged, "rows are judged anew"
        if self._allowed < 1.0:
            return math.ceil((1.0 - self._allowed) / self.loss), "too many answers differed so far"
        if len(self._wrong_at) >= self._stop_at:
            rows = self._wrong_at[len(self._wrong_at) - self._stop_at] + self.window - self.judged
            return rows, f"too many of the last {self.window} answers differed"
        return 0, ""

    @property
    def _allowed(self) -> float:
        """Wrong answers that are still allowed over all rows so far."""
        return self.loss * self.run - self._estimate - MARGIN * math.sqrt(self._variance)

    def feedback(self, least: float) -> float:
        """Return the share of batches to judge, so that one more wrong answer would still be
        allowed. It moves in steps, so that it seldom changes."""
        share, allowed = 1.0, self._allowed
        while share > least and allowed * share * STEP >= 1.0 + MARGIN:
            share *= STEP
        return max(share, least)

    @property
    def fresh(self) -> int:
        """Number of the last judged rows that are not in doubt; usually all."""
        return self.judged - self._fresh_from

    @property
    def accuracy(self) -> float:
        """Share of answers in the window that were the model's."""
        return 1.0 - len(self._wrong_at) / max(1, len(self.rows))


def search_of(
    verdicts: RampVerdicts,
    saved: Sequence[float],
    loss: float,
    fresh: int,
    guards: Sequence[ThresholdSearch] = (),
    confidence: float = CONFIDENCE,
) -> ThresholdSearch:
    """Return the search for thresholds. `fresh`: number of the last rows that are not in doubt. A
    ramp with too few rows lets no row leave; a ramp with fewer rows than others is allowed fewer
    wrong answers. `guards`: see `ThresholdSearch`."""
    unsure, agrees = leaving(verdicts[0]), verdicts[1]
    row_counts = np.isfinite(verdicts[0]).sum(0).tolist()
    allowed = [most_wrong(row_count, loss, confidence) for row_count in row_counts]
    most = max(allowed, default=-1)
    price: Array = np.ones(unsure.shape)
    for ramp, allowed_wrong in enumerate(allowed):
        price[:, ramp] = (most + 1) / (allowed_wrong + 1) if allowed_wrong >= 0 else 1.0
        if allowed_wrong < 0:
            unsure[:, ramp] = np.inf
    if fresh < len(unsure):
        # The blur gives half of this price to less sure rows.
        price[len(unsure) - fresh :] *= 2 * (most + 1)
    most = max(most, 0)
    return ThresholdSearch(unsure, agrees, saved, most, price=price, blur=BLUR, guards=guards)
