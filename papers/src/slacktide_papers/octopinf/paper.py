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
from slacktide_papers.octopinf.setting import KILOBYTES, MODELS, SLOWER, WARM_S, load_data
from slacktide_papers.octopinf.show import Courses, parts

_RECORDED = (
    "Objects are those of the paper's nine public one-minute videos, looped; links replay its nine "
    "30 s schedules of 5G, one by one, and again from the start when they are over."
)
_DRAWN = (
    "Objects and links are drawn from a seed, in the shape of the recorded ones, which --data "
    "gives: figures differ from those."
)
_TIMES = ", ".join(
    f"{name} {1e3 * cost.fixed:g} + {1e3 * cost.row:g} b" for name, cost in MODELS.items()
)
_FACTORS = ", ".join(f"{kind} × {factor:g}" for kind, factor in SLOWER.items() if factor != 1.0)
_ASSUMED = (
    f"Batch times on an accelerator of the server, ms for b rows, are made up: {_TIMES}; p99 a "
    f"seventh above. Edge devices: {_FACTORS}. Memory and utilisation likewise (setting.py).",
    f"Frames are {KILOBYTES[0]} to {KILOBYTES[1]} KB, a size for each camera, 15 a second; crops "
    "1 to 3 KB. The SLO runs from the capture to the answer on the camera's device, 200 ms for six "
    "traffic cameras and 300 ms for three of surveillance.",
    "The 13-hour counts are not public: the minute is looped under a daily curve with two peaks "
    "for traffic, and one for surveillance. Runs of a few minutes begin at 7:30, 13:00 and 17:30.",
    "An object counts where its last stage has answered it in time, on its camera's device; a "
    f"frame whose branch is late is answered with the rest. The first {WARM_S:g} s of a run (of "
    "shorter ones, half of it) do not count.",
    "Batches on lanes of one accelerator slow one another only where they want more than all of "
    f"it together, then {CONTENTION:g} times in proportion (`contention`: 1 to 1.6).",
    "pipeline and octopinf serve by `slack`, within windows where there are any; the others serve "
    "first in first out, in batches of what is there up to the static size (to wait for full ones, "
    "or `slack`, makes them no better: `batching`), and drop what is late before it runs.",
    "Readings of CWD, CORAL and each baseline: docs/decisions/0014-published-systems.md. All plan "
    "every six minutes, pipeline each minute; a plan is in force 50 ms after it was asked for, a "
    "replica half a second after it was started.",
    "Memory: weights of every replica, and of each stream, which runs one batch at a time, the "
    "largest of what its replicas need to run.",
    "Fluid bound: every 30 s, with true rates and links, as fractions of frames; no queues, full "
    "batches, everything may move at once. Empty where scipy was not installed.",
)
_OF_EXPERIMENT = {
    "surges": "`made for the surge` is `pipeline`, placed for three times the objects all along; "
    "it follows links alone. `octopinf, made for the surge` likewise.",
    "all-five": "Ours, not the paper's: two boxes with two traffic cameras each, and a server. "
    f"{ALL_CORES} cores, those of boxes {SLOWER_FIVE['box']:g} and those of the server "
    f"{SLOWER_FIVE['server']:g} times as slow as the one that models were measured on; links of "
    f"{MEGABITS:g} Mbit/s on average; a day takes four minutes. What is off, and what has its "
    "place then: docs/reproduce/octopinf.md.",
    "figure-11": "One run, of `pipeline` and `octopinf`.",
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
