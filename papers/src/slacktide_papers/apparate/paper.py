"""Apparate's entry for the harness, and assumptions on what the paper leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slacktide.lab.simulation import ExitTable
from slacktide_papers.apparate.experiments import EXPERIMENTS, ExitCell, ExitScope
from slacktide_papers.apparate.goals import ExitRow, goals_of, rows_of
from slacktide_papers.apparate.live import play_live
from slacktide_papers.apparate.make_tables import prepared
from slacktide_papers.apparate.play import LOSS, PlayedExits, play
from slacktide_papers.apparate.ramp_styles import OURS, compared_styles
from slacktide_papers.apparate.setting import MAX_BATCH, load_table, minute_counts
from slacktide_papers.apparate.show import ExitFigures, goals_title, parts
from slacktide_papers.apparate.tuning import timed_searches
from slacktide_papers.harness.experiments import Goal, Point
from slacktide_papers.harness.run import SIMULATED, Publication

_ASSUMED = (
    "What ramps say of every input, and what passes take, was measured once with the model and "
    "stands for the worker; scheduling, planner and engine are the server's. One lane of one "
    f"core, batches of at most {MAX_BATCH}.",
    "`release` has what the paper has: answered rows run on, 2 % of a pass for ramps. The others "
    f"have 5 %. Accuracy may fall by {LOSS:.0%}, by the model's own answers. Ramps open half a "
    "second after they are asked for.",
    "Videos come at 30/s. The SLO is 2 × the time of one request alone; a latency runs from the "
    "arrival to the answer, of requests that were answered. Savings are of percentiles.",
    "`fifo` stands for TF-Serving: in order, at most two batches waiting.",
    "Tuned once: every ramp active for good, thresholds by our search on a tenth of the stream, "
    "evenly over it (`at first`: its first tenth; `oracle`: all of it, the better of one threshold "
    "and one for each ramp), which finds what a grid finds.",
    "Optima take the batches of the run without exits: the offline one ends each answer at its "
    "earliest ramp that agrees, at no cost. Online ones have every ramp, free; thresholds are "
    "those that were best for the last batches, more and less boldly, of which the best for the "
    "next 20 is taken that keeps the accuracy so far.",
    "DeeBERT's own ramps, with a layer trained by numpy on the same inputs, are in rows of `TEXT, "
    "DeeBERT`. Figure 9's convolutions are the layers that come next in the model, run for the "
    "ramp alone.",
)
_OWN = (
    "Streams are drawn: eight videos of sixteen minutes of rendered streets, and texts. Ramps are "
    "learnt from the first tenth (2,880 frames, 2,000 texts), which is not played."
)
_LIVE = (
    "live: a server of this version on one core, over HTTP, ramps as the table has them, no "
    "request given up; predicted with the times that the model was measured to take before."
)
_SOME = "Of what follows the first {:,} inputs are played (--inputs), not the whole stream."
_QUICK = "Quick: 4,000 frames of two videos; ramps are learnt from the first quarter."
_COUNTS = (
    "Texts come as the minutes of the Azure Functions trace count, at random within a minute, "
    "scaled until just under 20 % are dropped without exits.",
    "Texts come as drawn counts of minutes say (--data: those of the Azure Functions trace), at "
    "random within a minute, scaled until just under 20 % are dropped without exits.",
)


def assumptions(experiments: Sequence[str], scope: ExitScope) -> list[str]:
    """Assumptions behind these experiments, as sentences."""
    sentences = [*_ASSUMED, _COUNTS[scope.folder is None]]
    if scope.own:
        sentences.append(_QUICK if scope.quick else _OWN)
    if scope.live:
        sentences.append(_LIVE)
    if scope.inputs:
        sentences.append(_SOME.format(scope.inputs))
    return sentences


def _recorded(scope: ExitScope, folder: Path, experiments: Sequence[str]) -> ExitScope:
    return replace(scope, folder=folder, data=str(hash(minute_counts(folder))))


def _conclude(
    experiments: Sequence[str],
    scope: ExitScope,
    measured: Sequence[tuple[Point[ExitCell], list[PlayedExits]]],
) -> tuple[list[ExitRow], list[Goal], ExitFigures]:
    rows = rows_of(measured, {file.name: file.rate > 0.0 for file in scope.tables})
    runs = {
        (point.experiment, point.setting, point.case, point.contender.label): outcomes[0]
        for point, outcomes in measured
    }
    searches = [
        search
        for file in (scope.tables if "figure-11" in experiments else ())
        if not file.style
        for search in timed_searches(file.name, load_table(file.path, file.digest), LOSS)
    ]
    styles: dict[str, dict[str, ExitTable]] = {}
    for file in scope.tables if "figure-9" in experiments else ():
        table = load_table(file.path, file.digest)
        styles.setdefault(file.name.partition(", ")[0], {})[file.style or OURS] = table
    if scope.own:  # one stream of each model has tables in all styles
        styles = {name: group for name, group in styles.items() if len(group) > 1 or scope.quick}
    live = [play_live(order, table) for order, table in scope.live]
    compared = [row for name, group in styles.items() for row in compared_styles(name, group, LOSS)]
    return rows, goals_of(rows, searches, live), ExitFigures(runs, searches, compared, live)


PAPER = Publication(
    title="Apparate: Rethinking Early Exits to Tame Latency-Throughput Tensions (2024)",
    code=(
        *SIMULATED,
        "planning",
        "runtime",
        *(f"papers/apparate/{name}.py" for name in ("baselines", "play", "setting")),
    ),
    experiments=EXPERIMENTS,
    scope=ExitScope(),
    quick=ExitScope(quick=True),
    with_data=_recorded,
    prepare=prepared,
    play=play,
    outcome=PlayedExits,
    row=ExitRow,
    conclude=_conclude,
    extras=ExitFigures.to_dict,
    assumptions=assumptions,
    goals_title=goals_title,
    parts=parts,
    narrow=True,
)
