"""`CoresRow`: one line of the results; goals look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from slacktide.reproduce.harness.experiments import Point, Row
from slacktide.reproduce.sponge.experiments import CLAIRVOYANT, KNOWING, STEADY, SpongeCell
from slacktide.reproduce.sponge.play import Played
from slacktide.reproduce.sponge.published import FIGURE_4, FIGURE_4_CORES


@dataclass(frozen=True, slots=True)
class CoresRow(Row):
    """One contender in one setting: means over seeds. Rates are shares of the requests."""

    policy: str
    violation_rate: float
    """Not answered by their deadline, whatever became of them."""
    unavoidable_rate: float
    """Of them: link time + l(1, 16) > SLO."""
    beyond_rate: float
    """The rest of the violations."""
    mean_cores: float
    """Allocated, of all instances."""
    p99_ms: float | None
    """From sending to the answer; None of the clairvoyant, who plans and runs nothing."""
    clairvoyant_cores: float | None
    """The fewest cores with which nothing servable is late; None if not computed."""
    steady_cores: float | None
    """The same if each second's cores must carry the mean rate for good (Sponge Eq. 3)."""
    replicas: int
    """Most instances at a time."""
    needed: int
    """Instances that the planner said the load needs; 0: it does not say."""
    seeds: int
    published: str
    """What the paper says of its violations; empty if nothing."""
    published_cores: str


def rows_of(measured: Sequence[tuple[Point[SpongeCell], list[Played]]]) -> list[CoresRow]:
    """The row of every point, from one outcome for each seed."""
    known = {
        (point.setting, point.contender.label): fmean(run.mean_cores for run in runs)
        for point, runs in measured
        if point.contender.policy == CLAIRVOYANT
    }
    rows = []
    for point, runs in measured:
        label = point.contender.label
        foreseen = point.contender.policy == CLAIRVOYANT
        printed = point.setting == "figure-4"
        violations = fmean(run.violation_rate for run in runs)
        unavoidable = fmean(run.unavoidable_rate for run in runs)
        rows.append(
            CoresRow(
                point.experiment,
                point.setting,
                label,
                violations,
                unavoidable,
                violations - unavoidable,
                fmean(run.mean_cores for run in runs),
                None if foreseen else fmean(run.p99_ms for run in runs),
                known.get((point.setting, KNOWING.label)),
                known.get((point.setting, STEADY)),
                max(run.replicas for run in runs),
                max(run.needed for run in runs),
                len(runs),
                FIGURE_4.get(label, "") if printed else "",
                FIGURE_4_CORES.get(label, "") if printed else "",
            )
        )
    return rows
