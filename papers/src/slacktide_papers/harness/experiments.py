"""The parts of an experiment: contenders, cells (single runs), points (rows), and goals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler or a planner that takes part in an experiment, with its label and options."""

    label: str = field(compare=False)
    """Its name in rows and tables."""
    policy: str
    """Its name among the policies or planners, or one of the yardsticks (play.py)."""
    options: tuple[tuple[str, float | str], ...] = ()
    """Options that differ from the defaults, sorted by name."""

    @classmethod
    def of(cls, label: str, policy: str, **options: float | str) -> Self:
        """Make a contender with these options."""
        return cls(label, policy, tuple(sorted(options.items())))


@dataclass(frozen=True, slots=True)
class ExperimentCell:
    """One run: a contender in one setting, with one seed. Plain data, sent to other processes.
    Fields that are excluded from comparison (a label, a folder) do not affect the result."""

    setting: str
    contender: Contender
    seed: int

    def __str__(self) -> str:
        """Text for the progress line that is shown when the cell is done."""
        return f"{self.setting} {self.contender.label}"


@dataclass(frozen=True, slots=True)
class TraceCell(ExperimentCell):
    """A run over links whose rates are recorded or drawn."""

    duration: int
    """Seconds."""
    folder: Path | None = field(default=None, compare=False)
    """Folder of the recorded data; None: data are drawn."""
    digest: str = ""
    """Digest of the data: it identifies them in results, whatever the folder's path."""


def identity(instance: Any) -> dict[str, Any]:
    """The compared fields of a cell or a contender, as JSON values; equal cells give equal
    values."""
    values = {part.name: getattr(instance, part.name) for part in fields(instance) if part.compare}
    return {
        name: identity(value) if is_dataclass(value) else value for name, value in values.items()
    }


SomeCell = TypeVar("SomeCell", bound=ExperimentCell)


@dataclass(frozen=True, slots=True)
class Point(Generic[SomeCell]):
    """One row of the results: the mean over cells that differ in their seed alone."""

    experiment: str
    cells: tuple[SomeCell, ...]
    case: str = ""
    """The paper's name of the case; several cases may share the same cells."""
    at: float | None = None
    """Position on the x axis of a figure."""

    @property
    def first(self) -> SomeCell:
        """The cell of the first seed."""
        return self.cells[0]

    @property
    def setting(self) -> str:
        return self.first.setting

    @property
    def contender(self) -> Contender:
        return self.first.contender


class Scope(Protocol):
    """How much is to be measured. Each paper has a frozen dataclass for it."""

    @property
    def seeds(self) -> int: ...

    @property
    def size(self) -> str: ...  # size of one run: `5000 requests`

    def to_dict(self) -> dict[str, Any]: ...  # members of the whole JSON document


SomeScope = TypeVar("SomeScope", bound=Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScope:
    """How much is to be measured over recorded or drawn links."""

    seeds: int
    duration: int
    """Seconds of a run."""
    quick: bool = False
    folder: Path | None = None
    """Folder of the recorded data; None: data are drawn."""
    digest: str = ""
    """Digest of the data."""

    @property
    def size(self) -> str:
        return f"{self.duration} s"

    def to_dict(self) -> dict[str, Any]:
        return {
            "recorded": self.folder is not None,
            "seeds": self.seeds,
            "duration": self.duration,
            "quick": self.quick,
        }

    def goals_title(self, recorded: str, whole: str = "Goals") -> str:
        """Title of the table of goals, which says whether the figures may be quoted. `recorded`:
        name of the data that --data gives."""
        if self.folder is not None and not self.quick:
            return whole
        return f"Goals; set for whole runs on recorded {recorded}, otherwise only indicative"

    def point(self, experiment: str, setting: str, contender: Contender) -> Point[TraceCell]:
        """A row with a cell for each seed."""
        cells = (
            TraceCell(setting, contender, seed, self.duration, self.folder, self.digest)
            for seed in range(1, self.seeds + 1)
        )
        return Point(experiment, tuple(cells))


@dataclass(frozen=True, slots=True)
class Experiment(Generic[SomeScope, SomeCell]):
    """A table or a figure."""

    title: str
    points: Callable[[SomeScope], Iterable[Point[SomeCell]]] | None = None
    """None: nothing is simulated."""
    x_axis: str = ""
    """Quantity that `Point.at` holds; empty in a table."""
    by_name: bool = False
    """Whether it is measured only if it is asked for by name, because it runs in real time."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One line of the results; each paper adds columns in a subclass."""

    experiment: str
    setting: str


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table of goals."""

    setting: str
    what: str
    measured: str
    wanted: str
    """The wanted figure; `–`: the measured figure is shown, but not judged."""
    met: bool
    basis: str = ""
    """Rows that the figure is computed from; empty if that is obvious."""

    @property
    def mark(self) -> str:
        """`met`, `missed`, or nothing."""
        return "" if self.wanted == "–" else "met" if self.met else "missed"

    def to_dict(self) -> Mapping[str, Any]:
        """Plain JSON values."""
        return {name: value for name, value in asdict(self).items() if value != ""}
