"""Passes of batches through a model that is cut at ramps: which rows leave when, and the report.

Applies the worker's rules in virtual time. The ramps' answers and the batch times come from an exit
table or from a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slacktide.domain import (
    Batch,
    ExitPolicy,
    ExitReport,
    Leaving,
    PoolId,
    Replica,
    RowsReleased,
    going_on,
)
from slacktide.planning.exits import ExitsArranged, RampsJudged, RampsLearnt

Chain = tuple[Sequence[float], float]
"""Seconds from the start of a pass to the answers of each active ramp, and to the end."""


@dataclass(frozen=True, slots=True)
class ExitCourse:
    """Course of one batch. All times are seconds since the batch started."""

    seconds: float
    released: tuple[tuple[float, RowsReleased], ...]
    report: ExitReport
    everywhere: RampsJudged | None = None
    """Answers of ramps at all positions, if the policy asks for them and all rows reach the end."""
    ended: Callable[[], None] | None = None
    """Called when the batch ends, unless it is stopped before."""
    learnt: RampsLearnt | None = None
    """Ramps with new weights that are published when the batch ends."""

    def until(self, seconds: float) -> ExitReport:
        """Return the report if the batch is stopped after `seconds`: no row reaches the end."""
        report = self.report
        stages = sum(stage_end <= seconds for stage_end in report.stage_s)
        return ExitReport(
            ramps=report.ramps,
            uncertainty=tuple(row[:stages] for row in report.uncertainty),
            agrees=((),) * len(report.agrees),
            left=tuple(ramp if ramp < stages else -1 for ramp in report.left),
            stage_s=report.stage_s[:stages],
        )


class EarlyExits(Protocol):
    """A model's ramps as the hardware knows them. Policies learn of them from its reports."""

    def learnt(self, pool: PoolId) -> RampsLearnt | None:
        """Return the ramps that planners get at the beginning; None if they get none."""

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        """Return the report of a replica that has opened the ramps of `policy`."""

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        """Return the course of `batch`, for which the unsplit model would take `seconds`."""


def played(
    batch: Batch,
    policy: ExitPolicy,
    uncertainty: Sequence[Sequence[float]],
    agrees: Sequence[Sequence[bool]],
    chain: Callable[[int], Chain],
) -> ExitCourse:
    """Return the course of `batch`. `uncertainty` and `agrees`: by row and active ramp; `chain`
    returns the times of a pass with a given number of rows."""
    shrinks = batch.leaving is Leaving.SHRINK and not batch.judged
    leaves = _leaving(batch, policy, uncertainty)
    if policy.enlarge and shrinks and policy.ramps:
        leaves = _enlarged(batch, leaves, policy.thresholds[-1], uncertainty, chain)
    members = list(zip(leaves, batch.members, strict=True))
    exits = tuple([ramp for ramp, member in members for _ in range(member.rows)])
    stages, end = chain(batch.rows)
    ends: tuple[bool, ...] = (True,) * len(exits)
    if shrinks and max(leaves) >= 0:
        stages, end = _shrunk(exits, len(policy.ramps), chain)
        ends = tuple([ramp < 0 for ramp in exits])
    released = []
    for number in sorted({ramp for ramp in leaves if ramp >= 0}):
        ids = tuple([member.id for ramp, member in members if ramp == number])
        event = RowsReleased(batch.id, ids, policy.ramps[number])
        released.append((stages[number], event))
    verdicts = zip(uncertainty, agrees, exits, ends, strict=True)
    row_reports = [
        (tuple(row), tuple(right)) if stays else (tuple(row[: ramp + 1]), ())
        for row, right, ramp, stays in verdicts
    ]
    report = ExitReport(
        ramps=policy.ramps,
        uncertainty=tuple([row for row, _ in row_reports]),
        agrees=tuple([right for _, right in row_reports]),
        left=exits,
        stage_s=tuple(stages),
    )
    return ExitCourse(end, tuple(released), report)


def _leaving(batch: Batch, policy: ExitPolicy, uncertainty: Sequence[Sequence[float]]) -> list[int]:
    """Return for each member the index of the first ramp that is sure of all its rows; −1 if none
    is."""
    leaves = []
    first = 0
    for place, member in enumerate(batch.members):
        rows = uncertainty[first : first + member.rows]
        first += member.rows
        sure = -1
        if batch.leaving is not Leaving.NONE and place not in batch.held:
            for number, threshold in enumerate(policy.thresholds):
                if all(row[number] < threshold for row in rows):
                    sure = number
                    break
        leaves.append(sure)
    return leaves


def _enlarged(
    batch: Batch,
    leaves: Sequence[int],
    limit: float,
    uncertainty: Sequence[Sequence[float]],
    chain: Callable[[int], Chain],
) -> list[int]:
    """Return `leaves` for a batch planned to end at its last ramp, whose threshold is `limit`."""
    last = len(uncertainty[0]) - 1
    owners = [place for place, member in enumerate(batch.members) for _ in range(member.rows)]
    remaining = [row for row, owner in enumerate(owners) if not 0 <= leaves[owner] < last]
    if not remaining:
        return list(leaves)

    def seconds(rows: int, stage: int) -> float:
        answers, end = chain(rows)
        ends = (0.0, *answers, end)
        return ends[stage + 1] - ends[stage]

    departed = [
        [0 <= leaves[owner] < stage for owner in owners].count(True) for stage in range(last)
    ]
    present = [*[len(owners) - count for count in departed], len(remaining)]
    unsure = [uncertainty[row][last] for row in remaining]
    held_rows = {at for at, row in enumerate(remaining) if owners[row] in batch.held}
    enlarged = [
        last if ramp < 0 and place not in batch.held else ramp for place, ramp in enumerate(leaves)
    ]
    for at in going_on(unsure, held_rows, present, seconds):
        if not unsure[at] < limit:
            enlarged[owners[remaining[at]]] = -1
    return enlarged


def _shrunk(exits: Sequence[int], ramps: int, chain: Callable[[int], Chain]) -> Chain:
    """Return a chain in which rows that leave skip later stages; it ends when no row is left."""
    at = 0.0
    stages: list[float] = []
    present = len(exits)
    for number in range(ramps):
        answers, _ = chain(present)
        at += answers[number] - (answers[number - 1] if number else 0.0)
        stages.append(at)
        present -= sum([ramp == number for ramp in exits])
        if not present:
            return stages, at
    answers, end = chain(present)
    return stages, at + end - answers[-1]
