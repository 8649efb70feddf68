"""Contenders of Apparate: exits tuned once (BranchyNet, DeeBERT) or with hindsight (optima).

Both kinds read exit tables directly. Exits tuned once keep every ramp active for good. The optima
take the batches of a run without exits, and shorten each latency as if the request had left early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.simulation import ExitTable
from slacktide.planning.exits import ThresholdSearch

SAMPLED = 0.1
"""Share of a stream on which thresholds are tuned once: an even sample, or its beginning."""
BOLDNESS = (0.0, 1.0, 4.0)
"""Multiples of the permitted loss that an online optimum tries when it tunes on past batches."""
UPCOMING = 20
"""Number of batches between tunings of an online optimum; opening a model takes about as long."""

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def tuned_once(table: ExitTable, kind: str, loss: float) -> tuple[float, ...]:
    """Thresholds of all ramps, tuned as `kind` says. `one`: one shared threshold, on an even
    sample; `each`: one for each ramp, on the same sample; `first`: one for each ramp, on the first
    inputs alone; `oracle`: the better of a shared threshold and separate thresholds, on all
    inputs."""
    if kind == "first":
        return _tuned(table, np.arange(max(1, round(SAMPLED * len(table)))), False, loss)
    if kind == "oracle":
        choices = [_tuned(table, np.arange(len(table)), shared, loss) for shared in (True, False)]
        return max(choices, key=lambda thresholds: _saving(table, thresholds))
    step = max(1, round(1.0 / SAMPLED))
    return _tuned(table, np.arange(0, len(table), step), kind == "one", loss)


def best_single(table: ExitTable, loss: float) -> tuple[int, float]:
    """The (ramp, threshold) that, in hindsight, saves most time for the median input (on ties: on
    average), with at most a share `loss` of the answers wrong. Shows how much one well-placed ramp
    can save."""
    most = int(loss * len(table))
    candidates = []
    for ramp, before in enumerate(table.before[0].tolist()):
        unsure = table.uncertainty[:, ramp]
        wrong = np.sort(unsure[~table.agrees[:, ramp]])
        threshold = float(wrong[most]) if most < len(wrong) else 2.0  # a row below it leaves
        share = float((unsure < threshold).mean())
        saved = float(table.whole[0]) - before - float(table.ramp[0, ramp])
        candidates.append((saved if share > 0.5 else 0.0, share * saved, ramp, threshold))
    *_, ramp, threshold = max(candidates)
    return ramp, threshold


def _tuned(table: ExitTable, rows: Places, shared: bool, loss: float) -> tuple[float, ...]:
    uncertainty, agrees = table.uncertainty[rows], table.agrees[rows]
    saved = (table.whole[0] - table.before[0]).tolist()
    search = ThresholdSearch(uncertainty, agrees, saved, loss * len(rows))
    if not shared:
        return tuple(search.best().tolist())
    best: Floats = np.zeros(len(saved))
    for level in np.unique(np.quantile(uncertainty, np.linspace(0.0, 1.0, 501))):
        # The next number above `level`, because a row leaves only if it is below the threshold.
        tried = np.full(len(saved), np.nextafter(level, 2.0))
        if search.cost(tried) <= search.most and search.saving(tried) > search.saving(best):
            best = tried
    return tuple(best.tolist())


def _saving(table: ExitTable, thresholds: Sequence[float]) -> float:
    leaves = _leaves(table.uncertainty, np.array(thresholds))
    saved = np.append(table.whole[0] - table.before[0], 0.0)
    return float(saved[leaves].sum())


def _leaves(uncertainty: NDArray[np.floating], thresholds: Floats) -> Places:
    """The first ramp at which each row leaves; the number of ramps if it leaves at none."""
    sure = np.column_stack((uncertainty < thresholds, np.ones(len(uncertainty), bool)))
    return np.asarray(sure.argmax(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredRows:
    """Requests that a run without exits answered, in the order of their batches. Shape (n,)."""

    inputs: Places
    batches: Places
    """Number of the batch that answered each request, ascending."""
    rows: Places
    """Number of rows in the batch of each request."""
    latency: Floats
    """Seconds from arrival to answer."""

    def ending_at(self, table: ExitTable, ramps: Places) -> Floats:
        """Latencies if each request had left, at no cost, at the ramp that `ramps` states for it.
        The number of ramps stands for the model's end."""
        less = np.zeros(len(self.inputs))
        for size in np.unique(self.rows).tolist():
            mine = self.rows == size
            whole = float(table.seconds(table.whole, size))
            before = np.append(table.seconds(table.before, size), whole)
            less[mine] = whole - before[ramps[mine]]
        return self.latency - less


def offline_optimum(table: ExitTable, answered: AnsweredRows) -> Places:
    """For each request: the earliest ramp that agrees with the model; else the number of ramps."""
    agrees = table.agrees[answered.inputs]
    return np.asarray(np.where(agrees.any(axis=1), agrees.argmax(axis=1), agrees.shape[1]))


def online_optimum(
    table: ExitTable, answered: AnsweredRows, pasts: Sequence[int], loss: float
) -> Places:
    """The ramp at which each request leaves if all ramps are active and free. For every `UPCOMING`
    batches, thresholds are tuned on the batches before them: once for each number of batches in
    `pasts` and each factor in `BOLDNESS`. Among the thresholds that keep the share of wrong
    answers, counted up to the end of these batches, within `loss`, those that save most time on
    these batches are used.
    """
    saved = np.append(table.whole[0] - table.before[0], 0.0)
    exits = np.full(len(answered.inputs), len(table.positions))
    wrong = 0
    for begin, end, starts in _windows(answered.batches, pasts):
        coming = answered.inputs[begin:end]
        right = np.column_stack((table.agrees[coming], np.ones(len(coming), bool)))
        best = 0.0
        lost = wrong
        for since, bold in product(starts, BOLDNESS):
            rows = answered.inputs[since:begin]
            evidence = table.uncertainty[rows], table.agrees[rows], saved[:-1].tolist()
            thresholds = ThresholdSearch(*evidence, bold * loss * len(rows)).best()
            leaves = _leaves(table.uncertainty[coming], thresholds)
            more = int((~right[np.arange(len(coming)), leaves]).sum())
            gain = float(saved[leaves].sum())
            if gain > best and wrong + more <= loss * end:
                best, lost, exits[begin:end] = gain, wrong + more, leaves
        wrong = lost
    return exits


def _windows(batches: Places, pasts: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (first row of a period, first row after it, first row to tune on per past)."""
    starts = np.flatnonzero(np.diff(batches, prepend=-1))
    edges = np.append(starts, len(batches)).tolist()
    for number in range(UPCOMING, len(starts), UPCOMING):
        last = min(number + UPCOMING, len(starts))
        yield edges[number], edges[last], [edges[max(0, number - past)] for past in pasts]
