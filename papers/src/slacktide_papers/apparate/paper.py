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
    "Ramp answers for every input, and the times of passes, were measured once with the model and "
    "stand in for the worker. Scheduling, planner and engine are the server's. There is one lane "
    f"of one core, and batches have at most {MAX_BATCH} rows.",
    "`release` follows the paper: answered rows run on, and ramps may add 2 % to a pass. All "
    f"others may add 5 %. At most {LOSS:.0%} of the answers may differ from the model's own. Ramps "
    "open half a second after they are requested.",
    "Videos arrive at 30 frames/s. The SLO is 2 × the time of one request alone. Latency runs from "
    "the arrival to the answer, over answered requests. Savings compare percentiles.",
    "`fifo` stands for TF-Serving: it serves in order, and at most two batches wait.",
    "Tuned once: every ramp stays active. Our search, which finds what a grid finds, tunes "
    "thresholds on a tenth of the stream, sampled evenly. `at first` tunes on the first tenth; "
    "`oracle` tunes on all of it: the better of one shared threshold and one for each ramp.",
    "Optima use the batches of the run without exits. The offline optimum ends each answer at the "
    "earliest ramp that agrees, at no cost. Online optima have every ramp at no cost. They tune "
    "thresholds on the last batches for several multiples of the permitted loss, and take those "
    "that save most over the next 20 batches while the accuracy so far is kept.",
    "Rows named `TEXT, DeeBERT` use DeeBERT's own ramps, whose layer is trained with NumPy on the "
    "same inputs. The convolutions of Figure 9 are the model's next layers, run for the ramp "
    "alone.",
    "Ramps go on learning from a tenth of the inputs, as in the server.",
)
_OWN = (
    "Streams are generated: eight videos of sixteen minutes of rendered streets, and texts. Ramps "
    "are trained on the first tenth (2,880 frames, 2,000 texts), which is not played."
)
_HOURS = (
    "Videos of an hour show the same streets. After the first tenth (10,800 frames), 900 "
    "consecutive frames of every 3,600 are played, without a pause. `groups` merges the ten "
    "classes into nobody, people and two-wheelers, and vehicles. Classes are guarded as in the "
    "server."
)
_LIVE = (
    "live: a server of this version on one core, called over HTTP, uses the ramps of the table and "
    "gives up no request. The prediction uses model times measured before the run."
)
_SOME = "Of the inputs to be played, only the first {:,} are used (--inputs)."
_QUICK = (
    "Quick: 4,000 frames of two videos; ramps are trained on the first quarter. The "
    "experiments on hour-long videos play one of these two instead, with its classes merged into "
    "three groups."
)
_COUNTS = (
    "Texts arrive at random within each minute, in proportion to the counts of the Azure Functions "
    "trace, at a rate at which just under 20 % are dropped without exits.",
    "Texts arrive at random within each minute. Their numbers per minute are drawn from a seed "
    "(--data uses the Azure Functions trace), at a rate at which just under 20 % are dropped "
    "without exits.",
)


def assumptions(experiments: Sequence[str], scope: ExitScope) -> list[str]:
    """Assumptions behind these experiments, as sentences."""
    sentences = [*_ASSUMED, _COUNTS[scope.folder is None]]
    if scope.from_examples:
        sentences.append(_QUICK if scope.quick else _OWN)
    if any(file.hour for file in scope.tables) and not scope.quick:
        sentences.append(_HOURS)
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
        if not (file.style or file.hour)
        for search in timed_searches(file.name, load_table(file.path, file.digest), LOSS)
    ]
    styles: dict[str, dict[str, ExitTable]] = {}
    for file in scope.tables if "figure-9" in experiments else ():
        if file.hour:
            continue
        table = load_table(file.path, file.digest)
        styles.setdefault(file.name.partition(", ")[0], {})[file.style or OURS] = table
    if scope.from_examples:  # one stream of each model has tables in all styles
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
