"""Recorded workloads: our own format and those of public traces, recognized by the header.

| header | what it is |
| --- | --- |
| time_s | arrival times |
| time_s,length[,application] | arrivals, each with its work and perhaps its application |
| time_s,rate_rps | rates, each in force from its time on |
| segment,time_s,rate_rps; time_s,rate_rps_mean,rate_rps_max | Twitter, per second and per minute |
| HashOwner,HashApp,HashFunction,Trigger,1,2,… | Azure Functions 2019: counts per minute |
| function_id,time_s,invocations | the same, one row for each function and window |
| app,func,end_timestamp,duration | Azure Functions 2021: single invocations |
| time_s,function_id,duration_s | the same, by start |
| TIMESTAMP,ContextTokens,GeneratedTokens | Azure LLM inference |
| time_s,context_tokens,generated_tokens | the same, in seconds |

No I/O: these functions take lines; `slacktide.lab.load.traces` opens the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import nearest
from slacktide.lab.workloads.arrivals import MAX_ARRIVALS, Arrivals, Replay
from slacktide.lab.workloads.lengths import Empirical
from slacktide.lab.workloads.trace_table import Column, TraceRows, must_know, no_choice, read_rows
from slacktide.lab.workloads.values import WorkloadError, parse_number
from slacktide.lab.workloads.varying import RateTrace, WindowCounts

MINUTE = 60.0
"""Window of the Azure Functions 2019 trace, seconds."""

_AZURE_2019 = ("HashOwner", "HashApp", "HashFunction", "Trigger")


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded workload: the arrivals, and the lengths of the requests."""

    arrivals: Arrivals
    lengths: Mapping[str, Empirical] = field(default_factory=dict)
    """By column: one length per arrival, in the order of arrivals. Empty if none are recorded."""


def parse_trace(lines: Iterable[str], name: str, *, only: str | None = None) -> Trace:
    """Read a trace from the lines of a CSV file called `name`. `only` keeps one application,
    function or segment. Raises WorkloadError naming the file, the line and the column."""
    table = read_rows(lines, name)
    if table.header[:4] == _AZURE_2019:
        return _counts_by_minute(table, only)
    reader = _FORMATS.get(table.header)
    if reader is None:
        raise WorkloadError(f"{name}, line 1", _unknown_header(table.header))
    return reader(table, only)


def _in_order(table: TraceRows, only: str | None) -> Trace:
    """Read a table of arrivals in order, with the owner and any lengths of each."""
    first, *titles = (columns := table.columns())
    times = columns[first].instants() if first == "TIMESTAMP" else columns[first].times()
    owner = next((title for title in titles if title in ("application", "function_id")), None)
    lengths = [columns[title] for title in titles if title != owner]
    if owner is None:
        no_choice(table.name, only)
    return _events(table.name, times, lengths, columns[owner] if owner else None, only)


def _rates(table: TraceRows, only: str | None) -> Trace:
    no_choice(table.name, only)
    columns = table.columns()
    rate = next(title for title in table.header if title != "time_s")
    times = columns["time_s"].times(rising=True)
    return Trace(RateTrace(times, columns[rate].numbers(), table.name))


def _segments(table: TraceRows, only: str | None) -> Trace:
    columns = table.columns()
    indices = columns["segment"].chosen(only, single=True)
    times = columns["time_s"].part(indices).times(rising=True)
    return Trace(RateTrace(times, columns["rate_rps"].part(indices).numbers(), table.name))


def _counts(table: TraceRows, only: str | None) -> Trace:
    columns = table.columns()
    indices = columns["function_id"].chosen(only)
    starts = columns["time_s"].part(indices).numbers()
    counts = columns["invocations"].part(indices).numbers()
    distinct, places = np.unique(starts, return_inverse=True)
    window = float(distinct[1] - distinct[0]) if distinct.size > 1 else MINUTE
    whole = distinct / window
    if np.any(np.abs(whole - np.round(whole)) > 1e-6):
        raise WorkloadError(f"{table.name}, time_s", f"expected windows of {window:g} s each")
    if whole[-1] > MAX_ARRIVALS:
        spans = f"{whole[-1]:.3g} windows of {window:g} s; the limit is {MAX_ARRIVALS}"
        raise WorkloadError(f"{table.name}, time_s", spans)
    sums = np.zeros(round(float(whole[-1])) + 1)
    np.add.at(sums, np.round(whole).astype(np.int64)[places], counts)
    return Trace(WindowCounts(sums, window, table.name))


def _counts_by_minute(table: TraceRows, only: str | None) -> Trace:
    minutes = table.header[4:]
    if minutes != tuple(str(minute) for minute in range(1, len(minutes) + 1)) or not minutes:
        raise WorkloadError(f"{table.name}, line 1", "expected the minutes 1,2,… after Trigger")
    sums = np.zeros(len(minutes))
    functions = set()
    for line, cells in table.rows:
        functions.add(cells[2].strip())
        if only is not None and cells[2].strip() != only:
            continue
        for index, cell in enumerate(cells[4:]):
            where = f"{table.name}, line {line}, {minutes[index]}"
            count = parse_number(cell, where)
            if count < 0.0:
                raise WorkloadError(where, f"must not be negative, got {cell!r}")
            sums[index] += count
    if not functions:
        raise WorkloadError(table.name, "the trace is empty")
    must_know(table.name, only, functions)
    return Trace(WindowCounts(sums, MINUTE, table.name))


def _azure_2021(table: TraceRows, only: str | None) -> Trace:
    """Read invocations published by end time: each began `duration` seconds earlier."""
    columns = table.columns()
    durations = columns["duration"]
    starts = columns["end_timestamp"].numbers() - durations.numbers()
    order = np.argsort(starts, kind="stable")
    times = starts[order] - starts[order[0]]
    return _events(table.name, times, [durations.part(order)], columns["func"].part(order), only)


def _events(
    name: str,
    times: NDArray[np.float64],
    lengths: Sequence[Column],
    owners: Column | None,
    only: str | None,
) -> Trace:
    """Return a trace of single arrivals, each with its lengths."""
    words = () if owners is None else owners.words()
    indices = np.arange(times.size) if owners is None else owners.chosen(only)
    names = tuple(words[index] for index in indices) if words else ()
    return Trace(
        Replay(times[indices], name),
        {
            column.title: Empirical(column.numbers()[indices], names, in_order=True)
            for column in lengths
        },
    )


_FORMATS: Mapping[tuple[str, ...], Callable[[TraceRows, str | None], Trace]] = {
    ("time_s",): _in_order,
    ("time_s", "length"): _in_order,
    ("time_s", "length", "application"): _in_order,
    ("time_s", "rate_rps"): _rates,
    ("time_s", "rate_rps_mean", "rate_rps_max"): _rates,
    ("segment", "time_s", "rate_rps"): _segments,
    ("function_id", "time_s", "invocations"): _counts,
    ("app", "func", "end_timestamp", "duration"): _azure_2021,
    ("time_s", "function_id", "duration_s"): _in_order,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _in_order,
    ("time_s", "context_tokens", "generated_tokens"): _in_order,
}


def _unknown_header(header: Sequence[str]) -> str:
    """Return a message about an unknown header: its first unknown column, and the nearest known
    header."""
    shapes = [",".join(columns) for columns in _FORMATS]
    line = ",".join(header)
    near = nearest(line, shapes)
    titles = {title for columns in _FORMATS for title in columns}
    strange = [title for title in header if title not in titles]
    column = f"unknown column {strange[0]!r}; " if strange else ""
    hint = f"; did you mean {near}?" if near else ""
    return f"{column}expected a header such as time_s or time_s,rate_rps, got {line!r}{hint}"
