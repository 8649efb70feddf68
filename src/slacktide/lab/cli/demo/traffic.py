"""Loads, deadlines and policies of the main demo, without I/O.

The models share the server's cores. Each gets the same share of its own capacity: load × its own
peak ÷ number of models. At load 1.0, the server could just keep up if every batch had the best
size.

The defaults are two trained models that gain little from batching, so the queue decides. Even on
one core, the server's own work (parsing, sending) is small compared with theirs.
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
"""Load at which the queue limit is chosen: an overload, because limits are meant for that."""
CV = 3.0
"""Coefficient of variation of the gaps between arrivals: 1 is Poisson, more is bursty."""
SEED = 1
DEADLINES = (3.0, 6.0, 12.0)
"""Equally frequent deadlines, as multiples of the slowest model's time for one row alone."""
BACKLOG_CONNECTIONS = 64
"""Requests in flight while the peak is measured: two of the largest batches."""
BACKLOG_S = 60.0
"""Deadline of these requests, instead of the models' own: on a slow machine, they wait long."""
PATIENCE = 0.5
"""Seconds after its deadline at which the client gives a request up, so that an overloaded queue
does not delay the next run."""

Settings: TypeAlias = Mapping[str, str]
"""Scheduler of each model, as its `slacktide.yaml` states it."""

_SHAPES: Mapping[str, Mapping[str, tuple[Shape, ...]]] = {
    "text": {"input_ids": ((16,), (44,), (96,)), "attention_mask": ((16,), (44,), (96,))}
}
"""Shapes of inputs with free axes, by model."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model, and its speed measured before the runs."""

    model: str
    alone_s: float
    """Median seconds of one row alone, from its profile."""
    profile_peak_rps: float
    """Rows per second of its best batch on one core, from its profile, without a server."""
    best_batch: int
    served_peak_rps: float = 0.0
    """Requests per second over HTTP, with server and model on the demo's cores."""


class QueueLimit(NamedTuple):
    """One queue limit that was tried."""

    wait_s: float
    settings: Settings
    goodput: float


@dataclass(frozen=True, slots=True)
class DemoTraffic:
    """The traffic of all runs."""

    measured: tuple[MeasuredModel, ...]
    seconds: float

    @property
    def deadlines(self) -> Mix:
        """Deadlines, common to all models, as if one product used them all."""
        slowest = max(model.alone_s for model in self.measured)
        return Mix(tuple(max(1e-3, round(slowest * factor, 3)) for factor in DEADLINES))

    @property
    def waits(self) -> tuple[float, ...]:
        """Queue limits to try, each as the longest wait that it allows (seconds)."""
        shortest, longest = min(self.deadlines.choices), max(self.deadlines.choices)
        return (shortest / 2, shortest, (shortest * longest) ** 0.5, longest)

    def fifo_limited(self, wait: float) -> Settings:
        """`fifo` whose queues hold what each model can serve in its share of `wait` seconds."""
        limits = {
            model.model: max(1, round(wait * model.served_peak_rps / len(self.measured)))
            for model in self.measured
        }
        return {model: f"{{name: fifo, max_queue: {limit}}}" for model, limit in limits.items()}

    def spec(self, target: Target, load: float, *, title: str, calibrate: bool = False) -> LoadSpec:
        """The run at one load. Calibration runs draw other arrivals than the judged runs."""
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
    """Return a load of as many simultaneous requests as the model could serve in `seconds`."""
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
