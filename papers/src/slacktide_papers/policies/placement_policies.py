"""The placements of Distream, Rim and Jellyfish as policies with options."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slacktide.domain import Options, option
from slacktide.planning.pipelines import (
    Placed,
    PlacementAnswer,
    PlacementPolicy,
    PlacementQuestion,
    StaticBatches,
    placed_whole,
)
from slacktide_papers.policies.placements import distream, jellyfish, rim


@dataclass(frozen=True, slots=True)
class StaticBatchOptions(Options):
    """Options of baselines: batches that do not follow the load (OctopInf, §IV-A4)."""

    edge: int = option(4, "Rows in a batch on the device of a camera.", least=1)
    server: int = option(8, "Rows in a batch on a server.", least=1)
    source: int = option(2, "Rows in a batch of a pipeline's first stage.", least=1)

    @property
    def batches(self) -> StaticBatches:
        return StaticBatches(self.edge, self.server, self.source)


@dataclass(frozen=True, slots=True)
class DistreamOptions(StaticBatchOptions):
    """Options of `distream`."""

    seed: int = option(0, "Of the splits that it draws.", least=0)


class DistreamPlacement(PlacementPolicy):
    """See `placements.distream`."""

    Options = DistreamOptions

    def __init__(self, options: DistreamOptions) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        placed = distream(question, self._random, self._options.batches)
        return PlacementAnswer(placed_whole(question, placed))


class RimPlacement(PlacementPolicy):
    """See `placements.rim`."""

    Options = StaticBatchOptions

    def __init__(self, options: StaticBatchOptions) -> None:
        self._batches = options.batches

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        return PlacementAnswer(placed_whole(question, rim(question, self._batches)))


@dataclass(frozen=True, slots=True)
class JellyfishOptions(Options):
    """Options of `jellyfish`."""

    batch: int = option(8, "Rows in a batch.", least=1)
    detectors: int = option(0, "Instances of the first stage; 0: as lanes allow.", least=0)
    seed: int = option(0, "Of the published planner's first variants.", least=0)


class JellyfishPlacement(PlacementPolicy):
    """See `placements.jellyfish`."""

    Options = JellyfishOptions

    def __init__(self, options: JellyfishOptions) -> None:
        self._options = options

    def decide(self, question: PlacementQuestion, present: Placed | None) -> PlacementAnswer:
        own = self._options
        placed = jellyfish(
            question, seed=own.seed, detectors=own.detectors or None, batch=own.batch
        )
        return PlacementAnswer(placed_whole(question, placed))
