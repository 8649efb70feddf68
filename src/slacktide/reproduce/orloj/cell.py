"""`Cell`: one run of the reproduction; `Finish`: what came of it. Plain data both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUESTS = 5_000
"""Requests of a full run."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler as it takes part: under one name, with its options."""

    label: str
    """Its name in rows and tables."""
    policy: str
    """Its name among the policies, or one of the yardsticks (play.py)."""
    options: tuple[tuple[str, float | str], ...] = ()
    """Those that differ from the defaults, sorted by name."""
    notice: float = 0.0
    """How long before its arrival a request is announced, as a share of the time alone."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender on one case, at one SLO, with one seed."""

    setting: str
    case: str
    slo: float
    """Deadline after the arrival, as a multiple of the P99 of the time alone."""
    contender: Contender
    seed: int
    requests: int = REQUESTS
    p99_ms: float | None = None
    """P99 of the time alone in milliseconds; None: as the case has it."""
    overhead_ms: float = 0.0
    """What every batch takes beyond its run time, unknown to the scheduler."""
    trace: tuple[float, ...] = ()
    """Rates, in any unit, of the windows that arrivals follow; empty: those of the setting."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; equal cells give equal ones, whatever the contender is called."""
        return {
            "setting": self.setting,
            "case": self.case,
            "slo": self.slo,
            "policy": self.contender.policy,
            "options": dict(self.contender.options),
            "notice": self.contender.notice,
            "seed": self.seed,
            "requests": self.requests,
            "p99_ms": self.p99_ms,
            "overhead_ms": self.overhead_ms,
            "trace": list(self.trace),
        }


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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"submitted": dict(self.submitted), "on_time": dict(self.on_time)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Finish:
        """From what `to_dict` gave."""
        return cls(document["submitted"], document["on_time"])
