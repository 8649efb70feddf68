"""Places stages on devices, in batches, as published: CWD (OctopInf, Algorithm 1).

All stages of a pipeline start on a server, with batches of one. Batches double while the throughput
grows and no path takes longer than half the SLO, the burstiest stage first. Then stages move to the
camera's device, depth first and the least bursty first. As this recursion returns, a stage goes
back to the server if it sends more over the link than it would receive, and no later stage stays on
the device. Replicas follow from the rates, which are weighted by fan-out.

Where the paper is open (decision 0014), placements are compared as follows. Each stage and link can
handle some share of the rows that reach it. The placement whose smallest share is greater is the
better one, and equation 2 decides between equals. If the first placement already takes too long, a
move must not make it longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.planning.pipelines.costs import NEVER, EstimateRules, Load, StageCost
from slacktide.planning.pipelines.estimate import (
    PipelineEstimate,
    PipelineEstimator,
    make_estimators,
)
from slacktide.planning.pipelines.problem import PlacedStage, PlacementError, PlacementQuestion

Throughput = tuple[float, float]
Placed = tuple[tuple[PlacedStage, ...], ...]
"""By pipeline and stage."""


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """Batches that do not depend on the load (paper, §IV-A4)."""

    edge: int = 4
    server: int = 8
    source: int = 2

    def of(self, stage: int, server: bool) -> int:
        return self.source if stage == 0 else self.server if server else self.edge


@dataclass(frozen=True, slots=True)
class DistributionOptions:
    """Options of CWD. Turning a part off gives an ablation (paper, §IV-C5)."""

    alpha: float = 0.6
    """A stage stays on the edge device if its output is at most this share of its input (published
    code)."""
    edge: bool = True
    static: StaticBatches | None = None
    """Fixed batches; None: search for them."""


STATIC = StaticBatches()
RULES = EstimateRules(shared=False)
"""With CWD, stages have windows and so do not wait for each other."""


def distribute(
    question: PlacementQuestion,
    options: DistributionOptions = DistributionOptions(),
    rules: EstimateRules = RULES,
) -> Placed:
    """Place one pipeline after the other, as published."""
    load = Load(len(question.devices))
    placed = []
    for estimator in make_estimators(question, rules):
        costs = _Distribution(estimator, load, options).run()
        load.add(estimator.load(costs), estimator.places)
        placed.append(estimator.placed(costs))
    return tuple(placed)


class _Distribution:
    """The placement of one pipeline."""

    def __init__(
        self, estimator: PipelineEstimator, load: Load, options: DistributionOptions
    ) -> None:
        self.estimator, self.background_load, self.options = estimator, load, options
        stages = estimator.pipeline.stages
        self.burstiness = [stage.burstiness for stage in stages]
        self.costs = [self._first(at) for at in range(len(stages))]
        self.now = estimator.estimate(self.costs, load)
        self.throughput = self._throughput(self.now)

    def run(self) -> list[StageCost]:
        if self.options.static is None:
            self._grow_batches()
        if self.options.edge:
            self._to_edge(0)
        return self.costs

    def _first(self, at: int) -> StageCost:
        """Return the cost on the least busy server, or at the source if no server can run it."""
        devices = self.estimator.devices
        load = [self.background_load.busy[place] for place in self.estimator.places]
        order = sorted(
            range(len(devices)), key=lambda d: (not devices[d].server, load[d] / devices[d].lanes)
        )
        for device in order:
            cost = self._cost(at, device)
            if cost is not None:
                return cost
        name = self.estimator.pipeline.stages[at].name
        raise PlacementError(f"stage {name!r} has no times on any device that it fits")

    def _cost(self, at: int, device: int, batch: int = 0) -> StageCost | None:
        static = self.options.static
        if static is not None:
            rows = static.of(at, self.estimator.devices[device].server)
            batch_sizes = self.estimator.question.batches
            batch = max(number for number, size in enumerate(batch_sizes) if size <= rows)
            while batch and self.estimator.cost(at, device, 0, batch) is None:
                batch -= 1
        return self.estimator.cost(at, device, 0, batch)

    def _grow_batches(self) -> None:
        """Double batches. A stage whose batch cannot grow now never can, because growing batches
        only lengthen paths."""
        growing = sorted(range(len(self.costs)), key=lambda at: -self.burstiness[at])
        most = len(self.estimator.question.batches) - 1
        while growing:
            for at in list(growing):
                cost = self.costs[at]
                larger = self.estimator.cost(at, cost.device, 0, min(most, cost.batch + 1))
                growing.remove(at)
                if larger is None or larger.batch == cost.batch or not self._may_do(larger):
                    continue
                estimate = self._tried(at, larger)
                throughput = self._throughput(estimate, at, larger)
                if self._in_time(estimate) and throughput > self.throughput:
                    self.costs[at], self.now, self.throughput = larger, estimate, throughput
                    growing.append(at)

    def _to_edge(self, at: int) -> None:
        if self.costs[at].device == 0:
            return
        before, least = self.costs[at], self.throughput[0]
        best: tuple[Throughput, StageCost, PipelineEstimate] | None = None
        for batch in range(
            len(self.estimator.question.batches) if self.options.static is None else 1
        ):
            cost = self._cost(at, 0, batch)
            if cost is None or not self._may_do(cost):
                break
            estimate = self._tried(at, cost)
            throughput = self._throughput(estimate, at, cost)
            is_allowed = self._in_time(estimate) and throughput[0] >= least
            if is_allowed and (best is None or throughput > best[0]):
                best = throughput, cost, estimate
            if not is_allowed and throughput[0] >= least:
                break  # a larger batch takes longer
        if best is None:
            return
        self.throughput, self.costs[at], self.now = best
        after = sorted(
            self.estimator.downstream[at], key=lambda successor: self.burstiness[successor]
        )
        for successor in after:
            self._to_edge(successor)
        if any(self.costs[successor].device == 0 for successor in after):
            return
        rates, stages = self.estimator.rates, self.estimator.pipeline.stages
        received = rates[at] * stages[at].row_bytes
        sent = sum(rates[successor] * stages[successor].row_bytes for successor in after)
        if self.options.alpha * received < sent:
            estimate = self._tried(at, before)
            if self._in_time(estimate):
                self.costs[at], self.now = before, estimate
                self.throughput = self._throughput(estimate)

    def _tried(self, at: int, cost: StageCost) -> PipelineEstimate:
        previous, self.costs[at] = self.costs[at], cost
        estimate = self.estimator.estimate(self.costs, self.background_load)
        self.costs[at] = previous
        return estimate

    def _may_do(self, cost: StageCost) -> bool:
        return cost.latency <= max(self.estimator.budget, self.now.latency)

    def _in_time(self, estimate: PipelineEstimate) -> bool:
        return self.now.latency >= NEVER or estimate.latency <= max(
            self.estimator.budget, self.now.latency
        )

    def _throughput(
        self, estimate: PipelineEstimate, at: int = -1, cost: StageCost | None = None
    ) -> Throughput:
        """Return the throughput, as a key to compare by, with the present costs; if `cost` is
        given, it replaces the cost of stage `at`."""
        rows = self.estimator.question.batches
        row_seconds = [stage_cost.expected / rows[stage_cost.batch] for stage_cost in self.costs]
        if cost is not None:
            row_seconds[at] = cost.expected / rows[cost.batch]
        return min(estimate.shares), -sum(row_seconds)
