"""Timing a model at the lengths it declares: what its padding costs.

The table of a profile is taken at one length. Beside it, one row and the largest measured batch are
timed at each declared length, `FEWEST` times after a run that does not count: enough for the two
numbers of l_B = c0 + c1 · k · max(l), and little beside the table. What would take more than half
of the whole budget by itself, judged from the table's own length, is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np

from slacktide.domain.tensors import ModelInterface
from slacktide.executors.arena import Arena
from slacktide.executors.made_up import payloads, row_shapes
from slacktide.executors.ports import ModelSource
from slacktide.executors.timed_replica import BatchError, MeasuringError, TimedReplica
from slacktide.profiles.latency_fit import LengthTime

FEWEST = 3
"""Samples of every point."""


async def measure_lengths(
    replica: TimedReplica,
    source: ModelSource,
    interface: ModelInterface,
    arena: Arena,
    warm: Mapping[int, float],
    *,
    most_s: float,
    seed: int,
) -> list[LengthTime]:
    """Times on this replica, which must be ready; its inputs are those of the last length then.

    `warm` has seconds by batch size at the table's length; a point is left out if it would take
    longer than `most_s`. Raises MeasuringError if a declared length fails.
    """
    padding = None if source.padding is None else source.padding.fitting(interface)
    if padding is None:
        return []
    name, padded = next(iter(padding.inputs.items()))
    own = row_shapes(interface, source)[name][padded.axis - 1]
    found = []
    for length in padding.lengths:
        if length == own:
            continue
        shapes = row_shapes(interface, source, length)
        generator = np.random.default_rng(seed)
        replica.inputs = payloads(interface, shapes, arena, generator=generator)
        for rows in dict.fromkeys((1, max(warm))):
            if warm[rows] * max(1.0, length / own) * (FEWEST + 1) > most_s:
                continue
            try:
                times = [await replica.run(rows) for _ in range(FEWEST + 1)][1:]
            except BatchError as error:
                raise MeasuringError(
                    f"a batch of {rows} of length {length} fails: {error}"
                ) from None
            point = LengthTime(rows, replica.cores, length / own, statistics.median(times))
            found.append(point)
    return found
