"""Whether the promise is kept: rows that were judged at the model's end, and those that were wrong.

The bound of `thresholds.py` says what the next rows will bring if they are like the last. This file
is for when they are not. Rows leave only while (docs/exits.md, "How the promise is kept")

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
from itertools import chain

import numpy as np

from slacktide.domain import ExitReport
from slacktide.domain.read_only import read_only
from slacktide.planning.exits.thresholds import (
    Array,
    ThresholdSearch,
    most_likely,
    most_wrong,
)

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


@read_only
class JudgedRow:
    """One row, and what the ramps that were active said of it."""

    ramps: tuple[int, ...]
    uncertainty: tuple[float, ...]
    agrees: tuple[bool, ...]


class Promise:
    """The last judged rows of one pool."""

    def __init__(self, loss: float) -> None:
        """`loss`: most of the answers that may differ."""
        self.loss = loss
        self.window = min(MOST_ROWS, max(WINDOW, math.ceil(WINDOW_WRONG / loss)))
        self.rows: deque[JudgedRow] = deque(maxlen=self.window)
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
        ramps = report.ramps
        weight = 1.0 + self._skipped / len(report.left)
        self.run += len(report.left)
        self._skipped = 0
        for unsure, agrees, left in zip(
            report.uncertainty, report.agrees, report.left, strict=True
        ):
            self.rows.append(JudgedRow(ramps, unsure, agrees))
            self.judged += 1
            if left >= 0 and not agrees[left]:
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

    def skip(self, rows: int) -> None:
        """So many rows were not judged."""
        self.run += rows
        self._skipped += rows

    def doubt(self, since: int | None = None) -> None:
        """Rows from this number on may be unlike those before; None: from the next."""
        self._doubted = self.judged if since is None else max(since, 0)

    def forget(self) -> None:
        """The ramps are others: what was judged says nothing of them."""
        self.rows.clear()

    def wrong_among(self, rows: int) -> int:
        """Of so many last rows."""
        return sum(1 for each in self._wrong_at if each > self.judged - rows)

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


def search_of(
    rows: Sequence[JudgedRow],
    ramps: Sequence[int],
    saved: Sequence[float],
    loss: float,
    fresh: int,
) -> ThresholdSearch:
    """`fresh`: how many of the last rows were judged anew. A ramp that is too new to tell from
    lets no row leave, and one that saw fewer rows than others may be wrong less often."""
    unsure, agrees = columns(rows, ramps)
    seen = np.isfinite(unsure).sum(0).tolist()
    allowed = [most_wrong(each, loss) for each in seen]
    most = max(allowed, default=-1)
    price: Array = np.ones(unsure.shape)
    for ramp, each in enumerate(allowed):
        price[:, ramp] = (most + 1) / (each + 1) if each >= 0 else 1.0
        if each < 0:
            unsure[:, ramp] = np.inf
    if fresh < len(rows):
        price[len(rows) - fresh :] *= 2 * (most + 1)  # spread, half of it counts up to the row
    return ThresholdSearch(unsure, agrees, saved, max(most, 0), price=price, blur=BLUR)


def columns(rows: Sequence[JudgedRow], ramps: Sequence[int]) -> tuple[Array, Array]:
    """(uncertainty, agreement) of `rows` at positions `ramps`; infinite and true where unknown."""
    unsure: Array = np.full((len(rows), len(ramps)), np.inf)
    agrees: Array = np.ones((len(rows), len(ramps)), bool)
    begin = 0
    while begin < len(rows):
        of = rows[begin].ramps
        end = begin
        while end < len(rows) and rows[end].ramps == of:
            end += 1
        part, shape = rows[begin:end], (end - begin, len(of))
        said = np.fromiter(chain.from_iterable([each.uncertainty for each in part]), float)
        right = np.fromiter(chain.from_iterable([each.agrees for each in part]), bool)
        said, right = said.reshape(shape), right.reshape(shape)
        for column, ramp in enumerate(ramps):
            if ramp in of:
                unsure[begin:end, column] = said[:, of.index(ramp)]
                agrees[begin:end, column] = right[:, of.index(ramp)]
        begin = end
    return unsure, agrees
