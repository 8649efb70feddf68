"""Times rows whose size differs from that of the profile's table.

For a model with padded axes, these are its declared lengths; for a family, the image sizes of its
variants; for another model with free axes, the `shapes` of its configuration. Without these, rows
with all free axes halved, and rows with all doubled, are tried; if these do not run, only the
longest axes change. Three sizes are enough to begin a law over sizes (profiles/size_law.py).
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

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
"""Minimum samples of a point, even beyond the budget."""
EXTENTS = (0.5, 2.0)
"""Extents of rows to try, relative to the profile's, if the configuration names none."""
VARIANT_SIZES = "variants.sizes"
MOST_SIZES = 5
"""Maximum number of image sizes of a family to measure if time is short. The law covers all other
sizes."""
GRAIN = 32
"""Free extents of at least twice this size become multiples of it: detectors halve images five
times."""


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A size of rows other than the table's."""

    shapes: RowShapes
    size: float
    """Size relative to the table's."""
    key: str = ""
    """Configuration key that names it; empty for a guess, which may fail."""
    signature: Signature = ()
    """Shapes by input; empty if axes are padded."""


def sizes_beside(
    shapes: RowShapes, rows: SyntheticRows, source: ModelSource, interface: ModelInterface
) -> list[list[OtherSize]]:
    """The sizes to measure besides that of `shapes`, smallest first: for each, candidates to try in
    turn until one runs."""
    padding = None if source.padding is None else source.padding.fitting(interface)
    groups: dict[Signature | float, list[OtherSize]] = {}
    if padding is not None:
        name, padded = next(iter(padding.inputs.items()))
        key, row_length = f"inputs.{name}.pad.lengths", shapes[name][padded.axis - 1]
        for length in padding.lengths:
            size = length / row_length
            groups[size] = [OtherSize(rows.shapes(shapes, length), size, key)]
        groups.pop(1.0, None)
    else:
        reference = _signature(shapes, interface)
        for key, tries in _other_shapes(shapes, rows, source, interface):
            group = []
            for row in tries:
                signature = _signature(row, interface)
                group.append(
                    OtherSize(row, elements(signature) / elements(reference), key, signature)
                )
            if group:
                groups.setdefault(group[0].signature, group)
        groups.pop(reference, None)
    return sorted(groups.values(), key=lambda tries: tries[0].size)


def _other_shapes(
    shapes: RowShapes, rows: SyntheticRows, source: ModelSource, interface: ModelInterface
) -> Iterator[tuple[str, list[RowShapes]]]:
    """Configuration keys, each with the shapes to try in order."""
    for row_shapes in source.more_shapes:
        key = VARIANT_SIZES if source.image_sizes else f"inputs.{next(iter(row_shapes))}.shapes"
        yield key, [rows.shapes({**shapes, **row_shapes})]
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
        for least in (2, longest):  # a single row or channel does not grow
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
    """Return `source` with shapes for the image sizes of its variants, and the shape of the table's
    rows. The table's rows have the largest image: full batches of it show how much fits in memory.
    If there are many sizes, `MOST_SIZES` of them, evenly spread, are measured unless `all_of_them`
    is set."""
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
    clock: Callable[[], float] = time.perf_counter,
) -> list[SizeTime]:
    """Time rows of each of `sizes` (from `sizes_beside`), on the cores of the replica.

    One row and the largest batch are timed, `FEWEST` times after a run that does not count. That is
    enough to separate the cost of a batch from that of a row, and little compared to the table.
    `warm` has the table's seconds by batch size. A point is skipped if all points together would
    exceed `most_s`, but one row of a configured size still runs once, to time a variant. The
    replica must be ready; it is left without inputs. Raises MeasuringError if a configured size
    fails.
    """
    size_times = []
    end = clock() + most_s
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
                    # It is unknown how much less time a smaller row takes.
                    part = size.size if size.size > 1.0 else math.sqrt(size.size)
                    if warm[count] * part * (FEWEST + 1) > end - clock():
                        if size.key and count == 1:
                            alone = await replica.run(1)
                            if size.key == VARIANT_SIZES:  # a variant needs a time to serve
                                timed_once = (size.size, alone, size.signature)
                                size_times.append(SizeTime(1, replica.cores, *timed_once))
                        continue
                    times = [await replica.run(count) for _ in range(FEWEST + 1)][1:]
                    timed = (size.size, statistics.median(times), size.signature)
                    size_times.append(SizeTime(count, replica.cores, *timed))
                break
            except (BatchError, MemoryLimitExceeded) as error:
                if size.key:
                    inputs = ", ".join(f"{name} {list(s)}" for name, s in size.shapes.items())
                    raise MeasuringError(f"{size.key}: {inputs} does not run: {error}") from None
                if size_times and size_times[-1].signature == size.signature:
                    break
            finally:
                for ref in (ref for payload in replica.inputs for ref in payload.tensors):
                    arena.free(Slot(ref.offset, ref.nbytes))
                replica.inputs = ()
    return size_times
