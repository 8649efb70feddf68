"""Goals of this reproduction for its result rows, as lines that a person can check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from slacktide.profiles import AmdahlFit
from slacktide_papers.harness.experiments import Goal, Point, ResultRow
from slacktide_papers.sponge.experiments import (
    CLAIRVOYANT,
    FA2,
    JOINT,
    KNOWING,
    STEADY,
    VERTICAL,
    SpongeCell,
    static,
    whole,
)
from slacktide_papers.sponge.play import Played
from slacktide_papers.sponge.setting import CORES, SETTINGS, SpongeSetting

FIGURE_4: Mapping[str, str] = {
    "fa2": "≈ 5 %",
    "static-8": "some",
    "static-16": "≈ 0",
    "vertical": "< 0.3 %",
}
"""The paper's claims about violations in Figure 4, a plot without numbers, by our name for the
policy."""

FIGURE_4_CORES: Mapping[str, str] = {"static-16": "16", "vertical": "< 12.8"}
"""Mean cores in the paper, by our name for the policy. The paper says that Sponge, here `vertical`,
needs over a fifth fewer than 16."""


@dataclass(frozen=True, slots=True)
class CoresRow(ResultRow):
    """One contender in one setting: means over seeds. Rates are shares of the requests."""

    policy: str
    violation_rate: float
    """Requests not answered by their deadline, for any reason."""
    unavoidable_rate: float
    """Violations by requests with link time + l(1, 16) > SLO."""
    beyond_rate: float
    """All other violations."""
    mean_cores: float
    """Cores allocated to all instances, averaged over time."""
    p99_ms: float | None
    """Latency from sending to the answer; None for the clairvoyant, which runs nothing."""
    clairvoyant_cores: float | None
    """The fewest cores with which nothing servable is late; None if not computed."""
    steady_cores: float | None
    """Clairvoyant cores if every second's choice must sustain the mean rate (Sponge Eq. 3)."""
    replicas: int
    """Maximum number of instances of one model at a time."""
    needed: int
    """Instances that the load needs according to the planner's status; 0: none stated."""
    seeds: int
    published: str
    """The paper's words on the policy's violations; empty if it says nothing."""
    published_cores: str


def rows_of(measured: Sequence[tuple[Point[SpongeCell], list[Played]]]) -> list[CoresRow]:
    """The row of every point, from one outcome for each seed."""
    foreseen_cores = {
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
                foreseen_cores.get((point.setting, KNOWING.label)),
                foreseen_cores.get((point.setting, STEADY)),
                max(run.replicas for run in runs),
                max(run.needed for run in runs),
                len(runs),
                FIGURE_4.get(label, "") if printed else "",
                FIGURE_4_CORES.get(label, "") if printed else "",
            )
        )
    return rows


MEDIAN_ERROR, WORST_ERROR = 0.10, 0.35
"""Largest errors of the fit, relative, over the 30 points."""
OVER_CLAIRVOYANT = 1.2
"""Maximum mean cores of `vertical`, as a multiple of those of the clairvoyant."""
OF_WHOLE = 0.5
"""Maximum mean cores of `vertical`, as a share of those of `whole` (in the paper: 0.8)."""
BELOW_FA2 = 15.0
"""Minimum factor by which `vertical` has fewer avoidable violations than `fa2`."""
EQUAL = 0.1
"""Points by which violations may differ and still be called equal."""
SETTLED = 1.0
"""Maximum violations of `joint` at four times the load, in percent, once replicas are up."""

_Judged: TypeAlias = tuple[str, str, str, bool]
"""(what, measured, wanted, met)"""


def fit_goals(fit: AmdahlFit) -> list[Goal]:
    """Goals of Figure 3."""
    return [
        Goal("figure-3", metric, f"{100 * error:.1f} %", f"≤ {100 * most:g} %", error <= most)
        for metric, error, most in (
            ("median relative error of the fit", fit.median_error, MEDIAN_ERROR),
            ("worst relative error of the fit", fit.worst_error, WORST_ERROR),
        )
    ]


def goals_of(rows: Iterable[CoresRow]) -> list[Goal]:
    """Goals that the rows cover."""
    by_setting: dict[str, dict[str, CoresRow]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, {})[row.policy] = row
    return [
        Goal(name, *goal)
        for name, by_policy in by_setting.items()
        for goal in _of(SETTINGS[name], by_policy)
    ]


def _of(setting: SpongeSetting, rows: Mapping[str, CoresRow]) -> Iterator[_Judged]:
    ours, joint = rows.get(VERTICAL.label), rows.get(JOINT.label)
    if setting.outgrows:
        if joint is not None:
            yield from _settled(setting, joint)
        return
    if ours is None:
        return
    full = rows.get(whole(setting).label)
    if full is not None:
        beyond, least = _points(ours.beyond_rate), _points(full.beyond_rate) + setting.margin
        metric = f"beyond the unavoidable, against {full.policy}"
        yield metric, f"{beyond:.2f} %", f"≤ {least:.2f} %", _at_most(beyond, least)
        yield _cores(ours, full.policy, full.mean_cores, OF_WHOLE)
    if ours.clairvoyant_cores is not None:
        least = ours.clairvoyant_cores
        yield _cores(ours, f"clairvoyant ({least:.2f})", least, OVER_CLAIRVOYANT)
    if ours.steady_cores is not None:
        least = ours.steady_cores
        yield _cores(ours, f"steady clairvoyant ({least:.2f})", least, OVER_CLAIRVOYANT)
    sizes = [row for cores in range(1, CORES + 1) if (row := rows.get(static(cores).label))]
    if sizes:
        yield _cheapest(ours, sizes)
    if FA2.label in rows:
        yield _below_fa2(ours, rows[FA2.label])
    if joint is not None:
        more = _points(joint.violation_rate - ours.violation_rate)
        times = joint.mean_cores / ours.mean_cores
        met = _at_most(joint.mean_cores, ours.mean_cores) and _at_most(more, EQUAL)
        metric = "joint ÷ vertical: cores; points of violations"
        yield metric, f"{times:.2f} ×; {more:+.2f}", f"≤ 1 ×; {EQUAL:+.1f}", met


def _cores(ours: CoresRow, reference: str, cores: float, most: float) -> _Judged:
    times = f"{ours.mean_cores / cores:.2f} ×"
    return f"cores ÷ {reference}", times, f"≤ {most:g} ×", _at_most(ours.mean_cores, most * cores)


def _cheapest(ours: CoresRow, sizes: Iterable[CoresRow]) -> _Judged:
    equal = [row.mean_cores for row in sizes if row.violation_rate <= ours.violation_rate]
    cheapest = min(equal, default=math.inf)
    metric = "cores, against the cheapest equal static size"
    target = f"≤ {cheapest:.2f}" if equal else "none equal"
    return metric, f"{ours.mean_cores:.2f}", target, ours.mean_cores <= cheapest


def _below_fa2(ours: CoresRow, fa2: CoresRow) -> _Judged:
    few, many = ours.beyond_rate, fa2.beyond_rate
    times = math.inf if few <= 0.0 < many else many / few if few > 0.0 else 1.0
    shown = "none" if times == math.inf else f"{times:.1f} ×"
    metric = "beyond the unavoidable, fa2 ÷ ours"
    return metric, shown, f"≥ {BELOW_FA2:g} ×", times >= BELOW_FA2


def _settled(setting: SpongeSetting, joint: CoresRow) -> Iterator[_Judged]:
    late = _points(joint.violation_rate)
    metric = f"joint after {setting.settles_s:g} s, {joint.mean_cores:.1f} cores: violations"
    yield metric, f"{late:.2f} %", f"≤ {SETTLED:g} %", _at_most(late, SETTLED)
    had = f"{joint.needed}, had {joint.replicas}"
    yield "joint says how many instances are needed", had, "≥ 1", joint.needed >= 1


def _points(rate: float) -> float:
    return 100.0 * rate


def _at_most(value: float, most: float) -> bool:
    """Whether `value` is at most `most`, both rounded to a hundredth, as they are shown."""
    return round(value, 2) <= round(most, 2)
