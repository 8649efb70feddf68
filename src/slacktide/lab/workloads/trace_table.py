"""Rows of a CSV file, checked as they are read. Errors name file, line and column if known."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import suggestion
from slacktide.lab.workloads.values import WorkloadError, parse_number


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Rows below a header, line by line. They can be iterated only once."""

    name: str
    """Name of the file, for messages."""
    header: tuple[str, ...]
    rows: Iterator[tuple[int, list[str]]]
    """(line number, cells), with as many cells as the header. Empty lines are left out."""

    def columns(self) -> dict[str, Column]:
        """Return all columns by title. Raises WorkloadError without rows or for repeated titles."""
        for at, title in enumerate(self.header):
            if title and title in self.header[:at]:
                raise WorkloadError(
                    f"{self.name}, line 1, {title}", "expected distinct titles, got this one twice"
                )
        lines: list[int] = []
        cells: list[list[str]] = [[] for _ in self.header]
        for line, row in self.rows:
            lines.append(line)
            for column, cell in zip(cells, row, strict=True):
                column.append(cell)
        if not lines:
            raise WorkloadError(self.name, f"{','.join(self.header)}: the trace is empty")
        return {
            title: Column(self.name, title, lines, column)
            for title, column in zip(self.header, cells, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Column:
    """One column as text, with the number of each cell's line."""

    name: str
    title: str
    lines: Sequence[int]
    cells: Sequence[str]

    def numbers(self) -> NDArray[np.float64]:
        """Return the cells as finite, non-negative numbers, shape (n,). Raises WorkloadError."""
        values = np.empty(len(self.cells))
        for index, cell in enumerate(self.cells):
            values[index] = parse_number(cell, self._where(index))
        negative = np.flatnonzero(values < 0.0)
        if negative.size:
            self._refuse(int(negative[0]), "must not be negative")
        return values

    def times(self, *, rising: bool = False) -> NDArray[np.float64]:
        """Return cells as seconds. Raises WorkloadError if they fall or, with `rising`, repeat."""
        return self._in_order(self.numbers(), rising=rising)

    def instants(self) -> NDArray[np.float64]:
        """Return dates with times (`2023-11-16 18:15:46.6805900`) as seconds after the first."""
        values = np.empty(len(self.cells), dtype="datetime64[ns]")
        for index, cell in enumerate(self.cells):
            try:
                values[index] = np.datetime64(cell.strip(), "ns")
            except ValueError:
                self._refuse(index, "expected a date with a time")
        return self._in_order(np.asarray((values - values[0]) / np.timedelta64(1, "s")))

    def _in_order(self, values: NDArray[np.float64], rising: bool = False) -> NDArray[np.float64]:
        steps = np.diff(values)
        wrong = np.flatnonzero(steps <= 0.0 if rising else steps < 0.0)
        if wrong.size:
            index = int(wrong[0]) + 1
            rule = "must rise from row to row" if rising else "must not decrease"
            before = self.cells[index - 1].strip()
            self._refuse(index, f"{rule}, but comes after {before}")
        return values

    def part(self, rows: Iterable[int]) -> Column:
        """Return a column of the rows with these indices."""
        lines, cells = zip(*((self.lines[index], self.cells[index]) for index in rows), strict=True)
        return replace(self, lines=lines, cells=cells)

    def words(self) -> tuple[str, ...]:
        return tuple(cell.strip() for cell in self.cells)

    def chosen(self, only: str | None, *, single: bool = False) -> NDArray[np.int64]:
        """Return the indices of the rows whose cell is `only`; None: of all rows. With `single`,
        all rows must then have equal cells."""
        words = self.words()
        distinct = sorted(set(words))
        if only is None and single and len(distinct) > 1:
            label = self.title.removesuffix("_id")
            raise WorkloadError(self.name, f"expected one {label}: only={' | '.join(distinct)}")
        must_know(self.name, only, distinct)
        return np.flatnonzero([only is None or word == only for word in words])

    def _where(self, index: int) -> str:
        return f"{self.name}, line {self.lines[index]}, {self.title}"

    def _refuse(self, index: int, why: str) -> None:
        raise WorkloadError(self._where(index), f"{why}, got {self.cells[index].strip()!r}")


def must_know(name: str, only: str | None, words: Collection[str]) -> None:
    """Raise WorkloadError if `only` is stated but not among `words`."""
    if only is not None and only not in words:
        raise WorkloadError(name, f"only: no {only!r}; {suggestion(only, words)[:200]}")


def no_choice(name: str, *choices: str | None) -> None:
    """Raise WorkloadError if a choice is stated for a file that has no column to choose by."""
    for choice in choices:
        if choice is not None:
            raise WorkloadError(name, f"expected no choice, got {choice!r}: no such column")


def read_rows(lines: Iterable[str], name: str) -> TraceRows:
    """Read CSV lines, the first of which is the header. Raises WorkloadError."""
    reader = csv.reader(lines)
    try:
        header = tuple(cell.strip() for cell in next(reader, []))
    except csv.Error as error:
        raise WorkloadError(name, f"expected a CSV file: {error}") from None
    return TraceRows(name, header, checked_rows(reader, name, len(header), first=2))


def checked_rows(
    rows: Iterable[list[str]], name: str, width: int, *, first: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of the non-empty rows; the first row is line `first`."""
    line = first - 1
    try:
        for line, cells in enumerate(rows, start=first):
            if cells and len(cells) != width:
                expected = f"expected {width} values, got {len(cells)}"
                raise WorkloadError(f"{name}, line {line}", expected)
            if cells:
                yield line, cells
    except csv.Error as error:
        raise WorkloadError(f"{name}, line {line}", f"expected CSV: {error}") from None
