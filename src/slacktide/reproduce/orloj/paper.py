"""Orloj, as the harness takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slacktide.reproduce.harness.experiments import Goal, Point
from slacktide.reproduce.harness.run import SIMULATED, Publication
from slacktide.reproduce.orloj.assumptions import assumptions
from slacktide.reproduce.orloj.cell import Finish, OrlojCell
from slacktide.reproduce.orloj.experiments import EXPERIMENTS, QUEUE, QUICK, OrlojScope
from slacktide.reproduce.orloj.goals import goals_of
from slacktide.reproduce.orloj.play import play
from slacktide.reproduce.orloj.queue_times import QueueTime, queue_times
from slacktide.reproduce.orloj.rows import FinishRow, row_of
from slacktide.reproduce.orloj.show import goals_title, sections, tables
from slacktide.reproduce.orloj.traces import azure_counts


def _conclude(
    experiments: Sequence[str],
    scope: OrlojScope,
    points: Sequence[Point[OrlojCell]],
    finishes: Mapping[OrlojCell, Finish],
) -> tuple[list[FinishRow], list[Goal], tuple[QueueTime, ...]]:
    rows = [row_of(point, finishes) for point in points]
    return rows, goals_of(points, finishes), queue_times() if QUEUE in experiments else ()


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
    tables=tables,
    sections=sections,
    digits=4,
    narrow=True,
)
