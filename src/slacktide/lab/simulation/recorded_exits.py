"""`RecordedExits`: ramps that answer as they did in a recording's beginning.

The rows of a simulated batch are drawn from the judged rows of the beginning, with all answers of
the ramps to them. Consecutive rows are drawn, because neighbours are often alike. Each ramp answers
after the same share of a pass as recorded. Policies and their thresholds come from the recording.

Exits built into a model are never judged, and their thresholds do not change. So rows are drawn
from all rows of the beginning, with the exits' answers up to where each row left. The times of the
stages are learnt from batches that some rows left early.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from slacktide.domain import Batch, ExitPolicy, ExitReport, Leaving, PoolId, Replica
from slacktide.lab.simulation.exit_courses import Chain, ExitCourse, played
from slacktide.planning.exits import ExitsArranged
from slacktide.profiles import BatchTimes, ExitTimes

LATEST_ROWS, LATEST_BATCHES = 4_096, 512
NEVER = (float("inf"), False)
"""Answer of a ramp without observations: no row leaves there."""

RowVerdicts = Mapping[int, tuple[float, bool]]
"""By ramp position: uncertainty about one row, and whether the ramp agreed with the model."""


@dataclass(slots=True)
class ObservedExits:
    """Observed answers of one pool's ramps, and their times."""

    rows: deque[RowVerdicts] = field(default_factory=lambda: deque(maxlen=LATEST_ROWS))
    shares: dict[int, float] = field(default_factory=dict)
    """By ramp position: share of a pass that precedes its answers, averaged exponentially."""
    stages: dict[int, float] = field(default_factory=dict)
    """Share of a pass that each stage takes, by position of a built-in exit (−1: the end)."""
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST_BATCHES))
    """Observed ÷ expected seconds of batches with built-in exits."""

    def note(
        self, batch: Batch, report: ExitReport, seconds: float, times: BatchTimes | None = None
    ) -> None:
        """Note a batch that ended `seconds` after its start. `times`: times of whole passes if the
        exits are built into the model, else None."""
        if times is not None:
            self._note_own(batch, report, seconds, times)
            return
        if batch.leaving is Leaving.SHRINK and not batch.judged:
            return
        for ramp, at in zip(report.ramps, report.stage_s, strict=False):
            share = min(1.0, at / seconds) if seconds > 0.0 else 1.0
            before = self.shares.setdefault(ramp, share)
            self.shares[ramp] = before + 0.05 * (share - before)
        for uncertainty, agrees in zip(report.uncertainty, report.agrees, strict=True):
            if agrees:
                verdicts = zip(uncertainty, agrees, strict=True)
                self.rows.append(dict(zip(report.ramps, verdicts, strict=True)))

    def _note_own(
        self, batch: Batch, report: ExitReport, seconds: float, times: BatchTimes
    ) -> None:
        shrinks = batch.leaving is Leaving.SHRINK and not batch.judged
        cores, before, expected = len(batch.replica.cores) or 1, 0.0, 0.0
        for number, ramp in enumerate((*report.ramps, -1)):
            departed = [0 <= place < number for place in report.left].count(True) if shrinks else 0
            if departed == len(report.left):
                break
            ends = (*report.stage_s, seconds)[number]
            whole = times.of(len(report.left) - departed, cores).expected
            part = (ends - before) / whole
            average = self.stages.setdefault(ramp, part)
            self.stages[ramp] = average + 0.05 * (part - average)
            before, expected = ends, expected + self.stages[ramp] * whole
        if expected > 0.0:
            self.ratios.append(seconds / expected)
        for row in report.uncertainty:
            uncertainties = zip(report.ramps, row, strict=False)
            self.rows.append({ramp: (unsure, True) for ramp, unsure in uncertainties})


class RecordedExits:
    """An `EarlyExits` for every observed pool."""

    def __init__(
        self,
        observed: Mapping[PoolId, ObservedExits],
        times: Mapping[PoolId, BatchTimes],
        generator: np.random.Generator,
    ) -> None:
        """`times` must not change. They give the times of passes with fewer rows."""
        self._observed = observed
        self._times = times
        self._generator = generator

    def learnt(self, pool: PoolId) -> None:
        """Return nothing: plans come from the recording."""

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        return ExitsArranged(replica.pool, replica.id, policy.revision, policy.ramps)

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        pool = batch.replica.pool
        observed = self._observed.get(pool, ObservedExits())
        drawn: list[list[tuple[float, bool]]] = []
        rows = observed.rows
        first = int(self._generator.integers(len(rows))) if rows else 0
        for number in range(batch.rows):
            row: RowVerdicts = rows[(first + number) % len(rows)] if rows else {}
            drawn.append([_nearest(row, ramp) for ramp in policy.ramps])
        uncertainty = [[unsure for unsure, _ in row] for row in drawn]
        chain = self._chain(batch, policy, observed, seconds)
        return played(batch, policy, uncertainty, [[r for _, r in row] for row in drawn], chain)

    def _chain(
        self, batch: Batch, policy: ExitPolicy, observed: ObservedExits, seconds: float
    ) -> Callable[[int], Chain]:
        times, cores = whole_passes(self._times[batch.replica.pool]), len(batch.replica.cores) or 1
        if observed.ratios:
            shares, ratios = observed.stages, observed.ratios
            ratio = ratios[int(self._generator.integers(len(ratios)))]
            stages = [shares.get(ramp, 0.0) for ramp in policy.ramps]
            stages.append(shares.get(-1, max(0.0, 1.0 - sum(stages))))
            ends = [ratio * end for end in accumulate(stages)]
        else:
            ends = [self._share(observed, ramp) for ramp in policy.ramps] + [1.0]
            whole = times.of(batch.rows, cores).expected
            ends = [end * seconds / whole if whole > 0.0 else 0.0 for end in ends]

        def chain(rows: int) -> Chain:
            whole = times.of(rows, cores).expected
            return [end * whole for end in ends[:-1]], ends[-1] * whole

        return chain

    @staticmethod
    def _share(observed: ObservedExits, ramp: int) -> float:
        """Return the share of a pass until a ramp answers; if unseen, that of the next ramp."""
        later = [share for position, share in observed.shares.items() if position >= ramp]
        return observed.shares.get(ramp, min(later, default=1.0))


def _nearest(row: RowVerdicts, ramp: int) -> tuple[float, bool]:
    """Return a ramp's answer to a row; if the ramp was not active, that of the last active ramp
    in front of it."""
    if ramp in row:
        return row[ramp]
    active = sorted(row)
    place = bisect_right(active, ramp)
    return row[active[place - 1]] if place else NEVER


def whole_passes(times: BatchTimes) -> BatchTimes:
    """Return the predicted times of passes that no row leaves early."""
    return times.inner if isinstance(times, ExitTimes) else times
