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
    "Bandwidths are recorded: the Ghent 4G bus log 0001, repeated from its beginning, and run "
    f"{IRISH_RUN} of the Irish 5G downloads from {IRISH_START:g} s on."
)
_DRAWN = (
    "Bandwidths are drawn from a seed, in the manner of the recorded ones, which --data reads; "
    "figures differ from those of the public traces."
)
_SIMULATED = (
    "Batch times: the fit of the 30 latencies published with the paper's code, l(b, c) = "
    f"({FIT.gamma * 1e3:g} b + {FIT.epsilon * 1e3:g}) / c + {FIT.delta * 1e3:g} b + "
    f"{FIT.eta * 1e3:g} ms, × 6 unless a setting says otherwise. Planners know it exactly, and no "
    "batch deviates from it. The profile of the paper's YOLOv5s is not public.",
    "Every request has a link of its own, as in the paper's code; a KB is 1024 bytes. The SLO of "
    "1 s counts from the send; answers take no time to return.",
    "A violation is a request that was not answered by its own deadline, including dropped and "
    "refused ones. (The paper's code counts requests dropped a fixed time after their arrival.)",
    "Unavoidable: link time + l(1, 16) > SLO.",
    "All policies share the queue (`slack`), predictions and forecasts; only the planner differs. "
    "Requests are announced at their first byte, as HTTP requests are by their headers, with the "
    "arrival predicted from the client's last uploads; `vertical, no notice` runs without this.",
    f"A resize takes {RESIZE_S * 1e3:g} ms, the start of an instance 10 s (Sponge §4). Cores count "
    f"from when they are allocated. {WARM_S:g} s of the same traffic come before time 0.",
    "fa2: up to 16 instances of one core, decided every second; a batch and the one before it must "
    "fit the budget, and throughput must reach the rate. It shares the common queue, which is "
    "better than its own.",
    "vpa: the recommender of the Kubernetes VPA with its defaults and a clock 60 times as fast, on "
    "an instance that begins with all cores; each change restarts it, which takes 10 s.",
    "paper: Algorithm 1 as in its code, on the same queue.",
    "clairvoyant: for each whole second, the fewest cores that answer on time all requests that 16 "
    "cores can answer on time; computed exactly from all arrivals and the network; nothing runs. "
    "It may let a queue build up for a while; `clairvoyant, steady` may not, since every choice "
    "must sustain the rate, as in Sponge's Eq. 3 (h(b, c) ≥ λ). Several models are computed "
    "separately.",
)
_OF_EXPERIMENT = {
    "figure-1": "Budgets are those of a request sent at each whole second; the paper divides the "
    "size by the bandwidth of that second.",
    "table-1": "Latencies are from the same fit, × 1.",
    "figure-3": "The paper names neither the model nor the percentile of the 30 points; the "
    "magnitudes are those of Table 1.",
    "harder": "800 KB and times × 7: eight cores fail, as in the paper and not in our figure-4. "
    "100/s has times × 1, which 16 cores can sustain; the paper has no such runs. Two models share "
    "the trace and 16 cores; static comparisons have 8 each. 4x-load: four times 20/s; requests of "
    "the first 60 s do not count; static is one node of 16 cores.",
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
