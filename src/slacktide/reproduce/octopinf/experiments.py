"""What there is to reproduce: settings and contenders, as rows that are means over a few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slacktide.reproduce.harness.experiments import (
    Contender,
    Experiment,
    Point,
    TraceCell,
    TraceScope,
)


@dataclass(frozen=True, slots=True)
class OctopInfContender(Contender):
    """A way to place pipelines, with its options, or a yardstick."""

    fixed: float = 0.0
    """If above 0: everything is placed once, for so many times the rows, and stays."""


BOUND_POLICY = "bound"
"""Not a planner: what no placement can serve more than (yardstick.py)."""

PIPELINE = OctopInfContender("pipeline", "pipeline")
OCTOPINF = OctopInfContender("octopinf", "octopinf")
DISTREAM = OctopInfContender("distream", "distream")
RIM = OctopInfContender("rim", "rim")
JELLYFISH = OctopInfContender("jellyfish", "jellyfish")
BOUND = OctopInfContender("fluid bound", BOUND_POLICY)
BASELINES = (DISTREAM, RIM, JELLYFISH)
ALL = (PIPELINE, OCTOPINF, *BASELINES, BOUND)

NO_CORAL = OctopInfContender("octopinf, no CORAL", "octopinf", (("streams", False),))
STATIC = OctopInfContender("octopinf, static batches", "octopinf", (("batches", False),))
SERVER_ONLY = OctopInfContender("octopinf, server only", "octopinf", (("edge", False),))
TIMETABLED = OctopInfContender("pipeline, CORAL", "pipeline", (("streams", True),))
ABLATIONS = (OCTOPINF, NO_CORAL, STATIC, SERVER_ONLY, DISTREAM, JELLYFISH, PIPELINE, TIMETABLED)
MADE = OctopInfContender("made for the surge", "pipeline", fixed=3.0)

CONTENTION = 1.3
"""How much more than in proportion batches slow one another that want too much of an accelerator
together: measured on CPUs, an assumption for accelerators."""
SWEPT = (1.0, CONTENTION, 1.6)
DAY_S = 13 * 3600


@dataclass(frozen=True, slots=True)
class OctopInfCell(TraceCell):
    """One contender in one setting, with one seed."""

    contender: OctopInfContender
    contention: float = CONTENTION
    whole_day: bool = False
    """Whether it begins at the day's begin, whatever the seed."""

    def __str__(self) -> str:
        """What a progress bar shows."""
        return f"{self.setting} {self.contender.label} × {self.contention:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OctopInfScope(TraceScope):
    """How much is to be measured."""

    seeds: int = 3
    duration: int = 900
    day: int = DAY_S
    """Seconds of Figure 11."""


QUICK = OctopInfScope(seeds=1, duration=60, day=120, quick=True)
"""Under three minutes: to see that it runs, and roughly what comes out."""

Points = Callable[[OctopInfScope], Iterator[Point[OctopInfCell]]]


def _of(
    experiment: str, settings: Sequence[str], contenders: Sequence[OctopInfContender]
) -> Points:
    """The points of these settings."""

    def points(scope: OctopInfScope) -> Iterator[Point[OctopInfCell]]:
        for setting in settings:
            for contender in contenders:
                yield _point(experiment, scope, setting, contender)

    return points


def _point(
    experiment: str,
    scope: OctopInfScope,
    setting: str,
    contender: OctopInfContender,
    contention: float = CONTENTION,
) -> Point[OctopInfCell]:
    cells = tuple(
        OctopInfCell(
            setting, contender, seed, scope.duration, scope.folder, scope.digest, contention
        )
        for seed in range(1, scope.seeds + 1)
    )
    return Point(experiment, cells, at=contention)


def _swept(scope: OctopInfScope) -> Iterator[Point[OctopInfCell]]:
    for contention in SWEPT:
        for contender in (PIPELINE, OCTOPINF, NO_CORAL, DISTREAM):
            yield _point("contention", scope, "base", contender, contention)


def _surges(scope: OctopInfScope) -> Iterator[Point[OctopInfCell]]:
    """One run of as many surges as there is time for: ten of eight minutes each, if it is whole."""
    seconds = scope.duration if scope.quick else 10 * 480
    for contender in (PIPELINE, OCTOPINF, MADE):
        cell = OctopInfCell("surges", contender, 1, seconds, scope.folder, scope.digest)
        yield Point("surges", (cell,))


def _day(scope: OctopInfScope) -> Iterator[Point[OctopInfCell]]:
    for contender in (PIPELINE, OCTOPINF):
        cell = OctopInfCell(
            "base", contender, 1, scope.day, scope.folder, scope.digest, whole_day=True
        )
        yield Point("figure-11", (cell,))


EXPERIMENTS: Mapping[str, Experiment[OctopInfScope, OctopInfCell]] = {
    "figure-6": Experiment("Base setting (with Figure 7)", _of("figure-6", ["base"], ALL)),
    "figure-8": Experiment("Twice the cameras", _of("figure-8", ["doubled"], ALL)),
    "figure-9": Experiment(
        "SLOs 50 and 100 ms shorter", _of("figure-9", ["slo-50", "slo-100"], ALL)
    ),
    "figure-10": Experiment("Without parts of it", _of("figure-10", ["base"], ABLATIONS)),
    "figure-11": Experiment("Thirteen hours", _day),
    "surges": Experiment("Three times the objects for two minutes, every eight", _surges),
    "contention": Experiment("What too much on one accelerator costs", _swept),
}
"""Everything, by name."""
