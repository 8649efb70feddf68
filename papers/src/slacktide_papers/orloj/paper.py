"""Orloj's entry for the harness, and assumptions on what the paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from slacktide_papers.harness.experiments import Goal, Point
from slacktide_papers.harness.recorded import azure_counts
from slacktide_papers.harness.run import SIMULATED, Publication
from slacktide_papers.orloj.cases import TASK_SHORT, TASK_SIGMA
from slacktide_papers.orloj.experiments import (
    EXPERIMENTS,
    OVERHEAD_MS,
    QUEUE,
    QUICK,
    OrlojCell,
    OrlojScope,
)
from slacktide_papers.orloj.goals import FinishRow, goals_of, row_of
from slacktide_papers.orloj.play import Finish, play
from slacktide_papers.orloj.queue_times import QueueTime, queue_times
from slacktide_papers.orloj.setting import ALONE_MS, SAMPLES, SETTINGS, OrlojSetting
from slacktide_papers.orloj.show import goals_title, parts

_ALWAYS = (
    "Batch time: c0 + c1 · k · (longest member), as in §4.2; k is the smallest of the sizes "
    "{sizes} that holds the members. The paper states neither c0, c1 nor the sizes.",
    "Time: a request of the reference length takes {alone:g} ms alone, like BART on CNN in Table "
    "1. Only Figures 13 and 14 depend on this.",
    "SLO: a multiple of the P99 of the times that the run's requests take alone (§5.2).",
    "A scheduler gets {samples} lengths of every application before the run and learns nothing "
    "during it. It knows c0 and c1 exactly. There is one replica, no other model and no network.",
    "Applications are the modes of a distribution. Lengths below 1 % of their mode's mean are "
    "raised to that.",
    "Clipper: first in, first out; it drops nothing and sets the batch size by AIMD (+1, × 0.9) on "
    "the latency that the client sees. Nexus: first in, first out at a planned size; it drops "
    "nothing early. Clockwork: it chooses the size by the median of the last ten batch times; when "
    "a batch overruns its estimate, the batch that would run next is dropped. These readings fit "
    "the published figures.",
    "orloj orders sizes as line 16 of Algorithm 1 is printed, by their earliest deadline, latest "
    "first, and so takes the largest size that has enough feasible requests; orloj_text follows "
    "the words of §3.2 (earliest deadline first, the largest size on ties).",
    "orloj and orloj_text compute E[L] for a batch drawn from all arrivals, by its size alone. "
    "The contender `orloj, by class` counts the request's own class in line 11 and in the score. "
    "This is the strongest reading, so gains are measured against it.",
    "Symphony (2024) is newer than the paper. It starts a batch when the batch can no longer grow, "
    "by the p99 of its members' time; with one model and one replica that is all it decides.",
    "oracle_slack is not a published system: it applies the rule of slack with every length known, "
    "in three ways of which the best is used. It looks one batch ahead, so it is not a bound.",
    "Notice: requests are announced 0.2 × the time alone before their arrival. Deadlines count "
    "from the arrival, with and without notice.",
)
_TRACE = (
    "Arrivals follow the counts of the given trace from a point chosen by the seed. Each of its "
    "windows lasts 100 × the time alone; the whole trace has the setting's load on average."
)
_OF_EXPERIMENT: Mapping[str, str] = {
    "table-2": "Modes are at 3 and 17. Unequal peaks have 90 % and 10 % of the requests. std-2/0.5 "
    "is mostly short, std-0.5/2 mostly long; σ is in the same unit. The paper plots the "
    "distributions without numbers.",
    "table-3": "k modes equally spaced from 3 to 17 (one mode: 10), with σ 1 and equal shares.",
    "table-4": "Both static models run as one case with every length 10, since the paper states no "
    "run times for them. The exponential case is not in the paper.",
    "table-5": "Each real task is modelled by two groups of lengths, fitted to the mean and P99 of "
    f"Table 1: a short one with {TASK_SHORT:g} × the mean length, and a long one. σ is "
    f"{TASK_SIGMA:g} of the group's mean. The paper's inputs are not public. c0 and the load are "
    "those of the setting, although they must have differed by model: compare the shape, not the "
    "figures.",
    "figure-12": "Figure 12 is a plot without numbers. Times are of this process on this machine; "
    "our queue is a sorted list per application, not a convex hull.",
    "figure-13": "The three-modal case of Table 3; b is relative to the time alone stated above.",
    "figure-14": "The three-modal case of Table 3 with all times scaled. A simulation has no "
    f"overhead, so each batch takes {OVERHEAD_MS:g} ms longer than predicted, which is what a "
    "server needs to decide and to hand over a batch.",
}


def assumptions(experiments: Iterable[str], scope: OrlojScope) -> list[str]:
    """Assumptions behind these experiments, as sentences."""
    sizes = SETTINGS["P"].sizes
    sentences = [
        text.format(sizes=", ".join(map(str, sizes)), alone=ALONE_MS, samples=SAMPLES)
        for text in _ALWAYS
    ]
    sentences += [_setting(SETTINGS[name]) for name in scope.settings]
    if scope.trace:
        sentences.append(_TRACE)
    return sentences + [_OF_EXPERIMENT[name] for name in experiments]


def _setting(setting: OrlojSetting) -> str:
    why = {
        "P": "calibrated on Tables 2 and 3, one setting for all rows",
        "Q": "padding dominates, closer to a small text encoder on a CPU and to Table 1",
    }[setting.name]
    return (
        f"Setting {setting.name} ({why}): c0 is {setting.fixed:g} × c1 · the reference length. The "
        f"rate is {setting.load:g} × the throughput of requests of that length run one by one, the "
        f"same in every case. Arrivals come in windows of {setting.window:g} × the time alone: "
        f"counts are Poisson, and each window's rate is drawn from a Gamma distribution of cv "
        f"{setting.cv:g}."
    )


def _conclude(
    experiments: Sequence[str],
    scope: OrlojScope,
    measured: Sequence[tuple[Point[OrlojCell], list[Finish]]],
) -> tuple[list[FinishRow], list[Goal], tuple[QueueTime, ...]]:
    rows = [row_of(point, finishes) for point, finishes in measured]
    return rows, goals_of(measured), queue_times() if QUEUE in experiments else ()


PAPER = Publication(
    title="Orloj: Predictably Serving Unpredictable DNNs (Yu, Qiu, Jin, Chowdhury, 2022)",
    code=(*SIMULATED, *(f"papers/orloj/{name}.py" for name in ("cases", "play", "setting"))),
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
