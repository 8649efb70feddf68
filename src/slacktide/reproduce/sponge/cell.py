"""`Cell`: one run of the reproduction; `Played`: what came of it. Plain data both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slacktide.reproduce.sponge.setting import DURATION


@dataclass(frozen=True, slots=True)
class Contender:
    """A planner as it takes part: under one name, with its options and limits."""

    label: str
    """Its name in rows and tables."""
    planner: str
    options: tuple[tuple[str, float], ...] = ()
    """Those that differ from the defaults, sorted by name."""
    cores: tuple[int, int] | None = None
    """Least and most of one instance; None: 1 to 16."""
    replicas: bool = False
    """Whether it may have several instances."""
    notice: bool = True
    """Whether requests are announced at their first byte."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender in one setting, with one seed."""

    setting: str
    contender: Contender
    seed: int
    duration: int = DURATION
    """Seconds."""
    folder: Path | None = None
    """Where the recorded bandwidths are; None: drawn."""
    digest: str = ""
    """Of the bandwidths: what the result depends on, wherever they lie."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; equal cells give equal ones, whatever the contender is called."""
        contender = asdict(self.contender)
        del contender["label"]
        return {
            "setting": self.setting,
            **contender,
            "options": dict(self.contender.options),
            "cores": list(self.contender.cores or ()),
            "seed": self.seed,
            "duration": self.duration,
            "bandwidths": self.digest,
        }


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
    cores: tuple[float, ...]
    """Mean cores allocated, by second, of all instances of all models."""
    late: tuple[int, ...]
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "cores": [round(each, 4) for each in self.cores]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Played:
        """From what `to_dict` gave."""
        columns = {name: tuple(document[name]) for name in ("cores", "late")}
        return cls(**{**document, **columns})
