"""Which stages run on which device, in which form and batches: what we place by.

CWD takes stages one by one and cannot go back on what it has done (distribution.py); here all
choices for the stages of one pipeline are judged together, beside what the others load devices and
links with. Where there are too many, some neighbouring stages at a time, from several starts, until
no such change helps. The best serves the most, then takes the least of servers (estimate.py).

Choices that no path has the time for, or that another beats in everything, are left out first. The
rest span an array, one axis for each stage, in which everything is computed at once: what depends
on two stages alone has two axes. It computes what `PipelineEstimator.estimate` does, which a test
compares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.pipelines.costs import (
    BUSY,
    FULL,
    NEVER,
    EstimateRules,
    Load,
    PlacementScore,
    StageCost,
    better,
)
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import PipelineEstimator, estimators
from slacktide.planning.pipelines.problem import PlacementError, PlacementQuestion

Array = NDArray[np.float64]
Picks = list[NDArray[np.intp]]
"""By stage: indices of its choices."""

RULES = EstimateRules()
AT_ONCE = 16384
"""Combinations that are judged together."""
BLOCK = 1024
"""Combinations of a block of stages that are judged together."""
ROUNDS = 3
"""In the second and third, pipelines are placed anew that others have made worse."""
_SLIGHT = 1e-9
_BY_DEVICE = ("busy", "squares", "utilisation", "memory")
_COSTS = ("latency", "alone", "row_share", "work", "running", *_BY_DEVICE)


def search(
    question: PlacementQuestion, rules: EstimateRules = RULES, start: Placed | None = None
) -> Placed:
    """The best placement that is found. `start`: one to begin with, among others, where a pipeline
    has too many choices to judge them all."""
    judges = estimators(question, rules)
    load = Load(len(question.devices))
    pipelines = [_Pipeline(judge) for judge in judges]
    chosen: list[list[StageCost]] = []
    scores: list[PlacementScore] = []
    for number, judge in enumerate(judges):
        begin = [] if start is None else judge.chosen(start[number])
        chosen.append(pipelines[number].best(load, begin))
        scores.append(judge.estimate(chosen[-1], load).score)
        load.add(judge.load(chosen[-1]), judge.places)
    for _ in range(1, ROUNDS):
        moved = False
        for number, judge in enumerate(judges):
            costs = chosen[number]
            load.add(judge.load(costs), judge.places, -1.0)
            now = judge.estimate(costs, load).score
            if now.worth < scores[number].worth * (1.0 - _SLIGHT):
                candidate = pipelines[number].best(load, costs)
                scores[number] = judge.estimate(candidate, load).score
                if better(scores[number], now):
                    chosen[number], moved = candidate, True
            load.add(judge.load(chosen[number]), judge.places)
        if not moved:
            break
    return tuple(judge.placed(costs) for judge, costs in zip(judges, chosen, strict=True))


def mended(
    question: PlacementQuestion, placed: Placed, rules: EstimateRules = RULES, gain: float = 0.0
) -> Placed:
    """`placed`, but for pipelines that would not have everything in time: these are placed anew, if
    they serve more for it by a share of `gain`. Raises ValueError if it cannot be."""
    judges = estimators(question, rules)
    chosen = [judge.chosen(stages) for judge, stages in zip(judges, placed, strict=True)]
    load = Load(len(question.devices))
    for judge, costs in zip(judges, chosen, strict=True):
        load.add(judge.load(costs), judge.places)
    pipelines: dict[int, _Pipeline] = {}
    for _ in range(ROUNDS - 1):
        moved = False
        for number, judge in enumerate(judges):
            costs = chosen[number]
            load.add(judge.load(costs), judge.places, -1.0)
            now = judge.estimate(costs, load).score
            if now.worth < judge.most * (1.0 - max(gain, _SLIGHT)):
                late = pipelines.get(number) or pipelines.setdefault(number, _Pipeline(judge))
                candidate = late.best(load, costs)
                if judge.estimate(candidate, load).score.worth > now.worth * (1.0 + gain) + _SLIGHT:
                    chosen[number], moved = candidate, True
            load.add(judge.load(chosen[number]), judge.places)
        if not moved:
            break
    return tuple(judge.placed(costs) for judge, costs in zip(judges, chosen, strict=True))


class _Pipeline:
    """One of them."""

    def __init__(self, judge: PipelineEstimator) -> None:
        self.judge, self.others = judge, Load(len(judge.question.devices))
        stages = judge.pipeline.stages
        self.choices = [judge.choices(at) for at in range(len(stages))]
        for stage, choices in zip(stages, self.choices, strict=True):
            if not choices:
                raise PlacementError(f"stage {stage.name!r} has no times on a device that it fits")
        self.table: list[dict[str, Array]] = []
        """By stage: fields of `StageCost`, of each choice."""
        self.on: list[Array] = []
        """By stage: (device, choice), 1 where it runs there."""
        devices = np.arange(len(judge.devices))[:, None]
        for choices in self.choices:
            values = np.array([choice[6:] for choice in choices]).T
            self.table.append(dict(zip(StageCost._fields[6:], values, strict=True)))
            self.on.append((devices == [choice.device for choice in choices]).astype(float))
        self._uses: dict[float, tuple[Picks, list[list[int]]]] = {}
        """By budget: choices that may be of use, and blocks of stages."""
        self._use(judge.budget)

    def best(self, load: Load, start: Sequence[StageCost] = ()) -> list[StageCost]:
        """The best choices that are found beside `load`."""
        self.others = load
        self._use(self.judge.budget)
        picks, score = self._best(self._starts(start))
        if score.worth < self.judge.most * (1.0 - _SLIGHT):
            self._use(math.inf)  # a path may be given up for the others
            picks, score = self._best([picks])
        return [choices[at] for choices, at in zip(self.choices, picks, strict=True)]

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
            self.useful = self._useful(budget)
            self._uses[budget] = self.useful, self._blocks()
        self.useful, self.blocks = self._uses[budget]
        self._found: dict[tuple[int, ...], tuple[list[int], PlacementScore]] = {}
        """By block and picks of other stages: the best; most are asked for again and again."""

    def _useful(self, budget: float) -> Picks:
        """Choices that may be part of the best, if paths take no longer than the budget."""
        judge = self.judge
        least = [float(table["latency"].min()) for table in self.table]
        count = len(least)
        before, after = [0.0] * count, [0.0] * count
        for at, stage in enumerate(judge.pipeline.stages):
            sums = [before[inflow.stage] + least[inflow.stage] for inflow in stage.inflows]
            before[at] = max(sums, default=0.0)
        for at in range(count - 1, -1, -1):
            after[at] = min([least[to] + after[to] for to in judge.downstream[at]], default=0.0)
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
            alike = beats & beats.T  # of those that are, the first
            beats &= ~np.tril(alike)
            useful.append(feasible[~beats.any(axis=0)])
        return useful

    def _starts(self, start: Sequence[StageCost]) -> Iterator[list[int]]:
        """All on servers, all at the source, each where it takes the least time, as given."""
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
        """Blocks of stages are chosen anew until none is better for it."""
        blocks = self.blocks
        score, remaining = PlacementScore(-math.inf, 0.0), len(blocks)
        at = 0
        while remaining:
            block = blocks[at % len(blocks)]
            key = (
                at % len(blocks),
                *(-1 if stage in block else pick for stage, pick in enumerate(picks)),
            )
            if key not in self._found:
                tried = [
                    self.useful[stage] if stage in block else np.array([picks[stage]])
                    for stage in range(len(picks))
                ]
                self._found[key] = self._best_of(tried)
            candidate_picks, candidate_score = self._found[key]
            at, remaining = at + 1, remaining - 1
            if better(candidate_score, score):
                picks, score, remaining = candidate_picks, candidate_score, len(blocks) - 1
        return picks, score

    def _blocks(self) -> list[list[int]]:
        """For each stage: it, and as many of those next to it as can be judged with it."""
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
                above = [inflow.stage for inflow in self.judge.pipeline.stages[at].inflows]
                near = self.judge.downstream[at] + above
                near += [to for parent in above for to in self.judge.downstream[parent]]
                queue += [to for to in near if to not in block and to not in queue]
            if sorted(block) not in blocks:
                blocks.append(sorted(block))
        return blocks

    def _best_of(self, picks: Picks) -> tuple[list[int], PlacementScore]:
        """The best of all combinations."""
        worth, work, longest = self._judged(picks)
        shape = tuple(map(len, picks))
        most = float(worth.max())
        least = work if most > 0.0 else longest
        least = np.where(worth >= most - _SLIGHT * (1.0 + most), least, math.inf)
        least = np.broadcast_to(least, shape)
        at = int(least.argmin())
        indices = np.unravel_index(at, shape)
        best_picks = [int(stage_picks[i]) for stage_picks, i in zip(picks, indices, strict=True)]
        return best_picks, PlacementScore(most, -float(least.flat[at]))

    def _judged(self, picks: Picks) -> tuple[Array, Array, Array]:
        """(worth, work, longest path) of all combinations, one axis for each stage."""
        judge, count = self.judge, len(picks)
        every = _Combinations(picks, self.table, self.on)
        waits, limits = self._on_devices(every)
        crossing = self._crossings(every.there, every.used)
        sizes = [every.of(at, "row_share") for at in range(count)]
        over_link, passing, carried = self._links(crossing, sizes)
        unit: Array = np.ones((1,) * count)
        began: list[Array] = [0.0 * unit] * count
        shares, accuracies, ended = [unit] * count, [unit] * count, [unit] * count
        worth, longest, visited = 0.0 * unit, 0.0 * unit, [False] * count
        for (begin, at, _, size), ends in zip(judge.hand_overs, crossing, strict=True):
            over, served, exact = 0.0 * unit, unit, unit
            if begin >= 0:
                if not visited[begin]:
                    visited[begin] = True
                    wait = every.wait(begin, waits)
                    ended[begin] = began[begin] + every.of(begin, "latency") + wait
                    shares[begin] = every.served(begin, shares[begin], limits)
                    accuracies[begin] = accuracies[begin] * every.of(begin, "accuracy")
                over, served, exact = ended[begin], shares[begin], accuracies[begin]
            for pair, crosses in ends.items():
                transfer = self._transfer(pair, size * sizes[at] if at >= 0 else size)
                over = over + crosses * (transfer + over_link[pair])
                if pair in passing:
                    served = np.minimum(served, 1.0 - crosses * (1.0 - passing[pair]))
            if at >= 0:
                began[at] = np.maximum(began[at], over)
                shares[at] = np.minimum(shares[at], served)
                accuracies[at] = np.minimum(accuracies[at], exact)
                continue
            longest = np.maximum(longest, over)
            worth = worth + judge.rates[begin] * served * exact * self._in_time(over)
        return worth, self._work(every, carried), longest

    def _in_time(self, over: Array) -> Array:
        """Share of answers after `over` seconds that are in time."""
        judge = self.judge
        hope = judge.rules.hope * judge.pipeline.slo / np.maximum(over, 1e-9)
        likely = 1.0 - (over - judge.budget) * judge.slope
        return np.minimum(1.0, np.maximum(hope, likely))

    def _work(self, every: _Combinations, carried: dict[tuple[int, int], Array]) -> Array:
        """What each combination takes of servers, and of links by what is `carried`."""
        judge, rules, none = self.judge, self.judge.rules, np.zeros((1,) * every.count)
        work = sum((every.of(at, "work") for at in range(every.count)), start=none)
        for device in range(len(judge.devices)) if rules.memory else ():
            running = [
                every.of(at, "running") * every.there[at][device] for at in every.using(device)
            ]
            work = work + functools.reduce(np.maximum, running, none)
        for pair, rate in carried.items() if rules.links else ():
            work = work + rules.links / judge.links[pair].bandwidth * rate
        return work

    def _on_devices(
        self, every: _Combinations
    ) -> tuple[dict[int, Array | float], dict[int, Array]]:
        """By device: the wait for its lanes, and the share of rows that it has room for."""
        waits: dict[int, Array | float] = {}
        limits: dict[int, Array] = {}
        for device in range(len(self.judge.devices)):
            stages = every.using(device)
            usage = {
                field: [every.of(at, field) * every.there[at][device] for at in stages]
                for field in _BY_DEVICE
            }
            self._device(device, usage, waits, limits)
        return waits, limits

    def _device(
        self,
        at: int,
        usage: dict[str, list[Array]],
        waits: dict[int, Array | float],
        limits: dict[int, Array],
    ) -> None:
        """What its lanes make wait, and how much of the rows it has no room for."""
        host, place = self.judge.devices[at], self.judge.places[at]
        before = {field: getattr(self.others, field)[place] for field in _BY_DEVICE}
        lanes, most = FULL * host.lanes, host.accelerators * host.utilisation
        if not usage["busy"]:
            return
        busy = _total(usage["busy"])
        if self.judge.rules.shared:
            squares = _total(usage["squares"]) + before["squares"]
            ratio = np.minimum((busy + before["busy"]) / host.lanes, BUSY)
            waits[at] = squares / (2.0 * host.lanes * (1.0 - ratio))
        for field, room, needed in (("busy", lanes, busy), ("utilisation", most, None)):
            if _largest(usage[field]) + before[field] > room:
                total = _total(usage[field]) if needed is None else needed
                spare = max(0.0, room - before[field])
                limit = np.minimum(1.0, spare / np.maximum(total, 1e-300))
                limits[at] = limit if at not in limits else np.minimum(limits[at], limit)
        memory = host.accelerators * host.memory - before["memory"]
        if _largest(usage["memory"]) > memory:
            total = _total(usage["memory"])
            fits = ((total <= memory) | (total == 0.0)).astype(float)
            limits[at] = limits[at] * fits if at in limits else fits

    def _crossings(
        self, occupancy: list[list[Array]], used: list[list[bool]]
    ) -> list[dict[tuple[int, int], Array]]:
        """By hand-over: 1 where it crosses from one device to another."""
        devices = range(len(self.judge.devices))
        crossings = []
        for begin, at, _, _ in self.judge.hand_overs:
            ends = {}
            for a in devices:
                for b in devices:
                    if a == b or not (used[begin][a] if begin >= 0 else a == 0):
                        continue
                    if not (used[at][b] if at >= 0 else b == 0):
                        continue
                    crosses: Array | float = occupancy[begin][a] if begin >= 0 else 1.0
                    ends[a, b] = np.asarray(crosses * (occupancy[at][b] if at >= 0 else 1.0))
            crossings.append(ends)
        return crossings

    def _transfer(self, pair: tuple[int, int], size: Array | float) -> Array | float:
        """Seconds of one hand-over, without waiting."""
        link = self.judge.links.get(pair)
        if link is None or link.bandwidth <= 0.0:
            return NEVER
        return link.latency + np.maximum(0.0, size - link.burst) / link.bandwidth

    def _links(
        self, crossing: list[dict[tuple[int, int], Array]], sizes: list[Array]
    ) -> tuple[
        dict[tuple[int, int], Array], dict[tuple[int, int], Array], dict[tuple[int, int], Array]
    ]:
        """By link: the wait for it, the share that gets through where it may be too little, and its
        bytes per second."""
        rates: dict[tuple[int, int], list[Array]] = {}
        squares: dict[tuple[int, int], list[Array]] = {}
        for (_, at, rate, whole), ends in zip(self.judge.hand_overs, crossing, strict=True):
            size = whole * sizes[at] if at >= 0 else whole
            for pair, crosses in ends.items():
                rates.setdefault(pair, []).append(rate * size * crosses)
                squares.setdefault(pair, []).append(rate * size * size * crosses)
        waits, passing, carried = {}, {}, {}
        for pair, link_rates in rates.items():
            link = self.judge.links.get(pair)
            places = self.judge.places[pair[0]], self.judge.places[pair[1]]
            before = self.others.links.get(places, (0.0, 0.0))
            bandwidth = 0.0 if link is None else link.bandwidth
            total = _total(link_rates)
            if bandwidth > 0.0:
                carried[pair] = total
                ratio = np.minimum((total + before[0]) / bandwidth, BUSY)
                square = _total(squares[pair]) + before[1]
                waits[pair] = square / (2.0 * bandwidth**2 * (1.0 - ratio))
            else:
                waits[pair] = np.zeros((1,) * total.ndim)
            room = FULL * bandwidth - before[0]
            if _largest(link_rates) > room:
                passing[pair] = np.minimum(1.0, max(0.0, room) / np.maximum(total, 1e-300))
        return waits, passing, carried


class _Combinations:
    """All combinations of some choices of each stage, one axis for each stage."""

    def __init__(
        self, picks: Picks, table: Sequence[dict[str, Array]], on: Sequence[Array]
    ) -> None:
        self.count = count = len(picks)
        self._picks, self._table = picks, table
        self._shapes = [
            tuple(-1 if at == axis else 1 for axis in range(count)) for at in range(count)
        ]
        chosen = [on[at][:, picks[at]] for at in range(count)]
        self.there = [[row.reshape(self._shapes[at]) for row in chosen[at]] for at in range(count)]
        """By stage and device: 1 where it runs there."""
        self.used = [[bool(row.any()) for row in chosen[at]] for at in range(count)]
        """By stage and device: whether it ever does."""

    def of(self, at: int, field: str) -> Array:
        """A field of `StageCost` of the choices of one stage, along its axis."""
        return self._table[at][field][self._picks[at]].reshape(self._shapes[at])

    def using(self, device: int) -> list[int]:
        """Stages with choices on this device."""
        return [at for at in range(self.count) if self.used[at][device]]

    def wait(self, at: int, waits: dict[int, Array | float]) -> Array:
        """Seconds that a stage waits for its lane, given the wait on each device."""
        alone, everywhere = self.of(at, "alone"), sum(self.used[at]) == 1
        shared = [
            wait if everywhere else self.there[at][device] * wait
            for device, wait in waits.items()
            if self.used[at][device]
        ]
        return np.maximum(alone, _total(shared)) if shared else alone

    def served(self, at: int, share: Array, limits: dict[int, Array]) -> Array:
        """What a stage leaves of the `share` of rows that come to it, given what devices can do."""
        share = np.minimum(share, self.of(at, "share"))
        for device, limit in limits.items():
            if self.used[at][device]:
                share = np.minimum(share, 1.0 - self.there[at][device] * (1.0 - limit))
        return share


def _total(parts: Sequence[Array | float]) -> Array:
    total: Array | float = 0.0
    for part in parts:
        total = total + part
    return np.asarray(total)


def _largest(parts: Sequence[Array]) -> float:
    """No sum of them is larger."""
    return math.fsum(float(part.max()) for part in parts)
