"""Upper bound of the rows per second that any placement can serve, by a linear program (HiGHS).

For measurements; needs scipy. Frames are a fluid: a pipeline's flow divides among all ways to run
it. A way runs each stage on one device, or skips it and all stages after it; every path of a way
takes no longer than the SLO without queueing (expected times of single rows). Flows fit the
capacities of lanes, accelerators and links; a stage puts on each of them the load of its most
efficient batch and configuration, among batches that take no longer than the SLO. Batches are
always full, rows never wait, and moving a stage is free, so all measured rates lie below the bound.

Three choices make other bounds. If cameras are not `divided`, all frames of a pipeline run each
stage on one device: a mixed-integer program. If rows are `weighted`, each counts the product of the
accuracies of its stages, relative to the best, and a way chooses a configuration for each stage.
With a largest `loss`, rows count fully, but their mean accuracy is at most that much below 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from slacktide.planning.pipelines import (
    EstimateRules,
    PipelineEstimator,
    PlacementQuestion,
    make_estimators,
)
from slacktide_papers.bounds.exact import LinearProgram


class _Run(NamedTuple):
    """One way to run a stage."""

    device: int
    """Index in `PipelineEstimator.devices`."""
    seconds: float
    """Expected seconds of one row."""
    lanes: float
    accelerators: float
    """Lanes and accelerators in use if the stage gets all rows: the minimum over its batches and,
    unless accuracy counts, configurations; each independently of the other fields."""
    row_share: float
    """Share of a row's bytes that crosses a link."""
    accuracy: float
    """Relative to the stage's best configuration."""


Way = tuple[_Run | None, ...]
"""By stage; None: the stage is not run."""
GAP = 1e-3
"""Share by which the bound without divided cameras may be too large, to be found sooner."""
_RULES = EstimateRules(budget=1.0)


def fluid_bound(
    question: PlacementQuestion,
    *,
    divided: bool = True,
    weighted: bool = False,
    loss: float = 1.0,
    seconds: float = 10.0,
) -> float | None:
    """The bound of rows per second at the sinks, all pipelines together; None if the solver finds
    none in `seconds`. Raises SolverMissingError."""
    program = LinearProgram()
    loads: dict[object, list[tuple[int, float]]] = defaultdict(list)
    spare: list[tuple[int, float]] = []
    capacities: dict[object, float] = {}
    for number, device in enumerate(question.devices):
        capacities["lanes", number] = device.lanes
        capacities["accelerators", number] = device.accelerators * device.utilisation
    for estimator in make_estimators(question, _RULES):
        for (begin, end), link in estimator.links.items():
            capacities["link", estimator.places[begin], estimator.places[end]] = link.bandwidth
        rate = estimator.pipeline.rate
        fluid = _Fluid(estimator, weighted or loss < 1.0)
        ways = list(fluid.ways()) if rate else []
        if not ways:
            continue
        flows = program.add(len(ways), most=rate, whole=False)
        program.require([(at, 1.0) for at in flows], most=rate)
        for at, way in zip(flows, ways, strict=True):
            for resource, load in fluid.loads(way):
                loads[resource].append((at, load / rate))
            rows, exact = fluid.worth(way)
            program.worth[at] = (exact if weighted else rows) / rate
            spare.append((at, exact - (1.0 - loss) * rows))
        if not divided:
            _undivided(program, flows, ways, rate)
    if not loads:
        return 0.0
    for resource, terms in loads.items():
        program.require(terms, most=capacities[resource])
    if loss < 1.0:
        program.require(spare, least=0.0)
    return program.solved(seconds, gap=GAP).most


def _undivided(program: LinearProgram, flows: range, ways: list[Way], rate: float) -> None:
    """Require that all frames run each stage on one device."""
    for stage in range(len(ways[0])):
        by_device: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for at, way in zip(flows, ways, strict=True):
            if (run := way[stage]) is not None:
                by_device[run.device].append((at, 1.0))
        chosen = program.add(len(by_device))
        program.require([(at, 1.0) for at in chosen], most=1.0)
        for at, terms in zip(chosen, by_device.values(), strict=True):
            program.require([*terms, (at, -rate)], most=0.0)


class _Fluid:
    """The ways to run one pipeline, and the load of each way."""

    def __init__(self, estimator: PipelineEstimator, by_configuration: bool) -> None:
        self.estimator, self.by_configuration = estimator, by_configuration
        self.runs = [list(self._runs(at)) for at in range(len(estimator.rates))]

    def _runs(self, at: int) -> Iterator[_Run]:
        """Yield the ways to run a stage: one for each device and, if accuracy counts,
        configuration."""
        estimator = self.estimator
        configurations = estimator.pipeline.stages[at].configurations
        best = max(configuration.accuracy for configuration in configurations)
        groups = [list(range(len(configurations)))]
        if self.by_configuration:
            groups = [[number] for number in groups[0]]
        for device in range(len(estimator.devices)):
            for group in groups:
                costs = [
                    cost
                    for cost in estimator.choices(at)
                    if cost.device == device
                    and cost.configuration in group
                    and cost.expected <= estimator.budget
                ]
                if costs:
                    yield _Run(
                        device,
                        min(cost.expected for cost in costs if cost.batch == 0),
                        min(cost.busy for cost in costs),
                        min(cost.utilisation for cost in costs),
                        min(cost.row_share for cost in costs),
                        max(cost.accuracy for cost in costs) / best,
                    )

    def ways(self, way: Way = (), ended: tuple[float, ...] = ()) -> Iterator[Way]:
        """Yield the ways within the SLO that extend `way` and run a sink. `ended`: stages' ends."""
        at = len(way)
        if at == len(self.runs):
            if any(way[sink] is not None for sink in self.estimator.sinks):
                yield way
            return
        yield from self.ways((*way, None), (*ended, math.inf))
        for run in self.runs[at]:
            end = self._begin(at, run, way, ended) + run.seconds
            back = [
                self.estimator.transfer(run.device, 0, size)
                for begin, to, _, size in self.estimator.hand_overs
                if (begin, to) == (at, -1)
            ]
            if end + sum(back) <= self.estimator.budget:
                yield from self.ways((*way, run), (*ended, end))

    def _begin(self, at: int, run: _Run, way: Way, ended: tuple[float, ...]) -> float:
        latest = 0.0
        for begin, to, _, size in self.estimator.hand_overs:
            if to == at:
                upstream = way[begin] if begin >= 0 else None
                place, before = 0, 0.0 if begin < 0 else ended[begin]
                if upstream is not None:
                    place = upstream.device
                over = self.estimator.transfer(place, run.device, size * run.row_share)
                latest = max(latest, before + over)
        return latest

    def worth(self, way: Way) -> tuple[float, float]:
        """Return (rows per second at the sinks, the same weighted by accuracy) if all frames go
        this way."""
        accuracies: list[float] = []
        for run, stage in zip(way, self.estimator.pipeline.stages, strict=True):
            upstream = min((accuracies[inflow.stage] for inflow in stage.inflows), default=1.0)
            accuracies.append(0.0 if run is None else upstream * run.accuracy)
        rates, sinks = self.estimator.rates, self.estimator.sinks
        rows = math.fsum(rates[at] for at in sinks if way[at] is not None)
        return rows, math.fsum(rates[at] * accuracies[at] for at in sinks)

    def loads(self, way: Way) -> Iterator[tuple[object, float]]:
        """Yield (resource, load) for each resource in use if all frames go this way."""
        places = self.estimator.places
        for run in way:
            if run is not None:
                yield ("lanes", places[run.device]), run.lanes
                yield ("accelerators", places[run.device]), run.accelerators
        for begin, at, rate, size in self.estimator.hand_overs:
            sender, receiver = way[begin] if begin >= 0 else None, way[at] if at >= 0 else None
            if (begin >= 0 and sender is None) or (at >= 0 and receiver is None):
                continue
            origin, end = sender.device if sender else 0, receiver.device if receiver else 0
            if origin != end:
                share = receiver.row_share if receiver else 1.0
                yield ("link", places[origin], places[end]), rate * size * share
