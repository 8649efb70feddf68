"""What there is to reproduce: settings and contenders, as rows that are means over a few cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from slacktide.reproduce.sponge.cell import Cell, Contender
from slacktide.reproduce.sponge.play import CLAIRVOYANT
from slacktide.reproduce.sponge.setting import (
    CORES,
    DURATION,
    FIGURE_4,
    HARDER,
    SETTINGS,
    VARIED,
    Setting,
)

VERTICAL = Contender("vertical", "vertical")
UNANNOUNCED = Contender("vertical, no notice", "vertical", notice=False)
JOINT = Contender("joint", "joint", replicas=True)
PAPER = Contender("paper", "paper")
HORIZONTAL = Contender("horizontal", "horizontal", cores=(4, 4), replicas=True)
FA2 = Contender("fa2", "fa2", cores=(1, 1), replicas=True)
VPA = Contender(
    "vpa", "vpa", options=(("confidence", 1_440.0), ("half_life", 1_440.0), ("sample", 1.0))
)
"""Its clock runs 60 times as fast: with days of memory, ten minutes show nothing of it."""
KNOWING = Contender("clairvoyant", CLAIRVOYANT)
STEADY = "clairvoyant, steady"
"""The same under Sponge's constraint that every choice carries the rate for good (Eq. 3)."""


def static(cores: int) -> Contender:
    """One instance of so many cores, always."""
    return Contender(f"static-{cores}", "static", cores=(cores, cores))


def statics(setting: Setting) -> tuple[Contender, ...]:
    """Every size that one instance of each model can have on the machine."""
    most = min(CORES, setting.machine // len(setting.models))
    return tuple(static(cores) for cores in range(1, most + 1))


def whole(setting: Setting) -> Contender:
    """What planners are compared with: all cores for good, divided among the models."""
    return statics(setting)[-1]


def contenders(setting: Setting, *, quick: bool) -> tuple[Contender, ...]:
    """Who takes part."""
    if setting.outgrows:
        return (VERTICAL, HORIZONTAL, JOINT, FA2, whole(setting))
    steady = Contender(STEADY, CLAIRVOYANT, cores=(setting.steady_cores, CORES))
    sizes = statics(setting)
    if quick:
        return (VERTICAL, JOINT, FA2, *sizes[3::4], KNOWING, steady)
    return (VERTICAL, UNANNOUNCED, JOINT, PAPER, FA2, VPA, *sizes, KNOWING, steady)


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is to be measured."""

    seeds: int = 3
    """Of settings whose arrivals are drawn; the others have one."""
    duration: int = DURATION
    quick: bool = False
    folder: Path | None = None
    """Where recorded bandwidths are; None: drawn."""
    digest: str = ""
    """Of the bandwidths."""

    def seeds_of(self, setting: Setting) -> range:
        return range(1, (self.seeds if setting.random else 1) + 1)


QUICK = Scope(seeds=1, duration=60, quick=True)
"""Under a minute: to see that it runs, and roughly what comes out."""


@dataclass(frozen=True, slots=True)
class Point:
    """One row of the results: cells that differ in their seed alone."""

    experiment: str
    setting: str
    contender: Contender
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table or a figure."""

    name: str
    title: str
    settings: Sequence[str] = ()
    """Those that are simulated."""

    def points(self, scope: Scope) -> Iterator[Point]:
        for name in self.settings:
            setting = SETTINGS[name]
            for contender in contenders(setting, quick=scope.quick):
                cells = tuple(
                    Cell(name, contender, seed, scope.duration, scope.folder, scope.digest)
                    for seed in scope.seeds_of(setting)
                )
                yield Point(self.name, name, contender, cells)


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        experiment.name: experiment
        for experiment in (
            Experiment("figure-1", "What a 4G link leaves of an SLO of 1 s"),
            Experiment("table-1", "Instances that carry 100 requests/s"),
            Experiment("figure-3", "Latency by cores and batch, measured and fitted"),
            Experiment("figure-4", "Violations and cores over ten minutes", FIGURE_4),
            Experiment("varied", "Other times and sizes", VARIED),
            Experiment("harder", "Harder settings", HARDER),
        )
    }
)
"""Everything, by name."""
