"""Rows, and what they should show, as lines a person can check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slacktide_papers.apparate.experiments import (
    APPARATE,
    AUTO,
    OFFLINE,
    RELEASE,
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
    """One contender on one stream. Savings are shares of what requests take without exits."""

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
    """Share of answers that are the model's."""
    windows: float
    """Share of windows of 512 answers in which enough of them are."""
    exits: float
    """Share of answers given by ramps."""
    ramps: float
    """Active at a time."""
    moves: int
    rows: float
    """Of a batch."""
    busy: float
    printed: str


def rows_of(
    measured: Sequence[tuple[Point[ExitCell], list[PlayedExits]]], videos: Mapping[str, bool]
) -> list[ExitRow]:
    """The row of every point. `videos`: by stream, whether it is one."""
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
                printed="" if quick else PRINTED.get((point.experiment, kind, at), ""),
            )
        )
    return rows


MEDIAN, QUARTER, STREAMS_MET = 0.45, 0.70, 0.75
"""Saved on a video, at the median and the 25th percentile; on this share of the videos."""
OF_OPTIMUM = 0.75
"""Of what the offline optimum saves."""
TEXT_MEDIAN: Mapping[str, float] = {"text": 0.50}
"""Saved on texts by model; where order matters: `ORDERED`."""
ORDERED = 0.15
WINDOWS = 0.95
TAIL = {APPARATE.label: 0.02 + 0.01, RELEASE.label: 0.05 + 0.01}
"""By which p99 may grow: the budget and 1 %."""
SEARCH_MS, OF_GRID = 10.0, 0.96
MORE_ON_TIME, BELOW_BETTER = 1.3, 0.02
ON_TIME_EARLY = 0.5
APART = 0.02
"""Between what is predicted and what came."""

_Judged = tuple[str, str, str, str, bool]
"""(setting, what, measured, wanted, met)."""


def goals_of(
    rows: Sequence[ExitRow], searches: Sequence[TimedSearch], live: Sequence[LiveStream] = ()
) -> list[Goal]:
    """Every goal that these can speak of."""
    found: list[_Judged] = [judged for one in searches for judged in _search(one)]
    found += [judged for one in live for judged in _live(one)]
    main = [row for row in rows if row.experiment in ("figure-13", "figure-16")]
    for row in main:
        if row.policy in (APPARATE.label, AUTO.label):
            found += _accuracy(row)
    for name in (APPARATE.label, AUTO.label):
        found += _videos([row for row in main if row.kind == VIDEO], name)
    for row in main:
        if row.kind == TEXT and row.policy in (APPARATE.label, AUTO.label):
            least = TEXT_MEDIAN.get(row.setting.partition("/")[0], ORDERED)
            found.append(_least(row, "median saved", row.saved_p50, least))
        if row.policy in TAIL:
            most = TAIL[row.policy]
            shown = f"{-row.saved_p99:+.1%}"
            what = f"{row.policy}: p99 over vanilla"
            found.append((row.setting, what, shown, f"≤ {most:+.0%}", -row.saved_p99 <= most))
    found += _modes([row for row in rows if row.experiment == "modes"])
    for row in rows:
        if row.experiment == "deadline" and row.policy == AUTO.label:
            found.append(_least(row, "on time at 0.7 × the model", row.on_time, ON_TIME_EARLY))
    return [Goal(*each) for each in found]


def _search(one: TimedSearch) -> Iterator[_Judged]:
    what = f"search, {one.ramps} ramps"
    if one.of_grid is None:
        met = one.search_ms <= SEARCH_MS
        yield one.table, what, f"{one.search_ms:.1f} ms", f"≤ {SEARCH_MS:g} ms", met
        return
    shown, wanted = f"{one.of_grid:.1%}", f"≥ {OF_GRID:.0%}"
    yield one.table, f"{what}: of the grid's saving", shown, wanted, one.of_grid >= OF_GRID


def _live(one: LiveStream) -> Iterator[_Judged]:
    met = one.agreement[0] >= 1.0 - LOSS
    shown = f"{one.agreement[0]:.1%}"
    yield one.stream, "live: answers that are the model's", shown, f"≥ {1.0 - LOSS:.0%}", met
    apart, wanted = one.exits[0] - one.exits[1], f"≤ {APART:.0%} apart"
    what = "left early, live over predicted"
    yield one.stream, what, f"{apart:+.1%}", wanted, abs(apart) <= APART


def _accuracy(row: ExitRow) -> Iterator[_Judged]:
    yield _least(row, "answers that are the model's", row.agreement, 1.0 - LOSS)
    yield _least(row, "windows of 512 in which 99 % are", row.windows, WINDOWS)


def _videos(rows: Sequence[ExitRow], name: str) -> Iterator[_Judged]:
    optimum = {row.setting: row for row in rows if row.policy == OFFLINE.label}
    models: dict[str, list[ExitRow]] = {}
    for row in [row for row in rows if row.policy == name]:
        models.setdefault(row.setting.partition("/")[0], []).append(row)
    for model, own in models.items():
        for goal, met in (
            (f"median saved ≥ {MEDIAN:.0%}", [row.saved_p50 >= MEDIAN for row in own]),
            (f"25th percentile saved ≥ {QUARTER:.0%}", [row.saved_p25 >= QUARTER for row in own]),
        ):
            what, shown = f"{name}: videos, {goal}", f"{sum(met)} of {len(met)}"
            most = sum(met) >= STREAMS_MET * len(met)
            yield model, what, shown, f"≥ {STREAMS_MET:.0%}", most
        for row in own:
            if row.setting in optimum:
                share = row.saved_p50 / max(optimum[row.setting].saved_p50, 1e-9)
                yield _least(row, "of what the offline optimum saves", share, OF_OPTIMUM)


def _modes(rows: Iterable[ExitRow]) -> Iterator[_Judged]:
    cases: dict[tuple[str, str], dict[str, ExitRow]] = {}
    for row in rows:
        cases.setdefault((row.setting, row.case), {})[row.policy] = row
    for (setting, case), found in cases.items():
        auto, vanilla = found[AUTO.label].on_time, found[VANILLA.label].on_time
        if case == "2 × peak" and found[AUTO.label].kind == VIDEO:
            times = auto / max(vanilla, 1e-9)
            what = f"auto ÷ vanilla in time at {case}"
            wanted = f"≥ {MORE_ON_TIME:g} ×"
            yield setting, what, f"{times:.2f} ×", wanted, times >= MORE_ON_TIME
        better = max(found[RELEASE.label].on_time, found[SHRINK.label].on_time)
        less = better - auto
        what = f"auto below the better of release and shrink, {case}"
        yield setting, what, f"{less:+.1%}", f"≤ {BELOW_BETTER:.0%}", less <= BELOW_BETTER


def _least(row: ExitRow, what: str, value: float, least: float) -> _Judged:
    return row.setting, f"{row.policy}: {what}", f"{value:.1%}", f"≥ {least:.0%}", value >= least
