"""Figures that need no run: the budgets of Figure 1, and Table 1 with the delays that the paper's
text states.

Printed numbers are from Razavi, Ghafouri, Mühlhäuser, Jamshidi and Wang, "Sponge: Inference Serving
with Dynamic SLOs Using In-Place Vertical Scaling" (EuroMLSys 2024). Facts only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slacktide.lab.workloads import TraceLink
from slacktide.planning.scaling import ModelView, ReplicaView, ScalingLimits, make_scaling_policy
from slacktide.profiles import PointTime
from slacktide_papers.sponge.setting import BATCH, CORES, DURATION, FIT, KILOBYTE, SLO, Bandwidths

SIZES_KB = (100, 200, 500)


@dataclass(frozen=True, slots=True)
class Budgets:
    """One payload size of Figure 1: budgets in ms of requests sent at each whole second."""

    size_kb: int
    least: float
    mean: float
    most: float
    gone: float
    """Share of the seconds in which the network leaves no budget."""
    by_second: tuple[float, ...]


def budgets(data: Bandwidths) -> tuple[Budgets, ...]:
    """Budgets (the part of 1 s that the network leaves) over ten minutes of the 4G trace."""
    link = TraceLink(data.four_g)
    rows = []
    for size in SIZES_KB:
        spare = tuple(
            1e3 * (SLO - (link.deliver(size * KILOBYTE, sent=float(at)).complete_at - at))
            for at in range(DURATION)
        )
        spent = sum(ms <= 0.0 for ms in spare) / len(spare)
        rows.append(Budgets(size, min(spare), sum(spare) / len(spare), max(spare), spent, spare))
    return tuple(rows)


def megabytes(data: Bandwidths) -> tuple[float, ...]:
    """MB/s of the 4G trace, by second: the upper part of Figure 1."""
    return tuple(data.four_g.rate(float(at)) / 1e6 for at in range(DURATION))


TABLE_1_RATE = 100.0
"""Requests per second in Table 1; the SLO is 1 s, as everywhere."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A line of Table 1: one instance, and how many such instances carry the load."""

    cores: int
    batch: int
    latency_ms: float
    throughput: float
    instances: int


TABLE_1 = (
    Printed(1, 1, 55.0, 18.0, 6),
    Printed(1, 2, 97.0, 20.0, 5),
    Printed(2, 4, 94.0, 40.0, 3),
    Printed(4, 8, 92.0, 80.0, 2),
    Printed(8, 4, 37.0, 108.0, 1),
    Printed(8, 8, 62.0, 128.0, 1),
)


DELAYS = (0.0, 0.04, 0.5, 0.6, 0.9, 0.95)
"""Seconds that the network takes: those in the text of Table 1, and two longer delays."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A line of Table 1: as printed, and as the fit of the published latencies predicts."""

    cores: int
    batch: int
    printed_ms: float
    fitted_ms: float
    printed_throughput: float
    fitted_throughput: float
    printed_cores: int
    """Cores of all instances that the load needs."""
    fitted_cores: int


@dataclass(frozen=True, slots=True)
class PlannerChoice:
    """A planner's choice for Table 1's load if the network takes `delay_ms` of the SLO."""

    delay_ms: float
    planner: str
    replicas: int
    cores: int
    batch: int
    holds: bool
    """Whether the planner expects its choice to suffice."""


def instances() -> tuple[Instance, ...]:
    """All lines of Table 1."""
    rows = []
    for line in TABLE_1:
        seconds = FIT.seconds(line.batch, line.cores)
        throughput = line.batch / seconds
        milliseconds, rates = (line.latency_ms, 1e3 * seconds), (line.throughput, throughput)
        cores = line.cores * line.instances, line.cores * math.ceil(TABLE_1_RATE / throughput)
        rows.append(Instance(line.cores, line.batch, *milliseconds, *rates, *cores))
    return tuple(rows)


def choices() -> tuple[PlannerChoice, ...]:
    """Choices of `fa2` and `vertical`, for each delay that the paper's text states."""
    rows = []
    for delay in DELAYS:
        for planner, limits in (
            ("fa2", ScalingLimits(replicas_max=CORES, batch_max=BATCH)),
            ("vertical", ScalingLimits(cores_max=CORES, batch_max=BATCH)),
        ):
            load = TABLE_1_RATE, SLO - delay, 1
            view = ModelView("model", (), (ReplicaView(1, 0.0, 0.0),), *load, _Fit(), limits)
            target = make_scaling_policy(planner, {}).decide(view, now=0.0)
            holds = target.late == 0 and target.reason != "none suffices"
            chosen = target.replicas, target.cores, target.batch
            rows.append(PlannerChoice(1e3 * delay, planner, *chosen, holds))
    return tuple(rows)


class _Fit:
    """Batch times by the fit alone."""

    def of(self, rows: int, cores: int) -> PointTime:
        return PointTime(FIT.seconds(rows, cores))
