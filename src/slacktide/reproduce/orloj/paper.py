"""Orloj, as the harness takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slacktide.load.traces import read_trace
from slacktide.reproduce.harness.experiments import Goal, Point
from slacktide.reproduce.harness.run import SIMULATED, Publication
from slacktide.reproduce.harness.state import ReproduceError, find_data_file
from slacktide.reproduce.orloj.assumptions import assumptions
from slacktide.reproduce.orloj.experiments import EXPERIMENTS, QUEUE, QUICK, OrlojCell, OrlojScope
from slacktide.reproduce.orloj.goals import FinishRow, goals_of, row_of
from slacktide.reproduce.orloj.play import Finish, play
from slacktide.reproduce.orloj.queue_times import QueueTime, queue_times
from slacktide.reproduce.orloj.show import goals_title, parts
from slacktide.workloads import WindowCounts, WorkloadError

PATTERN = "azure_functions_2019*.csv"
"""Azure Functions 2019, invocations per minute: its own format, or one row for each window."""


def azure_counts(folder: Path) -> tuple[float, ...]:
    """Counts by window, of the first file under `folder` that matches PATTERN.

    Raises ReproduceError if there is none, or if it cannot be read.
    """
    path = find_data_file(folder, PATTERN)
    try:
        arrivals = read_trace(str(path))
    except WorkloadError as error:
        raise ReproduceError(f"--data: {error}") from None
    if not isinstance(arrivals, WindowCounts):
        raise ReproduceError(f"--data: {path.name} has no counts by window")
    if not arrivals.counts.any():
        raise ReproduceError(f"--data: {path.name} has no invocations")
    return tuple(map(float, arrivals.counts))


def _conclude(
    experiments: Sequence[str],
    scope: OrlojScope,
    measured: Sequence[tuple[Point[OrlojCell], list[Finish]]],
) -> tuple[list[FinishRow], list[Goal], tuple[QueueTime, ...]]:
    rows = [row_of(point, finishes) for point, finishes in measured]
    return rows, goals_of(measured), queue_times() if QUEUE in experiments else ()


PAPER = Publication(
    title="Orloj: Predictably Serving Unpredictable DNNs (Yu, Qiu, Jin, Chowdhury, 2022)",
    code=(*SIMULATED, *(f"reproduce/orloj/{name}.py" for name in ("cases", "play", "setting"))),
    experiments=EXPERIMENTS,
    scope=OrlojScope(),
    quick=QUICK,
    with_data=lambda scope, folder, _: replace(scope, trace=azure_counts(folder)),
    play=play,
    outcome=Finish,
    row=FinishRow,
    conclude=_conclude,
    extras=lambda times: {"queue": times},
    assumptions=assumptions,
    goals_title=goals_title,
    parts=parts,
    digits=4,
    narrow=True,
)
