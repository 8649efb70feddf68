"""How long a batch truly takes: what the simulated hardware knows and the policies do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from slacktide.domain import Batch, Request
from slacktide.engine import BatchTimes
from slacktide.profiles import BatchLatency
from slacktide.simulation.items import DrawnRequest, SimulationError


class Execution(Protocol):
    """The simulated hardware."""

    def seconds(self, batch: Batch, cores: int) -> float:
        """The time of `batch` on a lane of `cores` cores, ≥ 0. Infinite: it hangs.

        Asked once, when the batch starts.
        """
        ...


class AsExpected:
    """Every batch takes just what its profile expects."""

    def __init__(self, times: BatchTimes) -> None:
        self._times = times

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._times.of(batch.rows, cores).expected


class ByProfile:
    """Batch times drawn from a profile, whatever the members."""

    def __init__(self, times: BatchTimes, generator: np.random.Generator) -> None:
        """`times` should be a copy of its own: what a policy learns does not change the truth."""
        self._times = times
        self._generator = generator

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._times.of(batch.rows, cores).quantile(self._generator.random())


class ByLength:
    """Members are padded to the longest of them, l_B = c0 + c1·k·max(l), on any number of cores.

    They must be `DrawnRequest`s.
    """

    def __init__(self, latency: BatchLatency) -> None:
        self._latency = latency

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._latency.seconds(batch.rows, max(map(length_of, batch.members)))


class ByModel:
    """Each model on hardware of its own."""

    def __init__(self, executions: Mapping[str, Execution]) -> None:
        self._executions = executions

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._executions[batch.replica.pool.model].seconds(batch, cores)


def length_of(request: Request) -> float:
    """The true length of `request`. Raises SimulationError if none was drawn for it."""
    if not isinstance(request, DrawnRequest):
        raise SimulationError(f"request {request.id} has no length of its own")
    return request.length
