"""What rows of other sizes take, measured beside a profile's table, which is taken at one size.

Of a model with padded axes these are the lengths that it declares; of a family the sizes at which
its variants run images; of another with free axes the `shapes` that its configuration lists. Where
it lists none, a row of half and one of twice the extent in each free axis are tried, and where that
does not run, in the longest alone: so three sizes are known, and a law over them begins
(profiles/size_law.py).
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from slacktide.domain import Signature
from slacktide.domain.tensors import ModelInterface, image_input
from slacktide.executors.hand_over.arena import Arena, MemoryLimitExceeded, Slot
from slacktide.executors.ports import ModelSource, RowShapes
from slacktide.executors.synthetic_inputs import SyntheticRows
from slacktide.executors.timed_replica import BatchError, MeasuringError, TimedReplica
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.size_law import elements

FEWEST = 3
"""Samples of every point, even over the budget."""
EXTENTS = (0.5, 2.0)
"""Of the profile's, for rows that nothing states."""
VARIANT_SIZES = "variants.sizes"
MOST_SIZES = 5
"""Of a family's images, measured where time is short: the law over sizes reads the others."""
GRAIN = 32
"""Free extents from twice that on are tried in multiples of it: detectors halve an image five
times."""


@dataclass(frozen=True, slots=True)
class OtherSize:
    """Rows of another size than that of the table."""

    shapes: RowShapes
    size: float
    """As a multiple of the table's."""
    stated: str = ""
    """The key that states it; empty if it was made up, and may fail."""
    signature: Signature = ()
    """Empty where axes are padded."""


def sizes_beside(
    shapes: RowShapes, rows: SyntheticRows, source: ModelSource, interface: ModelInterface
) -> list[list[OtherSize]]:
    """The sizes worth measuring beside that of `shapes`, each once, smallest first; of each, what
    to try in turn until one runs."""
    padding = None if source.padding is None else source.padding.fitting(interface)
    groups: dict[Signature | float, list[OtherSize]] = {}
    if padding is not None:
        name, padded = next(iter(padding.inputs.items()))
        length_of_row = shapes[name][padded.axis - 1]
        for size, length in ((length / length_of_row, length) for length in padding.lengths):
            longer = rows.shapes(shapes, length)
            groups[size] = [OtherSize(longer, size, f"inputs.{name}.pad.lengths")]
        groups.pop(1.0, None)
    else:
        reference = _signature(shapes, interface)
        for key, tries in _other_shapes(shapes, rows, source, interface):
            signatures = [_signature(row, interface) for row in tries]
            sizes = [elements(signature) / elements(reference) for signature in signatures]
            if tries:
                attempts = zip(tries, sizes, repeat(key), signatures)
                groups.setdefault(signatures[0], [OtherSize(*row) for row in attempts])
        groups.pop(reference, None)
    return sorted(groups.values(), key=lambda tries: tries[0].size)


def _other_shapes(
    shapes: RowShapes, rows: SyntheticRows, source: ModelSource, interface: ModelInterface
) -> Iterator[tuple[str, list[RowShapes]]]:
    """The key that states them, and the shapes to try in order."""
    for more in source.more_shapes:
        key = VARIANT_SIZES if source.image_sizes else f"inputs.{next(iter(more))}.shapes"
        yield key, [rows.shapes({**shapes, **more})]
    if source.more_shapes:
        return
    free = {spec.name: interface.row_axes(spec) for spec in interface.inputs}
    longest = max(
        (
            size
            for name, axes in free.items()
            for axis, size in zip(axes, shapes[name], strict=True)
            if axis < 0
        ),
        default=0,
    )
    for extent in EXTENTS:
        tries: list[RowShapes] = []
        for least in (2, longest):  # one row, or one channel, is nothing that grows
            candidate = {
                name: tuple(
                    _scaled(size, extent) if axis < 0 and size >= least else size
                    for axis, size in zip(axes, shapes[name], strict=True)
                )
                for name, axes in free.items()
            }
            with suppress(ValueError):  # more than a row may take
                tries.append(rows.shapes(candidate))
        yield "", tries


def with_image_sizes(
    source: ModelSource, interface: ModelInterface, *, all_of_them: bool
) -> tuple[ModelSource, RowShapes]:
    """`source` with shapes for the sizes at which its variants run images, and the shape of the
    table's rows: the largest image, whose full batches show what memory holds. Of many sizes
    `MOST_SIZES`, spread evenly, are measured unless `all_of_them` are to be."""
    image, sizes = image_input(interface), source.image_sizes
    if image is None or not sizes or interface.inputs[image].shape[1] >= 0:
        return source, {}
    if len(sizes) > MOST_SIZES and not all_of_them:
        steps = np.linspace(0, len(sizes) - 1, MOST_SIZES)
        sizes = tuple(sizes[round(step)] for step in steps)
    name = interface.inputs[image].name
    *smaller, largest = ({name: (size, size, 3)} for size in sizes)
    shapes = {**source.warmup_shapes, **largest}
    return replace(source, warmup_shapes=shapes, more_shapes=tuple(smaller)), largest


def _scaled(size: int, extent: float) -> int:
    scaled = round(size * extent)
    return scaled if scaled < 2 * GRAIN else scaled // GRAIN * GRAIN


def _signature(shapes: RowShapes, interface: ModelInterface) -> Signature:
    return tuple(shapes[spec.name] for spec in interface.inputs)


async def measure_sizes(
    replica: TimedReplica,
    sizes: Sequence[Sequence[OtherSize]],
    rows: SyntheticRows,
    arena: Arena,
    warm: Mapping[int, float],
    *,
    most_s: float,
    seed: int,
) -> list[SizeTime]:
    """Times of rows of each of `sizes` (of `sizes_beside`), on the cores that the replica has.

    One row and the largest batch are timed, `FEWEST` times after a run that does not count: enough
    to tell what a batch costs from what a row does, and little beside the table. `warm` has seconds
    by batch size there; a point is left out if it would take longer than `most_s`, but one row of a
    size that is stated runs once even so, and of a variant is timed by that. The replica must be
    ready; it is left without inputs. Raises MeasuringError if a size that is stated fails.
    """
    size_times = []
    replica.inputs = ()
    for tries in sizes:
        for size in tries:
            try:
                generator = np.random.default_rng(seed)
                replica.inputs = await asyncio.to_thread(
                    rows.payloads, size.shapes, arena, generator=generator
                )
                replica.size = rows.image_size(size.shapes)
                for count in dict.fromkeys((1, max(warm))):
                    # Of a smaller row it is not known how much less it takes.
                    part = size.size if size.size > 1.0 else math.sqrt(size.size)
                    if warm[count] * part * (FEWEST + 1) > most_s:
                        if size.stated and count == 1:
                            alone = await replica.run(1)
                            if size.stated == VARIANT_SIZES:  # without a time it could not serve
                                timed_once = (size.size, alone, size.signature)
                                size_times.append(SizeTime(1, replica.cores, *timed_once))
                        continue
                    times = [await replica.run(count) for _ in range(FEWEST + 1)][1:]
                    seconds = statistics.median(times)
                    size_times.append(
                        SizeTime(count, replica.cores, size.size, seconds, size.signature)
                    )
                break
            except (BatchError, MemoryLimitExceeded) as error:
                if size.stated:
                    inputs = ", ".join(f"{name} {list(s)}" for name, s in size.shapes.items())
                    raise MeasuringError(f"{size.stated}: {inputs} does not run: {error}") from None
                if size_times and size_times[-1].signature == size.signature:
                    break
            finally:
                for ref in (ref for payload in replica.inputs for ref in payload.tensors):
                    arena.free(Slot(ref.offset, ref.nbytes))
                replica.inputs = ()
    return size_times
