"""Recorded workloads from CSV files: `FILE`, `FILE:only=NAME`, `FILE:column=NAME`.

The header decides the format of a file; `workloads/trace_formats.py` lists the formats. `only`
keeps one application, function or segment; `column` names the column that holds the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from slacktide.domain import did_you_mean
from slacktide.lab.workloads import (
    Arrivals,
    BandwidthTrace,
    Empirical,
    Trace,
    WorkloadError,
    parse_bandwidths,
    parse_trace,
)
from slacktide.lab.workloads.object_counts import ObjectCounts, parse_object_counts
from slacktide.lab.workloads.values import split_fields

_FIELDS = ("only", "column")

Parsed = TypeVar("Parsed")


def read_trace(text: str) -> Arrivals:
    """Read the arrivals in a file. Raises WorkloadError naming file, line and column."""
    path, fields = split_fields(text, _FIELDS, "trace")
    return _read(path, fields.get("only")).arrivals


def read_lengths(text: str) -> Empirical:
    """Read the lengths in a file, in the order of arrivals. Raises like `read_trace`."""
    path, fields = split_fields(text, _FIELDS, "trace")
    lengths = _read(path, fields.get("only")).lengths
    name = Path(path).name
    if not lengths:
        raise WorkloadError(name, "expected a column of lengths")
    column = fields.get("column")
    if column is None:
        if len(lengths) > 1:
            choice = f"choose one: column={' | '.join(lengths)}"
            raise WorkloadError(name, f"the file has several columns of lengths; {choice}")
        return next(iter(lengths.values()))
    if column not in lengths:
        hint = did_you_mean(column, lengths) or f"; valid: {', '.join(lengths)}"
        raise WorkloadError(name, f"column: no {column!r}{hint}")
    return lengths[column]


def read_bandwidths(path: str, only: str | None, column: str | None) -> BandwidthTrace:
    """Read the bandwidths in a file. Raises WorkloadError like `read_trace`."""
    name = Path(path).name
    return _opened(path, lambda lines: parse_bandwidths(lines, name, only=only, column=column))


def read_object_counts(text: str, folder: Path) -> ObjectCounts:
    """Read the counts in a file, `FILE` or `FILE:only=VIDEO`, relative to `folder`. Raises
    WorkloadError naming file, line and column."""
    path, fields = split_fields(text, ("only",), "counts")
    name, only = Path(path).name, fields.get("only")
    return _opened(
        str((folder / path).resolve()), lambda lines: parse_object_counts(lines, name, only=only)
    )


def _read(path: str, only: str | None) -> Trace:
    name = Path(path).name
    return _opened(path, lambda lines: parse_trace(lines, name, only=only))


def _opened(path: str, parse: Callable[[Iterable[str]], Parsed]) -> Parsed:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return parse(file)
    except OSError as error:
        raise WorkloadError("trace", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WorkloadError("trace", f"{Path(path).name}: expected a CSV file: {error}") from None
