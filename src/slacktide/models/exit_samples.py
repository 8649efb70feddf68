"""Learns ramps from a file of samples, before a model serves (`slacktide exits add`).

A worker runs the model with the pooled activations of its positions as additional outputs, so
images, padding and crashes are handled as in serving. Rows are learnt in the order of the file; the
last rows test the ramps (`exits/training.py`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import ModelInterface, any_size
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import Executor, Outputs, Payload, TensorRef
from slacktide.executors.sample_rows import read_requests
from slacktide.executors.timed_replica import BatchError, TimedReplica
from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import ExitManifest
from slacktide.exits.positions import ExitGraph, find_positions
from slacktide.exits.ramp_graph import PREFIX, with_features
from slacktide.exits.training import LEAST_ROWS, JudgedRows, PooledRows, RampTrainer
from slacktide.models.exit_files import exit_source
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import ModelDefinition

_ARENA_LIMIT = 1 << 30
_PATIENCE_S = 60.0
FIRST_ROWS = 300
"""After this number of rows, samples are refused if all answers are alike or not finite."""

Progress = Callable[[float, str], None]
Request = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LearntRamps:
    """Ramps learnt from a file of samples."""

    manifest: ExitManifest
    judged: tuple[JudgedRows, ...]
    """Judgement of each position's ramp on the last samples."""
    rare: PooledRows | None = None
    """Supplied rows of rare classes."""


async def learn_from_samples(
    executor: Executor,
    definition: ModelDefinition,
    file: Path,
    *,
    cores: tuple[int, ...],
    revision: int,
    rare: Path | PooledRows | None = None,
    progress: Progress = lambda share, text: None,
    clock: Callable[[], float] = time.monotonic,
) -> LearntRamps:
    """Run every sample and learn a ramp for every position. `rare`: a file of rows of rare classes,
    or rows supplied earlier; ramps are trained on half of them. Raises ExitError, and
    MeasuringError if the model cannot run."""
    if definition.own_exits:
        raise ExitError(f"{definition.where}: early_exit.judged: the model has its own exits")
    with tempfile.TemporaryDirectory(prefix="slacktide-exits-") as folder:
        graph = await asyncio.to_thread(_write_model, definition, Path(folder))
        trainer = RampTrainer(
            [position.tensor for position in graph.positions],
            [position.cost for position in graph.positions],
        )
        source = source_of(definition, (len(cores),))
        path, root = Path(folder, "model.onnx"), Path(folder)
        source = replace(source, path=path, root=root, exits=None, decode=None)
        arena = Arena(_ARENA_LIMIT, name="slacktide-exits")
        progress(0.0, "starting")
        device = definition.settings.device
        replica = TimedReplica(executor, source, cores, device, arena, clock, _PATIENCE_S)
        try:
            interface = (await replica.ready()).interface
            if not interface.batches:
                raise ExitError(f"{definition.where}: early exits need a batch axis")
            samples_interface = any_size(interface) if definition.any_image else interface
            samples = await _read(file, samples_interface)
            if len(samples) < LEAST_ROWS:
                raise ExitError(f"ramps need at least {LEAST_ROWS} rows, got {len(samples)}")
            names = [spec.name for spec in interface.outputs]
            indices = [
                names.index(f"{PREFIX}features/{position.number}") for position in graph.positions
            ]
            indices.append(names.index(f"{PREFIX}logits"))
            rare_samples = await _read(rare, samples_interface) if isinstance(rare, Path) else []
            pooled, total = [], len(samples) + len(rare_samples)
            for at, sample in enumerate([*samples, *rare_samples]):
                progress(at / total, f"sample {at + 1} of {total}")
                try:
                    outputs = await _run(replica, arena, interface, sample)
                except BatchError as error:
                    raise ExitError(f"sample {at + 1}: {error}") from None
                rows = [np.frombuffer(outputs[index][1], np.float32)[None] for index in indices]
                if at >= len(samples):
                    pooled.append(PooledRows(tuple(rows[:-1]), rows[-1]))
                    continue
                trainer.add(rows[:-1], rows[-1])
                if trainer.all_rows == FIRST_ROWS:  # fail early, not after hours
                    trainer.check_rows()
            if pooled:
                rare = PooledRows.joined(pooled).finite()
        finally:
            replica.close()
            arena.close()
    supplied = rare if isinstance(rare, PooledRows) and trainer.fits(rare) else None
    if supplied is not None:
        trainer.supplied = supplied.halves_by_class()[0]
    progress(1.0, "learning")
    ramps = await asyncio.to_thread(trainer.train)
    manifest = ExitManifest(
        await asyncio.to_thread(model_hash, definition),
        revision,
        trainer.rows,
        "samples",
        graph.outputs,
        ramps,
    )
    return LearntRamps(manifest, trainer.judged, supplied)


async def _read(file: Path, interface: ModelInterface) -> list[Request]:
    """Read a file of samples. Raises ExitError."""
    try:
        return [*await asyncio.to_thread(read_requests, file, interface)]
    except ValueError as error:
        raise ExitError(str(error)) from None


def positions_of(definition: ModelDefinition, model: Any) -> ExitGraph:
    """Return the exit positions of an onnx.ModelProto under the settings. Raises ExitError."""
    stated = exit_source(definition, Path())
    return find_positions(
        model,
        primary=stated.primary,
        mask=stated.mask,
        add=stated.add,
        forbid=stated.forbid,
        shapes=definition.warmup_shapes,
        output=stated.output,
        labels=stated.labels,
    )


def _write_model(definition: ModelDefinition, folder: Path) -> ExitGraph:
    """Write the model with activations of its positions as outputs. Raises ExitError."""
    import onnx

    try:
        model = OnnxFile(definition.model_path, definition.data_root).with_weights()
    except ModelError as error:
        raise ExitError(f"{definition.where}: {error}") from None
    graph = positions_of(definition, model)
    onnx.save(with_features(model, graph), str(folder / "model.onnx"))
    return graph


async def _run(
    replica: TimedReplica, arena: Arena, interface: ModelInterface, request: Request
) -> Outputs:
    """Run one request as a batch of its own. Raises BatchError."""
    slots, refs = [], []
    for spec in interface.inputs:
        array = np.ascontiguousarray(request[spec.name])
        data = encode_strings(array) if array.dtype == object else array.tobytes()
        slots.append(arena.allocate(len(data)))
        arena.view(slots[-1])[:] = data
        refs.append(TensorRef(slots[-1].offset, len(data), array.shape))
    replica.inputs = [Payload(1, tuple(refs))]
    try:
        await replica.run(1)
    finally:
        for slot in slots:
            arena.free(slot)
    return replica.outputs[0]
