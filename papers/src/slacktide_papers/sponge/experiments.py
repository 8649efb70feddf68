"""Experiments to reproduce: settings and contenders; each row is a mean over a few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slacktide.profiles import Timed
from slacktide_papers.harness.experiments import Contender, Experiment, Point, TraceCell, TraceScope
from slacktide_papers.sponge.setting import (
    CORES,
    DURATION,
    FIGURE_4,
    HARDER,
    SETTINGS,
    VARIED,
    SpongeSetting,
)


@dataclass(frozen=True, slots=True)
class SpongeContender(Contender):
    """A planner that takes part in an experiment, with its limits."""

    cores: tuple[int, int] | None = None
    """Minimum and maximum cores of one instance; None: 1 to 16."""
    replicas: bool = False
    """Whether it may have several instances."""
    notice: bool = True
    """Whether requests are announced at their first byte."""


@dataclass(frozen=True, slots=True)
class SpongeCell(TraceCell):
    """One contender in one setting, with one seed."""

    contender: SpongeContender


CLAIRVOYANT = "clairvoyant"
"""Not a planner: it knows all arrivals (clairvoyant.py). `cores` limits each second's choice."""

VERTICAL = SpongeContender("vertical", "vertical")
UNANNOUNCED = SpongeContender("vertical, no notice", "vertical", notice=False)
JOINT = SpongeContender("joint", "joint", replicas=True)
PAPER = SpongeContender("paper", "sponge")
HORIZONTAL = SpongeContender("horizontal", "horizontal", cores=(4, 4), replicas=True)
FA2 = SpongeContender("fa2", "fa2", cores=(1, 1), replicas=True)
VPA = SpongeContender(
    "vpa", "vpa", options=(("confidence", 1_440.0), ("half_life", 1_440.0), ("sample", 1.0))
)
"""VPA's clock runs 60 times as fast: it remembers days, so ten minutes would have no effect."""
KNOWING = SpongeContender("clairvoyant", CLAIRVOYANT)
STEADY = "clairvoyant, steady"
"""Clairvoyant under Sponge's constraint that every choice sustains the arrival rate (Eq. 3)."""


def static(cores: int) -> SpongeContender:
    """A contender with one instance of `cores` cores throughout."""
    return SpongeContender(f"static-{cores}", "static", cores=(cores, cores))


def statics(setting: SpongeSetting) -> tuple[SpongeContender, ...]:
    """Every size that one instance of each model can have on the machine."""
    most = min(CORES, setting.machine // len(setting.models))
    return tuple(static(cores) for cores in range(1, most + 1))


def whole(setting: SpongeSetting) -> SpongeContender:
    """Contender that planners are compared with: all cores throughout, divided among models."""
    return statics(setting)[-1]


def contenders(setting: SpongeSetting, *, quick: bool) -> tuple[SpongeContender, ...]:
    """Contenders that take part in `setting`."""
    if setting.outgrows:
        return (VERTICAL, HORIZONTAL, JOINT, FA2, *statics(setting)[3::4])
    steady = SpongeContender(STEADY, CLAIRVOYANT, cores=(setting.steady_cores, CORES))
    sizes = statics(setting)
    if quick:
        return (VERTICAL, JOINT, FA2, *sizes[3::4], KNOWING, steady)
    return (VERTICAL, UNANNOUNCED, JOINT, PAPER, FA2, VPA, *sizes, KNOWING, steady)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpongeScope(TraceScope):
    """How much is to be measured; settings whose arrivals are not drawn have one seed."""

    seeds: int = 3
    duration: int = DURATION
    points: tuple[Timed, ...] | None = None
    """Measured latencies for Figure 3; None: the figure is not requested, or there are none."""

    def seeds_of(self, setting: SpongeSetting) -> range:
        return range(1, (self.seeds if setting.random else 1) + 1)


QUICK = SpongeScope(seeds=1, duration=60, quick=True)
"""Takes under a minute: shows that everything runs, and rough results."""


def _simulated(
    experiment: str, settings: Sequence[str]
) -> Callable[[SpongeScope], Iterator[Point[SpongeCell]]]:
    """A function that yields the points of these settings."""

    def points(scope: SpongeScope) -> Iterator[Point[SpongeCell]]:
        for name in settings:
            setting = SETTINGS[name]
            for contender in contenders(setting, quick=scope.quick):
                cells = tuple(
                    SpongeCell(name, contender, seed, scope.duration, scope.folder, scope.digest)
                    for seed in scope.seeds_of(setting)
                )
                yield Point(experiment, cells)

    return points


EXPERIMENTS: Mapping[str, Experiment[SpongeScope, SpongeCell]] = {
    "figure-1": Experiment("Time that a 4G link leaves of an SLO of 1 s"),
    "table-1": Experiment("Instances needed for 100 requests/s"),
    "figure-3": Experiment("Latency by cores and batch, measured and fitted"),
    "figure-4": Experiment(
        "Violations and cores over ten minutes", _simulated("figure-4", FIGURE_4)
    ),
    "varied": Experiment("Other times and sizes", _simulated("varied", VARIED)),
    "harder": Experiment("Harder settings", _simulated("harder", HARDER)),
}
"""All experiments, by name."""
