"""`RecordedExits`: ramps that say what they said in a recording's beginning.

Rows are drawn from the judged ones that were seen there, with everything that the ramps said of
them; when ramps answer is the share of a pass that it was there. What policies were in force is
part of the recording, and thresholds hold as they were.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slacktide.domain import Batch, ExitPolicy, ExitReport, Leaving, PoolId, Replica
from slacktide.engine import BatchTimes
from slacktide.planning.exits import ExitsArranged
from slacktide.simulation.exit_courses import Chain, ExitCourse, played

LATEST_ROWS = 4_096
NEVER = (float("inf"), False)
"""Of a ramp of which nothing was seen: no row leaves there."""

Said = Mapping[int, tuple[float, bool]]
"""By position: uncertainty of a row, and whether the ramp agreed."""


@dataclass(slots=True)
class ObservedExits:
    """Of one pool: what its ramps said, and when they answered."""

    rows: deque[Said] = field(default_factory=lambda: deque(maxlen=LATEST_ROWS))
    shares: dict[int, float] = field(default_factory=dict)
    """By position: part of a pass until its answers, a mean that fades."""

    def note(self, batch: Batch, report: ExitReport, seconds: float) -> None:
        """A batch has ended, `seconds` after its start."""
        if batch.leaving is Leaving.SHRINK and not batch.judged:
            return
        for ramp, at in zip(report.ramps, report.stage_s, strict=False):
            share = min(1.0, at / seconds) if seconds > 0.0 else 1.0
            before = self.shares.setdefault(ramp, share)
            self.shares[ramp] = before + 0.05 * (share - before)
        for uncertainty, agrees in zip(report.uncertainty, report.agrees, strict=True):
            if agrees:
                said = zip(uncertainty, agrees, strict=True)
                self.rows.append(dict(zip(report.ramps, said, strict=True)))


class RecordedExits:
    """`EarlyExits` of every pool of which something was seen."""

    def __init__(
        self,
        observed: Mapping[PoolId, ObservedExits],
        times: Mapping[PoolId, BatchTimes],
        generator: np.random.Generator,
    ) -> None:
        """`times` are not to change: by them a smaller batch is quicker."""
        self._observed = observed
        self._times = times
        self._generator = generator

    def learnt(self, pool: PoolId) -> None:
        """Nothing: plans come from the recording."""

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        return ExitsArranged(replica.pool, replica.id, policy.revision, policy.ramps)

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        pool = batch.replica.pool
        observed = self._observed.get(pool, ObservedExits())
        drawn: list[list[tuple[float, bool]]] = []
        for _ in range(batch.rows):
            row: Said = {}
            if observed.rows:
                row = observed.rows[int(self._generator.integers(len(observed.rows)))]
            drawn.append([_nearest(row, ramp) for ramp in policy.ramps])
        times, cores = self._times[pool], len(batch.replica.cores) or 1
        whole = times.of(batch.rows, cores).expected

        def chain(rows: int) -> Chain:
            end = seconds * times.of(rows, cores).expected / whole if whole > 0.0 else seconds
            return [end * self._share(observed, ramp) for ramp in policy.ramps], end

        uncertainty = [[said for said, _ in row] for row in drawn]
        return played(batch, policy, uncertainty, [[r for _, r in row] for row in drawn], chain)

    @staticmethod
    def _share(observed: ObservedExits, ramp: int) -> float:
        """Part of a pass until a ramp answers; of one that was not seen, that of the next."""
        later = [share for position, share in observed.shares.items() if position >= ramp]
        return observed.shares.get(ramp, min(later, default=1.0))


def _nearest(row: Said, ramp: int) -> tuple[float, bool]:
    """What a ramp says of a row; one that was not active there, what the last one before said."""
    if ramp in row:
        return row[ramp]
    known = sorted(row)
    place = bisect_right(known, ramp)
    return row[known[place - 1]] if place else NEVER
