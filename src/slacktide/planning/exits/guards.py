"""`JudgedClasses`: judged rows by the whole model's class. `Applications`: by application.

A share of all answers hides what happens to a few of them: if 1 % may differ, all answers of a
class that is given to 1 % of the rows may differ. So thresholds must also keep within a bound for
each class (`Guard`), and an application's requests leave only if the thresholds keep within
`accuracy_loss` for its own rows. Classes restrict everyone's thresholds, since a ramp cannot know
which class the whole model will give. Applications do not: an application whose rows are too hard
gets no early answers, so that no client can slow down another.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from slacktide.domain import ExitReport
from slacktide.domain.read_only import read_only
from slacktide.planning.exits.accuracy_budget import AccuracyBudget, JudgedWindow, RampVerdicts
from slacktide.planning.exits.thresholds import Array, ThresholdSearch, leaving, most_wrong

CLASS_LOSS = 0.03
"""Largest share of a class's rows that may leave with another answer; `accuracy_loss` if that is
larger."""
GUARDED_ROWS = 60
"""Number of judged rows of a class that are needed before that share may leave wrongly; with fewer,
no row may."""
MOST_CLASSES, CLASS_ROWS = 20, 256
"""Number of classes that are guarded, and judged rows kept of each."""
MARGIN = 0.5
"""Factor on the uncertainty of a class's rows when thresholds are tuned, because the next row may
be surer than all rows so far. Thresholds are reset when the bound is exceeded or, for a class in
`whole_model_only`, as soon as a row comes within the margin."""
MOST_APPLICATIONS = 32
IDLE_S = 600.0
"""Seconds without a row after which an application may lose its place to another."""


@read_only
class Guard:
    """Judged rows of a class, of which at most `most` may leave with another answer."""

    verdicts: RampVerdicts
    most: int
    is_strict: bool = False
    """Whether the margin must be kept too."""
    margin: float = MARGIN
    first_margin: float | None = None
    """Margin of the first column; None: that of all columns."""

    def search(
        self, columns: Sequence[int] | slice = slice(None), margin: float | None = None
    ) -> ThresholdSearch:
        """Return these rows as a condition for thresholds of the ramps in these columns."""
        scaled = self._scaled(margin)[:, columns]
        agrees = self.verdicts[1][:, columns]
        return ThresholdSearch(scaled, agrees, (0.0,) * scaled.shape[1], self.most)

    def _scaled(self, margin: float | None = None) -> Array:
        """Return the uncertainties times a margin; None: the guard's own."""
        scaled: Array = self.verdicts[0] * (self.margin if margin is None else margin)
        if margin is None and self.first_margin is not None:
            scaled[:, 0] = self.verdicts[0][:, 0] * self.first_margin
        return scaled

    def holds(self, thresholds: Array) -> bool:
        """Whether thresholds in force keep the condition."""
        return self.search(margin=self.margin if self.is_strict else 1.0).holds(thresholds)

    def highest(self) -> Array:
        """Return the highest threshold of each column that keeps the condition by itself."""
        wrong: Array = np.sort(np.where(self.verdicts[1], np.inf, self._scaled()), axis=0)
        highest: Array = wrong[self.most] if self.most < len(wrong) else np.full(wrong.shape[1:], 9)
        return highest


class JudgedClasses:
    """The last judged rows of each guarded class, by the ramps at all positions."""

    def __init__(
        self,
        positions: int,
        loss: float,
        whole_model_only: Sequence[int] = (),
        *,
        remembers: bool = False,
    ) -> None:
        """`remembers`: whether ramp 0 gives remembered answers."""
        self.loss = max(CLASS_LOSS, loss)
        self._remembers = remembers
        self._positions, self._whole = positions, frozenset(whole_model_only)
        self.windows: dict[int, JudgedWindow] = {}
        self._permanent = set(whole_model_only)
        """Classes that never lose their place."""
        self.row_counts: Counter[int] = Counter()
        """Judged rows so far, by class."""
        self._enough: set[tuple[int, ...]] = set()
        """Ramps for which no rows are lacking."""

    def add(
        self,
        ramps: Sequence[int],
        unsure: Sequence[Sequence[float]],
        agrees: Sequence[Sequence[bool]],
        classes: Sequence[int],
        *,
        supplied: bool = False,
    ) -> None:
        """Add rows in order, with the answers of the ramps at these positions. `supplied`: by the
        operator; their classes never lose their place."""
        rows_by_class: dict[int, list[int]] = {}
        for row, number in enumerate(classes):
            if number >= 0:
                rows_by_class.setdefault(number, []).append(row)
        for number, rows in rows_by_class.items():
            self.row_counts[number] += len(rows)
            if supplied and len(self._permanent) < MOST_CLASSES:
                self._permanent.add(number)
            if (window := self._window(number)) is not None:
                window.add(ramps, [unsure[row] for row in rows], [agrees[row] for row in rows])

    def _window(self, number: int) -> JudgedWindow | None:
        """Return the rows of a class; None if rarer classes are guarded instead."""
        if number not in self.windows:
            if len(self.windows) >= MOST_CLASSES:
                row_counts, permanent = self.row_counts, self._permanent
                replaceable = [guarded for guarded in self.windows if guarded not in permanent]
                commonest = max(replaceable, key=row_counts.__getitem__, default=None)
                if commonest is None or (
                    number not in permanent and row_counts[commonest] <= row_counts[number]
                ):
                    return None
                del self.windows[commonest]
            self.windows[number] = JudgedWindow(CLASS_ROWS, self._positions)
        return self.windows[number]

    def guard(self, number: int, ramps: Sequence[int]) -> Guard | None:
        """Return the guard of a class; None if there is nothing to guard."""
        window = self.windows.get(number)
        if window is None:
            return None
        unsure, agrees = window.verdicts(ramps)
        if agrees.all():
            return None
        count, most = int(np.isfinite(unsure).sum(0).min(initial=len(unsure))), 0
        if number in self._whole:
            return Guard((leaving(unsure), agrees), 0, is_strict=True)
        if count >= GUARDED_ROWS:
            most = max(0, most_wrong(count, self.loss))
        # Remembered answers are wrong at changes, which have a promise without a margin.
        first = 1.0 if self._remembers and ramps and ramps[0] == 0 else None
        return Guard((leaving(unsure), agrees), most, first_margin=first)

    def guards(self, ramps: Sequence[int]) -> tuple[Guard, ...]:
        """Return the guards of all classes."""
        guards = (self.guard(number, ramps) for number in self.windows)
        return tuple([guard for guard in guards if guard is not None])

    def lacking(self, ramps: Sequence[int]) -> dict[int, int]:
        """Return, for classes of `whole_model_only`, how many judged rows are still needed."""
        missing: dict[int, int] = {}
        if not self._whole or tuple(ramps) in self._enough:
            return missing
        for number in sorted(self._whole):
            window = self.windows.get(number)
            unsure = np.zeros((0, len(ramps))) if window is None else window.verdicts(ramps)[0]
            judged = int(np.isfinite(unsure).sum(0).min(initial=len(unsure)))
            if judged < GUARDED_ROWS:
                missing[number] = GUARDED_ROWS - judged
        if not missing:
            self._enough.add(tuple(ramps))
        return missing

    def copy(self) -> JudgedClasses:
        return copy.deepcopy(self)


class Applications:
    """Judged rows of each application. While there is only one, its budget is the pool's."""

    def __init__(self, loss: float, promise: str = "window") -> None:
        self._loss, self._promise = loss, promise
        self._positions = 0
        self.first: str | None = None
        self.budgets: dict[str, AccuracyBudget] = {}
        """Empty until there are two applications."""
        self._last_at: dict[str, float] = {}
        self.admitted: set[str] = set()
        self._counted: set[str] = set()
        """Applications whose rows tune thresholds; empty: all."""
        self.crowded = 0
        """Rows so far of applications that found no place."""

    def listed(self) -> tuple[str, ...]:
        """Return the applications whose requests may leave."""
        if self.budgets:
            return tuple(sorted(self.admitted))
        return () if self.first is None else (self.first,)

    def note(self, names: Iterable[str], whole: AccuracyBudget, *, now: float) -> bool:
        """Note the applications of a batch; `whole` is the budget of the pool. Returns whether
        there is more than one application."""
        for name in names:
            if self.first is None:
                self.first = name
            if not self.budgets and name != self.first:
                self.budgets[self.first] = copy.deepcopy(whole)
                self._last_at[self.first] = now
                self.admitted = {self.first}
            if self.budgets:
                self._keep(name, now)
        return bool(self.budgets)

    def _keep(self, name: str, now: float) -> None:
        """Give an application a place, if need be the place of an application that is idle or has
        few rows."""
        if name not in self.budgets:
            if len(self.budgets) >= MOST_APPLICATIONS:
                lacking = [rival for rival in self.budgets if not self.is_bounded(rival)]
                idle = [rival for rival, at in self._last_at.items() if now - at > IDLE_S]
                evicted = min(lacking, key=lambda rival: self.budgets[rival].run, default=None)
                if idle:
                    evicted = min(idle, key=self._last_at.__getitem__)
                if evicted is None:
                    self.crowded += 1
                    return
                del self.budgets[evicted], self._last_at[evicted]
                self.admitted.discard(evicted)
                self._counted.discard(evicted)
            self.budgets[name] = AccuracyBudget(self._loss, self._promise)
            self.budgets[name].forget(self._positions)
        self._last_at[name] = now

    def is_bounded(self, name: str) -> bool:
        """Whether enough rows of an application were judged for its bound."""
        budget = self.budgets.get(name)
        return (
            budget is not None and most_wrong(len(budget.rows), budget.loss, budget.confidence) >= 0
        )

    def counts(self, name: str) -> bool:
        """Whether an application's rows tune thresholds."""
        return not self._counted or name in self._counted

    def exclude(self, name: str) -> bool:
        """Let no request of an application leave; returns whether requests could leave before."""
        was_admitted = name in self.admitted
        self.admitted.discard(name)
        return was_admitted

    def fits(self, name: str, thresholds: Mapping[int, float]) -> bool:
        """Whether thresholds keep within the bound for an application's own rows."""
        budget, ramps = self.budgets[name], list(thresholds)
        unsure, agrees = budget.rows.verdicts(ramps)
        if not ramps or not budget.may_leave:
            return False
        count = int(np.isfinite(unsure).sum(0).min())
        most = most_wrong(count, budget.loss, budget.confidence)
        search = ThresholdSearch(leaving(unsure), agrees, (0.0,) * len(ramps), most)
        return most >= 0 and search.cost(np.array([*thresholds.values()])) <= most

    def admit(self, thresholds: Mapping[int, float]) -> bool:
        """Admit the applications whose rows fit these thresholds; returns whether they have
        changed."""
        if not self.budgets:
            return False
        before, self.admitted = self.admitted, {n for n in self.budgets if self.fits(n, thresholds)}
        bounded = {name for name in self.budgets if self.is_bounded(name)}
        self._counted = {*(self.admitted or bounded)}
        return before != self.admitted

    def forget(self, positions: int) -> None:
        """Forget judged rows, because ramps have new weights."""
        self._positions = positions
        for budget in self.budgets.values():
            budget.forget(positions)

    def doubt_idle(self, before: float) -> bool:
        """Exclude applications without a row after `before`; returns whether there were any."""
        idle = [name for name, at in self._last_at.items() if at <= before]
        self._counted.difference_update(idle)
        for name in self.admitted.intersection(idle):
            self.budgets[name].doubt()
        active = self.admitted.difference(idle)
        self.admitted, changed = active, active != self.admitted
        return changed

    @property
    def idle_at(self) -> float:
        """Time of the last row of the application that has been idle longest and may leave."""
        waiting = self.admitted | self._counted if self.budgets else ()
        return min((self._last_at[name] for name in waiting), default=math.inf)


def part_of(report: ExitReport, rows: Sequence[int]) -> ExitReport:
    """Return the report of some rows of a batch."""
    if len(rows) == len(report.left):
        return report
    return ExitReport(
        report.ramps,
        tuple([report.uncertainty[row] for row in rows]),
        tuple([report.agrees[row] for row in rows]),
        tuple([report.left[row] for row in rows]),
        report.stage_s,
        tuple([report.answers[row] for row in rows]) if report.answers else (),
    )
