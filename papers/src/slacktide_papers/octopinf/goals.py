"""Goals that this reproduction set itself, as lines that a person can check against the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import fmean

from slacktide_papers.harness.experiments import Goal, Point, ResultRow, TraceCell
from slacktide_papers.octopinf.experiments import (
    ALONE,
    BASELINES,
    FIVE_ON,
    FIXED,
    JELLYFISH,
    LARGEST,
    MADE,
    NO_CORAL,
    OCTOPINF,
    PIPELINE,
    PUBLISHED_MADE,
    RIM,
    SERVER_ONLY,
    STATIC,
    WITHOUT,
)
from slacktide_papers.octopinf.play import BIN_S, PlayedPipelines
from slacktide_papers.octopinf.setting import SECOND

PUBLISHED: Mapping[tuple[str, str], float] = {
    ("base", "distream"): 0.80,
    ("base", "rim"): 0.70,
    ("doubled", "distream"): 0.50,
    ("doubled", "jellyfish"): 0.14,
}
"""Shares of objects in time, as the paper prints them (§IV-C); its plots have no numbers."""
ABOUT = 0.10
"""Largest difference allowed between a baseline's share in time and the printed share."""
OVER_BEST = {"base": 1.16, "doubled": 1.5, "slo-50": 1.5, "slo-100": 1.5}
"""Minimum throughput of `pipeline` and of `octopinf`, as a multiple of the best baseline's."""
OF_BOUND = {"base": 0.90, "doubled": 0.80}
"""Minimum throughput of `pipeline`, as a share of the fluid bound."""
OF_SECOND = 0.88
"""Second setting: the share of a bound that `pipeline` must reach. It applies to the bound without
divided cameras if cameras are doubled and, where it is easier than `OVER_BEST`, to the fluid bound
in comparisons with `fixed` baselines."""
BEHIND = 0.01
"""Second setting: largest share of the objects by which a `fifo` baseline may be ahead."""
OVER_RIM, OVER_JELLYFISH = 5.0, 7.0
"""Minimum throughput of `pipeline` at `slo-100`, ÷ that of `rim` and `jellyfish` (paper: 7, 10)."""
IN_TIME = 0.97
"""Base setting: least share in time of the objects that are offered, or that the bound allows."""
OF_MADE = 0.95
"""Minimum ratio of the objects in time during surges to those under a plan made for the surge."""
ACTION_KINDS: Mapping[str, Sequence[str]] = {
    "variants": ("changes of variant", "frames of other variants"),
    "exits": ("rows that left early",),
    "distribution": ("plates told by width",),
    "cores": ("lanes resized",),
    "placement": ("stages moved",),
}
"""Counts that show each mechanism at work."""
SURGE_S = (240, 360, 480)
"""(begin of a surge, its end, length of the cycle) in seconds."""
PER_CPU_S = 21_000
"""Stage requests per CPU second at which thirteen simulated hours take 20 minutes."""


@dataclass(frozen=True, slots=True)
class FleetRow(ResultRow):
    """One contender in one setting: means over seeds."""

    contender: str
    effective: float
    """Objects at the sinks in time, per second."""
    in_time: float
    """Share in time of the objects offered."""
    offered: float
    """Objects offered per second."""
    bounds: Mapping[str, float]
    """By name (`play.BOUNDS`): bounds of `effective` for any placement; empty: not computed. Those
    named `weighted` are bounds of the objects weighted by accuracy."""
    complete: float
    partial: float
    lost: float
    """`complete`, `partial` and `lost` are shares of frames."""
    p50_ms: float
    p99_ms: float
    memory_gb: float
    wasted: float
    plans: int
    early: int
    scaled: int
    per_cpu_s: float
    """Stage requests simulated per CPU second."""
    seeds: int
    published: float | None
    """Share in time, as printed."""
    weighted: float = 0.0
    """Objects in time, weighted by the accuracy of their answers, as a share of the objects
    offered."""
    within: float = 0.0
    """Most objects in time whose mean accuracy is within two points of the best, as a share of the
    objects offered."""
    cores: float = 0.0
    """Mean cores held by all lanes; `cores_busy`: mean cores of lanes that are running a batch
    (`all-five`)."""
    cores_busy: float = 0.0
    acted: Mapping[str, int] = field(default_factory=dict)
    """Number of actions by kind of action, all seeds together (`all-five`)."""

    @property
    def bound(self) -> float | None:
        """The fluid bound of `effective`; None: not computed."""
        return self.bounds.get("fluid")

    def of_bound(self, name: str) -> float | None:
        """Throughput, as it is counted in a bound, as a share of it; None: not computed."""
        shares = {"weighted": self.weighted, "within": self.within}
        share = shares.get(name.split(",")[0])
        throughput = self.effective if share is None else share * self.offered
        bound = self.bounds.get(name)
        return throughput / bound if bound else None


def rows_of(measured: Sequence[tuple[Point[TraceCell], list[PlayedPipelines]]]) -> list[FleetRow]:
    """The row of every point."""
    bounds = {
        (point.experiment, point.setting): {
            name: fmean(run.bounds[name] for run in runs) for name in runs[0].bounds
        }
        for point, runs in measured
        if all(run.bounds for run in runs)
    }
    return [_row(point, runs, bounds) for point, runs in measured]


def _row(
    point: Point[TraceCell],
    runs: Sequence[PlayedPipelines],
    bounds: Mapping[tuple[str, str], Mapping[str, float]],
) -> FleetRow:
    effective = fmean(run.in_time / run.seconds for run in runs)
    setting = point.setting.removeprefix(SECOND)
    frames = max(1, sum(run.frames for run in runs))
    complete, partial = (
        sum(pair) / frames for pair in zip(*[(r.complete, r.partial) for r in runs], strict=True)
    )
    contender = point.contender
    plain = not contender.options or contender in FIXED
    return FleetRow(
        point.experiment,
        point.setting,
        contender.label,
        effective,
        fmean(run.in_time / max(1, run.offered) for run in runs),
        fmean(run.offered / run.seconds for run in runs),
        bounds.get((point.experiment, point.setting), {}),
        complete,
        partial,
        1.0 - complete - partial,
        fmean(run.latency_ms[50] for run in runs),
        fmean(run.latency_ms[99] for run in runs),
        fmean(run.memory_gb for run in runs),
        fmean(run.wasted for run in runs),
        sum(run.plans[0] for run in runs),
        sum(run.plans[1] for run in runs),
        sum(run.plans[2] for run in runs),
        fmean(run.requests / run.cpu_s if run.cpu_s else 0.0 for run in runs),
        len(runs),
        PUBLISHED.get((setting, contender.policy)) if plain else None,
        fmean(run.worth / max(1, run.offered) for run in runs),
        fmean(run.within / max(1, run.offered) for run in runs),
        fmean(run.cores[0] if run.cores else 0.0 for run in runs),
        fmean(run.cores[1] if run.cores else 0.0 for run in runs),
        acted={
            action: sum(run.acted.get(action, 0) for run in runs)
            for action in sorted({action for run in runs for action in run.acted})
        },
    )


def goals_of(
    rows: Sequence[FleetRow], measured: Sequence[tuple[Point[TraceCell], list[PlayedPipelines]]]
) -> list[Goal]:
    """The goals of all settings that have the rows for them."""
    goals: list[Goal] = []
    for experiment in ("figure-6", "figure-8", "figure-9"):
        experiment_rows = [row for row in rows if row.experiment == experiment]
        for setting in dict.fromkeys(row.setting for row in experiment_rows):
            named = {row.contender: row for row in experiment_rows if row.setting == setting}
            goals += _of_setting(setting, named)
    goals += _of_second_settings([row for row in rows if row.experiment == "fp32"])
    goals += _ablations({row.contender: row for row in rows if row.experiment == "figure-10"})
    goals += _all_five({row.contender: row for row in rows if row.experiment == "all-five"})
    for row in rows:
        if row.experiment == "figure-11":
            metric = f"{row.contender}: requests per CPU s"
            goals.append(_at_least("figure-11", metric, row.per_cpu_s, PER_CPU_S, ",.0f"))
    runs = {p.contender.label: r[0] for p, r in measured if p.experiment == "surges"}
    return goals + list(_surges(runs))


def _of_setting(setting: str, rows: Mapping[str, FleetRow]) -> Iterator[Goal]:
    ours, published = rows.get(PIPELINE.label), rows.get(OCTOPINF.label)
    if ours is None:
        return
    planned = [row for row in (ours, published) if row is not None]
    rivals = [row for baseline in BASELINES if (row := rows.get(baseline.label)) is not None]
    if rivals:
        best = max(rivals, key=lambda row: row.effective)
        for row in planned:
            metric = f"{row.contender} ÷ best baseline ({best.contender})"
            yield _at_least(setting, metric, _ratio(row, best), OVER_BEST[setting])
        least = min(row.memory_gb for row in rivals)
        for row in planned:
            metric, shown = f"memory of {row.contender}", f"{row.memory_gb:.1f} GB"
            yield Goal(setting, metric, shown, f"≤ {least:.1f} GB", row.memory_gb <= least)
    if published is not None:
        yield _at_least(
            setting, "pipeline ÷ octopinf", _ratio(ours, published), 1.0, tolerance=0.005
        )
    if ours.bound is not None and setting in OF_BOUND:
        share = ours.effective / ours.bound
        yield _at_least(setting, "pipeline ÷ fluid bound", share, OF_BOUND[setting])
    if setting == "base":
        most = ours.offered if ours.bound is None else min(ours.offered, ours.bound)
        reachable = IN_TIME * most / max(1e-9, ours.offered)
        yield _at_least(setting, "pipeline: share in time", ours.in_time, reachable, ".3f")
    if setting == "slo-100":
        for rival, target in ((RIM, OVER_RIM), (JELLYFISH, OVER_JELLYFISH)):
            if rival.label in rows:
                metric = f"pipeline ÷ {rival.label}"
                yield _at_least(setting, metric, _ratio(ours, rows[rival.label]), target)
    for row in rivals:
        if row.published is not None:
            metric = f"{row.contender}: share in time"
            printed = f"{row.published:.2f} ± {ABOUT:.2f}"
            met = abs(row.in_time - row.published) <= ABOUT
            yield Goal(setting, metric, f"{row.in_time:.2f}", printed, met)


def _of_second_settings(rows: Sequence[FleetRow]) -> Iterator[Goal]:
    for setting in dict.fromkeys(row.setting for row in rows):
        named = {row.contender: row for row in rows if row.setting == setting}
        yield from _of_second(setting, named)


def _of_second(setting: str, rows: Mapping[str, FleetRow]) -> Iterator[Goal]:
    """Goals in the second setting, by objects in time, and weighted by accuracy."""
    first, largest = setting.removeprefix(SECOND), rows.get(LARGEST.label)
    if (ours := rows.get(PIPELINE.label)) is not None:
        for share, bound in (("in_time", "fluid"), ("weighted", "weighted")):
            yield from _of_measure(setting, rows, ours, attrgetter(share), bound)
        if first == "slo-100":
            for rival, printed in ((RIM, OVER_RIM), (JELLYFISH, OVER_JELLYFISH)):
                if (row := rows.get(f"{rival.label}, fixed")) is not None:
                    metric = f"pipeline ÷ {row.contender} (first setting: ≥ {printed:g})"
                    yield Goal(setting, metric, f"{_ratio(ours, row):.2f}", "–", True)
    undivided = None if largest is None else largest.of_bound("largest, undivided")
    if first == "doubled" and undivided is not None:
        yield _at_least(setting, f"{LARGEST.label} ÷ its undivided bound", undivided, OF_SECOND)


def _of_measure(
    setting: str,
    rows: Mapping[str, FleetRow],
    ours: FleetRow,
    share_of: Callable[[FleetRow], float],
    bound: str,
) -> Iterator[Goal]:
    words = "" if bound == "fluid" else f", {bound}"
    first = setting.removeprefix(SECOND)
    fixed = [row for rival in FIXED if (row := rows.get(rival.label)) is not None]
    plain = [row for rival in BASELINES if (row := rows.get(rival.label)) is not None]
    most = ours.bounds.get(bound)
    if fixed and most:
        best = max(fixed, key=share_of)
        reach = OF_SECOND * most / max(1e-9, share_of(best) * ours.offered)
        metric = f"pipeline ÷ best fixed baseline ({best.contender}; {OF_SECOND} of bound: "
        ratio = share_of(ours) / max(1e-9, share_of(best))
        target = min(OVER_BEST[first], reach)
        yield _at_least(setting, f"{metric}{reach:.2f}){words}", ratio, target)
    if plain:
        best = max(plain, key=share_of)
        metric = f"pipeline − best fifo baseline ({best.contender}){words}"
        yield _no_less(setting, metric, share_of(ours) - share_of(best), -BEHIND)
    undivided = ours.of_bound("undivided" if bound == "fluid" else f"{bound}, undivided")
    if undivided is not None and first == "doubled":
        yield _at_least(setting, f"pipeline ÷ undivided bound{words}", undivided, OF_SECOND)


def _ablations(rows: Mapping[str, FleetRow]) -> Iterator[Goal]:
    """Change of throughput in each ablation, beside the printed change; reported, never judged."""
    whole = rows.get(OCTOPINF.label)
    printed = {NO_CORAL: "about −10 %", STATIC: "a smaller drop", SERVER_ONLY: "the largest drop"}
    for contender, text in printed.items():
        row = rows.get(contender.label)
        if whole is not None and row is not None:
            change = f"{100.0 * (_ratio(row, whole) - 1.0):+.1f} %"
            yield Goal("base", f"{contender.label} (printed: {text})", change, "–", True)


def _all_five(rows: Mapping[str, FleetRow]) -> Iterator[Goal]:
    whole = rows.get(FIVE_ON.label)
    if whole is None:
        return
    alone = [row for contender in ALONE.values() if (row := rows.get(contender.label)) is not None]
    if alone:
        best = max(alone, key=lambda row: row.weighted)
        metric = f"all on − best alone ({best.contender})"
        yield _no_less("all-five", metric, whole.weighted - best.weighted, 0.0)
    for contender in WITHOUT.values():
        if (row := rows.get(contender.label)) is not None:
            metric = f"all on − {row.contender}"
            yield _no_less("all-five", metric, whole.weighted - row.weighted, -0.005)
    for name, counts in ACTION_KINDS.items():
        totals = ", ".join(f"{whole.acted.get(action, 0):,} {action}" for action in counts)
        met = any(whole.acted.get(action, 0) for action in counts)
        yield Goal("all-five", f"{name} seen to act", totals, "any", met)


def _no_less(setting: str, goal: str, value: float, least: float) -> Goal:
    points = f"{100.0 * value:+.1f} points"
    return Goal(setting, goal, points, f"≥ {100.0 * least:+.1f} points", value >= least)


def _surges(runs: Mapping[str, PlayedPipelines]) -> Iterator[Goal]:
    """Goals during surges. `octopinf` is also compared with plans of its own planner, because its
    autoscaler cannot move stages to other devices."""
    for label, late_s, references in (
        (OCTOPINF.label, 35.0, (MADE, PUBLISHED_MADE)),
        (PIPELINE.label, 3.0, (MADE,)),
    ):
        run = runs.get(label)
        if run is None:
            continue
        bins = [at for at in range(len(run.timeline)) if _in_surge(at, late_s)]
        for reference in references:
            timeline = runs[reference.label].timeline if reference.label in runs else ()
            most = math.fsum(timeline[at][1] for at in bins if at < len(timeline))
            if most > 0.0:
                share = math.fsum(run.timeline[at][1] for at in bins) / most
                metric = f"{label} ÷ {reference.label}, {late_s:g} s into it"
                yield _at_least("surges", metric, share, OF_MADE)
        if before := _instances(run):
            first, last = before
            metric = f"{label}: instances before and after"
            yield Goal("surges", metric, f"{first}, {last}", f"≤ {first}", last <= first)


def _in_surge(at: int, late_s: float) -> bool:
    """Whether a bin lies in a surge that began at least `late_s` before it."""
    begin, end, period = SURGE_S
    at_s, until_s = BIN_S * at % period, BIN_S * (at + 1) % period
    return begin + late_s <= at_s < end and until_s <= end


def _instances(run: PlayedPipelines) -> tuple[int, int] | None:
    """Instances before the first and before the last surge; None if there was only one surge."""
    begin, _, period = SURGE_S
    ends = range(begin // BIN_S - 1, len(run.instances), period // BIN_S)
    return (run.instances[ends[0]], run.instances[ends[-1]]) if len(ends) > 1 else None


def _ratio(row: FleetRow, base: FleetRow) -> float:
    return row.effective / base.effective if base.effective > 0.0 else math.inf


def _at_least(
    setting: str, goal: str, value: float, least: float, shown: str = ".2f", tolerance: float = 0.0
) -> Goal:
    return Goal(setting, goal, f"{value:{shown}}", f"≥ {least:{shown}}", value >= least - tolerance)
