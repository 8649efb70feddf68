"""`OrlojCell`: one run of the reproduction; `Finish`: what came of it. Plain data both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.reproduce.harness.experiments import Cell, Contender

REQUESTS = 5_000
"""Requests of a full run."""


@dataclass(frozen=True, slots=True)
class OrlojContender(Contender):
    """A scheduler as it takes part."""

    notice: float = 0.0
    """How long before its arrival a request is announced, as a share of the time alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrlojCell(Cell):
    """One contender on one case, at one SLO, with one seed."""

    contender: OrlojContender
    case: str
    slo: float
    """Deadline after the arrival, as a multiple of the P99 of the time alone."""
    requests: int = REQUESTS
    p99_ms: float | None = None
    """P99 of the time alone in milliseconds; None: as the case has it."""
    overhead_ms: float = 0.0
    """What every batch takes beyond its run time, unknown to the scheduler."""
    trace: tuple[float, ...] = ()
    """Rates, in any unit, of the windows that arrivals follow; empty: those of the setting."""

    def __str__(self) -> str:
        return f"{self.setting} {self.case} {self.contender.label}"


@dataclass(frozen=True, slots=True)
class Finish:
    """How many requests were submitted and finished in time, by application."""

    submitted: Mapping[str, int]
    on_time: Mapping[str, int]

    @property
    def rate(self) -> float:
        """The finish rate: on time ÷ submitted."""
        return sum(self.on_time.values()) / sum(self.submitted.values())

    def rate_of(self, application: str) -> float:
        """The finish rate of one application that submitted something."""
        return self.on_time[application] / self.submitted[application]
