"""Arrival traces from CSV files.

A header is required and decides: `time_s` alone lists arrival times; `time_s,rate_rps` lists rates,
each in force from its time on. Times are seconds from the start of the run.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from slacktide.workloads import Arrivals, RateTrace, Replay, WorkloadError, parse_number

_TIMES = ["time_s"]
_RATES = ["time_s", "rate_rps"]


def read_trace(path: str) -> Arrivals:
    """The arrivals in the CSV file at `path`. Raises WorkloadError naming line and column."""
    name = Path(path).name
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [cell.strip() for cell in next(rows, [])]
            if header not in (_TIMES, _RATES):
                raise WorkloadError(
                    f"{name}, line 1",
                    f"expected the header time_s or time_s,rate_rps, got {','.join(header)!r}",
                )
            columns = _columns(name, header, rows)
    except OSError as error:
        raise WorkloadError("trace", f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError("trace", f"{name} is not a CSV file: {error}") from None
    try:
        if header == _TIMES:
            return Replay(columns[0], name)
        return RateTrace(columns[0], columns[1], name)
    except WorkloadError as error:
        raise WorkloadError(name, str(error)) from None


def _columns(name: str, header: list[str], rows: Iterable[list[str]]) -> list[list[float]]:
    columns: list[list[float]] = [[] for _ in header]
    for line, cells in enumerate(rows, start=2):
        if not cells:
            continue
        if len(cells) != len(header):
            expected = f"expected {len(header)} values, got {len(cells)}"
            raise WorkloadError(f"{name}, line {line}", expected)
        for column, title, cell in zip(columns, header, cells, strict=True):
            column.append(parse_number(cell, f"{name}, line {line}, {title}"))
    return columns
