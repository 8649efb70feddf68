"""What the rows should show, as lines a person can check: goals of this reproduction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from slacktide.profiles.amdahl import AmdahlFit
from slacktide.reproduce.harness.experiments import Goal
from slacktide.reproduce.sponge.experiments import FA2, JOINT, VERTICAL, static, whole
from slacktide.reproduce.sponge.rows import CoresRow
from slacktide.reproduce.sponge.setting import CORES, SETTINGS, Setting

MEDIAN_ERROR, WORST_ERROR = 0.10, 0.35
"""Of the fit, relative, over the 30 points."""
OVER_CLAIRVOYANT = 1.2
"""Mean cores of `vertical`, at most, as a multiple of the clairvoyant's."""
OF_WHOLE = 0.5
"""The same, of what the static comparison has. (The paper has 0.8.)"""
BELOW_FA2 = 15.0
"""So many times fewer violations beyond the unavoidable than `fa2`."""
EQUAL = 0.1
"""Points by which violations may differ and still be called equal."""
SETTLED = 1.0
"""Percent of violations, at most, of `joint` at four times the load, once replicas are up."""

_Judged: TypeAlias = tuple[str, str, str, bool]
"""(what, measured, wanted, met)"""


def fit_goals(fit: AmdahlFit) -> list[Goal]:
    """Figure 3."""
    return [
        Goal("figure-3", what, f"{100 * error:.1f} %", f"≤ {100 * most:g} %", error <= most)
        for what, error, most in (
            ("median relative error of the fit", fit.median_error, MEDIAN_ERROR),
            ("worst relative error of the fit", fit.worst_error, WORST_ERROR),
        )
    ]


def goals_of(rows: Iterable[CoresRow]) -> list[Goal]:
    """Every goal that the rows can speak of."""
    by_setting: dict[str, dict[str, CoresRow]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, {})[row.policy] = row
    return [
        Goal(name, *goal)
        for name, found in by_setting.items()
        for goal in _of(SETTINGS[name], found)
    ]


def _of(setting: Setting, rows: Mapping[str, CoresRow]) -> Iterator[_Judged]:
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
        what = f"beyond the unavoidable, against {full.policy}"
        yield what, f"{beyond:.2f} %", f"≤ {least:.2f} %", _at_most(beyond, least)
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
        what = "joint ÷ vertical: cores; points of violations"
        yield what, f"{times:.2f} ×; {more:+.2f}", f"≤ 1 ×; {EQUAL:+.1f}", met


def _cores(ours: CoresRow, other: str, cores: float, most: float) -> _Judged:
    times = f"{ours.mean_cores / cores:.2f} ×"
    return f"cores ÷ {other}", times, f"≤ {most:g} ×", _at_most(ours.mean_cores, most * cores)


def _cheapest(ours: CoresRow, sizes: Iterable[CoresRow]) -> _Judged:
    equal = [row.mean_cores for row in sizes if row.violation_rate <= ours.violation_rate]
    cheapest = min(equal, default=math.inf)
    what = "cores, against the cheapest equal static size"
    wanted = f"≤ {cheapest:.2f}" if equal else "none equal"
    return what, f"{ours.mean_cores:.2f}", wanted, ours.mean_cores <= cheapest


def _below_fa2(ours: CoresRow, fa2: CoresRow) -> _Judged:
    few, many = ours.beyond_rate, fa2.beyond_rate
    times = math.inf if few <= 0.0 < many else many / few if few > 0.0 else 1.0
    shown = "none" if times == math.inf else f"{times:.1f} ×"
    what = "beyond the unavoidable, fa2 ÷ ours"
    return what, shown, f"≥ {BELOW_FA2:g} ×", times >= BELOW_FA2


def _settled(setting: Setting, joint: CoresRow) -> Iterator[_Judged]:
    late = _points(joint.violation_rate)
    what = f"joint after {setting.settles_s:g} s, {joint.mean_cores:.1f} cores: violations"
    yield what, f"{late:.2f} %", f"≤ {SETTLED:g} %", _at_most(late, SETTLED)
    had = f"{joint.needed}, had {joint.replicas}"
    yield "joint says how many instances are needed", had, "≥ 1", joint.needed >= 1


def _points(rate: float) -> float:
    return 100.0 * rate


def _at_most(value: float, most: float) -> bool:
    """As it is shown: to a hundredth."""
    return round(value, 2) <= round(most, 2)
