"""Upper bound of the rows per second that any placement can serve, by a linear program (HiGHS).

For measurements; needs scipy. Frames are a fluid: a pipeline's flow divides among all ways to run
it. A way runs each stage on one device, or skips it and all stages after it; every path of a way
takes no longer than the SLO without queueing (expected times of single rows). Flows fit the
capacities of lanes, accelerators and links; a stage puts on each of them the load of its most
efficient batch and configuration. Batches are always full, rows never wait, and moving a stage is
free, so all measured rates lie below the bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from slacktide.planning.pipelines import (
    EstimateRules,
    PipelineEstimator,
    PlacementQuestion,
    make_estimators,
)
from slacktide_papers.bounds.exact import LinearProgram

Way = tuple[int | None, ...]
"""By stage: index of its device in `PipelineEstimator.devices`; None: the stage is not run."""
_RULES = EstimateRules(budget=1.0)


def fluid_bound(question: PlacementQuestion, *, seconds: float = 10.0) -> float | None:
    """The bound of rows per second at the sinks, all pipelines together; None if the solver finds
    none in `seconds`. Raises SolverMissingError."""
    program = LinearProgram()
    loads: dict[object, list[tuple[int, float]]] = defaultdict(list)
    capacities: dict[object, float] = {}
    for number, device in enumerate(question.devices):
        capacities["lanes", number] = device.lanes
        capacities["accelerators", number] = device.accelerators * device.utilisation
    for estimator in make_estimators(question, _RULES):
        for (begin, end), link in estimator.links.items():
            capacities["link", estimator.places[begin], estimator.places[end]] = link.bandwidth
        rate = estimator.pipeline.rate
        fluid = _Fluid(estimator)
        ways = list(fluid.ways()) if rate else []
        if not ways:
            continue
        flows = program.add(len(ways), most=rate, whole=False)
        program.require([(at, 1.0) for at in flows], most=rate)
        for at, way in zip(flows, ways, strict=True):
            for resource, load in fluid.loads(way):
                loads[resource].append((at, load / rate))
            rows = sum(estimator.rates[sink] for sink in estimator.sinks if way[sink] is not None)
            program.worth[at] = rows / rate
    if not loads:
        return 0.0
    for resource, terms in loads.items():
        program.require(terms, most=capacities[resource])
    return program.solved(seconds).most


class _Fluid:
    """The ways to run one pipeline, and the load of each way."""

    def __init__(self, estimator: PipelineEstimator) -> None:
        self.estimator = estimator
        stages = range(len(estimator.rates))
        devices = range(len(estimator.devices))
        self.least = [[self._least(at, device) for device in devices] for at in stages]
        """By stage and device: (seconds of one row, lanes, accelerators). Each figure is the
        minimum over the stage's configurations and batches, independently of the other two."""
        shares = [
            min(configuration.row_share for configuration in stage.configurations)
            for stage in estimator.pipeline.stages
        ]
        self.hand_overs = [
            (begin, at, rate, size * (shares[at] if at >= 0 else 1.0))
            for begin, at, rate, size in estimator.hand_overs
        ]

    def _least(self, at: int, device: int) -> tuple[float, float, float]:
        costs = [cost for cost in self.estimator.choices(at) if cost.device == device]
        if not costs:
            return math.inf, 0.0, 0.0
        return (
            min(cost.expected for cost in costs if cost.batch == 0),
            min(cost.busy for cost in costs),
            min(cost.utilisation for cost in costs),
        )

    def ways(self, way: Way = (), ended: tuple[float, ...] = ()) -> Iterator[Way]:
        """Yield the ways within the SLO that extend `way` and run a sink. `ended`: stages' ends."""
        at = len(way)
        if at == len(self.least):
            if any(way[sink] is not None for sink in self.estimator.sinks):
                yield way
            return
        yield from self.ways((*way, None), (*ended, math.inf))
        for device in range(len(self.estimator.devices)):
            end = self._begin(at, device, way, ended) + self.least[at][device][0]
            back = [
                self.estimator.transfer(device, 0, size)
                for begin, to, _, size in self.hand_overs
                if (begin, to) == (at, -1)
            ]
            if end + sum(back) <= self.estimator.budget:
                yield from self.ways((*way, device), (*ended, end))

    def _begin(self, at: int, device: int, way: Way, ended: tuple[float, ...]) -> float:
        latest = 0.0
        for begin, to, _, size in self.hand_overs:
            if to == at:
                place, before = (way[begin] or 0, ended[begin]) if begin >= 0 else (0, 0.0)
                over = self.estimator.transfer(place, device, size)
                latest = max(latest, before + over)
        return latest

    def loads(self, way: Way) -> Iterator[tuple[object, float]]:
        """Yield (resource, load) for each resource in use if all frames go this way."""
        places = self.estimator.places
        for device, least in zip(way, self.least, strict=True):
            if device is not None:
                yield ("lanes", places[device]), least[device][1]
                yield ("accelerators", places[device]), least[device][2]
        for begin, at, rate, size in self.hand_overs:
            a, b = way[begin] if begin >= 0 else 0, way[at] if at >= 0 else 0
            if a is not None and b is not None and a != b:
                yield ("link", places[a], places[b]), rate * size
