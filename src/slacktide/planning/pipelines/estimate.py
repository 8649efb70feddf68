"""Estimates placements: latency, worth, work and load (OctopInf, equations 1 to 5).

The same code estimates one placement, in floats, or many together, in arrays with one axis for each
stage (search.py). Floats and arrays are both annotated as `float`. A number that depends on two
stages has two axes.

The latency of a stage is the sum of its batch's wait to fill, its p99, and its wait for a lane. A
path adds the transfers between devices and the answer's way back. Waits:

    fill      (b − m) / λ    CV: coefficient of variation of the times between rows. Rows are
                             taken to come in groups of m = (1 + CV²) / 2, as in a Poisson process
                             of groups of geometric size with that CV; no wait if b ≤ m
    lane      ρ / (2 μ (1 − ρ))    M/D/1 of one replica: μ = 1 / latency(b), ρ = λ / (n b μ)
    shared    Σ λ/b · latency(b)² / (2 (1 − ρ)) over all stages on the lanes of a device, if they
              have no timetable; the larger of `lane` and `shared` counts (M/G/1; for a
              single stage on a single lane, both are equal)

If batches do not wait to be full, a frame's rows come together: a stage takes one p99 for each
batch that they need, one after another.

The worth of a sink is a product: its rows per second, the share of them that stages and links on
the way can handle, their accuracies, and the share that is likely to be in time. A stage can handle
n b / latency(b) rows per second, and no replica is more than `FULL` busy. The share in time is 1 up
to the budget (a part of the SLO), 0 (or `late_chance`) at the SLO, and linear in between. An
overloaded link or lane drops rows that wait too long, so the other rows wait as at a load of
`BUSY`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slacktide.planning.pipelines.choices import StageChoices
from slacktide.planning.pipelines.costs import (
    BUSY,
    FULL,
    NEVER,
    EstimateRules,
    Load,
    PlacementScore,
    StageCost,
)
from slacktide.planning.pipelines.problem import (
    LinkView,
    PipelineView,
    PlacedStage,
    PlacementQuestion,
)

Combine = Callable[[float, float], float]
Transfer = Callable[[float], float]
"""Seconds of a transfer, as a function of its bytes."""


class Arithmetic(NamedTuple):
    """Functions with different names for floats and for arrays."""

    low: Combine
    high: Combine
    largest: Callable[[float], float]


FLOATS = Arithmetic(min, max, float)
ARRAYS = Arithmetic(np.minimum, np.maximum, np.max)

SOURCE = ((0, 1.0),)
"""`StageCost.on` of the camera, where frames come in and answers go."""
Crossings = list[tuple[float, tuple[int, int]]]
"""Links that one hand-over may cross: (1 if it crosses the link, else 0; ends of the link)."""


class PipelineEstimate(NamedTuple):
    """The estimate of a placement of one pipeline."""

    worth: float
    """Rows per second that reach sinks in time, times their accuracy."""
    work: float
    """Busy server lanes, on average, plus memory and links converted to lanes (`EstimateRules`)."""
    latency: float
    """Seconds of the longest path, including the way back."""
    latencies: Sequence[float]
    """By stage: seconds from a frame's arrival to the end of the stage's batch."""
    shares: Sequence[float]
    """By stage: share of its rows that arrive and are served."""

    @property
    def score(self) -> PlacementScore:
        """The score, for comparisons with other placements; not for arrays."""
        return PlacementScore(self.worth, -self.work if self.worth > 0.0 else -self.latency)


class PipelineEstimator(StageChoices):
    """Estimates placements of one pipeline."""

    def __init__(
        self,
        question: PlacementQuestion,
        pipeline: PipelineView,
        rules: EstimateRules,
        links: Mapping[tuple[str, str], LinkView] | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """`links`: the question's links, by their ends. `numbers`: its device numbers, by name."""
        super().__init__(question, pipeline, rules)
        numbers = numbers or numbers_of(question)
        self.places = [numbers[device.name] for device in self.devices]
        """Number of each device in the question."""
        self._capacities = [
            (
                place,
                host.lanes,
                FULL * host.lanes,
                host.accelerators * host.memory,
                host.accelerators * host.utilisation,
            )
            for host, place in zip(self.devices, self.places, strict=True)
        ]
        self.downstream = pipeline.downstream()
        slo = rules.stretch * pipeline.slo
        self.budget = rules.budget * slo
        self.slope = 1.0 / max(slo - self.budget, 1e-3 * slo)
        """Share of answers lost for each second beyond the budget."""
        links = links or links_by_ends(question)
        self.links = {
            (begin, end): links[begin_device.name, end_device.name]
            for begin, begin_device in enumerate(self.devices)
            for end, end_device in enumerate(self.devices)
            if (begin_device.name, end_device.name) in links
        }
        self.sinks = [at for at, successors in enumerate(self.downstream) if not successors]
        self.hand_overs = list(_hand_overs(pipeline, self.rates, self.sinks))
        """(from, to, number per second, bytes of each) for each edge; −1 is the camera, where
        answers go. The rows of one frame cross together."""
        self._into: list[list[tuple[int, int, float]]] = [[] for _ in pipeline.stages]
        """By stage: (number among `hand_overs`, from, bytes of each)."""
        self._answers: list[tuple[int, float] | None] = [None] * len(pipeline.stages)
        """By stage, if it is a sink: (number among `hand_overs`, bytes of each)."""
        for number, (begin, at, _, size) in enumerate(self.hand_overs):
            if at >= 0:
                self._into[at].append((number, begin, size))
            else:
                self._answers[begin] = number, size
        exact = [max(c.accuracy for c in stage.configurations) for stage in pipeline.stages]
        for at, stage in enumerate(pipeline.stages):
            exact[at] *= min((exact[inflow.stage] for inflow in stage.inflows), default=1.0)
        self.most = math.fsum(self.rates[at] * exact[at] for at in self.sinks)
        """Worth of the best possible placement."""

    def best(self, costs: Sequence[StageCost]) -> float:
        """Return the worth of these choices if all rows were in time; not for arrays."""
        accuracies: list[float] = []
        for cost, stage in zip(costs, self.pipeline.stages, strict=True):
            upstream = min((accuracies[inflow.stage] for inflow in stage.inflows), default=1.0)
            accuracies.append(upstream * cost.accuracy)
        return math.fsum(self.rates[at] * accuracies[at] for at in self.sinks)

    def transfer(self, begin: int, end: int, size: float) -> float:
        """Return the seconds that one hand-over of `size` bytes takes if the link is free."""
        return 0.0 if begin == end else _transfer(self.links.get((begin, end)), max)(size)

    def load(self, costs: Sequence[StageCost]) -> Load:
        """Return the load of these choices, indexed by the pipeline's own devices."""
        return self._load(costs)[0]

    def estimate(
        self,
        costs: Sequence[StageCost],
        background: Load | None = None,
        arithmetic: Arithmetic = FLOATS,
    ) -> PipelineEstimate:
        """Estimate these choices in addition to the `background` load."""
        low, high, _ = arithmetic
        background = background or Load(len(self.question.devices))
        load, crossings = self._load(costs)
        waits, limits = self._on_devices(load, background, arithmetic)
        ways = self._on_links(load, background, arithmetic) if load.links else {}
        latencies: list[float] = []
        shares: list[float] = []
        accuracies: list[float] = []
        late_chance = self.rules.late_chance * self.rules.stretch * self.pipeline.slo
        worth = longest = 0.0
        for at, cost in enumerate(costs):  # in topological order
            began, share, accuracy = 0.0, cost.share, 1.0
            for number, stage, size in self._into[at]:
                over, served = 0.0, 1.0
                if stage >= 0:
                    over, served = latencies[stage], shares[stage]
                    accuracy = low(accuracy, accuracies[stage])
                for crosses, ends in crossings[number]:
                    transfer, passing = ways[ends]
                    over = over + crosses * transfer(size * cost.row_share)
                    if passing is not None:
                        served = low(served, 1.0 - crosses + crosses * passing)
                began, share = high(began, over), low(share, served)
            wait = 0.0
            for device, presence in cost.on:
                wait = wait + presence * waits[device]
                if device in limits:
                    share = low(share, 1.0 - presence + presence * limits[device])
            over = began + cost.latency + high(cost.alone, wait)
            latencies.append(over)
            shares.append(share)
            accuracies.append(accuracy * cost.accuracy)
            if (answer := self._answers[at]) is not None:
                number, size = answer
                for crosses, ends in crossings[number]:
                    transfer, passing = ways[ends]
                    over = over + crosses * transfer(size)
                    if passing is not None:
                        share = low(share, 1.0 - crosses + crosses * passing)
                longest = high(longest, over)
                likely = 1.0 - (over - self.budget) * self.slope
                by_chance = late_chance / high(over, 1e-9) if late_chance else 0.0
                in_time = low(1.0, high(by_chance, likely))
                worth = worth + self.rates[at] * accuracies[at] * share * in_time
        work = self._work(costs, load, arithmetic)
        return PipelineEstimate(worth, work, longest, latencies, shares)

    def _load(self, costs: Sequence[StageCost]) -> tuple[Load, list[Crossings]]:
        """Return the load and, by hand-over, the links that it may cross."""
        load = Load(len(self.devices))
        busy, squares, utilisation = load.busy, load.squares, load.utilisation
        memory, links = load.memory, load.links
        places = []
        for cost in costs:
            places.append(cost.on)
            for device, presence in cost.on:
                busy[device] = busy[device] + presence * cost.busy
                squares[device] = squares[device] + presence * cost.squares
                utilisation[device] = utilisation[device] + presence * cost.utilisation
                memory[device] = memory[device] + presence * cost.memory
        places.append(SOURCE)  # index −1: the camera
        crossings = []
        for begin, at, rate, size in self.hand_overs:
            crossed: Crossings = []
            for origin, leaves in places[begin]:
                for device, arrives in places[at]:
                    if origin != device:
                        ends, crosses = (origin, device), leaves * arrives
                        crossed.append((crosses, ends))
                        row_bytes = size * costs[at].row_share if at >= 0 else size
                        bandwidth, bursts = links.get(ends, (0.0, 0.0))
                        sent = rate * row_bytes
                        links[ends] = (
                            bandwidth + sent * crosses,
                            bursts + sent * row_bytes * crosses,
                        )
            crossings.append(crossed)
        return load, crossings

    def _on_devices(
        self, load: Load, background: Load, arithmetic: Arithmetic
    ) -> tuple[list[float], dict[int, float]]:
        """Return, by device, the wait for its lanes and the share of rows served in overload."""
        low, high, largest = arithmetic
        waits = [0.0] * len(self.devices)
        limits: dict[int, float] = {}
        for at, (place, lanes, full, memory, most) in enumerate(self._capacities):
            if self.rules.shared:
                ratio = low((load.busy[at] + background.busy[place]) / lanes, BUSY)
                squares = load.squares[at] + background.squares[place]
                waits[at] = squares / (2.0 * lanes * (1.0 - ratio))
            for demand, spare in (
                (load.busy[at], full - background.busy[place]),
                (load.utilisation[at], most - background.utilisation[place]),
            ):
                if largest(demand) > spare:
                    share = max(0.0, spare) / high(demand, 1e-300)
                    limits[at] = low(limits.get(at, 1.0), share)
            spare = memory - background.memory[place]
            if largest(load.memory[at]) > spare:
                fits = (load.memory[at] <= spare) | (load.memory[at] == 0.0)
                limits[at] = limits.get(at, 1.0) * fits
        return waits, limits

    def _on_links(
        self, load: Load, background: Load, arithmetic: Arithmetic
    ) -> dict[tuple[int, int], tuple[Transfer, float | None]]:
        """Return, by link, the seconds of a hand-over and the share of bytes passed in overload."""
        low, high, largest = arithmetic
        ways = {}
        for ends, (rate, squares) in load.links.items():
            background_rate, background_squares = background.links.get(
                (self.places[ends[0]], self.places[ends[1]]), (0.0, 0.0)
            )
            link, passing, spare, wait = self.links.get(ends), None, 0.0, 0.0
            if link is not None and link.bandwidth > 0.0:
                ratio = low((rate + background_rate) / link.bandwidth, BUSY)
                wait = (squares + background_squares) / (2.0 * link.bandwidth**2 * (1.0 - ratio))
                spare = max(0.0, FULL * link.bandwidth - background_rate)
            if largest(rate) > spare:
                passing = low(1.0, spare / high(rate, 1e-300))
            ways[ends] = _transfer(link, high, wait), passing
        return ways

    def _work(self, costs: Sequence[StageCost], load: Load, arithmetic: Arithmetic) -> float:
        work = 0.0
        for cost in costs:
            work = work + cost.work
        if self.rules.memory:
            running = [0.0] * len(self.devices)
            for cost in costs:
                for device, presence in cost.on:
                    running[device] = arithmetic.high(running[device], presence * cost.running)
            for device_running in running:
                work = work + device_running
        if self.rules.links:
            for ends, (rate, _) in load.links.items():
                link = self.links.get(ends)
                if link is not None and link.bandwidth > 0.0:
                    work = work + self.rules.links / link.bandwidth * rate
        return work


def make_estimators(question: PlacementQuestion, rules: EstimateRules) -> list[PipelineEstimator]:
    """Make an estimator for each pipeline."""
    links, numbers = links_by_ends(question), numbers_of(question)
    return [PipelineEstimator(question, view, rules, links, numbers) for view in question.pipelines]


def load_of(
    question: PlacementQuestion, rules: EstimateRules, placed: Sequence[Sequence[PlacedStage]]
) -> tuple[list[PipelineEstimator], list[list[StageCost]], Load]:
    """Return an estimator and the costs of the placed stages for each pipeline, and the load of all
    together. Raises ValueError if `placed` cannot run."""
    estimators = make_estimators(question, rules)
    chosen = [
        estimator.chosen(stages) for estimator, stages in zip(estimators, placed, strict=True)
    ]
    load = Load(len(question.devices))
    for estimator, costs in zip(estimators, chosen, strict=True):
        load.add(estimator.load(costs), estimator.places)
    return estimators, chosen, load


def numbers_of(question: PlacementQuestion) -> dict[str, int]:
    """Return the numbers of the question's devices, by name."""
    return {device.name: at for at, device in enumerate(question.devices)}


def links_by_ends(question: PlacementQuestion) -> dict[tuple[str, str], LinkView]:
    """Return links by (begin, end). A link stated for only one direction serves both."""
    back = {(link.end, link.begin): link for link in question.links}
    return back | {(link.begin, link.end): link for link in question.links}


def _hand_overs(
    pipeline: PipelineView, rates: Sequence[float], sinks: Sequence[int]
) -> Iterator[tuple[int, int, float, float]]:
    """See `PipelineEstimator.hand_overs`."""
    for at, (stage, rate) in enumerate(zip(pipeline.stages, rates, strict=True)):
        rows = max(1.0, rate / pipeline.rate) if pipeline.rate else 1.0
        for inflow in stage.inflows:
            hand_over_rate = rates[inflow.stage] * inflow.fan_out / rows
            yield inflow.stage, at, hand_over_rate, rows * stage.row_bytes
        if not at:
            yield -1, 0, rate, stage.row_bytes
        if at in sinks:
            yield at, -1, rate / rows, rows * stage.answer_bytes


def _transfer(link: LinkView | None, high: Combine, wait: float = 0.0) -> Transfer:
    """Return a function from the bytes of one hand-over to its seconds."""
    if link is None or link.bandwidth <= 0.0:
        return lambda size: NEVER
    latency, bandwidth, burst = link.latency, link.bandwidth, link.burst
    return lambda size: latency + high(0.0, size - burst) / bandwidth + wait


def total_score(
    question: PlacementQuestion, placed: Sequence[Sequence[PlacedStage]], rules: EstimateRules
) -> PlacementScore:
    """Return the score of all pipelines together, each in addition to the load of the others."""
    estimators = make_estimators(question, rules)
    pairs = zip(estimators, placed, strict=True)
    return score_of_all(estimators, [estimator.chosen(stages) for estimator, stages in pairs])


def score_of_all(
    estimators: Sequence[PipelineEstimator], costs: Sequence[Sequence[StageCost]]
) -> PlacementScore:
    """Return the score of all pipelines, from the costs of their stages."""
    load = Load(len(estimators[0].question.devices) if estimators else 0)
    loads = [
        estimator.load(stage_costs)
        for estimator, stage_costs in zip(estimators, costs, strict=True)
    ]
    for estimator, part in zip(estimators, loads, strict=True):
        load.add(part, estimator.places)
    worth = spare = 0.0
    for estimator, stage_costs, part in zip(estimators, costs, loads, strict=True):
        load.add(part, estimator.places, -1.0)
        estimate = estimator.estimate(stage_costs, load)
        load.add(part, estimator.places)
        worth += estimate.worth
        spare -= estimate.work
    return PlacementScore(worth, spare)
