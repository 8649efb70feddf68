"""Options that several schedulers share, and the options of `slack`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slacktide.domain.options import Options, option
from slacktide.engine.unmeasured_queue import SHARE


@dataclass(frozen=True, slots=True)
class QueueOptions(Options):
    """Options of every scheduler."""

    max_queue: int | None = option(
        10_000, "Largest number of waiting and announced requests; none: no limit.", least=1
    )

    @property
    def guarantees_p99(self) -> bool:
        """Whether requests run only if their p99 is known and in time."""
        return False

    @property
    def unmeasured_share(self) -> float:
        """Share of the lane's time for requests without a prediction."""
        return SHARE


@dataclass(frozen=True, slots=True)
class DeadlineOptions(QueueOptions):
    """Options of schedulers that serve by deadline."""

    admission: bool = option(
        True, "Whether to refuse a new request that cannot be on time behind the work ahead of it."
    )


@dataclass(frozen=True, slots=True)
class BestEffortOptions(DeadlineOptions):
    """Options of schedulers that reserve some lane time for requests without a deadline."""

    best_effort_share: float = option(
        0.1,
        "Share of the lane's time reserved for requests without a deadline that have waited too "
        "long.",
        least=0,
        most=1,
    )

    @property
    def unmeasured_share(self) -> float:
        return self.best_effort_share


@dataclass(frozen=True, slots=True)
class SlackOptions(BestEffortOptions):
    """Options of `slack`, see slack.py. Results depend little on values near the defaults."""

    levels: int = option(
        4,
        "Number of places in the queue at which a batch of each size may begin.",
        least=1,
        most=16,
    )
    deferral_discount: float = option(
        0.9,
        "Factor on the value of a request that can also be on time after the next batch.",
        least=0,
        most=1,
        aliases=("kappa",),
    )
    length_exponent: float = option(
        0.5,
        "With run classes, the value of a request is (its time alone ÷ the average) to this power; "
        "0: all requests count the same.",
        least=0,
        aliases=("theta",),
    )
    drop: float = option(
        0.2,
        "Probability of being on time at which a waiting request is dropped.",
        above=0,
        below=1,
    )
    lead: float = option(
        0.2,
        "Longest wait of a lane for announced requests, × the time of one request; 0: no wait.",
        least=0,
    )
    guarantee: Literal["none", "p99"] = option(
        "none",
        "`p99`: a batch starts only if its p99 finish meets the deadline of every member.",
    )
    late_refusals: float = option(
        1.0,
        "Largest share of refusals that may come after a wait; above it, admission refuses more "
        "requests. 1: no limit.",
        least=0,
        most=1,
    )

    @property
    def guarantees_p99(self) -> bool:
        return self.guarantee == "p99"
