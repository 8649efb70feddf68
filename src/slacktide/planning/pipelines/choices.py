"""The choices for each stage of a pipeline, and their costs, regardless of other stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.planning.pipelines.costs import BUSY, FULL, EstimateRules, StageCost
from slacktide.planning.pipelines.problem import (
    ConfigurationTimes,
    DeviceView,
    PipelineView,
    PlacedStage,
    PlacementQuestion,
)


class StageChoices:
    """The choices for all stages of one pipeline: devices, configurations and batches."""

    def __init__(
        self, question: PlacementQuestion, pipeline: PipelineView, rules: EstimateRules
    ) -> None:
        self.question, self.pipeline, self.rules = question, pipeline, rules
        self.devices: list[DeviceView] = question.candidates(pipeline)
        """Candidate devices, the source first."""
        self.rates = pipeline.rates()
        self._costs: dict[tuple[int, int, int, int], StageCost | None] = {}
        self._times_of: dict[tuple[int, int, int], ConfigurationTimes | None] = {}

    def cost(self, stage: int, device: int, number: int = 0, batch: int = 0) -> StageCost | None:
        """Return the cost of configuration `number`; None: it is impossible. The stage has as many
        replicas as its rows need, as far as there are lanes."""
        key = stage, device, number, batch
        if key not in self._costs:
            self._costs[key] = self._cost(*key)
        return self._costs[key]

    def _times(self, stage: int, device: int, number: int) -> ConfigurationTimes | None:
        """Return the times of a configuration on a device; None: it cannot run there."""
        view, host = self.pipeline.stages[stage], self.devices[device]
        configuration = view.configurations[number]
        if (
            (view.devices and host.name not in view.devices)
            or configuration.weights + configuration.intermediate > host.memory
            or configuration.utilisation > host.utilisation
        ):
            return None
        return next((times for times in configuration.times if times.kind == host.kind), None)

    def _cost(self, at: int, device: int, number: int, batch_at: int) -> StageCost | None:
        key = at, device, number
        if key not in self._times_of:
            self._times_of[key] = self._times(*key)
        times = self._times_of[key]
        if times is None or batch_at >= len(times.p99):
            return None
        stage, host = self.pipeline.stages[at], self.devices[device]
        configuration, rate = stage.configurations[number], self.rates[at]
        lanes = host.lanes
        rows, seconds = self.question.batches[batch_at], times.expected[batch_at]
        busy = rate * seconds / rows
        replicas = min(lanes, max(1, math.ceil(busy / self.rules.max_utilisation - 1e-9)))
        part = busy / replicas
        ratio = min(part, BUSY)
        fill, rounds = 0.0, 1
        if not self.rules.fill:
            per_frame = max(1.0, rate / self.pipeline.rate) if self.pipeline.rate else 1.0
            rounds = math.ceil(per_frame / (rows * replicas) - 1e-9)
        elif rate:
            together = max(1.0, 0.5 + 0.5 * stage.burstiness**2)
            fill = max(0.0, rows - together) / rate
        running, loaded_bytes = configuration.intermediate, configuration.weights
        if lanes > 1:
            running, loaded_bytes = 0.0, configuration.weights + configuration.intermediate
        # all pipelines share a server's replicas: a stage takes the part that it keeps busy
        loaded_bytes *= busy / self.rules.max_utilisation if host.server else replicas
        gigabyte = 1e-9 * self.rules.memory
        return StageCost(
            device,
            number,
            batch_at,
            replicas,
            seconds,
            times.p99[batch_at],
            fill + rounds * times.p99[batch_at],
            ratio * seconds / (2.0 * (1.0 - ratio)),
            busy,
            busy * seconds,
            busy * configuration.utilisation,
            replicas * (configuration.weights + configuration.intermediate),
            min(1.0, FULL / part) if part > 0.0 else 1.0,
            (busy * max(1, configuration.cores) if host.server else 0.0) + gigabyte * loaded_bytes,
            gigabyte * running,
            configuration.accuracy,
            configuration.row_share,
            ((device, 1.0),),
        )

    def choices(self, stage: int) -> list[StageCost]:
        """Return all choices for one stage."""
        choices = []
        for number in range(len(self.pipeline.stages[stage].configurations)):
            for device in range(len(self.devices)):
                for batch in range(len(self.question.batches)):
                    cost = self.cost(stage, device, number, batch)
                    if cost is None:
                        break
                    choices.append(cost)
        return choices

    def placed(self, costs: Sequence[StageCost]) -> tuple[PlacedStage, ...]:
        """Return these choices as placed stages."""
        return tuple(
            PlacedStage(
                self.devices[cost.device].name,
                self.question.batches[cost.batch],
                cost.replicas,
                cost.configuration,
            )
            for cost in costs
        )

    def chosen(self, placed: Sequence[PlacedStage]) -> list[StageCost]:
        """Return the costs of placed stages. Raises ValueError if one cannot run as placed."""
        names = [device.name for device in self.devices]
        costs = []
        for at, stage in enumerate(placed):
            batch = self.question.batches.index(stage.batch)
            cost = self.cost(at, names.index(stage.device), stage.configuration, batch)
            if cost is None:
                raise ValueError(f"{self.pipeline.stages[at].name!r} cannot run as {stage}")
            costs.append(cost)
        return costs
