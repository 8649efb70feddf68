"""Loads, deadlines and policies of the main demo. Pure.

The models share the server's cores. Each is sent the same part of what it could do alone: load ×
its own peak ÷ number of models. At load 1.0 the server could just keep up if every batch were of
the best size.

By default two trained models that gain little from batching, so that the queue is what decides, and
the server's own work (parsing, sending) is small beside theirs even on one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from slacktide.lab.load.spec import LoadSpec, RandomPayload, Shape, Stream, Target
from slacktide.lab.workloads import Fixed, Gamma, Mix, Replay

LOADS = (0.8, 1.3, 2.0)
"""Offered load as multiples of the measured peak."""
CALIBRATION_LOAD = LOADS[1]
"""Where the queue limit is chosen: overloaded, as limits are for."""
CV = 3.0
"""Coefficient of variation of the gaps between arrivals: 1 would be Poisson, above is bursty."""
SEED = 1
DEADLINES = (3.0, 6.0, 12.0)
"""Deadlines as multiples of what the slowest model takes alone for one row; an even mix."""
BACKLOG_CONNECTIONS = 64
"""Requests under way while the peak is measured: two of the largest batches."""
BACKLOG_S = 60.0
"""Deadline of these requests, in place of the models' own: on a slow machine they wait for long."""
PATIENCE = 0.5
"""Seconds after its deadline at which the client gives a request up: an overloaded queue must
not eat into the next run."""

Settings: TypeAlias = Mapping[str, str]
"""Scheduler of each model, as its `slacktide.yaml` states it."""

_SHAPES: Mapping[str, Mapping[str, tuple[Shape, ...]]] = {
    "text": {"input_ids": ((16,), (44,), (96,)), "attention_mask": ((16,), (44,), (96,))}
}
"""Shapes of inputs with free axes, by model."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model, and its speed as measured before it is put under load."""

    model: str
    alone_s: float
    """Median seconds of one row alone, from its profile."""
    profile_peak_rps: float
    """Rows per second of its best batch on one core, from its profile: the model alone."""
    best_batch: int
    served_peak_rps: float = 0.0
    """Requests per second over HTTP, server and model on the demo's cores."""


class QueueLimit(NamedTuple):
    """One queue limit that was tried."""

    wait_s: float
    settings: Settings
    goodput: float


@dataclass(frozen=True, slots=True)
class DemoTraffic:
    """The traffic of every run."""

    measured: tuple[MeasuredModel, ...]
    seconds: float

    @property
    def deadlines(self) -> Mix:
        """All models share them, as if one product used them all."""
        slowest = max(model.alone_s for model in self.measured)
        return Mix(tuple(max(1e-3, round(slowest * factor, 3)) for factor in DEADLINES))

    @property
    def waits(self) -> tuple[float, ...]:
        """Queue limits to try, as the longest wait that they allow (seconds)."""
        shortest, longest = min(self.deadlines.choices), max(self.deadlines.choices)
        return (shortest / 2, shortest, (shortest * longest) ** 0.5, longest)

    def fifo_limited(self, wait: float) -> Settings:
        """`fifo` where each queue holds what its model can do in `wait` seconds of its share."""
        limits = {
            model.model: max(1, round(wait * model.served_peak_rps / len(self.measured)))
            for model in self.measured
        }
        return {model: f"{{name: fifo, max_queue: {limit}}}" for model, limit in limits.items()}

    def spec(self, target: Target, load: float, *, title: str, calibrate: bool = False) -> LoadSpec:
        """The run at one load. The calibration draws other arrivals than those that are judged."""
        streams = [
            Stream(
                model.model,
                Gamma(load * model.served_peak_rps / len(self.measured), CV),
                self.deadlines,
                shapes=_SHAPES.get(model.model, {}),
            )
            for model in self.measured
        ]
        return LoadSpec(
            target=target,
            streams=tuple(streams),
            duration=self.seconds / 2 if calibrate else self.seconds,
            seed=SEED + 1 if calibrate else SEED,
            patience=PATIENCE,
            title=title,
        )


def backlog(target: Target, model: MeasuredModel, seconds: float) -> LoadSpec:
    """Load of as many requests at once as the model could do in `seconds`."""
    count = max(BACKLOG_CONNECTIONS, int(model.profile_peak_rps * seconds))
    return LoadSpec(
        target=target,
        streams=(
            Stream(
                model.model,
                Replay([0.0] * count),
                Fixed(BACKLOG_S),
                shapes=_SHAPES.get(model.model, {}),
                payload=RandomPayload(variety=1),
            ),
        ),
        duration=seconds,
        connections=BACKLOG_CONNECTIONS,
        title=f"{model.model}: a backlog of {count}",
    )


def by_default(policy: str, models: Sequence[str]) -> Settings:
    """A policy with default options; `fifo` is plain dynamic batching with an unlimited queue."""
    return dict.fromkeys(models, f"{{name: {policy}}}")
