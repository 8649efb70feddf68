"""Goals of this reproduction for the measured figures, as lines that a person can check.

Gains are paired: for each seed the difference of two schedulers on the same requests, then means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from slacktide_papers.harness.experiments import Contender, Goal, Point, ResultRow
from slacktide_papers.orloj.cases import GAIN_CASES
from slacktide_papers.orloj.experiments import (
    FAIR,
    FAIR_CASE,
    FAIR_SLO,
    NOTICED,
    ORACLE,
    ORLOJ,
    ORLOJ_BY_CLASS,
    ORLOJ_TEXT,
    PUBLISHED,
    SLACK,
    SYMPHONY,
    OrlojCell,
)
from slacktide_papers.orloj.play import Finish
from slacktide_papers.orloj.published import SLOS, printed_finish


@dataclass(frozen=True, slots=True)
class FinishRow(ResultRow):
    """The finish rate of one scheduler in one case at one SLO: a mean over seeds."""

    case: str
    slo_x_p99: float
    scheduler: str
    published: float | None
    """Rate as printed; None if the paper prints none."""
    measured_mean: float
    measured_se: float | None
    """Standard error of the mean; None with one seed."""
    seeds: int
    at: float | None
    """Position on the x axis of a figure; None in a table."""
    finish_per_class: Mapping[str, float]
    """Mean finish rate by application, shortest first."""


def row_of(point: Point[OrlojCell], finishes: Sequence[Finish]) -> FinishRow:
    """The row of a point, from one outcome for each seed."""
    rates = [finish.rate for finish in finishes]
    slo, label = point.first.slo, point.contender.label
    in_table = point.experiment.startswith("table")
    return FinishRow(
        point.experiment,
        point.setting,
        point.case,
        slo,
        label,
        printed_finish(point.case, slo, label) if in_table else None,
        fmean(rates),
        standard_error(rates),
        len(rates),
        point.at,
        {
            name: fmean(finish.rate_of(name) for finish in finishes if finish.submitted.get(name))
            for name in finishes[0].submitted
        },
    )


def standard_error(values: list[float]) -> float | None:
    """Standard error of the mean of `values`; None if there is only one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


BEST_SHARE = 0.95
MEAN_ERROR = 0.04
OVER_ORLOJ = {
    "P": dict(zip(SLOS, (2.4, 3.7, 1.7, 0.8, 0.3), strict=True)),
    "Q": dict(zip(SLOS, (2.9, 4.8, 6.0, 6.1, 6.1), strict=True)),
}
"""Minimum gain of `slack` over Orloj's strongest reading, by SLO: mean of 13 cases, in points."""
OVER_TEXT = {"P": 5.0, "Q": 4.0}
"""Minimum gain of `slack` over `orloj_text`, in points: mean over the tight SLOs."""
TIGHT = 2.0
"""Largest SLO that counts as tight, × P99."""
WITH_NOTICE = {1.5: 8.0, 2.0: 6.0}
"""Minimum gain under P (points) of `slack` with notice over Orloj's strongest reading, by SLO."""
WORST = -1.0
"""Minimum gain of `slack` over Orloj's strongest reading in any single row, in points."""
BEHIND_ORACLE = 1.0
"""Maximum points, on average under P, by which `slack` may be behind `oracle_slack`."""
CELLS_OVER_SYMPHONY = 0.9
"""Minimum share of the cells (case, SLO, seed) in which `slack` is at least as good as Symphony."""
LONG_CLASS = 10.0
"""Maximum points by which `slack` with θ = 2 may serve the long class worse than `orloj`."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Outcomes of one case at one SLO, by contender and seed."""

    case: str
    slo: float
    runs: dict[Contender, dict[int, Finish]] = field(default_factory=dict)

    def mean(self, contender: Contender) -> float:
        return fmean(run.rate for run in self.runs[contender].values())


def goals_of(measured: Iterable[tuple[Point[OrlojCell], list[Finish]]]) -> list[Goal]:
    """Goals that the points of Tables 2 and 3 cover."""
    by_setting: dict[str, dict[tuple[str, float], _Row]] = {}
    for point, finishes in measured:
        if point.case in GAIN_CASES and point.experiment in ("table-2", "table-3"):
            rows = by_setting.setdefault(point.setting, {})
            key = point.case, point.first.slo
            runs = {cell.seed: run for cell, run in zip(point.cells, finishes, strict=True)}
            rows.setdefault(key, _Row(*key)).runs[point.contender] = runs
    return [
        goal
        for setting, rows in by_setting.items()
        for make in _GOALS[setting]
        for goal in make(_View(setting, list(rows.values())))
    ]


@dataclass(frozen=True, slots=True)
class _View:
    """Measurements under one setting."""

    setting: str
    rows: list[_Row]

    def with_all(self, *contenders: Contender, slos: Iterable[float] = SLOS) -> list[_Row]:
        """Rows, at one of `slos`, in which all of `contenders` were measured."""
        chosen_slos = set(slos)
        return [
            row
            for row in self.rows
            if row.slo in chosen_slos and all(contender in row.runs for contender in contenders)
        ]

    def gains(self, rows: list[_Row], contender: Contender, rival: Contender) -> list[float]:
        """Gain of `contender` over `rival`, in points: a mean over `rows` for each common seed."""
        by_seed: dict[int, list[float]] = {}
        for row in rows:
            base = row.runs[rival]
            for seed, run in row.runs[contender].items():
                if seed in base:
                    by_seed.setdefault(seed, []).append(100.0 * (run.rate - base[seed].rate))
        return [fmean(gains) for gains in by_seed.values()]

    def goal(self, metric: str, measured: str, target: str, met: bool, rows: int) -> Goal:
        return Goal(self.setting, metric, measured, target, met, f"{rows} rows")

    def at_least(
        self,
        metric: str,
        contender: Contender,
        rival: Contender,
        points: float | None,
        slos: Iterable[float],
    ) -> Iterator[Goal]:
        """The goal that `contender` gains `points` over `rival`; None: the gain is only shown."""
        rows = self.with_all(contender, rival, slos=slos)
        if not rows:
            return
        gains = self.gains(rows, contender, rival)
        mean, error = fmean(gains), standard_error(gains)
        spread = "" if error is None else f" ± {error:.1f}"
        met = points is None or round(mean, 1) >= points  # rounded as it is shown
        target = "–" if points is None else f"≥ {points:+.1f}"
        yield self.goal(metric, f"{mean:+.1f}{spread}", target, met, len(rows))


def _best_of_four(view: _View) -> Iterator[Goal]:
    rows = view.with_all(*PUBLISHED)
    if rows:
        best = sum(row.mean(ORLOJ) >= max(row.mean(rival) for rival in PUBLISHED) for row in rows)
        share = best / len(rows)
        metric = "orloj is the best of the four published systems"
        measured = f"{best} of {len(rows)} rows ({share:.0%})"
        met = share >= BEST_SHARE
        yield view.goal(metric, measured, f"≥ {BEST_SHARE:.0%}", met, len(rows))


def _close_to_print(view: _View) -> Iterator[Goal]:
    for contender in (ORLOJ, ORLOJ_BY_CLASS, ORLOJ_TEXT, *PUBLISHED[:-1]):
        column = contender.policy.removesuffix("_text")
        errors = [
            abs(row.mean(contender) - printed)
            for row in view.with_all(contender)
            if (printed := printed_finish(row.case, row.slo, column)) is not None
        ]
        if errors:
            error, judged = fmean(errors), contender is ORLOJ
            metric = f"mean absolute error of {contender.label} against the printed {column} column"
            target = f"≤ {MEAN_ERROR:.2f}" if judged else "–"
            met = error <= MEAN_ERROR or not judged
            yield view.goal(metric, f"{error:.3f}", target, met, len(errors))


def _over_orloj(view: _View) -> Iterator[Goal]:
    for reading in (ORLOJ_BY_CLASS, ORLOJ):
        for slo, points in OVER_ORLOJ[view.setting].items():
            metric = f"slack over {reading.label} at {slo:g} × P99"
            judged = points if reading is ORLOJ_BY_CLASS else None
            yield from view.at_least(metric, SLACK, reading, judged, (slo,))


def _over_text(view: _View) -> Iterator[Goal]:
    metric = f"slack over orloj_text at ≤ {TIGHT:g} × P99"
    tight = [slo for slo in SLOS if slo <= TIGHT]
    yield from view.at_least(metric, SLACK, ORLOJ_TEXT, OVER_TEXT[view.setting], tight)


def _over_symphony(view: _View) -> Iterator[Goal]:
    rows = view.with_all(SLACK, SYMPHONY)
    if rows:
        gains = [
            100.0 * (run.rate - row.runs[SYMPHONY][seed].rate)
            for row in rows
            for seed, run in row.runs[SLACK].items()
        ]
        ahead = sum(gain >= 0.0 for gain in gains)
        share = ahead / len(gains)
        measured = f"{ahead} of {len(gains)} ({share:.0%}); mean {fmean(gains):+.1f}"
        metric = "cells in which slack is at least as good as symphony"
        met = share >= CELLS_OVER_SYMPHONY
        yield view.goal(metric, measured, f"≥ {CELLS_OVER_SYMPHONY:.0%}", met, len(rows))


def _worst_row(view: _View) -> Iterator[Goal]:
    rows = view.with_all(SLACK, ORLOJ_BY_CLASS)
    if rows:
        gains = [fmean(view.gains([row], SLACK, ORLOJ_BY_CLASS)) for row in rows]
        gain = min(gains)
        worst = rows[gains.index(gain)]
        metric = f"slack over {ORLOJ_BY_CLASS.label}, worst row"
        measured = f"{gain:+.1f} ({worst.case} at {worst.slo:g} ×)"
        yield view.goal(metric, measured, f"≥ {WORST:+.1f}", round(gain, 1) >= WORST, len(rows))


def _with_notice(view: _View) -> Iterator[Goal]:
    for slo, points in WITH_NOTICE.items():
        notice = f"slack with notice of {NOTICED.notice:g} × alone"
        metric = f"{notice} over {ORLOJ_BY_CLASS.label} at {slo:g} × P99"
        yield from view.at_least(metric, NOTICED, ORLOJ_BY_CLASS, points, (slo,))


def _behind_oracle(view: _View) -> Iterator[Goal]:
    rows = view.with_all(SLACK, ORACLE)
    if rows:
        behind = -fmean(view.gains(rows, SLACK, ORACLE))
        beaten = sum(
            max(row.mean(rival) for rival in row.runs if rival is not NOTICED) > row.mean(ORACLE)
            for row in rows
        )
        judged = view.setting == "P"
        metric = "slack behind oracle_slack, mean of all rows"
        measured = f"{behind:.1f}" + (f"; no bound in {beaten} rows" if beaten else "")
        target = f"≤ {BEHIND_ORACLE:.1f}" if judged else "–"
        met = round(behind, 1) <= BEHIND_ORACLE or not judged
        yield view.goal(metric, measured, target, met, len(rows))


def _long_class(view: _View) -> Iterator[Goal]:
    for row in view.with_all(FAIR, ORLOJ, slos=(FAIR_SLO,)):
        if row.case == FAIR_CASE:
            orloj, fair = (
                fmean(run.rate_of("long") for run in row.runs[contender].values())
                for contender in (ORLOJ, FAIR)
            )
            behind = 100.0 * (orloj - fair)
            metric = f"long class with θ = 2 behind orloj, {FAIR_CASE} at {FAIR_SLO:g} × P99"
            met = behind <= LONG_CLASS
            yield view.goal(metric, f"{behind:.1f}", f"≤ {LONG_CLASS:.0f}", met, 1)


_BOTH = (_over_orloj, _over_text, _over_symphony, _worst_row)
_GOALS: Mapping[str, tuple[Callable[[_View], Iterator[Goal]], ...]] = {
    "P": (_best_of_four, _close_to_print, *_BOTH, _with_notice, _behind_oracle, _long_class),
    "Q": (*_BOTH, _behind_oracle),
}
