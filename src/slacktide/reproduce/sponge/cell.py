"""`SpongeCell`: one run of the reproduction; `Played`: what came of it. Plain data both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slacktide.reproduce.harness.experiments import Cell, Contender
from slacktide.reproduce.sponge.setting import DURATION


@dataclass(frozen=True, slots=True)
class SpongeContender(Contender):
    """A planner as it takes part: with its limits."""

    cores: tuple[int, int] | None = None
    """Least and most of one instance; None: 1 to 16."""
    replicas: bool = False
    """Whether it may have several instances."""
    notice: bool = True
    """Whether requests are announced at their first byte."""


@dataclass(frozen=True, slots=True)
class SpongeCell(Cell):
    """One contender in one setting, with one seed."""

    contender: SpongeContender
    duration: int = DURATION
    """Seconds."""
    folder: Path | None = field(default=None, compare=False)
    """Where the recorded bandwidths are; None: drawn."""
    digest: str = ""
    """Of the recorded bandwidths: what the result depends on, wherever they lie."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a run. Requests are those sent within the time that counts."""

    requests: int
    violations: int
    """Requests that were not answered by their deadline, whatever became of them."""
    unavoidable: int
    """Those of them that not even all cores could have answered, alone."""
    p99_ms: float
    """From sending to the answer, of those answered; 0 if none was."""
    cores: Sequence[float]
    """Mean cores allocated, by second, of all instances of all models."""
    late: Sequence[int]
    """Violations by the second of sending."""
    replicas: int
    """Most instances of one model at a time."""
    needed: int
    """Instances that the planner said the load needs; 0: it does not say."""

    @property
    def mean_cores(self) -> float:
        return sum(self.cores) / len(self.cores)

    @property
    def violation_rate(self) -> float:
        return self.violations / self.requests

    @property
    def unavoidable_rate(self) -> float:
        return self.unavoidable / self.requests
