"""Exit tables of the example models, made once by running the models.

Ramps learn from the pooled features of a stream's first tenth. The table records each ramp's
answers to the inputs that follow. As in the server, ramps go on learning from a tenth of these
inputs, as if every batch had one row. Pass times are measured once per model: of the unsplit
session, and of a chain of sessions that is cut at one position, for each position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import is_judged
from slacktide.exits import Ramp, RampLearning, judged_rows
from slacktide.lab.simulation import ExitTable
from slacktide.lab.simulation.scenario import done_in_processes
from slacktide.planning.exits import FEATURE_SHARE
from slacktide_papers.apparate.deeper_ramps import DEEPER, hidden_layers, units
from slacktide_papers.apparate.experiments import EXPERIMENTS, ExitScope
from slacktide_papers.apparate.setting import HOUR_PART, STREAMS, ExitStream, TableFile
from slacktide_papers.apparate.stage_times import StageTimes, stage_times
from slacktide_papers.apparate.stream_features import StreamFeatures, cached
from slacktide_papers.harness.run import Moved
from slacktide_papers.harness.state import ReproduceError, fingerprint

_TIMED = (
    *(f"exits/{name}.py" for name in ("positions", "ramp_graph", "splitting")),
    "papers/apparate/stage_times.py",
)
"""Code that times depend on."""
_CODE = (
    *_TIMED,
    *(f"exits/{name}.py" for name in ("training", "learning", "manifest")),
    "papers/apparate/class_groups.py",
    *(f"papers/apparate/{name}.py" for name in ("make_tables", "deeper_ramps")),
)
"""Code that tables depend on, apart from the code of the features."""
QUICK_INPUTS, QUICK_STREAMS, QUICK_HOUR = 4_000, 2, "chained/day, groups"
PIECE = 10
"""Number of files of features that one task computes."""
LIVE, LIVE_INPUTS = ("chained/day", "chained/long_day, groups", "text/drifting"), 2_000
"""Streams that are also played to a live server, with the number of inputs of each unless the scope
states one."""

Array = NDArray[Any]
_Rows = Callable[[int, int], Iterator[tuple[list[Array], Array]]]
"""Rows of a range of inputs, as `StreamFeatures.rows` gives them."""


@dataclass(frozen=True, slots=True)
class TableOrder:
    """A table of the first `inputs` of a stream, whose ramps learn from the first `trained`."""

    stream: ExitStream
    inputs: int
    trained: int
    style: str = ""
    """Style of the ramps; empty: the style that the server uses."""

    @property
    def name(self) -> str:
        return f"{self.stream.name}, {self.style}" if self.style else self.stream.name

    @property
    def is_of_hours(self) -> bool:
        """Whether only the experiments on hours play it."""
        return self.stream.is_hour or self.stream.groups

    def path(self, features: StreamFeatures) -> Path:
        """File of the table; the name changes with code, model, stream and order."""
        stem = f"{features.folder.name}-{fingerprint(_CODE)[:6]}{'-groups' * self.stream.groups}"
        style = f"-{self.style.replace(' ', '-')}" if self.style else ""
        return cached(f"{stem}-{self.inputs}-{self.trained}{style}.npz")


def prepared(scope: ExitScope, experiments: Sequence[str], *, jobs: int, moved: Moved) -> ExitScope:
    """The scope with the tables that these experiments need; missing ones are made.

    Raises ReproduceError.
    """
    if scope.tables:
        if "live" in experiments:
            raise ReproduceError("--table: expected none with live, which plays the example models")
        return scope
    live = live_orders(scope) if "live" in experiments else []
    simulated = [] if live and len(experiments) == 1 else _orders(scope, experiments)
    files = _make_missing(list(dict.fromkeys((*simulated, *live))), jobs=jobs, moved=moved)
    return replace(
        scope,
        tables=tuple([files[order] for order in simulated]),
        live=tuple([(order, files[order]) for order in live]),
    )


def _orders(scope: ExitScope, experiments: Sequence[str]) -> list[TableOrder]:
    """Tables of the streams that these experiments play in virtual time."""
    every = list(_all_orders(scope))
    files = [
        TableFile(order.name, Path(), "", order.stream.rate, order.style, order.is_of_hours)
        for order in every
    ]
    names = {
        point.setting
        for name in experiments
        if (points := EXPERIMENTS[name].points) is not None
        for point in points(replace(scope, tables=tuple(files)))
    }
    first = {order.stream.model: order.stream for order in reversed(every)}
    if "figure-9" in experiments:
        names.update(order.name for order in every if order.stream in first.values())
    orders = [order for order in every if order.name in names or not (names or order.is_of_hours)]
    if not scope.quick:
        return orders
    plain = [order for order in orders if order.stream in first.values() and not order.style]
    return [*plain[:QUICK_STREAMS], *[order for order in orders if order.is_of_hours]]


def _all_orders(scope: ExitScope) -> Iterator[TableOrder]:
    """An order for each stream and style; for the experiments on hours, a single short one if the
    scope is quick."""
    for name, stream in STREAMS.items():
        for style in ("", *DEEPER):
            order = _order(scope, name, style)
            played = name == QUICK_HOUR if scope.quick else stream.is_hour
            if not order.is_of_hours or (played and not style):
                yield order


def _make_missing(
    orders: Sequence[TableOrder], *, jobs: int, moved: Moved
) -> dict[TableOrder, TableFile]:
    """The ordered tables; missing ones are made."""
    paths = {order: order.path(StreamFeatures(order.stream)) for order in orders}
    missing = [order for order, path in paths.items() if not path.exists()]
    models = {order.stream.model: order for order in missing}
    for name, _ in done_in_processes(_timed, models.items(), jobs=jobs):  # before all else runs
        moved(0.0, f"how long {name} takes")
    pieces = [
        (f"{order.name}: features from input {firsts[0]:,} on", (order, firsts))
        for order in {
            (order.stream.model, order.stream.stream): order for order in missing
        }.values()
        for firsts in _in_pieces(StreamFeatures(order.stream).missing(order.inputs))
    ]
    for done, (name, _) in enumerate(done_in_processes(_compute, pieces, jobs=jobs), start=1):
        moved(done / len(pieces), name)
    tasks = ((order.name, order) for order in missing)
    for done, (name, _) in enumerate(done_in_processes(make_table, tasks, jobs=jobs), start=1):
        moved(done / len(missing), f"exit table of {name}")
    return {
        order: TableFile.of(order.name, path, order.style, hour=order.is_of_hours)
        for order, path in paths.items()
    }


def _in_pieces(firsts: Sequence[int]) -> Iterator[Sequence[int]]:
    return (firsts[at : at + PIECE] for at in range(0, len(firsts), PIECE))


def _compute(task: tuple[TableOrder, Sequence[int]]) -> dict[str, Any]:
    """Compute files of features, as a task for `done_in_processes`."""
    features = StreamFeatures(task[0].stream)
    for first in task[1]:
        features.compute(first)
    return {}


def live_orders(scope: ExitScope) -> list[TableOrder]:
    """Orders for the tables of streams that are played to a server."""
    if scope.quick:
        return [_order(scope, LIVE[0])]
    return [_order(replace(scope, inputs=scope.inputs or LIVE_INPUTS), name) for name in LIVE]


def _order(scope: ExitScope, name: str, style: str = "") -> TableOrder:
    stream = STREAMS[name]
    if scope.quick:
        return TableOrder(stream, QUICK_INPUTS, QUICK_INPUTS // 4, style)
    played = scope.inputs or stream.inputs
    return TableOrder(stream, min(stream.trained + played, stream.inputs), stream.trained, style)


def make_table(order: TableOrder) -> dict[str, Any]:
    """Make the ordered table. Raises ExitError, OSError."""
    features = StreamFeatures(order.stream)
    times, rows_of = _times(features), _rows_of(order, features)
    learning, ramps = _learnt(order, features, rows_of)
    agreement, number, revision = [ramp.agreement for ramp in ramps], 0, 1
    parts: list[tuple[Array, ...]] = []
    for pooled, logits in rows_of(order.trained, order.inputs):
        answers = logits.argmax(axis=1)
        judged = [
            judged_rows(ramp.logits(rows) / ramp.temperature, answers)
            for ramp, rows in zip(ramps, pooled, strict=True)
        ]
        uncertainty = np.stack([part.uncertainty for part in judged], axis=1)
        agrees = np.stack([part.agrees for part in judged], axis=1)
        early = pooled[0][:, : features.graph.positions[0].channels]
        doubt = judged_rows(logits, answers).uncertainty.astype(np.float32)
        parts.append((uncertainty, agrees, np.full(len(answers), revision), early, doubt, answers))
        numbers = range(number + 1, (number := number + len(answers)) + 1)
        learnt = np.array([is_judged(batch, FEATURE_SHARE) for batch in numbers])
        learning.trainer.add([rows[learnt] for rows in pooled], logits[learnt])
        if learning.is_due and (better := learning.train(ramps)) is not None:
            ramps, revision = better, revision + 1
    uncertainty, agrees, revisions, early, doubt, classes = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    remembered: dict[str, Array] = {}
    if order.is_of_hours:
        session = np.arange(len(classes)) // HOUR_PART if order.stream.is_hour else 0 * classes
        remembered = {"early": early, "doubt": doubt, "answers": classes, "session": session}
    ExitTable(
        title=f"{order.name}, {order.inputs} inputs, ramps of the first {order.trained}",
        rate=order.stream.rate,
        positions=tuple(ramp.tensor for ramp in ramps),
        uncertainty=uncertainty.astype(np.float32),
        agrees=agrees,
        agreement=np.array(agreement),
        sizes=times.sizes,
        whole=times.whole,
        before=times.before,
        ramp=times.ramp,
        revisions=revisions,
        **remembered,
    ).save(order.path(features))
    return {}


def learnt_ramps(order: TableOrder, features: StreamFeatures) -> Sequence[Ramp]:
    """The ramps whose answers the order's table records."""
    return _learnt(order, features, _rows_of(order, features))[1]


def _timed(order: TableOrder) -> dict[str, Any]:
    """Measure the pass times of an order's model, as a task for `done_in_processes`."""
    _times(StreamFeatures(order.stream))
    return {}


def _times(features: StreamFeatures) -> StageTimes:
    """Pass times of the model, measured once."""
    path = cached(f"{features.model}-times-{fingerprint(_TIMED)[:6]}.npz")
    return stage_times(features.model, features.proto, features.graph, path)


def _rows_of(order: TableOrder, features: StreamFeatures) -> _Rows:
    """The features that ramps of this style see: pooled, or the output of their layers."""
    if not order.style:
        return features.rows
    columns, chunks = zip(*features.rows(0, order.trained), strict=True)
    layers = [
        hidden_layers(order.style, np.concatenate(column), np.concatenate(chunks))
        for column in zip(*columns, strict=True)
    ]

    def rows(start: int, stop: int) -> Iterator[tuple[list[Array], Array]]:
        for pooled, logits in features.rows(start, stop):
            yield [units(*pair) for pair in zip(pooled, layers, strict=True)], logits

    return rows


def _learnt(
    order: TableOrder, features: StreamFeatures, rows: _Rows
) -> tuple[RampLearning, Sequence[Ramp]]:
    """Ramps learnt from the beginning of the stream, and what goes on learning."""
    places = features.graph.positions
    learning = RampLearning([place.tensor for place in places], [place.cost for place in places])
    for pooled, logits in rows(0, order.trained):
        learning.trainer.add(pooled, logits)
    return learning, learning.train() or ()
