"""Experiments to reproduce: settings and contenders. Each row is the mean over a few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide_papers.harness.experiments import Contender, Experiment, Point, TraceCell, TraceScope
from slacktide_papers.octopinf.five_setting import DAY_S as DAY_FIVE_S
from slacktide_papers.octopinf.five_setting import MECHANISMS
from slacktide_papers.octopinf.five_setting import SETTING as FIVE
from slacktide_papers.octopinf.setting import FIGURES, SECOND

PIPELINE = Contender.of("pipeline", "pipeline", bound=1.0)
"""Our policy, with the fluid bound. Options are those of the placement policy and of play.py:
`bound`, `contention`, `day`, `fixed` (the placement assumes this multiple of the stated objects and
ignores the measured number), `wait` (seconds, for full batches) and `scheduler`."""
OCTOPINF = Contender("octopinf", "octopinf")
DISTREAM = Contender("distream", "distream")
RIM = Contender("rim", "rim")
JELLYFISH = Contender("jellyfish", "jellyfish")
BASELINES = (DISTREAM, RIM, JELLYFISH)
ALL = (PIPELINE, OCTOPINF, *BASELINES)

NO_CORAL = Contender.of("octopinf, no CORAL", "octopinf", streams=0.0)
STATIC = Contender.of("octopinf, static batches", "octopinf", batches=0.0)
SERVER_ONLY = Contender.of("octopinf, server only", "octopinf", edge=0.0)
TIMETABLED = Contender.of("pipeline, CORAL", "pipeline", streams=1.0)
ABLATIONS = (OCTOPINF, NO_CORAL, STATIC, SERVER_ONLY, DISTREAM, JELLYFISH, PIPELINE, TIMETABLED)
UNBOUND = Contender("pipeline", "pipeline")
MADE = Contender.of("made for the surge", "pipeline", fixed=3.0)
PUBLISHED_MADE = Contender.of("octopinf, made for the surge", "octopinf", fixed=3.0)

CONTENTION = 1.3
"""If the batches on an accelerator together want more than all of it, they slow down in proportion,
and by this factor in addition. It was measured on CPUs and is an assumption for accelerators."""
SWEPT = (1.0, CONTENTION, 1.6)
WAYS: Mapping[str, Mapping[str, float | str]] = {
    "fifo": {"wait": 0.0},
    "waits 33 ms": {"wait": 1.0 / 30.0},
    "waits 67 ms": {"wait": 1.0 / 15.0},
    "slack": {"scheduler": "slack"},
}
"""Ways in which baselines may form batches. All other experiments use `fifo`."""
LARGEST = Contender.of("pipeline, largest", "pipeline", family=0.0)
"""Ours without smaller detectors."""
DIVIDED = Contender.of("pipeline, divided", "pipeline", divide=1.0)
"""Ours with spare placements, so that the frames of a camera divide between devices."""
FIXED = tuple(Contender.of(f"{base.label}, fixed", base.policy, wait=3600.0) for base in BASELINES)
"""Baselines as the authors configured them: every batch waits until it is full."""
DAY_S, SURGES_S = 13 * 3600, 10 * 480


@dataclass(frozen=True, slots=True, kw_only=True)
class OctopInfScope(TraceScope):
    """How much is to be measured."""

    seeds: int = 3
    duration: int = 900
    day: int = DAY_S
    """Length of the run of Figure 11, in seconds."""

    @property
    def size(self) -> str:
        whole = "" if self.quick else f" (surges {SURGES_S} s, figure-11 {self.day} s)"
        return f"{self.duration} s{whole}"


QUICK = OctopInfScope(seeds=1, duration=20, day=40, quick=True)
"""Takes under three minutes: shows that everything runs, and rough results."""

Points = Callable[[OctopInfScope], Iterator[Point[TraceCell]]]


def _of(
    experiment: str,
    settings: Sequence[str],
    contenders: Sequence[Contender],
    few: Sequence[Contender] = (),
) -> Points:
    """The points of these settings with `contenders`. A quick run has only the last setting, with
    `few` if there are any."""

    def points(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
        for setting in settings[-1:] if scope.quick and few else settings:
            for contender in few if scope.quick and few else contenders:
                yield scope.point(experiment, setting, contender)

    return points


def _second(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    names = () if scope.quick else [SECOND + setting.name for setting in FIGURES]
    return _of("fp32", names, (PIPELINE, LARGEST, DIVIDED, *ALL[1:], *FIXED))(scope)


def _swept(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    for contention in () if scope.quick else SWEPT:
        for base in (UNBOUND, OCTOPINF, NO_CORAL, DISTREAM):
            options = {**dict(base.options), "contention": contention}
            variation = Contender.of(f"{base.label}, × {contention:g}", base.policy, **options)
            yield scope.point("contention", "base", variation)


def _batching(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    """Points that show what baselines gain if they wait for full batches or serve by deadline."""
    for setting in () if scope.quick else ("base", "slo-100"):
        for base in BASELINES:
            for name, options in WAYS.items():
                variation = Contender.of(f"{base.label}, {name}", base.policy, **options)
                yield scope.point("batching", setting, variation)


def _surges(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    """One run for each contender: ten surges, one every eight minutes, or fewer if quick."""
    seconds = scope.duration if scope.quick else SURGES_S
    whole = () if scope.quick else (PUBLISHED_MADE,)
    for contender in (UNBOUND, OCTOPINF, MADE, *whole):
        yield replace(scope, seeds=1, duration=seconds).point("surges", "surges", contender)


def _day(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    for base in (UNBOUND, OCTOPINF):
        contender = Contender.of(base.label, base.policy, day=1.0)
        yield replace(scope, seeds=1, duration=scope.day).point("figure-11", "base", contender)


def _five(label: str, *on: str) -> Contender:
    return Contender.of(label, "pipeline", **dict.fromkeys(on, 1.0))


FIVE_ON = _five("all on", *MECHANISMS)
FIVE_NONE = _five("none")
WITHOUT = {
    off: _five(f"without {off}", *[on for on in MECHANISMS if on != off]) for off in MECHANISMS
}
ALONE = {on: _five(f"{on} alone", on) for on in MECHANISMS}


def _all_five(scope: OctopInfScope) -> Iterator[Point[TraceCell]]:
    """A whole day of four minutes; if quick, a part of it and only two contenders."""
    contenders = (FIVE_ON, *WITHOUT.values(), *ALONE.values(), FIVE_NONE)
    seconds = min(scope.duration, int(DAY_FIVE_S))
    for contender in (FIVE_ON, FIVE_NONE) if scope.quick else contenders:
        yield replace(scope, duration=seconds).point("all-five", FIVE, contender)


_FEW = (PIPELINE, OCTOPINF, DISTREAM)

EXPERIMENTS: Mapping[str, Experiment[OctopInfScope, TraceCell]] = {
    "figure-6": Experiment("Base setting (with Figure 7)", _of("figure-6", ["base"], ALL)),
    "figure-8": Experiment("Twice the cameras", _of("figure-8", ["doubled"], ALL, _FEW)),
    "figure-9": Experiment(
        "SLOs 50 and 100 ms shorter", _of("figure-9", ["slo-50", "slo-100"], ALL, _FEW)
    ),
    "figure-10": Experiment(
        "Ablations",
        _of("figure-10", ["base"], ABLATIONS, (OCTOPINF, NO_CORAL, SERVER_ONLY)),
    ),
    "figure-11": Experiment("Thirteen hours", _day),
    "fp32": Experiment(
        "Second setting: edge devices in fp32, detectors of five sizes",
        _second,
    ),
    "surges": Experiment("Three times the objects for two minutes of every eight", _surges),
    "all-five": Experiment("All five mechanisms, each switched off, each alone", _all_five),
    "contention": Experiment("Cost of an overloaded accelerator", _swept),
    "batching": Experiment("Value of waiting for full batches to baselines", _batching),
}
"""All experiments, by name."""
