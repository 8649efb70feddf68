"""The `Publication` of OctopInf, and the assumptions on what the paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slacktide_papers.harness.experiments import Goal, Point, TraceCell
from slacktide_papers.harness.run import SIMULATED, Publication
from slacktide_papers.octopinf.experiments import CONTENTION, EXPERIMENTS, QUICK, OctopInfScope
from slacktide_papers.octopinf.five_setting import ALL_CORES, MEGABITS
from slacktide_papers.octopinf.five_setting import SLOWER as SLOWER_FIVE
from slacktide_papers.octopinf.goals import FleetRow, goals_of, rows_of
from slacktide_papers.octopinf.play import PlayedPipelines, play
from slacktide_papers.octopinf.setting import (
    FP32,
    FP32_SLOWER,
    KILOBYTES,
    MODELS,
    SLOWER,
    WARM_S,
    load_data,
)
from slacktide_papers.octopinf.show import Courses, parts

_RECORDED = (
    "Objects are those of the paper's nine public one-minute videos, looped. Links replay its nine "
    "30 s schedules of 5G one after another, and start again after the last."
)
_DRAWN = (
    "Objects and links are drawn from a seed, in the manner of the recorded ones, which --data "
    "reads; figures differ from those of the recorded data."
)
_TIMES = ", ".join(
    f"{name} {1e3 * cost.fixed:g} + {1e3 * cost.row:g} b" for name, cost in MODELS.items()
)
_FACTORS = ", ".join(
    f"{kind} × {factor:g}" for kind, factor in SLOWER.items() if factor != 1.0 and FP32 not in kind
)
_ASSUMED = (
    f"Batch times on a server's accelerator are invented. In ms for b rows: {_TIMES}; p99 a "
    f"seventh higher. Edge devices: {_FACTORS}. Memory and utilisation likewise (setting.py).",
    f"Frames have {KILOBYTES[0]} to {KILOBYTES[1]} KB, one size per camera, 15 a second; crops "
    "have 1 to 3 KB. The SLO runs from the capture to the answer on the camera's device: 200 ms "
    "for six traffic cameras, 300 ms for three surveillance cameras.",
    "The 13-hour counts are not public. The minute is looped under a daily curve with two peaks "
    "for traffic and one for surveillance. Runs of a few minutes begin at 7:30, 13:00 and 17:30.",
    "An object counts if its last stage answers it in time, on its camera's device. A frame with a "
    f"late branch is answered with its other stages. The first {WARM_S:g} s of a run (half of a "
    "shorter run) are not scored.",
    "Batches on lanes of one accelerator slow each other only if together they need more than all "
    f"of it: by {CONTENTION:g} times the proportional slowdown (`contention`: 1 to 1.6).",
    "pipeline and octopinf schedule by `slack`, within windows where there are any. The others "
    "serve first in, first out, in batches of the waiting rows up to the static size, and drop "
    "late rows before they run (neither full batches nor `slack` makes them better: `batching`).",
    "docs/decisions/0014-published-systems.md states how CWD, CORAL and each baseline are read. "
    "All plan every six minutes, pipeline every minute. A plan takes effect 50 ms after it was "
    "requested; a replica starts within half a second.",
    "Memory: the weights of every replica and, for each stream, which runs one batch at a time, "
    "the largest working memory of its replicas.",
    "Fluid bound: computed every 30 s with true rates and links, for fractions of frames, without "
    "queues, with full batches that take no longer than the SLO and moves that take no time. Empty "
    "if scipy is not installed.",
)
_OF_EXPERIMENT = {
    "surges": "`made for the surge` is `pipeline`, always placed for three times the objects, so "
    "that it reacts to links alone. `octopinf, made for the surge` is `octopinf`, placed in the "
    "same way.",
    "all-five": "Ours, not the paper's: two boxes with two traffic cameras each, and a server. "
    f"They have {ALL_CORES} cores; those of boxes are {SLOWER_FIVE['box']:g} and those of the "
    f"server {SLOWER_FIVE['server']:g} times as slow as the core on which models were measured. "
    f"Links have {MEGABITS:g} Mbit/s on average; a day takes four minutes. "
    "docs/reproduce/octopinf.md lists what each variation switches off, and what replaces it.",
    "fp32": f"Edge devices are {FP32_SLOWER:g} times as slow as in the first setting. `pipeline`, "
    "`jellyfish` and the bounds may use detectors of five sizes, which find equally many objects. "
    "`fixed` baselines wait until every batch is full, as their authors configured them. Weighted "
    "figures count each object by the accuracy of its detector, relative to the largest.",
    "figure-11": "One run each of `pipeline` and `octopinf`.",
}


def assumptions(experiments: Iterable[str], scope: OctopInfScope) -> list[str]:
    """The assumptions of these experiments, as sentences."""
    sentences = [_RECORDED if scope.folder is not None else _DRAWN, *_ASSUMED]
    return sentences + [_OF_EXPERIMENT[name] for name in experiments if name in _OF_EXPERIMENT]


def _conclude(
    experiments: Sequence[str],
    scope: OctopInfScope,
    measured: Sequence[tuple[Point[TraceCell], list[PlayedPipelines]]],
) -> tuple[list[FleetRow], list[Goal], Courses]:
    rows = rows_of(measured)
    runs = {(p.experiment, p.setting, p.contender.label): first for p, (first, *_) in measured}
    return rows, goals_of(rows, measured), Courses(runs)


_CODE = ("play.py", "setting.py", "five_play.py", "five_hardware.py", "five_setting.py")

PAPER = Publication(
    title="OctopInf: Workload-Aware Inference Serving for Edge Video Analytics (2025)",
    code=(
        *SIMULATED,
        "planning",
        "pipelines",
        "runtime",
        *(f"papers/octopinf/{file}" for file in _CODE),
    ),
    experiments=EXPERIMENTS,
    scope=OctopInfScope(),
    quick=QUICK,
    with_data=lambda scope, folder, _: replace(
        scope, folder=folder, digest=load_data(folder).digest
    ),
    play=play,
    outcome=PlayedPipelines,
    row=FleetRow,
    conclude=_conclude,
    extras=Courses.to_dict,
    assumptions=assumptions,
    goals_title=lambda _, scope: scope.goals_title("counts and links"),
    parts=parts,
    narrow=True,
)
