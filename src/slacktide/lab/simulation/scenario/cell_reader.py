"""`CellReader`: reads the files that a cell names, and makes errors that name the place and key.
Both kinds of world, with and without pipelines, are built by its subclasses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slacktide.lab.load.traces import read_bandwidths
from slacktide.lab.simulation.exit_tables import ExitTableError
from slacktide.lab.simulation.scenario.reading import Cell
from slacktide.lab.workloads import BandwidthTrace, WorkloadError, parse_bandwidth_trace
from slacktide.models.repository import RepositoryError
from slacktide.models.repository.settings_file import Path as Place
from slacktide.profiles import ProfileError


class CellReader:
    """Base of the classes that build a world from one cell."""

    def __init__(self, cell: Cell) -> None:
        self._cell, self._scenario = cell, cell.scenario

    @contextmanager
    def _named(self, place: Place) -> Iterator[None]:
        """Turn errors raised inside the `with` block into ScenarioErrors that name `place`."""
        try:
            yield
        except (WorkloadError, ProfileError, RepositoryError, ExitTableError) as error:
            text = str(error)
            for kind in ("arrivals", "deadlines", "lengths"):  # `place` states it already
                text = text.removeprefix(f"{kind}: ")
            raise self._refuse(place, text) from None
        except OSError as error:
            raise self._refuse(place, f"cannot be read: {error.strerror}") from None

    def _refuse(self, place: Place, message: str) -> Exception:
        return self._cell.positions.refuse(place, message)

    def _path(self, text: str) -> Path:
        """Return a path of the scenario, resolved from the scenario's folder."""
        return (self._cell.folder / text).resolve()

    def _trace(self, place: Place, text: str) -> tuple[BandwidthTrace, float]:
        """Return the trace that `text` names, and the seconds into the trace at time 0."""

        def read(path: str, only: str | None, column: str | None) -> BandwidthTrace:
            return read_bandwidths(str(self._path(path)), only, column)

        with self._named(place):
            return parse_bandwidth_trace(text, read)
