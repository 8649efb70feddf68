"""Jellyfish's entry for the harness, and assumptions on what the paper leaves open."""

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
    "The profile is made up so that every number that the paper states comes out: the measured one "
    "is not public."
)
_RECORDED = (
    "LTE is the upload trace of the paper's repository (3 to 26 Mbit/s, 15.2 on average). The "
    "paper speaks of a 4G downlink, halved; that one is not there. WiFi is the repository's too."
)
_DRAWN = (
    "LTE and WiFi are drawn from a seed in the shape of a recorded 4G log, halved and doubled; "
    "--data gives the recorded ones."
)
_SIMULATED = (
    "Frames are of the published table, the largest that JPEG 90 made of the paper's videos; a "
    "Mbit is 10⁶ bits. Each client has a link of its own, which its frames queue for, 0.5 ms each "
    "way; an answer has 300 bytes.",
    "Clients start 1 to 10 s apart (in shorter runs as much closer) at random points of their "
    "trace; a run lasts until 200 s after "
    "the last (once through the longest trace). Batches take what the profile says of their size.",
    "A frame is missed if its client has no answer within its SLO of the capture. Unsavable: the "
    "link time of the smallest frame + the fastest variant alone > SLO, from the capture on.",
    "Accuracy is the profile's, of the smaller of the size sent and the variant that ran, and 0 of "
    "a missed frame. The paper's F1 cannot be had; it leaves missed frames out.",
    "published: as its code has it (docs/decisions/0014-published-systems.md); its planner "
    "takes no time, ours 50 ms.",
    "B_L, B_M, B_H: 128, 352 and 608 pixels on all workers with `clockwork`; clients send what "
    "their bandwidth carries. DA: the published system with sizes decided by the clients alone.",
    "ours: the planner, the scheduler and the client that serve; variants of one file, but in "
    "figure-19, where loading one takes 150 to 200 ms (ours: 200).",
    "Exits: one in each variant; 25 % (smallest) to 40 % (largest) of the frames leave, drawn, as "
    "in §8.3. When, and what it costs in accuracy, is measured of the example street_depth on one "
    "core (best first by its judge): figure-20 has its own times, figure-21 shares of the "
    "profile's.",
)
_GOALS = "Goals, and printed figures that are not met within a point"
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
