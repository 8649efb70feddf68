"""`find_agreement`: how much a model's answers change with another backend or precision.

Both run the same rows, one at a time: every second sample of the owner's, from which int8 has not
taken its ranges, or random rows if there are no samples. Outputs are
compared as the file gives them, without the decoder.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.hand_over.arena import Arena, MemoryLimitExceeded
from slacktide.executors.ports import Executor, ModelSource, OpenedModel, Outputs, Payload
from slacktide.executors.row_check import largest_magnitude, numbers_of
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.executors.timed_replica import BatchError, MeasuringError, TimedReplica

MOST_ROWS = 256
_ARENA_LIMIT = 1 << 30
_PATIENCE_S = 300.0
_SEED = 35


@dataclass(frozen=True, slots=True)
class Agreement:
    """Answers of a model in another backend or precision, compared with those of ONNX Runtime in
    the file's own precision."""

    error: float
    """Largest difference of a number, relative to the largest magnitude of its output."""
    output: str
    """The output with this error."""
    top1: float | None
    """Share of rows, or of their positions, with the same most likely class; None if no output
    looks like classes."""
    rows: int
    """Number of rows compared."""
    sampled: bool
    """Whether rows are the owner's samples, not random."""

    def __str__(self) -> str:
        rows = f"{self.rows} {'samples' if self.sampled else 'random rows'}"
        classes = "" if self.top1 is None else f"the same class in {self.top1:.1%}, "
        return f"{classes}largest error {self.error:.2%} of {self.output!r} ({rows})"


async def find_agreement(
    executor: Executor, source: ModelSource, *, cores: tuple[int, ...], budget_s: float
) -> Agreement:
    """Run up to `MOST_ROWS` rows through `source`, and through ONNX Runtime in the file's own
    precision, in about `budget_s` seconds. Raises MeasuringError if one of them cannot run."""
    changed = replace(source, decode=None, after=None)
    reference = replace(changed, backend="onnxruntime", precision="fp32")
    arena = Arena(_ARENA_LIMIT, name="slacktide-agreement")
    try:
        opened, payloads, expected = await _answers(
            executor, reference, cores, arena, (), budget_s / 2
        )
        _, _, answers = await _answers(executor, changed, cores, arena, payloads, budget_s / 2)
    finally:
        arena.close()
    sampled = reference.samples is not None or bool(reference.sample_rows)
    return compared(opened.interface.outputs, expected, answers, sampled=sampled)


async def _answers(
    executor: Executor,
    source: ModelSource,
    cores: tuple[int, ...],
    arena: Arena,
    payloads: Sequence[Payload],
    budget_s: float,
) -> tuple[OpenedModel, Sequence[Payload], list[Outputs]]:
    """Answers of a replica to `payloads`, or to rows made for it if there are none; as many as the
    budget allows."""
    replica = TimedReplica(executor, source, cores, "cpu", arena, time.perf_counter, _PATIENCE_S)
    try:
        opened = await replica.ready()
        if opened.cold:
            raise MeasuringError(f"no row runs: {opened.cold}")
        if not payloads:
            payloads = await asyncio.to_thread(_payloads, opened, source, arena)
        answers: list[Outputs] = []
        end = time.perf_counter() + budget_s
        for payload in payloads:
            replica.inputs = [payload]
            await replica.run(1)
            (outputs,) = replica.outputs
            answers.append(tuple((shape, bytes(content)) for shape, content in outputs))
            if time.perf_counter() > end:
                break
    except BatchError as error:
        raise MeasuringError(f"a row fails: {error}") from None
    finally:
        replica.close()
    return opened, payloads, answers


def _payloads(opened: OpenedModel, source: ModelSource, arena: Arena) -> list[Payload]:
    rows = SyntheticRows(opened.interface, source)
    shapes, generator = rows.shapes(opened.row_shapes), np.random.default_rng(_SEED)
    payloads: list[Payload] = []
    count = rows.sample_count
    numbers = range(1, count, 2) if count > 1 else range(count or MOST_ROWS)  # see quantising.py
    for first in numbers[:MOST_ROWS]:
        try:
            arrays = rows.arrays(shapes, 1, generator, first=first)
            payloads.append(rows.payload(arrays, shapes, arena))
        except MemoryLimitExceeded:
            break
    return payloads


def compared(
    specs: Sequence[TensorSpec],
    expected: Sequence[Outputs],
    answers: Sequence[Outputs],
    *,
    sampled: bool,
) -> Agreement:
    """Compare answers to the same rows; rows beyond the shorter of the two are left out."""
    pairs = list(zip(expected, answers, strict=False))
    worst, worst_output, agreeing, positions = 0.0, "", 0, 0
    for at, spec in enumerate(specs):
        if spec.datatype is Datatype.BYTES:
            continue
        largest = max(largest_magnitude(numbers_of(spec, row[at][1])) for row, _ in pairs)
        for reference, answer in pairs:
            (shape, content), (other_shape, other_content) = reference[at], answer[at]
            if shape != other_shape:
                return Agreement(np.inf, spec.name, None, len(pairs), sampled)
            numbers, answered = numbers_of(spec, content), numbers_of(spec, other_content)
            with np.errstate(invalid="ignore"):
                differences = np.abs(numbers - answered)
            error = float(np.nanmax(differences, initial=0.0)) / (largest or 1.0)
            if error > worst or not worst_output:
                worst, worst_output = error, spec.name
            if spec.datatype.is_float and len(shape) in (2, 3) and shape[-1] > 1:
                classes, other_classes = (
                    array.reshape(-1, shape[-1]).argmax(axis=1) for array in (numbers, answered)
                )
                agreeing += int((classes == other_classes).sum())
                positions += len(classes)
    top1 = agreeing / positions if positions else None
    return Agreement(worst, worst_output, top1, len(pairs), sampled)
