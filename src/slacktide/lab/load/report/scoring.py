"""Turns the outcomes of requests into the numbers of a report, without I/O.

A live run and a simulation both pass requests as parallel arrays of shape (n,). Times are those of
the load generator's or the simulator's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import OutcomeKind
from slacktide.lab.load.report.document import StreamReport, Timeline
from slacktide.lab.load.report.latencies import Latencies, Seconds

_ANSWERS = (OutcomeKind.SERVED, OutcomeKind.LATE)
_REFUSALS = (OutcomeKind.REJECTED, OutcomeKind.DROPPED)


@dataclass(frozen=True, slots=True)
class Ending:
    """A reason why requests end: its label, and the outcome that it counts as."""

    label: str
    kind: OutcomeKind


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that is scored, [start, start + duration), in bins; all in seconds."""

    start: float
    duration: float
    bin_s: float = 1.0

    @property
    def end(self) -> float:
        return self.start + self.duration

    @property
    def bins(self) -> int:
        """Number of bins, at least one; the last may be shorter."""
        return max(1, int(np.ceil(self.duration / self.bin_s)))


class StreamScore:
    """Counts the requests of one stream that were due within a window."""

    def __init__(self, endings: Sequence[Ending], window: Window, *, exact: bool = True) -> None:
        """`exact`: keep the latency of every request, however many there are."""
        self._endings = tuple(endings)
        self._window = window
        self._exact = exact
        self._answered, self._refused, self._served = (
            np.array([ending.kind in kinds for ending in endings], dtype=np.bool_)
            for kinds in (_ANSWERS, _REFUSALS, (OutcomeKind.SERVED,))
        )
        self._counts = np.zeros(len(endings), dtype=np.int64)
        self._rows = self._rows_on_time = 0
        self._answers, self._refusals = Latencies(exact=exact), Latencies(exact=exact)
        self._timeline = np.zeros((window.bins, 4), dtype=np.int64)
        """Counts of shape (bins, 4): arrivals, on time, refused, other."""

    def add(
        self, sends: Seconds, latency: Seconds, rows: NDArray[np.int64], ending: NDArray[np.int64]
    ) -> None:
        """Count the requests that were due within the window. `sends`: intended send times;
        `latency`: end minus intended send; `ending`: indices into `endings`. Raises ValueError if
        the arrays differ in length."""
        if len({array.size for array in (sends, latency, rows, ending)}) > 1:
            raise ValueError("arrays of unequal length")
        inside = (sends >= self._window.start) & (sends < self._window.end)
        sends, latency, rows, ending = sends[inside], latency[inside], rows[inside], ending[inside]
        served, refused = self._served[ending], self._refused[ending]
        self._counts += np.bincount(ending, minlength=len(self._endings))
        self._rows += int(rows.sum())
        self._rows_on_time += int(rows[served].sum())
        self._answers.add(latency[self._answered[ending]])
        self._refusals.add(latency[refused])
        bins = self._window.bins
        place = ((sends - self._window.start) / self._window.bin_s).astype(np.int64)
        group = np.where(served, 1, np.where(refused, 2, 3))
        counts = np.bincount(np.minimum(place, bins - 1) * 4 + group, minlength=4 * bins)
        by_bin = counts.reshape(bins, 4)
        by_bin[:, 0] = by_bin.sum(axis=1)
        self._timeline += by_bin

    def merged(self, scores: Sequence[StreamScore]) -> StreamScore:
        """Return the sum of this and other scores with the same endings and window."""
        parts = (self, *scores)
        total = StreamScore(self._endings, self._window, exact=self._exact)
        total._counts = np.sum([part._counts for part in parts], axis=0)
        total._timeline = np.sum([part._timeline for part in parts], axis=0)
        total._rows = sum(part._rows for part in parts)
        total._rows_on_time = sum(part._rows_on_time for part in parts)
        total._answers = Latencies.merged(part._answers for part in parts)
        total._refusals = Latencies.merged(part._refusals for part in parts)
        return total

    def report(self, name: str, model: str = "", application: str = "") -> StreamReport:
        """Return the stream's report. Rates are 0 in an empty window (an early interruption)."""
        outcomes = dict.fromkeys((kind.value for kind in OutcomeKind), 0)
        reasons: dict[str, int] = {}
        for ending, count in zip(self._endings, self._counts.tolist(), strict=True):
            outcomes[ending.kind.value] += count
            if count:
                reasons[ending.label] = reasons.get(ending.label, 0) + count
        submitted, seconds = sum(outcomes.values()), self._window.duration or float("inf")
        return StreamReport(
            name=name,
            model=model,
            application=application,
            submitted=submitted,
            outcomes=outcomes,
            reasons=reasons,
            rows_submitted=self._rows,
            rows_on_time=self._rows_on_time,
            offered_rps=submitted / seconds,
            on_time_rps=outcomes[OutcomeKind.SERVED.value] / seconds,
            latency=self._answers.percentiles(),
            refusal_latency=self._refusals.percentiles(),
            latency_curve=self._answers.curve(),
        )

    def timeline(self, cores: tuple[float, ...] = ()) -> Timeline:
        """Count requests by the bin in which they were due; `cores`: allocated cores by bin."""
        arrivals, on_time, refused, unserved = (tuple(bins.tolist()) for bins in self._timeline.T)
        return Timeline(arrivals, on_time, refused, unserved, self._window.bin_s, cores)
