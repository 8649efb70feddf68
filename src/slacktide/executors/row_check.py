"""Checks whether rows get the same answers in a batch as alone. If not, the first free axis is no
batch axis, or the model mixes its rows, and requests must not share a batch (decision 0026).

In each of three rounds, two different rows used for timing run alone, together and in reverse
order. Then the first row runs beside its opposite, a large row and a row of zeros, in one order per
round, because rows may influence each other only through a maximum, a sign or a threshold.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, TensorSpec, image_input
from slacktide.executors.hand_over.arena import Arena, MemoryLimitExceeded
from slacktide.executors.ports import OpenedModel, OutputTensor, Payload, RowShapes
from slacktide.executors.rounding import HALF_TOLERANCE, QUANTISED_TOLERANCE
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.executors.timed_replica import BatchError, MeasuringError, TimedReplica

ROUNDS: Final = 3
RANDOM: Final = "the same row gets different answers (random operators)"
_MOST_S: Final = (1.5, 0.5, 0.5)
"""By round: seconds since the beginning after which the check ends."""
_PATIENCE_S: Final = 10.0
_SEED: Final = 70
_EQUAL: Final = 1e-6
"""Largest difference between answers of independent rows in batches of one size, relative to the
output's largest magnitude."""
_LEAST: Final = 1e-7
"""Smaller differences are rounding, whatever the output's magnitude."""


def dependence_warning(dependence: str) -> str:
    """The warning for the log."""
    return (
        f"requests run one at a time, never in a batch: {dependence}; state max_batch: 0 if the "
        "first axis does not hold independent rows"
    )


async def find_dependence(
    replica: TimedReplica,
    opened: OpenedModel,
    rows: SyntheticRows,
    shapes: RowShapes,
    arena: Arena,
    row_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    *,
    expands: bool = False,
) -> str:
    """Why requests must not share a batch; empty if they may. Rows that fail alone, or kill their
    process, prove nothing; do not use the replica after that. `row_s`: seconds of a row; slow rows
    run in one order only. `expands`: a row may give any number of rows."""
    if opened.interface.max_batch < 2 or opened.cold:
        return ""
    begin, patience_s = clock(), replica.patience_s
    try:
        samples = await asyncio.to_thread(_unlike_rows, rows, shapes, opened)
        comparison = _Comparison(
            replica, opened, [rows.payload(row, shapes, arena) for row in samples], expands=expands
        )
        for number in range(ROUNDS):
            for partner in range(1, len(samples)):
                orders = [(0, partner), (partner, 0)]
                if partner > 1:  # for changed rows, one order per round is enough
                    del orders[1 - number % 2]
                if 6 * row_s > _MOST_S[0]:
                    del orders[1:]
                if dependence := await comparison.compare(*orders):
                    return dependence
                took = clock() - begin
                if took > _MOST_S[number]:
                    return ""
                replica.patience_s = min(patience_s, _PATIENCE_S + took)
    except BatchError as error:
        return f"rows that ran alone sometimes fail, or fail next to a copy ({error})"
    except (MemoryLimitExceeded, MeasuringError):
        pass
    return ""


class _Comparison:
    """Compares answers of rows in batches with their answers alone."""

    def __init__(
        self,
        replica: TimedReplica,
        opened: OpenedModel,
        members: Sequence[Payload],
        *,
        expands: bool,
    ) -> None:
        self._replica, self._expands = replica, expands
        self._outputs = opened.interface.outputs
        self._tolerance = opened.tolerance
        self._members = members
        self._answers_alone: dict[int, Sequence[OutputTensor]] = {}
        self._pair = (0, 1)

    async def compare(self, *orders: tuple[int, int]) -> str:
        """Run a pair alone, and together in each of `orders`. Result as in `find_dependence`."""
        self._pair = orders[0]
        for row in sorted(self._pair):
            if row == 0 and row in self._answers_alone and len(orders) == 1:
                continue
            try:
                (outputs,) = await self._run(self._members[row])
            except BatchError:
                return ""
            self._answers_alone.setdefault(row, outputs)
            for spec, (shape, _) in zip(self._outputs, outputs, strict=True):
                if shape[:1] != (1,) and not self._expands:
                    return f"output {spec.name!r} has {shape[0] if shape else 'no'} rows for one"
            if await self._differs(outputs, row):
                return RANDOM
        for order in orders:
            try:
                together = await self._run(*[self._members[row] for row in order])
            except BatchError as error:
                return f"two rows run alone but not together ({error})"
            differing = [
                await self._differs(outputs, row)
                for outputs, row in zip(together, order, strict=True)
            ]
            if not any(differing):
                continue
            for row in order:
                rerun = await self._run(self._members[row])
                if await self._differs(rerun[0], row):
                    return RANDOM
            if await self._is_rounding(together, order):
                continue
            swapped = zip(together, reversed(order), strict=True)
            if not any([await self._differs(outputs, row) for outputs, row in swapped]):
                return "a batch returns two rows in the wrong order"
            name = differing[0] or differing[1]
            return f"output {name!r} of a row differs between a batch and the row alone"
        return ""

    async def _is_rounding(
        self, together: Sequence[Sequence[OutputTensor]], order: Sequence[int]
    ) -> bool:
        """Whether rows get the same answers as beside a copy of themselves, and nearly the same as
        alone. Then only the number of rows matters: it changes ONNX Runtime's order of sums."""
        for place, row in enumerate(order):
            copies = await self._run(self._members[row], self._members[row])
            if await self._differs(together[place], row, HALF_TOLERANCE) or await self._differs(
                together[place], row, _EQUAL, copies[place]
            ):
                return False
        return True

    async def _run(self, *members: Payload) -> Sequence[Sequence[OutputTensor]]:
        self._replica.inputs = members
        await self._replica.run(len(members))
        return self._replica.outputs

    async def _differs(
        self,
        outputs: Sequence[OutputTensor],
        row: int,
        tolerance: float = 0.0,
        expected: Sequence[OutputTensor] = (),
    ) -> str:
        """The first output in which a row differs from the `expected` one (by default its own
        answer alone) by more than the `tolerance` (by default the model's); empty if none does."""
        tolerance, expected = tolerance or self._tolerance, expected or self._answers_alone[row]
        return await asyncio.to_thread(self._find, outputs, expected, tolerance)

    def _find(
        self, outputs: Sequence[OutputTensor], expected: Sequence[OutputTensor], tolerance: float
    ) -> str:
        for at, spec in enumerate(self._outputs):
            if outputs[at] == expected[at]:
                continue
            if outputs[at][0] != expected[at][0] or spec.datatype is Datatype.BYTES:
                return spec.name
            answer, reference = (numbers_of(spec, data) for _, data in (outputs[at], expected[at]))
            alone = [
                self._answers_alone[row][at][1] for row in self._pair if row in self._answers_alone
            ]
            largest = max(largest_magnitude(numbers_of(spec, data)) for data in alone)
            room = max(tolerance * largest, _LEAST)
            if spec.datatype in (Datatype.INT8, Datatype.UINT8):
                room = max(room, 1.0)  # the output itself is rounded
            with np.errstate(invalid="ignore"):
                is_equal = (np.abs(answer - reference) <= room) | (answer == reference)
            if not (is_equal | (np.isnan(answer) & np.isnan(reference))).all():
                return spec.name
        return ""


def numbers_of(spec: TensorSpec, data: bytes | memoryview) -> NDArray[Any]:
    """The elements of an output, as floating-point numbers."""
    array = np.frombuffer(data, spec.datatype.dtype)
    if spec.datatype is Datatype.BF16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array if array.dtype == np.float32 else array.astype(np.float64)


def largest_magnitude(array: NDArray[Any]) -> float:
    """The largest magnitude of a finite element; 0 if there is none."""
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max()) if finite.size else 0.0


def _unlike_rows(
    rows: SyntheticRows, shapes: RowShapes, opened: OpenedModel
) -> list[dict[str, NDArray[Any]]]:
    """Rows, [1, *shape] of each input, each unlike the first. Only two for quantised models,
    because very unlike rows in a batch change the scales."""
    generator = np.random.default_rng(_SEED)
    first, second = (rows.arrays(shapes, 1, generator, first=at) for at in (0, 1))
    samples = [first, second]
    if opened.tolerance >= QUANTISED_TOLERANCE:
        return samples
    for factor in (-4, 30, 0):
        changed = dict(first)
        for at, spec in enumerate(opened.interface.inputs):
            if not rows.is_stated(spec):
                image = at == image_input(opened.interface)
                array = _changed(spec, first[spec.name], factor, image=image)
                changed[spec.name] = second[spec.name] if array is None else array
        samples.append(changed)
    return samples


def _changed(
    spec: TensorSpec, array: NDArray[Any], factor: int, *, image: bool
) -> NDArray[Any] | None:
    """An input changed in its sum, signs and maximum; None for text. Whole numbers stay within 0
    and 1, because they may be indices; UINT8 ones are most likely pixels and use 0 to 255."""
    if spec.datatype is Datatype.BYTES:
        return None
    if spec.datatype.is_float:
        wide = numbers_of(spec, array.tobytes()).reshape(array.shape) * factor
        wide = np.abs(wide) if factor > 0 else wide
        if spec.datatype is Datatype.BF16:
            return (wide.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        with np.errstate(over="ignore"):
            return wide.astype(array.dtype)
    most = 255 if spec.datatype is Datatype.UINT8 else 1
    if factor < 0:
        return np.asarray(most - array * (1 if image else most), array.dtype)
    return np.full_like(array, most if factor else 0)
