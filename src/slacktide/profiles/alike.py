"""`Alike`: what predictions by rows alone say of one particular batch, where requests are alike.

A base for simple `BatchTimes` (engine/ports.py): those in virtual time, in benchmarks and in tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from slacktide.domain import Request
from slacktide.profiles.run_classes import RunClasses


class Alike(ABC):
    """`forecast` and `classes` of requests that differ in rows at most. Seconds."""

    @abstractmethod
    def expected(self, rows: int, cores: int) -> float: ...

    @abstractmethod
    def p99(self, rows: int, cores: int) -> float: ...

    @abstractmethod
    def on_time(self, budget: float, rows: int, cores: int) -> float: ...

    def forecast(self, members: Sequence[Request], rows: int, cores: int) -> ForecastByRows:
        """The time of any batch of `rows` rows."""
        return ForecastByRows(self, rows, cores)

    def classes(self, cores: int) -> RunClasses | None:
        """None: all are alike."""
        return None


class ForecastByRows:
    """A `Forecast` that asks its `Alike` when asked."""

    __slots__ = ("_cores", "_rows", "_times")

    def __init__(self, times: Alike, rows: int, cores: int) -> None:
        self._times = times
        self._rows = rows
        self._cores = cores

    @property
    def expected(self) -> float:
        return self._times.expected(self._rows, self._cores)

    @property
    def p99(self) -> float:
        return self._times.p99(self._rows, self._cores)

    def on_time(self, budget: float) -> float:
        return self._times.on_time(budget, self._rows, self._cores)
