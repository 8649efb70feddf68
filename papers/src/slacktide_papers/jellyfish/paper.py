"""Jellyfish's `Publication` for the harness, with assumptions where the paper is silent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from slacktide_papers.harness.experiments import Goal, Point, TraceCell, TraceScope
from slacktide_papers.harness.run import SIMULATED, Publication
from slacktide_papers.jellyfish.exits import figure_20
from slacktide_papers.jellyfish.experiments import EXPERIMENTS, QUICK, WHOLE
from slacktide_papers.jellyfish.goals import FrameRow, goals_of, rows_of
from slacktide_papers.jellyfish.instances import PlannedInstance, drawn, planned
from slacktide_papers.jellyfish.play import PlayedFrames, play
from slacktide_papers.jellyfish.setting import SIDES, load_data
from slacktide_papers.jellyfish.show import JellyfishFigures, parts

_MADE_UP = (
    "The profile is invented so that it reproduces every number that the paper states; the "
    "measured profile is not public."
)
_RECORDED = (
    "LTE is the upload trace in the paper's repository (3 to 26 Mbit/s, 15.2 on average), which "
    "lacks the halved 4G downlink that the paper describes. WiFi is from the repository too."
)
_DRAWN = (
    "LTE and WiFi are drawn from a seed to resemble a recorded 4G log: LTE at half its rates, "
    "WiFi at twice its rates. --data uses the recorded traces."
)
_SIMULATED = (
    "Frame sizes are those of the published table: the largest frames of the paper's videos as "
    "JPEG of quality 90. One Mbit is 10⁶ bits. Each client has its own link, on which its frames "
    "queue; the link adds 0.5 ms each way, and an answer has 300 bytes.",
    "Clients start 1 to 10 s apart (proportionally less in shorter runs) at random points of their "
    "trace. A run ends 200 s after the last start (one pass through the longest trace). Batches "
    "take the profile's time for their size.",
    "A frame is missed if its client has no answer within the SLO, counted from the capture. It is "
    "unsavable if the smallest frame's link time and the fastest variant alone exceed it.",
    "Accuracy is the profile's for the sent size or the variant that ran, whichever is smaller; a "
    "missed frame counts as 0. The paper's F1, which omits missed frames, cannot be computed here.",
    "published: follows the published code (docs/decisions/0014-published-systems.md). Its "
    "planner takes no time; ours takes 50 ms.",
    "B_L, B_M, B_H: 128, 352 and 608 pixels on all workers with `clockwork`; clients send as fast "
    "as their bandwidth allows. DA: the published system, but clients alone choose frame sizes.",
    "ours: planner, scheduler and client as in production. Variants share one file, except in "
    "figure-19, where loading a variant takes 150 to 200 ms (with ours always 200).",
    "Exits: each variant has one; 25 % (smallest) to 40 % (largest) of the frames leave there, "
    "drawn at random as in §8.3. Times and lost accuracy were measured with the example "
    "street_depth on one core; there, the frames rated highest by the exit's judge leave first. "
    "figure-20 uses these times; figure-21 applies their proportions to the profile's times.",
)
_GOALS = "Goals, and printed values that our results miss by more than a point"
_CODE = ("exits", "play", "published", "published_workers", "setting")
FIGURE_18 = ((2, 8), (2, 12), (2, 16), (2, 20), (4, 16), (4, 24), (4, 32), (4, 40))
"""(workers, clients) of §7.6 whose optimum is proven or bounded within a minute."""


def assumptions(experiments: Iterable[str], scope: TraceScope) -> list[str]:
    """Assumptions behind these experiments, as sentences."""
    simulated = any(EXPERIMENTS[name].points for name in experiments)
    source = _RECORDED if scope.folder is not None else _DRAWN
    return [_MADE_UP, source, *(_SIMULATED if simulated else ())]


def _figure_18(scope: TraceScope) -> Iterator[PlannedInstance]:
    data = load_data(scope.folder)
    sizes = [data.frame_bytes[side] for side in SIDES]
    for workers, clients in FIGURE_18[:: 4 if scope.quick else 1]:
        for seed in range(2 if scope.quick else 10):
            fleet = drawn(data.variants, sizes, workers, clients, seed)
            yield from planned(f"{workers} × {clients}, {seed}", fleet, exact_s=0.0)


def _conclude(
    experiments: Sequence[str],
    scope: TraceScope,
    measured: Sequence[tuple[Point[TraceCell], list[PlayedFrames]]],
) -> tuple[list[FrameRow], list[Goal], JellyfishFigures]:
    rows = rows_of(measured)
    figures = JellyfishFigures(
        {(point.setting, point.contender.label): runs[0] for point, runs in measured},
        load_data(scope.folder) if "figure-10" in experiments else None,
        list(_figure_18(scope)) if "figure-18" in experiments else [],
        list(figure_20()) if "figure-20" in experiments else [],
    )
    return rows, goals_of(rows), figures


PAPER = Publication(
    title="Jellyfish: Timely Inference Serving for Dynamic Edge Networks (2022, extended 2024)",
    code=(
        *SIMULATED,
        "client",
        "planning",
        "runtime",
        "wire/link_estimate.py",
        *(f"papers/jellyfish/{name}.py" for name in _CODE),
    ),
    experiments=EXPERIMENTS,
    scope=WHOLE,
    quick=QUICK,
    with_data=lambda scope, folder, _: replace(
        scope, folder=folder, digest=load_data(folder).digest
    ),
    play=play,
    outcome=PlayedFrames,
    row=FrameRow,
    conclude=_conclude,
    extras=JellyfishFigures.to_dict,
    assumptions=assumptions,
    goals_title=lambda _, scope: scope.goals_title("traces", _GOALS),
    parts=parts,
    narrow=True,
)
