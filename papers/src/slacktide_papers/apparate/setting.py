"""Streams of the experiments, their exit tables, and the arrival times of their requests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples import FRAME_RATE, MODELS
from slacktide.lab.simulation import ExitTable, SimulationError, read_exit_table, rng_for
from slacktide_papers.apparate.class_groups import GROUPED
from slacktide_papers.harness.recorded import azure_counts
from slacktide_papers.harness.state import ReproduceError

MODEL = "model"
MAX_BATCH = 8
SLO_X = 2.0
"""The SLO, as a multiple of the time of one request alone."""
MINUTE_S = 60.0
HOUR_PART, HOUR_PERIOD = 900, 3600
"""After the first tenth of an hour, the first 900 of every 3,600 frames are played."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableFile:
    """The file of an exit table, and facts about it."""

    name: str
    path: Path
    digest: str
    rate: float
    style: str = ""
    """Style of its ramps; empty: the style that the server uses."""
    hour: bool = False
    """Whether only the experiments on hours play it."""

    @classmethod
    def of(cls, name: str, path: Path, style: str = "", *, hour: bool = False) -> TableFile:
        """The table file at `path`. Raises ReproduceError if it is not an exit table."""
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise ReproduceError(f"exit table {path}: {error.strerror}") from None
        return cls(name, path, digest, load_table(path, digest).rate, style, hour)


@lru_cache(maxsize=4)
def load_table(path: Path, digest: str) -> ExitTable:
    """Read an exit table; cached by path and digest. Raises ReproduceError."""
    try:
        return read_exit_table(path)
    except OSError as error:
        raise ReproduceError(f"exit table {path}: {error.strerror}") from None
    except SimulationError as error:
        raise ReproduceError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ExitStream:
    """One of the example streams, with the example model that it is played to."""

    model: str
    stream: str
    rate: float
    """Inputs per second; 0 for texts."""
    length: int
    groups: bool = False
    """Whether the model's classes are merged into groups (class_groups.py)."""

    @property
    def name(self) -> str:
        return f"{self.model}/{self.stream}{f', {GROUPED}' if self.groups else ''}"

    @property
    def is_hour(self) -> bool:
        return 0.0 < 60.0 * MINUTE_S * self.rate <= self.length

    @property
    def trained(self) -> int:
        """Number of inputs in the first tenth, from which ramps are learnt."""
        return self.length // 10

    @property
    def inputs(self) -> int:
        """Number of inputs used. For an hour: its first tenth, and a quarter of the rest."""
        played = self.length - self.trained
        return self.trained + (played // HOUR_PERIOD * HOUR_PART if self.is_hour else played)

    def place(self, number: int) -> int:
        """Place in the stream of the input that is used as number `number`."""
        if not self.is_hour or number < self.trained:
            return number
        period, within = divmod(number - self.trained, HOUR_PART)
        return self.trained + period * HOUR_PERIOD + within


_RATES = {"residual": FRAME_RATE, "chained": FRAME_RATE, "text": 0, "whereabouts": 0}
STREAMS: Mapping[str, ExitStream] = MappingProxyType(
    {
        stream.name: stream
        for model, rate in _RATES.items()
        if model in MODELS
        for name, length in MODELS[model].streams.items()
        for groups in (False, True)[: 1 + bool(rate)]
        for stream in [ExitStream(model, name, float(rate), length, groups)]
    }
)
"""Streams by name: videos, then texts. Each video has two class sets."""


def peak(table: ExitTable) -> float:
    """Highest throughput of full batches of the unsplit model, in requests per second."""
    sizes: list[int] = [size for size in table.sizes.tolist() if size <= MAX_BATCH]
    return max(float(size) / float(table.seconds(table.whole, size)) for size in sizes)


@lru_cache(maxsize=4)
def minute_counts(folder: Path | None) -> tuple[float, ...]:
    """Relative rates of consecutive minutes: those of the Azure Functions trace, summed over all
    functions, or drawn if `folder` is None. Raises ReproduceError."""
    if folder is not None:
        return azure_counts(folder)
    level, rates = 0.0, []
    for step in rng_for(1, "minutes").standard_normal(24 * 60).tolist():
        level = 0.9 * level + 0.15 * step
        rates.append(float(np.exp(level)))
    return tuple(rates)


def arrivals(count: int, rate: float, folder: Path | None, seed: int, *, even: bool) -> Floats:
    """The first `count` arrivals, in seconds from 0, on average `rate` per second: evenly spaced,
    or each minute in proportion to `minute_counts`, at random instants within the minute."""
    if even:
        return np.arange(count) / rate
    relative = np.array(minute_counts(folder))
    draw = rng_for(seed, "arrivals")
    place = int(draw.integers(len(relative)))
    mean = float(relative.mean())
    parts: list[Floats] = []
    total, minute = 0, 0
    while total < count:
        share = relative[(place + minute) % len(relative)] / mean
        minute_count = int(draw.poisson(share * rate * MINUTE_S))
        parts.append(np.sort(draw.uniform(0.0, MINUTE_S, minute_count)) + minute * MINUTE_S)
        total, minute = total + minute_count, minute + 1
    return np.concatenate(parts)[:count]
