"""Experiments to reproduce: the tables and figures as points, each a mean over a few cells.

The paper's four systems take part in every table, and so do ours, other readings of Orloj's
Algorithm 1, Symphony, and a yardstick that knows every length. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from slacktide_papers.harness.experiments import Contender, Experiment, ExperimentCell, Point
from slacktide_papers.orloj.cases import EXPONENTIAL, workload_of
from slacktide_papers.orloj.published import DELAY_RATES_PER_MS, SLOS, cases

REQUESTS = 5_000
"""Requests of a full run."""


@dataclass(frozen=True, slots=True)
class OrlojContender(Contender):
    """A scheduler that takes part in an experiment."""

    notice: float = 0.0
    """Time from a request's announcement to its arrival, as a share of its time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrlojCell(ExperimentCell):
    """One contender on one case, at one SLO, with one seed."""

    contender: OrlojContender
    case: str
    slo: float
    """Deadline after the arrival, as a multiple of the P99 of the time alone."""
    requests: int = REQUESTS
    p99_ms: float | None = None
    """P99 of the time alone, in milliseconds; None: that of the case."""
    overhead_ms: float = 0.0
    """Time that every batch takes beyond its run time, unknown to the scheduler."""
    trace: tuple[float, ...] = ()
    """Arrival rates of consecutive windows, in any unit; empty: the setting's rates."""

    def __str__(self) -> str:
        return f"{self.setting} {self.case} {self.contender.label}"


YARDSTICK = "oracle_slack"
"""Only for comparison, no policy of the server: it knows the length of every request."""

CLIPPER = OrlojContender("clipper", "clipper")
NEXUS = OrlojContender("nexus", "nexus")
CLOCKWORK = OrlojContender("clockwork", "clockwork", (("tolerance", 0.0),))
"""No tolerance: batch times have no jitter here, so every overrun counts."""
ORLOJ = OrlojContender("orloj", "orloj")
PUBLISHED = (CLIPPER, NEXUS, CLOCKWORK, ORLOJ)
ORLOJ_TEXT = OrlojContender("orloj_text", "orloj_text")
ORLOJ_BY_CLASS = OrlojContender("orloj, by class", "orloj", (("times", "by_class"),))
"""Line 16 as printed, with the strongest reading of batch times. Goals are gains over this
contender."""
SYMPHONY = OrlojContender("symphony", "symphony", (("guarantee", "p99"),))
"""Newer than the paper. Where batch times vary, p99 is its stronger reading."""
SLACK = OrlojContender("slack", "slack")
ORACLE = OrlojContender(YARDSTICK, YARDSTICK)
NOTICED = OrlojContender("slack, notice 0.2", "slack", notice=0.2)
FAIR = OrlojContender("slack, theta 2", "slack", (("theta", 2.0),))

BESIDE = (ORLOJ_TEXT, ORLOJ_BY_CLASS, SYMPHONY, SLACK, ORACLE)
"""Contenders that every table has in addition to the published ones, with all seeds."""

QUEUE = "figure-12"
FAIR_CASE, FAIR_SLO = "two-modal", 2.0
"""Case and SLO at which the fairness option is measured."""

SWEEP_CASE = "three-modal"
"""Figures 13 and 14 take the distribution of Figure 8c."""

P99_MS = (500.0, 200.0, 100.0, 50.0, 30.0, 20.0, 10.0, 5.0, 2.0)
"""Figure 14: P99s that the paper names for its axis, and shorter ones."""

OVERHEAD_MS = 1.0
"""Figure 14: time of each batch beyond its run time; every real server has some."""

FEW_SEEDS = 3
"""Seeds for setting Q, contenders with notice, and figures. Tables under P have five seeds."""


@dataclass(frozen=True, slots=True)
class OrlojScope:
    """How much is to be measured."""

    settings: tuple[str, ...] = ("P", "Q")
    seeds: int = 5
    requests: int = REQUESTS
    cases: tuple[str, ...] | None = None
    """Cases to measure; None: all."""
    slos: tuple[float, ...] = SLOS
    trace: tuple[float, ...] = ()
    """Arrival rates of consecutive windows; empty: the setting's rates."""

    @property
    def size(self) -> str:
        return f"{self.requests} requests"

    def to_dict(self) -> dict[str, Any]:
        return {"scope": asdict(self)}

    def wants(self, case: str) -> bool:
        """Whether `case` is among those to be measured."""
        return self.cases is None or case in self.cases

    def seeds_of(self, setting: str, contender: OrlojContender | None = None) -> range:
        """The seeds of a contender under a setting, from 1."""
        few = setting != "P" or (contender is not None and contender.notice > 0.0)
        return range(1, (min(self.seeds, FEW_SEEDS) if few else self.seeds) + 1)


QUICK = OrlojScope(
    seeds=1,
    requests=3_000,
    cases=("std-2/0.5", "std-0.5/2", "one-modal", "two-modal", "three-modal", "bart-cnn", "static"),
    slos=(1.5, 2.0, 3.0),
)
"""Takes under two minutes: shows that everything runs, and rough results."""


def _point(
    experiment: str,
    scope: OrlojScope,
    case: str,
    seeds: Iterable[int],
    at: float | None = None,
    **fields: Any,
) -> Point[OrlojCell]:
    """A point of one cell per seed; `fields` are the other fields of each `OrlojCell`."""
    fields |= {"case": workload_of(case), "requests": scope.requests, "trace": scope.trace}
    return Point(experiment, tuple(OrlojCell(seed=seed, **fields) for seed in seeds), case, at)


def _table(
    name: str, contenders: tuple[OrlojContender, ...], more: tuple[str, ...] = ()
) -> Callable[[OrlojScope], Iterator[Point[OrlojCell]]]:
    """The points of a table; `more` are cases that the paper does not print."""

    def points(scope: OrlojScope) -> Iterator[Point[OrlojCell]]:
        for setting in scope.settings:
            for case in (*cases(name), *more):
                if not (scope.wants(case) or scope.wants(workload_of(case))):
                    continue
                for slo in scope.slos:
                    fair = case == FAIR_CASE and slo == FAIR_SLO
                    for contender in (*contenders, *((FAIR,) if fair else ())):
                        seeds = scope.seeds_of(setting, contender)
                        cell = {"setting": setting, "slo": slo, "contender": contender}
                        yield _point(name, scope, case, seeds, **cell)

    return points


_Places: TypeAlias = Iterable[tuple[OrlojContender, float, dict[str, float]]]
"""(contender, place on the x axis, fields of its cells)"""


def _figure(name: str, places: _Places) -> Callable[[OrlojScope], Iterator[Point[OrlojCell]]]:
    def points(scope: OrlojScope) -> Iterator[Point[OrlojCell]]:
        for setting in scope.settings:
            seeds = scope.seeds_of(setting)[:FEW_SEEDS]
            for slo in scope.slos:
                for contender, at, fields in places:
                    cell = {"setting": setting, "slo": slo, "contender": contender, **fields}
                    yield _point(name, scope, SWEEP_CASE, seeds, at, **cell)

    return points


_DELAY_RATES: _Places = tuple(
    (OrlojContender(f"orloj, b = {rate:g}/ms", "orloj", (("b", rate * 1e3),)), rate, {})
    for rate in DELAY_RATES_PER_MS
)
_SHORT_TIMES: _Places = tuple(
    (contender, p99, {"p99_ms": p99, "overhead_ms": OVERHEAD_MS})
    for contender in (ORLOJ, SLACK)
    for p99 in P99_MS
)
"""Runs of one set of requests, with all times scaled to each place on the x axis."""

_ALL = (*PUBLISHED, *BESIDE)

EXPERIMENTS: Mapping[str, Experiment[OrlojScope, OrlojCell]] = {
    "table-2": Experiment(
        "Two modes, by their standard deviation", _table("table-2", (*_ALL, NOTICED))
    ),
    "table-3": Experiment("One to eight modes", _table("table-3", (*_ALL, NOTICED))),
    "table-4": Experiment("Static models", _table("table-4", _ALL, (EXPONENTIAL,))),
    "table-5": Experiment("Real tasks", _table("table-5", _ALL)),
    QUEUE: Experiment("Cost of the queue"),
    "figure-13": Experiment("Sensitivity to b", _figure("figure-13", _DELAY_RATES), "b (1/ms)"),
    "figure-14": Experiment(
        "Times alone scaled down", _figure("figure-14", _SHORT_TIMES), "P99 of the time alone (ms)"
    ),
}
"""Every table and figure, by name. Figure 12 is timed in queue_times.py, not simulated."""
