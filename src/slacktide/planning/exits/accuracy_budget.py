"""Whether the promise is kept: rows that were judged at the model's end, and those that were wrong.

The bound of `thresholds.py` says what the next rows will bring if they are like the last. This file
is for when they are not. Rows leave only while (docs/internals/exits.md, "How the promise is kept")

- fewer of the last window's answers were wrong than it may have;
- one more wrong answer would still be within the loss over all rows so far. Each wrong row stands
  for those that were not judged since the row judged before, so that this is an estimate: it is
  held with a margin, and the fewer wrong answers there is room for, the more batches are judged;
- rows are not in doubt. An alarm, more wrong answers among the last 16 than the loss explains, and
  a long pause put them in doubt: then so many rows are judged anew, and tuning allows no wrong
  answer among them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from slacktide.domain import ExitReport
from slacktide.planning.exits.thresholds import Array, ThresholdSearch, most_likely, most_wrong

WINDOW, MOST_ROWS = 512, 8192
WINDOW_WRONG = 5
"""A window is so long that it may have as many wrong answers."""
ALARM_ROWS = 16
FALSE_ALARM = 0.02
"""Chance of so many wrong answers among the last rows, with the loss that is allowed."""
BLUR = 32
"""Rows over which a wrong one is spread to each side (see `ThresholdSearch`)."""
MARGIN = 0.8
"""Standard deviations of the estimate, for some 80 % confidence."""
STEP = 0.7
"""From one share of batches that are judged to the next."""
FRESH = 64
"""Rows judged anew before rows in doubt may leave."""


Said: TypeAlias = tuple[Array, Array]
"""(uncertainty, agreement), each [rows, ramps], in the order rows came; infinite and true where a
ramp was not asked."""


class JudgedWindow:
    """What ramps said of the last rows that were judged."""

    def __init__(self, rows: int, positions: int = 0) -> None:
        """`rows`: most that are kept; `positions`: how many the model has."""
        self._unsure: Array = np.full((rows, positions), np.inf)
        self._agrees: Array = np.ones((rows, positions), bool)
        self.added = 0
        """Rows so far."""

    def __len__(self) -> int:
        return min(self.added, len(self._unsure))

    def add(
        self,
        ramps: Sequence[int],
        unsure: Sequence[Sequence[float]] | Array,
        agrees: Sequence[Sequence[bool]] | Array,
    ) -> None:
        """Rows in the order they came: what the ramps at these positions said."""
        newest = np.arange(self.added, self.added + len(unsure))[-len(self._unsure) :]
        at, self.added = newest % len(self._unsure), self.added + len(unsure)
        self._unsure[at], self._agrees[at] = np.inf, True
        self._unsure[at[:, None], ramps] = unsure[-len(at) :]
        self._agrees[at[:, None], ramps] = agrees[-len(at) :]

    def said(self, ramps: Sequence[int]) -> Said:
        """By the ramps at these positions; a copy."""
        at = np.arange(self.added - len(self), self.added) % len(self._unsure)
        return self._unsure[at][:, ramps], self._agrees[at][:, ramps]


class AccuracyBudget:
    """The last judged rows of one pool."""

    def __init__(self, loss: float) -> None:
        """`loss`: most of the answers that may differ."""
        self.loss = loss
        self.window = min(MOST_ROWS, max(WINDOW, math.ceil(WINDOW_WRONG / loss)))
        self.rows = JudgedWindow(self.window)
        self.run = self.judged = 0
        """Rows so far."""
        self.wrong = 0
        """Rows so far that a ramp answered otherwise than the model."""
        self.alarms = 0
        self._skipped = 0
        """Rows since the last that was judged."""
        self._estimate = self._variance = 0.0
        """Of wrong answers among all rows so far."""
        self._wrong_at: deque[int] = deque()
        """Numbers of the wrong rows within the window."""
        self._doubted = 0
        """Number of the first row that is judged anew."""
        self._alarm_at = max(2, most_likely(ALARM_ROWS, loss, 1.0 - FALSE_ALARM) + 2)
        self._stop_at = math.floor(loss * self.window)

    def add(self, report: ExitReport) -> bool:
        """Rows that were judged, in order; whether there is an alarm."""
        alarm = False
        self.rows.add(report.ramps, report.uncertainty, report.agrees)
        weight = 1.0 + self._skipped / len(report.left)
        self.run += len(report.left)
        self._skipped = 0
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
        """So many rows were not judged."""
        self.run += rows
        self._skipped += rows

    def doubt(self, since: int | None = None) -> None:
        """Rows from this number on may be unlike those before; None: from the next."""
        self._doubted = self.judged if since is None else max(since, 0)

    def forget(self, positions: int, replacement: Said | None = None) -> None:
        """Forget judged rows: they say nothing of the ramps that are active now. `replacement`:
        what ramps at all positions said of other rows, which take their place."""
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
            and self._room >= 1.0
            and self.judged >= self._doubted + (FRESH if self._doubted else 0)
        )

    @property
    def _room(self) -> float:
        """For wrong answers, over all rows so far."""
        return self.loss * self.run - self._estimate - MARGIN * math.sqrt(self._variance)

    def feedback(self, least: float) -> float:
        """Share of batches to judge: so many that one wrong answer would still be within the room
        there is; in steps, so that it seldom changes."""
        share, room = 1.0, self._room
        while share > least and room * share * STEP >= 1.0 + MARGIN:
            share *= STEP
        return max(share, least)

    @property
    def fresh(self) -> int:
        """How many of the last rows were judged anew; all of them, as a rule."""
        return self.judged - self._doubted

    @property
    def accuracy(self) -> float:
        """Share of the window's answers that were the model's."""
        return 1.0 - len(self._wrong_at) / max(1, len(self.rows))


def search_of(said: Said, saved: Sequence[float], loss: float, fresh: int) -> ThresholdSearch:
    """`fresh`: how many of the last rows were judged anew. A ramp that is too new to tell from
    lets no row leave, and one that saw fewer rows than others may be wrong less often."""
    unsure, agrees = said[0].copy(), said[1]
    row_counts = np.isfinite(unsure).sum(0).tolist()
    allowed = [most_wrong(row_count, loss) for row_count in row_counts]
    most = max(allowed, default=-1)
    price: Array = np.ones(unsure.shape)
    for ramp, allowed_wrong in enumerate(allowed):
        price[:, ramp] = (most + 1) / (allowed_wrong + 1) if allowed_wrong >= 0 else 1.0
        if allowed_wrong < 0:
            unsure[:, ramp] = np.inf
    if fresh < len(unsure):
        price[len(unsure) - fresh :] *= 2 * (most + 1)  # spread, half of it counts up to the row
    return ThresholdSearch(unsure, agrees, saved, max(most, 0), price=price, blur=BLUR)
