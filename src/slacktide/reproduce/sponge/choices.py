"""Table 1, and what its text says of it: which instances carry 100 requests a second."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.reproduce.sponge.published import TABLE_1, TABLE_1_RATE
from slacktide.reproduce.sponge.setting import BATCH, CORES, FIT, SLO
from slacktide.scaling import ModelView, ReplicaView, ScalingLimits, make_planner

DELAYS = (0.0, 0.04, 0.5, 0.6, 0.9, 0.95)
"""Seconds that the network takes: in the text beside Table 1, and two longer ones."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A line of Table 1, printed and by the fit of the published latencies."""

    cores: int
    batch: int
    printed_ms: float
    fitted_ms: float
    printed_throughput: float
    fitted_throughput: float
    printed_cores: int
    """Of all instances that the load needs."""
    fitted_cores: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a planner chooses for that load when the network takes so much of the SLO."""

    delay_ms: float
    planner: str
    replicas: int
    cores: int
    batch: int
    holds: bool
    """Whether it takes that to be enough."""


def instances() -> tuple[Instance, ...]:
    """Table 1."""
    found = []
    for line in TABLE_1:
        seconds = FIT.seconds(line.batch, line.cores)
        throughput = line.batch / seconds
        found.append(
            Instance(
                line.cores,
                line.batch,
                line.latency_ms,
                1e3 * seconds,
                line.throughput,
                throughput,
                line.cores * line.instances,
                line.cores * math.ceil(TABLE_1_RATE / throughput),
            )
        )
    return tuple(found)


def choices() -> tuple[Choice, ...]:
    """What `fa2` and `vertical` make of it, for each delay of the text."""
    found = []
    for delay in DELAYS:
        for planner, limits in (
            ("fa2", ScalingLimits(replicas_max=CORES, batch_max=BATCH)),
            ("vertical", ScalingLimits(cores_max=CORES, batch_max=BATCH)),
        ):
            view = ModelView(
                "model",
                (),
                (ReplicaView(1, 0.0, 0.0),),
                TABLE_1_RATE,
                SLO - delay,
                1,
                _Fit(),
                limits,
            )
            wish = make_planner(planner, {}).decide(view, now=0.0)
            holds = wish.late == 0 and wish.reason != "none suffices"
            found.append(Choice(1e3 * delay, planner, wish.replicas, wish.cores, wish.batch, holds))
    return tuple(found)


class _Fit:
    """Batch times by the fit alone."""

    def expected(self, rows: int, cores: int) -> float:
        return FIT.seconds(rows, cores)

    p99 = expected
