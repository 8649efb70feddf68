"""Sponge's entry for the harness, and assumptions on what the paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from slacktide.profiles import fit_amdahl
from slacktide_papers.harness.experiments import Goal, Point
from slacktide_papers.harness.run import SIMULATED, Publication
from slacktide_papers.sponge.experiments import EXPERIMENTS, QUICK, SpongeCell, SpongeScope
from slacktide_papers.sponge.figures import budgets, choices, instances, megabytes
from slacktide_papers.sponge.goals import CoresRow, fit_goals, goals_of, rows_of
from slacktide_papers.sponge.play import RESIZE_S, WARM_S, Played, play
from slacktide_papers.sponge.setting import FIT, IRISH_RUN, IRISH_START, bandwidths, measured_points
from slacktide_papers.sponge.show import Figures, parts

_RECORDED = (
    "Bandwidths are the recorded ones: the Ghent 4G bus log 0001, again from the start when it is "
    f"over; run {IRISH_RUN} of the Irish 5G downloads from {IRISH_START:g} s on."
)
_DRAWN = (
    "Bandwidths are drawn from a seed in the shape of the recorded ones, which --data gives: "
    "figures differ from those of the public traces."
)
_SIMULATED = (
    "Batch times: the fit of the 30 latencies published with the paper's code, l(b, c) = "
    f"({FIT.gamma * 1e3:g} b + {FIT.epsilon * 1e3:g}) / c + {FIT.delta * 1e3:g} b + "
    f"{FIT.eta * 1e3:g} ms, × 6 unless a setting says otherwise; known exactly, and always taken. "
    "The profile of the paper's YOLOv5s is not public.",
    "Every request has the link to itself, as in the paper's code; KB are 1024 bytes. The SLO of "
    "1 s runs from sending; answers take no time on the way back.",
    "A violation is a request that was not answered by its own deadline, dropped and refused ones "
    "included. (The paper's code counts what is dropped a fixed time after its arrival.)",
    "Unavoidable: link time + l(1, 16) > SLO.",
    "All policies have the same queue (`slack`), predictions and forecasts; only the planner "
    "differs. Requests are announced at their first byte, as HTTP requests are by their headers, "
    "with the arrival that the client's last uploads let expect; `vertical, no notice` runs "
    "without.",
    f"A resize takes {RESIZE_S * 1e3:g} ms, the start of an instance 10 s (Sponge §4); cores count "
    f"from when they are taken. {WARM_S:g} s of the same traffic come before time 0.",
    "fa2: instances of one core, decided each second, up to 16; a batch and the one before it must "
    "fit the budget, and throughput the rate. It shares the queue with all, which is kinder than "
    "its own.",
    "vpa: the recommender of the Kubernetes VPA with its defaults, its clock 60 times as fast, on "
    "an instance that begins with all cores; a change is a restart of 10 s.",
    "paper: Algorithm 1 as its code has it, on the same queue.",
    "clairvoyant: the fewest cores for each whole second with which every request is on time that "
    "16 cores can have on time, knowing all arrivals and the network; exact, nothing runs. It lets "
    "queues build up under sizes that the rate would swamp in time; `clairvoyant, steady` does "
    "not, as Sponge's Eq. 3 asks (h(b, c) ≥ λ). With several models each is taken by itself.",
)
_OF_EXPERIMENT = {
    "figure-1": "Budgets are of a request sent at each whole second; the paper divides the size by "
    "the bandwidth of that second.",
    "table-1": "Latencies are those of the same fit, × 1.",
    "figure-3": "The model and percentile of the 30 points are not named; the magnitudes are those "
    "of Table 1.",
    "harder": "800 KB and times × 7: eight cores fail, as in the paper and not in our figure-4. "
    "100/s is at times × 1, which 16 cores can carry; the paper has no such runs. Two "
    "models share the trace and 16 cores; static comparisons have 8 each. 4x-load: four times "
    "20/s, requests of the first 60 s do not count; static is one node of 16 cores.",
}


def assumptions(experiments: Iterable[str], scope: SpongeScope) -> list[str]:
    """Assumptions behind these experiments, as sentences."""
    names = list(experiments)
    sentences = [_RECORDED if scope.folder is not None else _DRAWN]
    if any(EXPERIMENTS[name].points for name in names):
        sentences += _SIMULATED
    return sentences + [_OF_EXPERIMENT[name] for name in names if name in _OF_EXPERIMENT]


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
    code=(*SIMULATED, "planning", "runtime", *(f"papers/sponge/{x}" for x in _CODE)),
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
    goals_title=lambda _, scope: scope.goals_title("bandwidths"),
    parts=parts,
)
