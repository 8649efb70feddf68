"""Sponge, as the harness takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slacktide.profiles.amdahl import fit_amdahl
from slacktide.reproduce.harness.experiments import Goal, Point
from slacktide.reproduce.harness.run import SIMULATED, Publication
from slacktide.reproduce.sponge.assumptions import assumptions
from slacktide.reproduce.sponge.bandwidths import bandwidths, measured_points
from slacktide.reproduce.sponge.budgets import budgets, megabytes
from slacktide.reproduce.sponge.cell import Played, SpongeCell
from slacktide.reproduce.sponge.choices import choices, instances
from slacktide.reproduce.sponge.experiments import EXPERIMENTS, QUICK, SpongeScope
from slacktide.reproduce.sponge.goals import fit_goals, goals_of
from slacktide.reproduce.sponge.play import play
from slacktide.reproduce.sponge.rows import CoresRow, rows_of
from slacktide.reproduce.sponge.show import Figures, goals_title, sections, tables

_CODE = ("bandwidths.py", "clairvoyant.py", "play.py", "setting.py")


def _recorded(scope: SpongeScope, folder: Path, experiments: Sequence[str]) -> SpongeScope:
    points = measured_points(folder) if "figure-3" in experiments else None
    return replace(scope, folder=folder, digest=bandwidths(folder).digest, points=points)


def _conclude(
    experiments: Sequence[str],
    scope: SpongeScope,
    points: Sequence[Point[SpongeCell]],
    played: Mapping[SpongeCell, Played],
) -> tuple[list[CoresRow], list[Goal], Figures]:
    data = bandwidths(scope.folder)
    fit = fit_amdahl(scope.points) if scope.points is not None else None
    rows = rows_of(points, played)
    figures = Figures(
        {(point.setting, point.contender.label): played[point.first] for point in points},
        megabytes(data) if "figure-1" in experiments else (),
        budgets(data) if "figure-1" in experiments else (),
        instances() if "table-1" in experiments else (),
        choices() if "table-1" in experiments else (),
        fit,
    )
    return rows, [*fit_goals(fit), *goals_of(rows)], figures


PAPER = Publication(
    title="Sponge: Inference Serving with Dynamic SLOs Using In-Place Vertical Scaling (2024)",
    code=(*SIMULATED, "scaling", "server/bandwidth.py", *(f"reproduce/sponge/{x}" for x in _CODE)),
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
    tables=tables,
    sections=sections,
)
