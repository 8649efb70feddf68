"""Experiments to reproduce: contenders on streams, each pair a result row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slacktide_papers.apparate.deeper_ramps import DEEBERT
from slacktide_papers.apparate.setting import SLO_X, TableFile
from slacktide_papers.harness.experiments import Contender, Experiment, ExperimentCell, Point

if TYPE_CHECKING:
    from slacktide_papers.apparate.make_tables import TableOrder


@dataclass(frozen=True, slots=True)
class ExitCell(ExperimentCell):
    """One contender on one stream. `setting` is the stream."""

    digest: str
    """Digest of the exit table."""
    platform: str = "clockwork"
    slo_x: float = SLO_X
    rate: float = 0.0
    """Requests per second; 0: the stream's own."""
    load: float = 0.0
    """Arrival rate as a multiple of peak throughput with full batches; 0: `rate` decides."""
    on_time: float = 0.0
    """If above 0, the load is the highest at which this share of the requests is on time."""
    inputs: int = 0
    """Number of inputs, from the first; 0: all."""
    data: str = ""
    """Digest of the recorded arrivals; empty: arrivals are drawn."""
    table: Path = field(default=Path(), compare=False)
    folder: Path | None = field(default=None, compare=False)


def ours(label: str, mode: str, **options: float | str) -> Contender:
    """A contender with the server's own planner of exits."""
    return Contender.of(label, "exits", mode=mode, **options)


REMEMBERED = 16.0
"""Largest number of frames that may reuse one answer."""
VANILLA = Contender("vanilla", "vanilla")
APPARATE = ours("release", "release", ramp_budget=0.02)
"""Apparate as in the paper: answered rows run on, and ramps may add 2 % to a pass."""
RELEASE, SHRINK, AUTO = (ours(f"{mode}, 5 %", mode) for mode in ("release", "shrink", "auto"))
RUN, RUN_AUTO = (
    ours("release, run", "release", ramp_budget=0.02, promise="run"),
    ours("auto, run, 5 %", "auto", promise="run"),
)
"""The promise is kept over the run, not in every window of 512 answers."""
MEMORY, MEMORY_SHRINK, MEMORY_RUN, MEMORY_RELEASE = (
    ours("memory", "auto", remember=REMEMBERED),
    ours("memory, shrink", "shrink", remember=REMEMBERED),
    ours("memory, run", "auto", remember=REMEMBERED, promise="run"),
    ours("memory, release", "release", ramp_budget=0.02, remember=REMEMBERED),
)
"""A ramp at the front gives the model's last answer to the session."""
FIXED = ours("release, no adjustment", "release", ramp_budget=0.02, fixed=1.0)
ONCE = tuple(
    Contender(f"tuned once{note}", "once", (("kind", kind),))
    for note, kind in ((", at first", "first"), ("", "one"), (" +", "each"), (", oracle", "oracle"))
)
"""BranchyNet and DeeBERT: every ramp is active all the time."""
SINGLE = Contender("one ramp, in hindsight", "single")
"""The ramp and threshold that in hindsight save most at the median; accuracy has no guarantee."""
OFFLINE = Contender("offline optimum", "optimum", (("pasts", ""),))
ONLINE = tuple(
    Contender(f"online optimum, {note}", "optimum", (("pasts", pasts),))
    for note, pasts in (("20", "20"), ("40", "40"), ("80", "80"), ("20 to 80", "20 40 80"))
)
"""Tuned on the last 20, 40 or 80 batches, or on whichever is best for the coming ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitScope:
    """How much is to be measured."""

    seeds: int = 1
    inputs: int = 0
    """Maximum number of inputs of each stream; 0: all."""
    quick: bool = False
    tables: tuple[TableFile, ...] = ()
    live: tuple[tuple[TableOrder, TableFile], ...] = ()
    """Streams that are also played to a live server, each with the table of the inputs played."""
    from_examples: bool = True
    """Whether tables are made from the example models; otherwise they are given."""
    folder: Path | None = None
    data: str = ""

    @property
    def size(self) -> str:
        return f"{self.inputs} inputs" if self.inputs else "a stream each"

    def with_tables(self, paths: Sequence[Path]) -> ExitScope:
        """The scope on these tables instead of those of the examples. Raises ReproduceError."""
        return replace(
            self, from_examples=False, tables=tuple(TableFile.of(path.stem, path) for path in paths)
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "recorded": self.folder is not None,
            "quick": self.quick,
            "inputs": self.inputs,
            "tables": {table.name: table.digest for table in self.tables},
        }


Variations = Iterable[tuple[str, dict[str, Any]]]
"""(case, fields of a cell that differ)."""


def _experiment(
    name: str,
    title: str,
    contenders: Iterable[Contender],
    variations: Variations = (("", {}),),
    streams: Callable[[TableFile], bool] = lambda table: True,
    few: int = 0,
    deeper: str = "",
    hours: bool = False,
) -> tuple[str, Experiment[ExitScope, ExitCell]]:
    """(name, experiment): each contender on each stream under each variation. `few`: how many
    streams of each model, from the first; 0: all. `deeper`: a further ramp style, for texts.
    `hours`: play the tables of hour-long streams, and tables that the user names, instead of the
    others."""

    def points(scope: ExitScope) -> Iterator[Point[ExitCell]]:
        stream_counts: dict[str, int] = {}
        for table in scope.tables:
            model = table.name.partition("/")[0]
            if table.hour is not hours and not (hours and not scope.from_examples):
                continue
            if table.style and not (table.style == deeper and is_text(table)):
                continue
            if not streams(table) or (few and stream_counts.get(model, 0) >= few):
                continue
            stream_counts[model] = stream_counts.get(model, 0) + 1
            for case, changed in variations:
                for contender in contenders:
                    cell = ExitCell(
                        table.name,
                        contender,
                        1,
                        table.digest,
                        inputs=scope.inputs,
                        data=scope.data,
                        table=table.path,
                        folder=scope.folder,
                    )
                    yield Point(name, (replace(cell, **changed),), case)

    return name, Experiment(title, points)


def is_video(table: TableFile) -> bool:
    """Whether the stream has a fixed rate of its own."""
    return table.rate > 0.0


def is_text(table: TableFile) -> bool:
    return not is_video(table)


_MAIN = (VANILLA, APPARATE, AUTO, OFFLINE)
_SLOS = [(f"SLO × {x:g}", {"slo_x": x}) for x in (2.0, 4.0, 8.0)]
_FAST = [(f"{case}, 120/s", {**changed, "rate": 120.0}) for case, changed in _SLOS]
_PLATFORMS = [(name, {"platform": name}) for name in ("clockwork", "fifo", "slack")]
_LOADS = [
    (f"{load:g} × peak", {"load": load, "platform": "slack"}) for load in (0.5, 0.75, 1.0, 1.5, 2.0)
]
_LOSSES = tuple(
    ours(f"release, {loss:g} %", "release", ramp_budget=0.02, accuracy_loss=loss / 100)
    for loss in (0.5, 1.0, 2.0, 5.0)
)
_BUDGETS = tuple(
    ours(f"release, budget {b:g} %", "release", ramp_budget=b / 100) for b in (2.0, 5.0, 10.0)
)

_BOTH = (VANILLA, APPARATE)
_AT_MOST = [("", {"on_time": 0.99, "platform": "slack", "inputs": 6_000})]
_EARLY = [("0.7 × the model", {"slo_x": 0.7, "platform": "slack"})]
_HINDSIGHT = "Videos: latency, and what hindsight could save (14: the tail)"
_ON_STREAMS = (
    _experiment("figure-13", _HINDSIGHT, (*_MAIN, SINGLE), streams=is_video),
    _experiment(
        "figure-16",
        "Texts: latency, compared with optima (15: the same)",
        (*_MAIN, *ONLINE),
        streams=is_text,
    ),
    _experiment(
        "table-2",
        "Exits tuned once (Table 1: their cost)",
        (*_BOTH, FIXED, *ONCE),
        deeper=DEEBERT,
    ),
    _experiment("figure-17", "Longer SLOs; videos at 120/s", _BOTH, _SLOS, is_text),
    _experiment("figure-17-videos", "Longer SLOs, videos at 120/s", _BOTH, _FAST, is_video, few=1),
    _experiment("figure-18", "Permitted loss of accuracy", (VANILLA, *_LOSSES), few=1),
    _experiment("table-3", "Ramp budgets", (VANILLA, *_BUDGETS), few=1),
    _experiment("table-4", "Serving platforms", _BOTH, _PLATFORMS, few=1),
    _experiment(
        "modes", "Answers in time under load", (VANILLA, RELEASE, SHRINK, AUTO), _LOADS, few=1
    ),
    _experiment(
        "deadline",
        "Deadlines shorter than a pass of the model",
        (VANILLA, RELEASE, AUTO),
        _EARLY,
        is_video,
        few=2,
    ),
    _experiment(
        "hours",
        "Videos of an hour: ten classes, and three groups of them",
        (VANILLA, APPARATE, RUN, AUTO, RUN_AUTO, SINGLE, MEMORY, MEMORY_RUN, MEMORY_RELEASE),
        streams=is_video,
        hours=True,
    ),
    _experiment(
        "capacity",
        "Highest load with 99 % on time, as a multiple of full batches' throughput",
        (VANILLA, SHRINK, AUTO),
        _AT_MOST,
        few=1,
    ),
    _experiment(
        "capacity-hours",
        "The same on videos of an hour",
        (VANILLA, SHRINK, AUTO, MEMORY_SHRINK, MEMORY),
        _AT_MOST,
        is_video,
        hours=True,
    ),
)

EXPERIMENTS: Mapping[str, Experiment[ExitScope, ExitCell]] = MappingProxyType(
    {
        "figure-9": Experiment("Ramp styles under one budget, with thresholds of hindsight"),
        "figure-11": Experiment("Tuning: our search compared with a grid, in time and savings"),
        **dict(_ON_STREAMS),
        "live": Experiment("The served model, compared with virtual time", by_name=True),
    }
)
"""All experiments, by name."""
