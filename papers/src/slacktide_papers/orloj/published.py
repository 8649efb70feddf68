"""Figures that the Orloj paper prints: Tables 1 to 5, and what its plots show.

Source: Yu, Qiu, Jin and Chowdhury, "Orloj: Predictably Serving Unpredictable DNNs" (2022). Facts
only, as printed; a finish rate is the share of the requests that were finished in time.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCHEDULERS = ("clipper", "nexus", "clockwork", "orloj")
"""The four systems of every table, in the order of its columns."""

SLOS = (1.5, 2.0, 3.0, 4.0, 5.0)
"""SLOs of every table, as multiples of the P99 time of a request that runs alone."""


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """A line of Table 1: run times of a real task alone, in milliseconds."""

    mean_ms: float
    p99_ms: float


TASKS: Mapping[str, TaskTimes] = {
    "rdinet-cifar": TaskTimes(683.15, 2667.54),
    "skipnet-imagenet": TaskTimes(3.24, 5.56),
    "blenderbot-convAI": TaskTimes(200.39, 242.27),
    "blenderbot-cornell": TaskTimes(203.22, 247.04),
    "gpt-convAI": TaskTimes(79.47, 143.40),
    "gpt-cornell": TaskTimes(94.84, 161.69),
    "bart-cnn": TaskTimes(774.66, 1101.99),
    "t5-cnn": TaskTimes(552.91, 797.28),
    "fsmt-wmt": TaskTimes(189.30, 319.31),
    "mbart-wmt": TaskTimes(432.38, 729.87),
}
"""Table 1, by the case names of Table 5."""

DELAY_RATES_PER_MS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Figure 13, x axis: b of the anticipated delay, per millisecond; §5.6 calls all of them "stable".
The figure has a line for each of the five SLOs in the three-modal case, without numbers."""

QUEUE_LENGTHS = (10, 100, 1_000, 10_000)
"""Figure 12, x axis: requests in the queue (§5.5: from 10 to 10,000, means of 100 samples)."""


def _read() -> dict[str, dict[tuple[str, float, str], float]]:
    tables: dict[str, dict[tuple[str, float, str], float]] = {}
    with Path(__file__).with_name("finish_rates.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name in SCHEDULERS:
                key = row["case"], float(row["slo"]), name
                tables.setdefault(row["table"], {})[key] = float(row[name])
    return tables


TABLES = _read()
"""Every printed finish rate: by table, then by (case, SLO, scheduler)."""


def cases(table: str) -> tuple[str, ...]:
    """The cases of `table`, in the order in which it prints them."""
    return tuple(dict.fromkeys(case for case, _, _ in TABLES[table]))


def printed_finish(case: str, slo: float, scheduler: str) -> float | None:
    """The printed finish rate; None if the paper prints none."""
    rates = (table.get((case, slo, scheduler)) for table in TABLES.values())
    return next((rate for rate in rates if rate is not None), None)
