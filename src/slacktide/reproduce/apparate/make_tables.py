"""Exit tables of the example models, made once by the models themselves.

The stream passes through the model with the pooled features of all positions as further outputs.
Ramps are learnt from its first tenth; what each of them says of the rest is the table. What has
been done is kept beside it, so that it can be stopped and resumed. What passes take is measured
once for each model: the unsplit session, and for each position a chain that is cut there alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.examples import Samples, example, make_stream
from slacktide.exits.manifest import Ramp
from slacktide.exits.positions import find_positions
from slacktide.exits.ramp_graph import with_features
from slacktide.exits.training import RampTrainer
from slacktide.reproduce.apparate.experiments import EXPERIMENTS, ExitScope
from slacktide.reproduce.apparate.setting import STREAMS, ExitStream, TableFile
from slacktide.reproduce.apparate.stage_times import (
    StageTimes,
    opened,
    read_arrays,
    stage_times,
    write_arrays,
)
from slacktide.reproduce.harness.run import Moved
from slacktide.reproduce.harness.state import fingerprint
from slacktide.simulation.exit_tables import ExitTable
from slacktide.simulation.scenario.running import done_in_processes

CODE = (
    "exits",
    "examples",
    *(f"reproduce/apparate/{name}.py" for name in ("make_tables", "stage_times")),
)
"""What a table depends on."""
QUICK_INPUTS, QUICK_STREAMS = 4_000, 2
CHUNK = 480
"""Inputs between two files."""
BATCH = 8

Told = Callable[[float], None]
"""Told the share that is done."""
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TableOrder:
    """A table to be made: of the first `inputs` of a stream, ramps are learnt from `trained`."""

    stream: ExitStream
    inputs: int
    trained: int

    @property
    def path(self) -> Path:
        """Where it lies once it is made."""
        return _cached(self.stream.model, f"{self.stream.stream}-{self.inputs}-{self.trained}.npz")


def _cached(model: str, name: str) -> Path:
    """A file in the user's cache folder, another one for other code or another model."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(fingerprint(CODE).encode() + example(model).onnx()).hexdigest()[:12]
    return home / "slacktide" / "exit-tables" / f"{model}-{digest}-{name}"


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
    orders = [order for name in STREAMS if name in wanted for order in (_order(scope, name),)]
    if scope.quick:  # the first stream of each model
        first = {order.stream.model: order for order in reversed(orders)}
        orders = [order for order in orders if order in first.values()][:QUICK_STREAMS]
    missing = [order for order in orders if not order.path.exists()]
    for model in dict.fromkeys(order.stream.model for order in missing):
        moved(0.0, f"how long {model} takes")
        _FeatureModel(model).times(lambda share: None)  # alone on the machine
    tasks = ((order.stream.name, order) for order in missing)
    for done, (name, _) in enumerate(done_in_processes(_made, tasks, jobs=jobs), start=1):
        moved(done / len(missing), f"exit table of {name}")
    files = (TableFile.of(order.stream.name, order.path) for order in orders)
    return replace(scope, tables=tuple(files))


def _order(scope: ExitScope, name: str) -> TableOrder:
    stream = STREAMS[name]
    if scope.quick:
        return TableOrder(stream, QUICK_INPUTS, QUICK_INPUTS // 4)
    return TableOrder(stream, stream.length, stream.length // 10)


def _made(order: TableOrder) -> dict[str, Any]:
    """As `done_in_processes` takes it."""
    make_table(order)
    return {}


def make_table(order: TableOrder, told: Told = lambda share: None) -> None:
    """Make what is ordered, unless it is there. Raises ExitError, OSError."""
    if order.path.exists():
        return
    parts = order.path.with_suffix(".parts")
    parts.mkdir(parents=True, exist_ok=True)
    model = _FeatureModel(order.stream.model)
    times = model.times(told)
    ramps = _learnt(order, model, parts, told)
    edges = range(order.trained, order.inputs, CHUNK)
    for start in edges:
        path = parts / f"{start}.npz"
        if not path.exists():
            end = min(start + CHUNK, order.inputs)
            said = [_said(ramps, *found) for found in model.run(order.stream, start, end)]
            uncertainty, agrees = (np.concatenate(each) for each in zip(*said, strict=True))
            said_ = {"uncertainty": uncertainty.astype(np.float32), "agrees": agrees}
            write_arrays(path, said_)
        told(min(start + CHUNK, order.inputs) / order.inputs)
    found = [read_arrays(parts / f"{start}.npz") for start in edges]
    ExitTable(
        title=f"{order.stream.name}, {order.inputs} inputs, ramps of the first {order.trained}",
        rate=order.stream.rate,
        positions=tuple(ramp.tensor for ramp in ramps),
        uncertainty=np.concatenate([part["uncertainty"] for part in found]),
        agrees=np.concatenate([part["agrees"] for part in found]),
        agreement=np.array([ramp.agreement for ramp in ramps]),
        sizes=times.sizes,
        whole=times.whole,
        before=times.before,
        ramp=times.ramp,
    ).save(order.path)
    shutil.rmtree(parts)


def _learnt(order: TableOrder, model: _FeatureModel, parts: Path, told: Told) -> list[Ramp]:
    """Ramps of the stream's beginning: as kept, or learnt now."""
    path = parts / "ramps.npz"
    costs = [each.cost for each in model.graph.positions]
    tensors = [each.tensor for each in model.graph.positions]
    if not path.exists():
        trainer = RampTrainer(tensors, costs)
        for features, logits in model.run(order.stream, 0, order.trained):
            trainer.add(features, logits)
            told(trainer.rows / order.inputs)
        arrays: dict[str, Array] = {}
        for ramp in trainer.train():
            arrays[f"weights.{ramp.position}"] = ramp.weights
            arrays[f"bias.{ramp.position}"] = ramp.bias
            arrays[f"said.{ramp.position}"] = np.array([ramp.temperature, ramp.agreement])
        write_arrays(path, arrays)
    kept = read_arrays(path)
    found = []
    for number, tensor in enumerate(tensors):
        weights, bias = kept[f"weights.{number}"], kept[f"bias.{number}"]
        temperature, agreement = kept[f"said.{number}"].tolist()
        found.append(Ramp(number, tensor, weights, bias, temperature, agreement, costs[number]))
    return found


def _said(ramps: list[Ramp], features: list[Array], logits: Array) -> tuple[Array, Array]:
    """(uncertainty, agreement) of rows, each [rows, ramps]."""
    answers = logits.argmax(axis=1)
    uncertainty, agrees = [], []
    for ramp, pooled in zip(ramps, features, strict=True):
        own = ramp.logits(pooled) / ramp.temperature
        shares = np.exp(own - own.max(axis=1, keepdims=True))
        uncertainty.append(1.0 - shares.max(axis=1) / shares.sum(axis=1))
        agrees.append(own.argmax(axis=1) == answers)
    return np.stack(uncertainty, axis=1), np.stack(agrees, axis=1)


class _FeatureModel:
    """A model that gives the pooled features of all its positions, on one core."""

    def __init__(self, name: str) -> None:
        import onnx

        self._name = name
        self._proto = proto = onnx.load_model_from_string(example(name).onnx())
        self.graph = find_positions(proto, mask="attention_mask" if _masked(proto) else "")
        self._session = opened(with_features(proto, self.graph))
        outputs = [f"exits/features/{number}" for number in range(len(self.graph.positions))]
        self._outputs = [*outputs, "exits/logits"]

    def times(self, told: Told) -> StageTimes:
        """What its passes take, measured once."""
        path = _cached(self._name, "times.npz")
        return stage_times(self._name, self._proto, self.graph, path, told)

    def run(self, stream: ExitStream, start: int, stop: int) -> Iterator[tuple[list[Array], Array]]:
        """(features by position, logits) of a few inputs at a time."""
        requests = (request for request, _ in make_stream(self._name, stream.stream, start, stop))
        while few := tuple(islice(requests, BATCH)):
            *features, logits = self._session.run(self._outputs, Samples(few, None).batch())
            yield features, logits.reshape(len(few), -1)


def _masked(proto: Any) -> bool:
    return any(each.name == "attention_mask" for each in proto.graph.input)
