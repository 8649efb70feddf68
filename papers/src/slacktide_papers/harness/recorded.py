"""Finds and reads files below the folder of `--data`."""

from __future__ import annotations

from pathlib import Path

from slacktide.lab.load import read_trace
from slacktide.lab.workloads import WindowCounts, WorkloadError
from slacktide_papers.harness.state import ReproduceError

AZURE = "azure_functions_2019*.csv"
"""Azure Functions 2019, invocations per minute, as published or with one row for each window."""


def find_data_file(folder: Path, pattern: str) -> Path:
    """The first file below `folder` (`--data`) that matches `pattern`. Raises ReproduceError."""
    if not folder.is_dir():
        raise ReproduceError(f"--data: expected a folder, got {folder}")
    paths = sorted(folder.rglob(pattern))
    if not paths:
        raise ReproduceError(f"--data: expected {pattern} under {folder}")
    return paths[0]


def azure_counts(folder: Path) -> tuple[float, ...]:
    """Invocations in each window, from the first file under `folder` that matches AZURE. Raises
    ReproduceError if there is no such file, or if it cannot be read."""
    path = find_data_file(folder, AZURE)
    try:
        arrivals = read_trace(str(path))
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None
    if not isinstance(arrivals, WindowCounts):
        raise ReproduceError(f"--data: {path.name} has no counts by window")
    if not arrivals.counts.any():
        raise ReproduceError(f"--data: {path.name} has no invocations")
    return tuple(map(float, arrivals.counts))
