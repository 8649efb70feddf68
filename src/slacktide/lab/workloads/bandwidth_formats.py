"""Recorded bandwidths: our own format and those of public traces, recognized by the header.

| header | what it is |
| --- | --- |
| time_s,bandwidth_mbps | Mbit/s (10⁶ bits), each in force from its time on, as for Jellyfish |
| time_s,interval_ms,bytes,bandwidth_mbps | the Ghent 4G logs: exact bytes of each interval |
| trace_id,time_s,bandwidth_mbps | several traces in one file, such as OctopInf's schedules |
| trace_id,time_s,bandwidth_mbps,uplink_mbps,radio | the Irish 5G runs: downlink and uplink |

Other columns are ignored.

A file without a header that has six columns separated by spaces is a Ghent log as published (van
der Hooft et al., HTTP/2-Based Adaptive Streaming of HEVC Video Over 4G/LTE Networks, 2016). Each
line has the time and the time since the start (ms), latitude and longitude, received bytes, and the
length of the interval in which they came (ms).

No I/O: these functions take lines; `slacktide.lab.load.traces` opens the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from slacktide.lab.workloads.bandwidth import MBIT, BandwidthTrace
from slacktide.lab.workloads.trace_table import (
    Column,
    TraceRows,
    checked_rows,
    no_choice,
    read_rows,
)
from slacktide.lab.workloads.values import WorkloadError

_USUAL = "bandwidth_mbps"
_EXACT = {"interval_ms", "bytes"}
_GHENT_LOG = ("time_ms", "start_ms", "latitude", "longitude", "bytes", "interval_ms")


def parse_bandwidths(
    lines: Iterable[str], name: str, *, only: str | None = None, column: str | None = None
) -> BandwidthTrace:
    """Read a trace from the lines of a CSV file called `name`. `only` selects a trace_id, and is
    required if there are several. `column` selects a column ending in _mbps other than
    bandwidth_mbps. Raises WorkloadError naming the file, the line and the column."""
    unread = iter(lines)
    first = next(unread, "")
    if len(first.split()) == len(_GHENT_LOG) and "," not in first:
        no_choice(name, only, column)
        return _ghent_log(chain([first], unread), name)
    table = read_rows(chain([first], unread), name)
    rate_columns = [title for title in table.header if title.endswith("_mbps")]
    if "time_s" not in table.header or not rate_columns:
        expected = "expected a header such as time_s,bandwidth_mbps"
        raise WorkloadError(f"{name}, line 1", f"{expected}, got {','.join(table.header)[:100]!r}")
    if column is not None and column not in rate_columns:
        available = ", ".join(rate_columns)
        raise WorkloadError(name, f"column: no {column!r} of megabits; valid: {available}")
    columns = table.columns()
    if "trace_id" in columns:
        indices = columns["trace_id"].chosen(only, single=True)
        columns = {title: cells.part(indices) for title, cells in columns.items()}
    else:
        no_choice(name, only)
    if column is None and _EXACT.issubset(columns):
        return _by_interval(columns["bytes"], columns["interval_ms"], name)
    if column is None and len(rate_columns) > 1 and _USUAL not in rate_columns:
        choice = f"choose one: column={' | '.join(rate_columns)}"
        raise WorkloadError(name, f"the file has several columns of rates; {choice}")
    levels = columns[column or (_USUAL if _USUAL in rate_columns else rate_columns[0])]
    times = columns["time_s"].times(rising=True)
    return BandwidthTrace(times, levels.numbers() * MBIT, source=name)


def _by_interval(counts: Column, intervals: Column, name: str) -> BandwidthTrace:
    """Return a trace from the bytes that came in consecutive intervals (ms)."""
    seconds = intervals.numbers() / 1e3
    if not np.all(seconds > 0.0):
        raise WorkloadError(f"{name}, {intervals.title}", "must be positive")
    ends = np.cumsum(seconds)
    starts = np.concatenate(([0.0], ends[:-1]))
    return BandwidthTrace(starts, counts.numbers() / seconds, float(ends[-1]), name)


def _ghent_log(lines: Iterable[str], name: str) -> BandwidthTrace:
    rows = checked_rows(map(str.split, lines), name, len(_GHENT_LOG), first=1)
    columns = TraceRows(name, _GHENT_LOG, rows).columns()
    return _by_interval(columns["bytes"], columns["interval_ms"], name)
