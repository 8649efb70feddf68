"""Settings of `slack`: see slack.py for what they steer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SlackOptions:
    """Settings of `slack`. All are flat near their defaults. Raises ValueError if out of range."""

    levels: int = 4
    """Start points tried per batch size."""
    kappa: float = 0.9
    """Share of a patient request's worth that is not lost by passing it over; 0 to 1."""
    theta: float = 0.5
    """How much more a long request is worth: its time alone over the average, to this power; 0:
    no more than a short one. Matters only where run times are known by class."""
    drop: float = 0.2
    """Given up once P(on time, alone) is this or less; 0 to 1, exclusive."""
    lead: float = 0.2
    """How long the lane may be held for announced requests, in times of one request alone; 0: it
    never is."""
    guarantee: Literal["none", "p99"] = "none"
    """p99: a batch starts only if its p99 finish meets the deadline of every member."""
    best_effort_share: float = 0.1
    """Lane time kept for overdue requests without a deadline; 0 to 1."""
    admission: bool = True
    """Refuse at the door what cannot be on time behind the work ahead."""
    late_refusals: float = 1.0
    """Share of the refusals that may come after a request has waited; where there are more, the
    work ahead is taken to last longer, and more is refused at the door. 1: however many; 0 to 1."""
    max_queue: int | None = 10_000
    """Most requests waiting, notices included; None: no limit."""

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise ValueError(f"levels must be at least 1, got {self.levels}")
        if not 0.0 <= self.kappa <= 1.0:
            raise ValueError(f"kappa must be between 0 and 1, got {self.kappa}")
        if not 0.0 <= self.theta < math.inf:
            raise ValueError(f"theta must be finite and not negative, got {self.theta}")
        if not 0.0 < self.drop < 1.0:
            raise ValueError(f"drop must lie between 0 and 1, got {self.drop}")
        if not 0.0 <= self.lead < math.inf:
            raise ValueError(f"lead must be finite and not negative, got {self.lead}")
        if not 0.0 <= self.best_effort_share <= 1.0:
            raise ValueError(
                f"best_effort_share must be between 0 and 1, got {self.best_effort_share}"
            )
        if not 0.0 <= self.late_refusals <= 1.0:
            raise ValueError(f"late_refusals must be between 0 and 1, got {self.late_refusals}")
        if self.max_queue is not None and self.max_queue < 1:
            raise ValueError(f"max_queue must be at least 1, got {self.max_queue}")
