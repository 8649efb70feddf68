"""What the options of several schedulers have in common."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.domain.options import Options, option


@dataclass(frozen=True, slots=True)
class QueueOptions(Options):
    """Of every scheduler here."""

    max_queue: int | None = option(
        10_000, "Most requests waiting, announced ones included; none: no limit.", least=1
    )


@dataclass(frozen=True, slots=True)
class DeadlineOptions(QueueOptions):
    """Of those that go by deadlines."""

    admission: bool = option(
        True, "Whether admission refuses a request that cannot be on time behind the work ahead."
    )


@dataclass(frozen=True, slots=True)
class BestEffortOptions(DeadlineOptions):
    """Of those that keep some lane time for requests without a deadline."""

    best_effort_share: float = option(
        0.1,
        "Share of the lane's time kept for overdue requests without a deadline.",
        least=0,
        most=1,
    )
