"""Improves the placements of pipelines that share a device, all of them together.

The search places one pipeline after another, so each leaves the others what it does not need
itself. A climb changes one stage of one pipeline at a time, and judges the change by all pipelines
of the device together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slacktide.planning.pipelines.costs import (
    EstimateRules,
    Load,
    PlacementScore,
    StageCost,
    better,
)
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import PipelineEstimator, make_estimators
from slacktide.planning.pipelines.problem import PlacementQuestion
from slacktide.planning.pipelines.search import PipelineSearch


def climbed(question: PlacementQuestion, placed: Placed, rules: EstimateRules) -> Placed:
    """Return the best placement that a climb from `placed` reaches."""
    estimators = make_estimators(question, rules)
    chosen: list[Sequence[StageCost]] = [
        estimator.chosen(stages) for estimator, stages in zip(estimators, placed, strict=True)
    ]
    load = Load(len(question.devices))
    for estimator, costs in zip(estimators, chosen, strict=True):
        load.add(estimator.load(costs), estimator.places)
    sources = [pipeline.source for pipeline in question.pipelines]
    for source in dict.fromkeys(sources):
        numbers = [number for number, name in enumerate(sources) if name == source]
        most = sum(estimators[number].most for number in numbers)
        members = [estimators[number] for number in numbers]
        group = _Group(members, [chosen[number] for number in numbers], load)
        if len(numbers) > 1 and group.score().worth < most * (1.0 - 1e-9):
            group.climb()
            for number, costs in zip(numbers, group.costs, strict=True):
                chosen[number] = costs
    return tuple(
        estimator.placed(costs) for estimator, costs in zip(estimators, chosen, strict=True)
    )


@dataclass(slots=True)
class _Group:
    """The pipelines of one device, and the load of all pipelines with their present choices."""

    estimators: Sequence[PipelineEstimator]
    costs: list[Sequence[StageCost]]
    load: Load

    def climb(self) -> None:
        """Climb from several starts, and take the best. At each start, one pipeline is wholly on
        one device, or each of its stages on its fastest one, and the others are placed around
        it."""
        searches = [PipelineSearch(estimator) for estimator in self.estimators]
        neighbours = list(_neighbours(searches))
        best, costs = self._climb(neighbours), self.costs
        for number, first in enumerate(searches):
            for start in first.starts():
                self._place(number, first.costs_of(start))
                for second, search in enumerate(searches):
                    if second != number:
                        self._place(second, ())
                        self._place(second, search.best(self.load))
                score = self._climb(neighbours)
                if better(score, best):
                    best, costs = score, self.costs
        for number, stages in enumerate(costs):
            self._place(number, stages)

    def _climb(self, neighbours: Sequence[tuple[int, int, StageCost]]) -> PlacementScore:
        """Change one stage at a time while the pipelines' joint score rises; return it."""
        now, since = self.score(), 0
        while since < len(neighbours):
            for number, at, cost in neighbours:
                since += 1
                present = self.costs[number]
                if present[at] != cost:
                    self._place(number, [*present[:at], cost, *present[at + 1 :]])
                    score = self.score()
                    if better(score, now):
                        now, since = score, 0
                    else:
                        self._place(number, present)
                if since >= len(neighbours):
                    break
        return now

    def score(self) -> PlacementScore:
        """Return the score of all pipelines of the group, with the load of all others."""
        worth = spare = 0.0
        for estimator, stages in zip(self.estimators, self.costs, strict=True):
            part = estimator.load(stages)
            self.load.add(part, estimator.places, -1.0)
            score = estimator.estimate(stages, self.load).score
            self.load.add(part, estimator.places)
            worth, spare = worth + score.worth, spare + score.spare
        return PlacementScore(worth, spare)

    def _place(self, number: int, costs: Sequence[StageCost]) -> None:
        """Replace the choices of a pipeline; an empty sequence takes its load away."""
        estimator = self.estimators[number]
        if self.costs[number]:
            self.load.add(estimator.load(self.costs[number]), estimator.places, -1.0)
        if costs:
            self.load.add(estimator.load(costs), estimator.places)
        self.costs = [*self.costs[:number], costs, *self.costs[number + 1 :]]


def _neighbours(searches: Sequence[PipelineSearch]) -> Iterator[tuple[int, int, StageCost]]:
    """Yield (pipeline, stage, choice) for all choices that may be useful."""
    for number, search in enumerate(searches):
        for at, useful in enumerate(search.useful_choices(math.inf)):
            for choice in useful:
                yield number, at, search.choices[at][int(choice)]
