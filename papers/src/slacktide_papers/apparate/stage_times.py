"""Pass times of a model, unsplit and cut at one ramp: measured once, and kept in a file.

As in the worker, a chain is cut from the graph that ONNX Runtime has optimised as a whole. At each
position, runs of the chain alternate with runs of the unsplit session; the extra time of the chain
is the cost of that ramp, including its cut. Times are processor times; the smallest of several
counts, because the machine may have other work. Each session runs twice in a row and only the
second run counts: it finds its weights in the caches, as it would if it ran alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits import ExitGraph, Ramp, split, with_ramps
from slacktide.lab.examples import Samples, make_inputs

ROUNDS = {1: 4, 4: 1, 8: 1}
"""By batch size: least number of runs at each position in a sweep."""
SECONDS = 0.08
"""Minimum of the processor time of these runs together, since a few runs of a small model say
little."""
SWEEPS = 3
"""Number of sweeps: several, so that a brief load on the machine does not distort only one
position."""
_SEED, _DRAWN = 3, 33
"""Seed, and number of drawn inputs; the input of median size stands for all."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class StageTimes:
    """Fields have the same meaning as in `ExitTable`."""

    sizes: NDArray[np.int64]
    whole: NDArray[np.float64]
    before: NDArray[np.float64]
    ramp: NDArray[np.float64]


def stage_times(name: str, proto: Any, graph: ExitGraph, path: Path) -> StageTimes:
    """Stage times of an example model on one core: read from `path`, or measured now."""
    if not path.exists():
        requests = make_inputs(name, _DRAWN, _SEED).requests
        usual = sorted(requests, key=lambda row: sum(part.size for part in row.values()))
        arrays = measured(proto, graph, usual[_DRAWN // 2])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, arrays)
    return StageTimes(**read_arrays(path))


def measured(proto: Any, graph: ExitGraph, request: Mapping[str, Array]) -> dict[str, Array]:
    """Measure a model on one core, with batches of copies of `request`; fields of `StageTimes`."""
    batches = {size: Samples((request,) * size, None).batch() for size in ROUNDS}
    session = opened(proto.SerializeToString())
    count = len(graph.positions)
    chains = [_Chain(proto, graph, number) for number in range(count)]
    unsplit, before, chained = least = np.full((3, len(ROUNDS), count), np.inf)
    for _, (number, chain), (place, (size, rounds)) in product(
        range(SWEEPS), enumerate(chains), enumerate(ROUNDS.items())
    ):
        chain.timed(batches[size])
        runs, enough = 0, thread_time() + SECONDS
        while runs < rounds or thread_time() < enough:
            for _ in range(2):
                begin = thread_time()
                session.run(None, batches[size])
                alone = thread_time() - begin
            for _ in range(2):
                first, last = chain.timed(batches[size])
            seconds = (alone, first, first + last)
            least[:, place, number] = np.minimum(least[:, place, number], seconds)
            runs += 1
    whole = np.maximum.accumulate(np.median(unsplit, axis=1))
    # The first stage includes the ramp, whose time is not the model's.
    ramp = np.maximum(chained - unsplit, 0.0)
    rising = np.maximum.accumulate(np.maximum(before - ramp, 0.0), axis=1)
    return {
        "sizes": np.array(list(ROUNDS)),
        "whole": whole,
        "before": np.minimum(rising, whole[:, None]),
        "ramp": ramp,
    }


class _Chain:
    """A model cut at one ramp; the ramp's weights do not matter for times."""

    def __init__(self, proto: Any, graph: ExitGraph, number: int) -> None:
        position = graph.positions[number]
        weights = np.zeros((position.features, graph.classes), np.float32)
        bias = np.zeros(graph.classes, np.float32)
        ramp = Ramp(number, position.tensor, weights, bias, 1.0, 0.0, position.cost)
        self._sessions = []
        types: dict[str, str] = {}
        for stage in split(_optimised(with_ramps(proto, graph, [ramp]))):
            stage.declare(types)
            session = opened(stage.model.SerializeToString(), optimise=False)
            types.update((output.name, output.type) for output in session.get_outputs())
            self._sessions.append(session)

    def timed(self, feeds: Mapping[str, Array]) -> list[float]:
        """Seconds of each stage."""
        tensors, seconds = dict(feeds), []
        for session in self._sessions:
            input_names = [tensor.name for tensor in session.get_inputs()]
            begin = thread_time()
            values = session.run(None, {name: tensors[name] for name in input_names})
            seconds.append(thread_time() - begin)
            names = [tensor.name for tensor in session.get_outputs()]
            tensors.update(zip(names, values, strict=True))
        return seconds


def _optimised(proto: Any) -> Any:
    """The model as ONNX Runtime optimises it."""
    import onnx

    with TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        opened(proto.SerializeToString(), save=str(path))
        return onnx.load(path)


def opened(model: bytes, *, optimise: bool = True, save: str = "") -> Any:
    """A session on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = save
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to a file for `read_arrays`, atomically."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    partial.replace(path)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a file that `write_arrays` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
