"""Result rows, and the goals they should meet, as lines that a person can check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slacktide_papers.apparate.class_groups import GROUPED
from slacktide_papers.apparate.experiments import (
    APPARATE,
    AUTO,
    MEMORY,
    MEMORY_RELEASE,
    MEMORY_RUN,
    OFFLINE,
    RELEASE,
    RUN,
    RUN_AUTO,
    SHRINK,
    VANILLA,
    ExitCell,
)
from slacktide_papers.apparate.live import LiveStream
from slacktide_papers.apparate.play import LOSS, PlayedExits
from slacktide_papers.apparate.published import PRINTED, TEXT, VIDEO
from slacktide_papers.apparate.tuning import TimedSearch
from slacktide_papers.harness.experiments import Goal, Point, ResultRow


@dataclass(frozen=True, slots=True)
class ExitRow(ResultRow):
    """One contender on one stream. Savings are shares of the latency without exits."""

    case: str
    policy: str
    kind: str
    """`video` or `text`."""
    on_time: float
    """Share of requests answered in time."""
    p25_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    saved_p25: float
    saved_p50: float
    saved_p99: float
    agreement: float
    """Share of answers that equal the model's own."""
    windows: float
    """Share of windows of 512 answers in which at least 1 − loss equal the model's own."""
    exits: float
    """Share of answers given by ramps."""
    ramps: float
    """Active ramps, averaged over time."""
    moves: int
    rows: float
    """Mean rows of a batch."""
    busy: float
    load: float
    """Arrival rate as a multiple of peak throughput with full batches, if it was searched."""
    caught: float | None
    """Share of changes of the model's answer that were answered within two frames."""
    delay_p95: float | None
    """95th percentile of the delay to an answer that lasts, in frames."""
    remembered: float
    """Share of remembered answers."""
    printed: str


def rows_of(
    measured: Sequence[tuple[Point[ExitCell], list[PlayedExits]]], videos: Mapping[str, bool]
) -> list[ExitRow]:
    """The row of every point. `videos`: by stream, whether it is a video."""
    without = {
        (point.experiment, point.setting, point.case): runs[0]
        for point, runs in measured
        if point.contender == VANILLA
    }
    rows = []
    for point, (run, *_) in measured:
        vanilla = without[point.experiment, point.setting, point.case].latency_ms
        kind = VIDEO if videos[point.setting] else TEXT
        label = point.contender.label
        at = point.case if (point.experiment, kind, point.case) in PRINTED else label
        quick = label == VANILLA.label
        p25, p50, p99 = (
            1.0 - run.latency_ms[at] / vanilla[at] if vanilla[at] else 0.0 for at in (25, 50, 99)
        )
        rows.append(
            ExitRow(
                experiment=point.experiment,
                setting=point.setting,
                case=point.case,
                policy=label,
                kind=kind,
                on_time=run.on_time / run.requests,
                p25_ms=run.latency_ms[25],
                p50_ms=run.latency_ms[50],
                p95_ms=run.latency_ms[95],
                p99_ms=run.latency_ms[99],
                saved_p25=p25,
                saved_p50=p50,
                saved_p99=p99,
                agreement=run.agreement,
                windows=run.windows,
                exits=run.exits,
                ramps=run.ramps,
                moves=run.moves,
                rows=run.rows,
                busy=run.busy,
                load=run.load,
                caught=run.caught,
                delay_p95=run.delay_p95,
                remembered=run.remembered,
                printed="" if quick else PRINTED.get((point.experiment, kind, at), ""),
            )
        )
    return rows


MEDIAN, QUARTER, STREAMS_MET = 0.45, 0.70, 0.75
"""Minimum saving on a video at p50 and at p25; share of the videos that must reach each."""
OF_OPTIMUM = 0.75
"""Minimum share of the offline optimum's saving."""
TEXT_MEDIAN: Mapping[str, float] = {"text": 0.50}
"""Minimum median saving on texts, by model; `ORDERED` for models where word order matters."""
ORDERED = 0.15
WINDOWS = 0.95
TAIL = {APPARATE.label: 0.02 + 0.01, RELEASE.label: 0.05 + 0.01}
"""Share by which p99 may grow: the ramp budget plus 1 %."""
HOUR_NET, HOUR_QUARTER, HOUR_MEDIAN, HOURS_MET = "chained", 0.70, 0.35, (1.0, 0.75)
"""Goals of three groups: savings at p25 and p50, and the share of videos that must reach each."""
HOUR_TAIL = {
    **dict.fromkeys((APPARATE.label, RUN.label, MEMORY_RELEASE.label), 0.03),
    **dict.fromkeys((AUTO.label, RUN_AUTO.label, MEMORY.label, MEMORY_RUN.label), 0.06),
}
CAUGHT, DELAY = 0.9, 2.0
CAPACITY = 1.3
SEARCH_MS, OF_GRID = 10.0, 0.96
MORE_ON_TIME, BELOW_BETTER = 1.3, 0.02
ON_TIME_EARLY = 0.5
APART = 0.02
"""Largest difference between the predicted and the live share of early answers."""

_Judged = tuple[str, str, str, str, bool]
"""(setting, what, measured, wanted, met)."""


def goals_of(
    rows: Sequence[ExitRow], searches: Sequence[TimedSearch], live: Sequence[LiveStream] = ()
) -> list[Goal]:
    """Goals that the rows, searches and live streams cover."""
    goals: list[_Judged] = [judged for source in searches for judged in _search(source)]
    goals += [judged for source in live for judged in _live(source)]
    main = [row for row in rows if row.experiment in ("figure-13", "figure-16")]
    for row in main:
        if row.policy in (APPARATE.label, AUTO.label):
            goals += _accuracy(row)
    for name in (APPARATE.label, AUTO.label):
        goals += _videos([row for row in main if row.kind == VIDEO], name)
    for row in main:
        if row.kind == TEXT and row.policy in (APPARATE.label, AUTO.label):
            least = TEXT_MEDIAN.get(row.setting.partition("/")[0], ORDERED)
            goals.append(_least(row, "median saved", row.saved_p50, least))
        if row.policy in TAIL:
            most = TAIL[row.policy]
            shown = f"{-row.saved_p99:+.1%}"
            metric = f"{row.policy}: p99 over vanilla"
            goals.append((row.setting, metric, shown, f"≤ {most:+.0%}", -row.saved_p99 <= most))
    goals += _modes([row for row in rows if row.experiment == "modes"])
    goals += _hours([row for row in rows if row.experiment == "hours"])
    goals += _capacity([row for row in rows if row.experiment.startswith("capacity")])
    for row in rows:
        if row.experiment == "deadline" and row.policy == AUTO.label:
            goals.append(_least(row, "on time at 0.7 × the model", row.on_time, ON_TIME_EARLY))
    return [Goal(*goal) for goal in goals]


def _search(search: TimedSearch) -> Iterator[_Judged]:
    metric = f"search, {search.ramps} ramps"
    if search.of_grid is None:
        met = search.search_ms <= SEARCH_MS
        yield search.table, metric, f"{search.search_ms:.1f} ms", f"≤ {SEARCH_MS:g} ms", met
        return
    shown, target = f"{search.of_grid:.1%}", f"≥ {OF_GRID:.0%}"
    yield search.table, f"{metric}: of the grid's saving", shown, target, search.of_grid >= OF_GRID


def _live(stream: LiveStream) -> Iterator[_Judged]:
    met = stream.agreement[0] >= 1.0 - LOSS
    shown = f"{stream.agreement[0]:.1%}"
    yield stream.stream, "live: answers that are the model's", shown, f"≥ {1.0 - LOSS:.0%}", met
    apart, target = stream.exits[0] - stream.exits[1], f"≤ {APART:.0%} apart"
    metric = "left early, live over predicted"
    yield stream.stream, metric, f"{apart:+.1%}", target, abs(apart) <= APART


def _accuracy(row: ExitRow) -> Iterator[_Judged]:
    yield _least(row, "answers that are the model's", row.agreement, 1.0 - LOSS)
    yield _least(row, "windows of 512 in which 99 % are", row.windows, WINDOWS)


def _videos(rows: Sequence[ExitRow], name: str) -> Iterator[_Judged]:
    optimum = {row.setting: row for row in rows if row.policy == OFFLINE.label}
    models: dict[str, list[ExitRow]] = {}
    for row in [row for row in rows if row.policy == name]:
        models.setdefault(row.setting.partition("/")[0], []).append(row)
    for model, runs in models.items():
        for goal, met in (
            (f"median saved ≥ {MEDIAN:.0%}", [row.saved_p50 >= MEDIAN for row in runs]),
            (f"25th percentile saved ≥ {QUARTER:.0%}", [row.saved_p25 >= QUARTER for row in runs]),
        ):
            metric, shown = f"{name}: videos, {goal}", f"{sum(met)} of {len(met)}"
            most = sum(met) >= STREAMS_MET * len(met)
            yield model, metric, shown, f"≥ {STREAMS_MET:.0%}", most
        for row in runs:
            if row.setting in optimum:
                share = row.saved_p50 / max(optimum[row.setting].saved_p50, 1e-9)
                yield _least(row, "of what the offline optimum saves", share, OF_OPTIMUM)


def _hours(rows: Sequence[ExitRow]) -> Iterator[_Judged]:
    """The goals of three groups, for each contender over all videos of one net."""
    for name, growth in HOUR_TAIL.items():
        runs = [row for row in rows if row.policy == name and _is_goal_of_hours(row.setting)]
        if not runs:
            continue
        p25, p50 = ([getattr(row, part) for row in runs] for part in ("saved_p25", "saved_p50"))
        for part, values, least, share in (
            ("p25", p25, HOUR_QUARTER, HOURS_MET[0]),
            ("p50", p50, HOUR_MEDIAN, HOURS_MET[1]),
        ):
            met = sum(value >= least for value in values)
            shown = f"{met} of {len(runs)}, {min(values):.0%} to {max(values):.0%}"
            metric = f"{name}: {part} saved ≥ {least:.0%}"
            yield HOUR_NET, metric, shown, f"≥ {share:.0%}", met >= share * len(runs)
        right, tail = min(row.agreement for row in runs), max(-row.saved_p99 for row in runs)
        metric, target = f"{name}: answers that are the model's", f"≥ {1.0 - LOSS:.0%}"
        yield HOUR_NET, metric, f"{right:.2%}", target, right >= 1.0 - LOSS
        metric, target = f"{name}: p99 over vanilla", f"≤ {growth:+.0%}"
        yield HOUR_NET, metric, f"{tail:+.1%}", target, tail <= growth
        caught = min(row.caught or 0.0 for row in runs)
        metric, target = f"{name}: changes answered within two frames", f"≥ {CAUGHT:.0%}"
        yield HOUR_NET, metric, f"{caught:.1%}", target, caught >= CAUGHT
        delay = max(row.delay_p95 or 0.0 for row in runs)
        metric, target = f"{name}: delay to a new class, p95", f"≤ {DELAY:g} frames"
        yield HOUR_NET, metric, f"{delay:g}", target, delay <= DELAY


def _is_goal_of_hours(setting: str) -> bool:
    net, _, stream = setting.partition("/")
    return net == HOUR_NET and stream.endswith(f", {GROUPED}")


def _capacity(rows: Sequence[ExitRow]) -> Iterator[_Judged]:
    without = {(row.experiment, row.setting): row for row in rows if row.policy == VANILLA.label}
    for row in rows:
        if row.policy != VANILLA.label:
            times = row.load / max(without[row.experiment, row.setting].load, 1e-9)
            metric, target = f"{row.policy}: load ÷ vanilla, 99 % on time", f"≥ {CAPACITY:g} ×"
            yield row.setting, metric, f"{times:.2f} ×", target, times >= CAPACITY


def _modes(rows: Iterable[ExitRow]) -> Iterator[_Judged]:
    cases: dict[tuple[str, str], dict[str, ExitRow]] = {}
    for row in rows:
        cases.setdefault((row.setting, row.case), {})[row.policy] = row
    for (setting, case), by_policy in cases.items():
        auto, vanilla = by_policy[AUTO.label].on_time, by_policy[VANILLA.label].on_time
        if case == "2 × peak" and by_policy[AUTO.label].kind == VIDEO:
            times = auto / max(vanilla, 1e-9)
            metric = f"auto ÷ vanilla in time at {case}"
            target = f"≥ {MORE_ON_TIME:g} ×"
            yield setting, metric, f"{times:.2f} ×", target, times >= MORE_ON_TIME
        better = max(by_policy[RELEASE.label].on_time, by_policy[SHRINK.label].on_time)
        less = better - auto
        metric = f"auto below the better of release and shrink, {case}"
        yield setting, metric, f"{less:+.1%}", f"≤ {BELOW_BETTER:.0%}", less <= BELOW_BETTER


def _least(row: ExitRow, metric: str, value: float, least: float) -> _Judged:
    return row.setting, f"{row.policy}: {metric}", f"{value:.1%}", f"≥ {least:.0%}", value >= least
