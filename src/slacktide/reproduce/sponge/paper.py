"""Sponge, as the harness takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slacktide.profiles.amdahl import fit_amdahl
from slacktide.reproduce.harness.experiments import Goal, Point
from slacktide.reproduce.harness.run import SIMULATED, Publication
from slacktide.reproduce.sponge.assumptions import assumptions
from slacktide.reproduce.sponge.experiments import EXPERIMENTS, QUICK, SpongeCell, SpongeScope
from slacktide.reproduce.sponge.figures import budgets, choices, instances, megabytes
from slacktide.reproduce.sponge.goals import CoresRow, fit_goals, goals_of, rows_of
from slacktide.reproduce.sponge.play import Played, play
from slacktide.reproduce.sponge.setting import bandwidths, measured_points
from slacktide.reproduce.sponge.show import Figures, goals_title, parts

_CODE = ("clairvoyant.py", "play.py", "setting.py")


def _recorded(scope: SpongeScope, folder: Path, experiments: Sequence[str]) -> SpongeScope:
    points = measured_points(folder) if "figure-3" in experiments else None
    return replace(scope, folder=folder, digest=bandwidths(folder).digest, points=points)


def _conclude(
    experiments: Sequence[str],
    scope: SpongeScope,
    measured: Sequence[tuple[Point[SpongeCell], list[Played]]],
) -> tuple[list[CoresRow], list[Goal], Figures]:
    data = bandwidths(scope.folder)
    fit = fit_amdahl(scope.points) if scope.points is not None else None
    rows = rows_of(measured)
    figures = Figures(
        {(point.setting, point.contender.label): runs[0] for point, runs in measured},
        megabytes(data) if "figure-1" in experiments else (),
        budgets(data) if "figure-1" in experiments else (),
        instances() if "table-1" in experiments else (),
        choices() if "table-1" in experiments else (),
        fit,
    )
    goals = goals_of(rows)
    return rows, goals if fit is None else fit_goals(fit) + goals, figures


PAPER = Publication(
    title="Sponge: Inference Serving with Dynamic SLOs Using In-Place Vertical Scaling (2024)",
    code=(
        *SIMULATED,
        "planning",
        "runtime",
        "server/bandwidth.py",
        *(f"reproduce/sponge/{x}" for x in _CODE),
    ),
    experiments=EXPERIMENTS,
    scope=SpongeScope(),
    quick=QUICK,
    with_data=_recorded,
    play=play,
    outcome=Played,
    row=CoresRow,
    conclude=_conclude,
    extras=Figures.to_dict,
    assumptions=assumptions,
    goals_title=goals_title,
    parts=parts,
)
