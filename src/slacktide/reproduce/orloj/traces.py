"""The public trace that the paper's arrivals are derived from, where somebody has it."""

from __future__ import annotations

from pathlib import Path

from slacktide.load.traces import read_trace
from slacktide.reproduce.errors import ReproduceError
from slacktide.workloads import WindowCounts, WorkloadError

PATTERN = "azure_functions_2019*.csv"
"""Azure Functions 2019, invocations per minute: its own format, or one row for each window."""


def azure_counts(folder: Path) -> tuple[float, ...]:
    """Counts by window, of the first file under `folder` that matches PATTERN.

    Raises ReproduceError if there is none, or if it cannot be read.
    """
    if not folder.is_dir():
        raise ReproduceError(f"--data: no such folder: {folder}")
    found = sorted(folder.rglob(PATTERN))
    if not found:
        raise ReproduceError(f"--data: no {PATTERN} under {folder}")
    try:
        arrivals = read_trace(str(found[0]))
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None
    if not isinstance(arrivals, WindowCounts):
        raise ReproduceError(f"--data: {found[0].name} has no counts by window")
    if not arrivals.counts.any():
        raise ReproduceError(f"--data: {found[0].name} has no invocations")
    return tuple(map(float, arrivals.counts))
