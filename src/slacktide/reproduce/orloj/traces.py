"""The public trace that the paper's arrivals are derived from, where somebody has it."""

from __future__ import annotations

from pathlib import Path

from slacktide.load.traces import read_trace
from slacktide.reproduce.harness.state import ReproduceError, found_below
from slacktide.workloads import WindowCounts, WorkloadError

PATTERN = "azure_functions_2019*.csv"
"""Azure Functions 2019, invocations per minute: its own format, or one row for each window."""


def azure_counts(folder: Path) -> tuple[float, ...]:
    """Counts by window, of the first file under `folder` that matches PATTERN.

    Raises ReproduceError if there is none, or if it cannot be read.
    """
    path = found_below(folder, PATTERN)
    try:
        arrivals = read_trace(str(path))
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None
    if not isinstance(arrivals, WindowCounts):
        raise ReproduceError(f"--data: {path.name} has no counts by window")
    if not arrivals.counts.any():
        raise ReproduceError(f"--data: {path.name} has no invocations")
    return tuple(map(float, arrivals.counts))
