"""Placement policies by name: `make_placement("octopinf", {})`.

`octopinf` is the published policy, CWD and CORAL; `pipeline` is ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from slacktide._version import PAPERS
from slacktide.domain.options import Options, option
from slacktide.domain.registry import Registry
from slacktide.planning.pipelines.coral import CoralSchedule
from slacktide.planning.pipelines.costs import EstimateRules, better
from slacktide.planning.pipelines.distribution import (
    STATIC,
    DistributionOptions,
    Placed,
    distribute,
)
from slacktide.planning.pipelines.division import divide
from slacktide.planning.pipelines.estimate import total_score
from slacktide.planning.pipelines.joint_search import climbed
from slacktide.planning.pipelines.plans import placed_whole
from slacktide.planning.pipelines.problem import PlacementAnswer, PlacementQuestion
from slacktide.planning.pipelines.search import mended, search

LATE_CHANCE = 0.05
"""See `EstimateRules.late_chance`."""


class PlacementPolicy(ABC):
    """A way to place pipelines. Pure; may take long."""

    scales = False
    """Whether `StageInstances` scales stages between two plans, as published."""
    calibrates = False
    """Whether `EstimateRules.stretch` follows from the shares that are served."""
    watches = False
    """Whether it plans immediately when its predictions fail."""
    rules = EstimateRules()
    """Rules of its predictions."""

    @abstractmethod
    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        """Place all pipelines. `present`: the placement in force; None: there is none. Raises
        PlacementError."""

    def repair(self, question: PlacementQuestion, present: Placed) -> PlacementAnswer:
        """Place again after `present` has served less than planned."""
        return self.decide(question, present)


@dataclass(frozen=True, slots=True)
class PublishedOptions(Options):
    """Options of `octopinf`. Without one of the parts, it is one of the paper's ablations."""

    alpha: float = option(
        0.6, "Largest output of a stage that stays at the edge, as a share of its input.", least=0
    )
    edge: bool = option(True, "Whether stages may run where the frames come in.")
    batches: bool = option(True, "Whether batch sizes are searched; otherwise they are 2, 4 and 8.")
    streams: bool = option(True, "Whether instances get windows on lanes (CORAL).")


class PublishedPlacement(PlacementPolicy):
    """CWD, CORAL and the autoscaler."""

    Options = PublishedOptions

    def __init__(self, options: PublishedOptions) -> None:
        self._distribution = DistributionOptions(
            options.alpha, options.edge, None if options.batches else STATIC
        )
        self.scales = self._streams = options.streams

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        placed = placed_whole(question, distribute(question, self._distribution))
        return (
            CoralSchedule(question).schedule(placed) if self._streams else PlacementAnswer(placed)
        )


@dataclass(frozen=True, slots=True)
class SearchedOptions(Options):
    """Options of `pipeline`."""

    budget: float = option(0.5, "Largest share of the SLO that a path may take.", above=0, most=1)
    max_utilisation: float = option(
        0.8, "Largest share of its time that a replica may be busy.", above=0, most=1
    )
    stretch: float = option(
        1.6, "Factor on the SLO in estimates, whose latencies are that much too long.", least=1
    )
    calibrate: bool = option(True, "Whether this factor follows from the shares that are served.")
    streams: bool = option(False, "Whether instances get windows on lanes (CORAL).")
    memory: float = option(
        3.0, "Server lanes that a gigabyte is worth when placements are compared.", least=0
    )
    links: float = option(
        6.0, "Server lanes that an always busy link is worth in the same comparison.", least=0
    )
    joint: bool = option(
        True, "Whether pipelines of one device are placed together after the search."
    )
    divide: bool = option(
        False, "Whether a frame that would be late where its pipeline begins may go elsewhere."
    )
    gain: float = option(
        0.01,
        "Share by which a new placement must serve more, or need less work, than the present one.",
        least=0,
    )


class SearchedPlacement(PlacementPolicy):
    """Our policy: serves the most and, among equals, uses the least server time, memory and link
    time. It keeps the present placement while that is about as good."""

    Options = SearchedOptions
    watches = True

    def __init__(self, options: SearchedOptions) -> None:
        self._options = options
        self.calibrates = options.calibrate
        streams = options.streams
        self.rules = EstimateRules(
            options.budget,
            options.stretch,
            options.max_utilisation,
            fill=False,
            shared=not streams,
            late_chance=LATE_CHANCE,
            memory=options.memory,
            links=options.links,
        )

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        basis = None if present is None else self._mended(question, present)
        placed = search(question, self.rules, basis)
        if self._options.joint:
            placed = climbed(question, placed, self.rules)
        placed = placed_whole(question, placed)
        if basis is not None:
            before = total_score(question, basis, self.rules)
            after = total_score(question, placed, self.rules)
            serves_more = after.worth > before.worth * (1.0 + self._options.gain)
            needs_less = after.spare > before.spare * (1.0 - 10.0 * self._options.gain)
            if not better(after, before) or not (serves_more or needs_less):
                placed = basis
        return self._answer(question, placed)

    def repair(self, question: PlacementQuestion, present: Placed) -> PlacementAnswer:
        """Place anew only the pipelines that do not serve everything in time."""
        basis = self._mended(question, present)
        return self.decide(question, None) if basis is None else self._answer(question, basis)

    def _answer(self, question: PlacementQuestion, placed: Placed) -> PlacementAnswer:
        if self._options.streams:
            return CoralSchedule(question).schedule(placed)
        if not self._options.divide:
            return PlacementAnswer(placed)
        return divide(question, placed, self.rules)

    def _mended(self, question: PlacementQuestion, present: Placed) -> Placed | None:
        """Return `present` with late pipelines placed anew; None: it cannot run any more."""
        try:
            placed = mended(question, present, self.rules, self._options.gain)
        except ValueError:
            return None
        return placed_whole(question, placed)


PLACEMENTS: Registry[PlacementPolicy] = Registry(
    "placement",
    {"octopinf": PublishedPlacement, "pipeline": SearchedPlacement},
    absent=dict.fromkeys(("distream", "jellyfish", "rim"), PAPERS),
)
"""All placement policies, by name."""


ON_ONE_SERVER: Mapping[str, Mapping[str, object]] = {
    "pipeline": {"budget": 0.9, "stretch": 1.0, "calibrate": False, "joint": False}
}
"""Defaults that differ if all devices are lanes of one server: OctopInf keeps half the SLO for
changing links and for turns on lanes (docs/placing-pipelines.md)."""


def make_placement(
    name: str, options: Mapping[str, object] = {}, *, on_one_server: bool = False
) -> PlacementPolicy:
    """Make a policy. Raises OptionError for an unknown name or option, or a value out of range."""
    if on_one_server:
        options = {**ON_ONE_SERVER.get(name, {}), **options}
    return PLACEMENTS.make(name, PLACEMENTS.read(name, options))
