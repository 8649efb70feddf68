"""Schedule of a run: all requests and their instants, drawn before the run, without I/O.

Each stream has a separate generator for each purpose, seeded by (seed, purpose, stream). Adding a
stream or drawing deadlines differently therefore leaves every other draw unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.load.spec import LoadSpec


class Purpose(IntEnum):
    """Purpose of a generator's random numbers."""

    ARRIVALS = 0
    DEADLINES = 1
    CHOICE = 2
    CONTENTS = 3


def generator(seed: int, purpose: Purpose, stream: int) -> np.random.Generator:
    """Return a new generator for one stream of requests and one purpose."""
    return np.random.default_rng([seed, purpose.value, stream])


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """All requests of a run, ordered by due time. Arrays have shape (n,)."""

    due: NDArray[np.float64]
    """Intended send time, seconds from the start of the run."""
    stream: NDArray[np.int64]
    """Index into the streams of the spec."""
    payload: NDArray[np.int64]
    """Index into the payloads of all streams, concatenated in the order of the streams."""
    allowance: NDArray[np.float64]
    """Seconds from `due` to the deadline; infinite for best effort."""

    def __len__(self) -> int:
        return len(self.due)


def make_schedule(spec: LoadSpec, payloads: Sequence[int]) -> Schedule:
    """Return the schedule of `spec`. Stream i has `payloads[i]` payloads to choose from. Requests
    that are due at the same instant keep the order of their streams."""
    sends, stream, payload, allowance = [], [], [], []
    first = 0
    for number, (source, choices) in enumerate(zip(spec.streams, payloads, strict=True)):
        times = source.arrivals.times(spec.length, generator(spec.seed, Purpose.ARRIVALS, number))
        count = times.size
        sends.append(times)
        stream.append(np.full(count, number, dtype=np.int64))
        choose = generator(spec.seed, Purpose.CHOICE, number)
        payload.append(first + choose.integers(choices, size=count))
        first += choices
        if source.deadlines is None:
            allowance.append(np.full(count, np.inf))
        else:
            rng = generator(spec.seed, Purpose.DEADLINES, number)
            allowance.append(source.deadlines.draw(count, rng))
    order = np.argsort(np.concatenate(sends), kind="stable")
    return Schedule(
        due=np.concatenate(sends)[order],
        stream=np.concatenate(stream)[order],
        payload=np.concatenate(payload)[order],
        allowance=np.concatenate(allowance)[order],
    )
