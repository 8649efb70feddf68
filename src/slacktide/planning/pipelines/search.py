"""Searches devices, configurations and batches of stages: our placement.

CWD takes stages one by one and never goes back on a choice (distribution.py). Here all choices for
the stages of one pipeline are estimated together, in addition to the load of the other pipelines.
If there are too many, a few neighbouring stages are chosen at a time, from several starts, until no
such change helps. The best placement serves the most and, among equals, loads the servers least
(estimate.py).

A choice is left out beforehand if every placement with it has a path over the budget, or if another
choice of the stage is better in every respect. The estimates of all combinations are arrays with
one axis for each stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.pipelines.costs import (
    EstimateRules,
    Load,
    PlacementScore,
    StageCost,
    better,
)
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import (
    ARRAYS,
    PipelineEstimator,
    load_of,
    make_estimators,
)
from slacktide.planning.pipelines.problem import PlacementError, PlacementQuestion

Array = NDArray[np.float64]
Picks = list[NDArray[np.intp]]
"""By stage: indices of its choices."""

RULES = EstimateRules()
AT_ONCE = 16384
"""Maximum number of combinations of all stages that are estimated together."""
BLOCK = 1024
"""Maximum number of combinations of a block of stages that are estimated together."""
ROUNDS = 3
"""Number of rounds. All but the first replace placements that other pipelines have made worse."""
_SLIGHT = 1e-9
_COSTS = (
    "latency",
    "alone",
    "row_share",
    "work",
    "running",
    "busy",
    "squares",
    "utilisation",
    "memory",
)


def search(
    question: PlacementQuestion, rules: EstimateRules = RULES, start: Placed | None = None
) -> Placed:
    """Return the best placement found. `start`: a further placement to descend from if a pipeline
    has too many choices to estimate them all."""
    estimators = make_estimators(question, rules)
    load = Load(len(question.devices))
    pipelines = [PipelineSearch(estimator) for estimator in estimators]
    chosen: list[list[StageCost]] = []
    scores: list[PlacementScore] = []
    for number, estimator in enumerate(estimators):
        begin = [] if start is None else estimator.chosen(start[number])
        chosen.append(pipelines[number].best(load, begin))
        scores.append(estimator.estimate(chosen[-1], load).score)
        load.add(estimator.load(chosen[-1]), estimator.places)

    def improved(number: int, present: PlacementScore) -> list[StageCost] | None:
        if present.worth >= scores[number].worth * (1.0 - _SLIGHT):
            return None
        candidate = pipelines[number].best(load, chosen[number])
        scores[number] = estimators[number].estimate(candidate, load).score
        return candidate if better(scores[number], present) else None

    return _improve(estimators, chosen, load, improved)


def mended(
    question: PlacementQuestion, placed: Placed, rules: EstimateRules = RULES, gain: float = 0.0
) -> Placed:
    """Place anew the pipelines of `placed` that would not serve everything in time. A pipeline is
    moved only if it then serves more by at least the share `gain`. Raises ValueError if `placed`
    cannot run any more."""
    estimators, chosen, load = load_of(question, rules, placed)
    pipelines: dict[int, PipelineSearch] = {}

    def improved(number: int, present: PlacementScore) -> list[StageCost] | None:
        estimator = estimators[number]
        if present.worth >= estimator.most * (1.0 - max(gain, _SLIGHT)):
            return None
        late = pipelines.get(number) or pipelines.setdefault(number, PipelineSearch(estimator))
        candidate = late.best(load, chosen[number])
        worth = estimator.estimate(candidate, load).worth
        return candidate if worth > present.worth * (1.0 + gain) + _SLIGHT else None

    return _improve(estimators, chosen, load, improved)


def _improve(
    estimators: Sequence[PipelineEstimator],
    chosen: list[list[StageCost]],
    load: Load,
    improved: Callable[[int, PlacementScore], list[StageCost] | None],
) -> Placed:
    """Replace the choices of pipelines until none improves. `improved` is called with a pipeline's
    number and score; `load` is the load of the other pipelines during this call, and of all
    pipelines otherwise."""
    for _ in range(ROUNDS - 1):
        moved = False
        for number, estimator in enumerate(estimators):
            load.add(estimator.load(chosen[number]), estimator.places, -1.0)
            candidate = improved(number, estimator.estimate(chosen[number], load).score)
            if candidate is not None:
                chosen[number], moved = candidate, True
            load.add(estimator.load(chosen[number]), estimator.places)
        if not moved:
            break
    return tuple(
        estimator.placed(costs) for estimator, costs in zip(estimators, chosen, strict=True)
    )


class PipelineSearch:
    """Searches the choices of one pipeline."""

    def __init__(self, estimator: PipelineEstimator) -> None:
        self.estimator, self.background_load = estimator, Load(len(estimator.question.devices))
        stages = estimator.pipeline.stages
        self.choices = [estimator.choices(at) for at in range(len(stages))]
        for stage, choices in zip(stages, self.choices, strict=True):
            if not choices:
                raise PlacementError(f"stage {stage.name!r} has no times on a device that it fits")
        self.table: list[dict[str, Array]] = []
        """By stage: fields of `StageCost`, with an element for each choice."""
        self.on: list[Array] = []
        """By stage, of shape (devices, choices): 1 where a choice runs on the device, else 0."""
        devices = np.arange(len(estimator.devices))[:, None]
        for choices in self.choices:
            columns = np.array([choice[:-1] for choice in choices]).T
            self.table.append(dict(zip(StageCost._fields, columns, strict=False)))
            self.on.append((devices == [choice.device for choice in choices]).astype(float))
        self._uses: dict[float, tuple[Picks, list[list[int]]]] = {}
        """By budget: useful choices, and blocks of stages."""
        self._use(estimator.budget)

    def best(self, load: Load, start: Sequence[StageCost] = ()) -> list[StageCost]:
        """Return the best choices found in addition to `load`."""
        self.background_load = load
        self._use(self.estimator.budget)
        picks, score = self._best(self.starts(start))
        if score.worth < self.estimator.most * (1.0 - _SLIGHT):
            self._use(math.inf)  # giving up a path may help others
            picks, score = self._best([picks])
        return self.costs_of(picks)

    def _best(self, starts: Iterable[list[int]]) -> tuple[list[int], PlacementScore]:
        if math.prod(map(len, self.useful)) <= AT_ONCE:
            return self._best_of(self.useful)
        picks: list[int] = []
        top = PlacementScore(-math.inf, 0.0)
        for start in starts:
            candidate_picks, score = self._descended(start)
            if better(score, top):
                picks, top = candidate_picks, score
        return picks, top

    def _use(self, budget: float) -> None:
        if budget not in self._uses:
            self.useful = self.useful_choices(budget)
            self._uses[budget] = self.useful, self._blocks()
        self.useful, self.blocks = self._uses[budget]
        self._best_picks: dict[tuple[int, ...], tuple[list[int], PlacementScore]] = {}
        """(best picks, score), by block and picks of other stages; most keys recur many times."""

    def useful_choices(self, budget: float) -> Picks:
        """Return, by stage, choices that may be best if paths keep within the budget."""
        estimator = self.estimator
        least = [float(table["latency"].min()) for table in self.table]
        count = len(least)
        before, after = [0.0] * count, [0.0] * count
        for at, stage in enumerate(estimator.pipeline.stages):
            sums = [before[inflow.stage] + least[inflow.stage] for inflow in stage.inflows]
            before[at] = max(sums, default=0.0)
        for at in range(count - 1, -1, -1):
            after[at] = min([least[to] + after[to] for to in estimator.downstream[at]], default=0.0)
        useful = []
        for at, table in enumerate(self.table):
            feasible = np.flatnonzero(before[at] + table["latency"] + after[at] <= budget)
            if not len(feasible):
                feasible = np.arange(len(self.choices[at]))
            costs = np.stack([table[name] for name in _COSTS])[:, feasible]
            gains = np.stack([table["share"], table["accuracy"]])[:, feasible]
            device = self.on[at].argmax(axis=0)[feasible]
            beats = (costs[:, :, None] <= costs[:, None, :]).all(axis=0)
            beats &= (gains[:, :, None] >= gains[:, None, :]).all(axis=0)
            beats &= device[:, None] == device[None, :]
            alike = beats & beats.T  # the first of equal choices stays
            beats &= ~np.tril(alike)
            useful.append(feasible[~beats.any(axis=0)])
        return useful

    def costs_of(self, picks: Sequence[int]) -> list[StageCost]:
        """Return the costs of picked choices."""
        return [choices[at] for choices, at in zip(self.choices, picks, strict=True)]

    def starts(self, start: Sequence[StageCost] = ()) -> Iterator[list[int]]:
        """Yield starts: all stages on servers, all at the source, each where it is fastest; then
        `start`."""
        for device in (1, 0, -1):
            picks = []
            for at, useful in enumerate(self.useful):
                table, on = self.table[at], self.on[at]
                away = np.zeros(len(useful))
                if device >= 0:
                    away = on[0, useful] if device else 1.0 - on[0, useful]
                picks.append(int(useful[np.lexsort((table["latency"][useful], away))[0]]))
            yield picks
        if start:
            yield [choices.index(cost) for choices, cost in zip(self.choices, start, strict=True)]

    def _descended(self, picks: list[int]) -> tuple[list[int], PlacementScore]:
        """Choose the stages of each block anew until no block improves."""
        blocks = self.blocks
        score, remaining = PlacementScore(-math.inf, 0.0), len(blocks)
        at = 0
        while remaining:
            block = blocks[at % len(blocks)]
            key = (
                at % len(blocks),
                *(-1 if stage in block else pick for stage, pick in enumerate(picks)),
            )
            if key not in self._best_picks:
                tried = [
                    self.useful[stage] if stage in block else np.array([picks[stage]])
                    for stage in range(len(picks))
                ]
                self._best_picks[key] = self._best_of(tried)
            candidate_picks, candidate_score = self._best_picks[key]
            at, remaining = at + 1, remaining - 1
            if better(candidate_score, score):
                picks, score, remaining = candidate_picks, candidate_score, len(blocks) - 1
        return picks, score

    def _blocks(self) -> list[list[int]]:
        """Return a block for each stage: it and as many neighbours as can be estimated together."""
        blocks: list[list[int]] = []
        for first in range(len(self.useful)):
            block: list[int] = []
            size, queue = 1, [first]
            while queue:
                at = queue.pop(0)
                size *= len(self.useful[at])
                if block and size > BLOCK:
                    break
                block.append(at)
                above = [inflow.stage for inflow in self.estimator.pipeline.stages[at].inflows]
                near = self.estimator.downstream[at] + above
                near += [to for parent in above for to in self.estimator.downstream[parent]]
                queue += [to for to in near if to not in block and to not in queue]
            if sorted(block) not in blocks:
                blocks.append(sorted(block))
        return blocks

    def _best_of(self, picks: Picks) -> tuple[list[int], PlacementScore]:
        """Return the best of all combinations, and its score."""
        shape = tuple(map(len, picks))
        estimate = self.estimator.estimate(self._combinations(picks), self.background_load, ARRAYS)
        worth, work, longest = map(np.asarray, estimate[:3])
        most = float(worth.max())
        least = work if most > 0.0 else longest
        least = np.where(worth >= most - _SLIGHT * (1.0 + most), least, math.inf)
        least = np.broadcast_to(least, shape)
        at = int(least.argmin())
        indices = np.unravel_index(at, shape)
        best_picks = [int(stage_picks[i]) for stage_picks, i in zip(picks, indices, strict=True)]
        return best_picks, PlacementScore(most, -float(least.flat[at]))

    def _combinations(self, picks: Picks) -> list[StageCost]:
        """Return the costs of all combinations, as arrays with one axis for each stage."""
        costs = []
        for at, chosen in enumerate(picks):
            shape = tuple(-1 if at == axis else 1 for axis in range(len(picks)))
            columns = [column[chosen].reshape(shape) for column in self.table[at].values()]
            places = [(device, row[chosen]) for device, row in enumerate(self.on[at])]
            on = [(device, row.reshape(shape)) for device, row in places if row.any()]
            costs.append(StageCost._make([*columns, on]))
        return costs
