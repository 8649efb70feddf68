"""Exit tables of the example models, made once by the models themselves.

Ramps are learnt from the pooled features of a stream's first tenth; what each of them says of the
inputs that follow is the table. What passes take is measured once for each model: the unsplit
session, and for each position a chain that is cut there alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits.manifest import Ramp
from slacktide.exits.training import RampTrainer, judged_rows
from slacktide.reproduce.apparate.experiments import EXPERIMENTS, ExitScope
from slacktide.reproduce.apparate.setting import STREAMS, ExitStream, TableFile
from slacktide.reproduce.apparate.stage_times import StageTimes, stage_times
from slacktide.reproduce.apparate.stream_features import StreamFeatures, cached
from slacktide.reproduce.harness.run import Moved
from slacktide.reproduce.harness.state import fingerprint
from slacktide.simulation.exit_tables import ExitTable
from slacktide.simulation.scenario.running import done_in_processes

_TIMED = (
    *(f"exits/{name}.py" for name in ("positions", "ramp_graph", "splitting")),
    "reproduce/apparate/stage_times.py",
)
"""Code that times depend on."""
_CODE = (*_TIMED, "exits/training.py", "exits/manifest.py", "reproduce/apparate/make_tables.py")
"""Code that tables depend on, beside the features."""
QUICK_INPUTS, QUICK_STREAMS = 4_000, 2

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TableOrder:
    """A table to be made: of the first `inputs` of a stream, ramps are learnt from `trained`."""

    stream: ExitStream
    inputs: int
    trained: int

    def path(self, features: StreamFeatures) -> Path:
        """Where it lies once it is made: elsewhere for other code, another model or stream."""
        known = f"{features.folder.name}-{fingerprint(_CODE)[:6]}"
        return cached(f"{known}-{self.inputs}-{self.trained}.npz")


def prepared(scope: ExitScope, experiments: Sequence[str], *, jobs: int, moved: Moved) -> ExitScope:
    """The scope with the tables that these experiments need, made if they are not there yet.

    Raises ReproduceError.
    """
    if scope.tables:
        return scope
    known = tuple(TableFile(each.name, Path(), "", each.rate) for each in STREAMS.values())
    wanted = {
        point.setting
        for name in experiments
        if (points := EXPERIMENTS[name].points) is not None
        for point in points(replace(scope, tables=known))
    } or set(STREAMS)
    orders = [_order(scope, name) for name in STREAMS if name in wanted]
    if scope.quick:  # the first stream of each model
        first = {order.stream.model: order for order in reversed(orders)}
        orders = [order for order in orders if order in first.values()][:QUICK_STREAMS]
    features = {order: StreamFeatures(order.stream) for order in orders}
    paths = {order: order.path(each) for order, each in features.items()}
    missing = [order for order, path in paths.items() if not path.exists()]
    models = {order.stream.model: order for order in missing}
    for name, _ in done_in_processes(_timed, models.items(), jobs=jobs):  # before all else runs
        moved(0.0, f"how long {name} takes")
    tasks = ((order.stream.name, order) for order in missing)
    for done, (name, _) in enumerate(done_in_processes(make_table, tasks, jobs=jobs), start=1):
        moved(done / len(missing), f"exit table of {name}")
    files = (TableFile.of(order.stream.name, path) for order, path in paths.items())
    return replace(scope, tables=tuple(files))


def _order(scope: ExitScope, name: str) -> TableOrder:
    stream = STREAMS[name]
    if scope.quick:
        return TableOrder(stream, QUICK_INPUTS, QUICK_INPUTS // 4)
    trained = stream.length // 10
    played = scope.inputs or stream.length
    return TableOrder(stream, min(trained + played, stream.length), trained)


def make_table(order: TableOrder) -> dict[str, Any]:
    """Make what is ordered. Raises ExitError, OSError."""
    features = StreamFeatures(order.stream)
    times, ramps = _times(features), _learnt(order, features)
    said: list[tuple[Array, Array]] = []
    for pooled, logits in features.rows(order.trained, order.inputs):
        answers = logits.argmax(axis=1)
        judged = [
            judged_rows(ramp.logits(rows) / ramp.temperature, answers)
            for ramp, rows in zip(ramps, pooled, strict=True)
        ]
        uncertainty = np.stack([each.uncertainty for each in judged], axis=1)
        said.append((uncertainty, np.stack([each.agrees for each in judged], axis=1)))
    uncertainty, agrees = (np.concatenate(each) for each in zip(*said, strict=True))
    ExitTable(
        title=f"{order.stream.name}, {order.inputs} inputs, ramps of the first {order.trained}",
        rate=order.stream.rate,
        positions=tuple(ramp.tensor for ramp in ramps),
        uncertainty=uncertainty.astype(np.float32),
        agrees=agrees,
        agreement=np.array([ramp.agreement for ramp in ramps]),
        sizes=times.sizes,
        whole=times.whole,
        before=times.before,
        ramp=times.ramp,
    ).save(order.path(features))
    return {}


def _timed(order: TableOrder) -> dict[str, Any]:
    """As `done_in_processes` takes it."""
    _times(StreamFeatures(order.stream))
    return {}


def _times(features: StreamFeatures) -> StageTimes:
    """What passes of the model take, measured once."""
    path = cached(f"{features.model}-times-{fingerprint(_TIMED)[:6]}.npz")
    return stage_times(features.model, features.proto, features.graph, path)


def _learnt(order: TableOrder, features: StreamFeatures) -> list[Ramp]:
    """Ramps of the stream's beginning."""
    positions = features.graph.positions
    trainer = RampTrainer([one.tensor for one in positions], [one.cost for one in positions])
    for rows, logits in features.rows(0, order.trained):
        trainer.add(rows, logits)
    return list(trainer.train())
