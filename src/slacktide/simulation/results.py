"""`Scorer`: from outcomes, as they come, to the report that live runs end in too.

Outcomes are noted as they come, and counted with arrays a few thousand at a time: that costs
half a microsecond for each and memory that does not grow. Only requests that arrive within the
scored window count; latency runs from the arrival (an upload's: its first byte).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Notice, Outcome, OutcomeKind, Reason, Request
from slacktide.load.report import Provenance, Report, StreamReport, Timeline
from slacktide.simulation.hardware import CoreMeter
from slacktide.simulation.latencies import Latencies

BINS_MOST = 3_600
"""Bins of the timeline; one second each in runs of up to an hour."""
_FOLD = 8_192
"""Outcomes that are counted together."""

_REASONS = tuple(Reason)
_NUMBER_OF = {reason: number for number, reason in enumerate(_REASONS)}
_ANSWERS = (OutcomeKind.SERVED, OutcomeKind.LATE)
_REFUSALS = (OutcomeKind.REJECTED, OutcomeKind.DROPPED)

_Note = tuple[float, float, int, Reason]
"""(arrival, end, rows, reason)."""


def _of_kinds(*kinds: OutcomeKind) -> NDArray[np.bool_]:
    """Which reasons are of these kinds, by number."""
    return np.array([reason.kind in kinds for reason in _REASONS], dtype=np.bool_)


_IS_ANSWER, _IS_REFUSAL = _of_kinds(*_ANSWERS), _of_kinds(*_REFUSALS)
_IS_SERVED = _of_kinds(OutcomeKind.SERVED)


class _Stream:
    """What became of the requests of one model and application."""

    def __init__(self, exact: bool) -> None:
        self.noted: list[_Note] = []
        self.reasons = np.zeros(len(_REASONS), dtype=np.int64)
        self.rows_submitted = 0
        self.rows_on_time = 0
        self.answers = Latencies(exact=exact)
        self.refusals = Latencies(exact=exact)


class Scorer:
    """Counts outcomes; `answered` is what a `Simulation` calls."""

    def __init__(
        self, *, warmup_s: float = 0.0, duration_s: float, requests: TextIO | None = None
    ) -> None:
        """The scored window is [warmup_s, warmup_s + duration_s).

        `requests` gets a line of CSV for each request in it; percentiles are exact then. Raises
        ValueError if the window is empty.
        """
        if not (warmup_s >= 0.0 and 0.0 < duration_s < float("inf")):
            raise ValueError(f"no window: warm-up {warmup_s} s, duration {duration_s} s")
        self._start = warmup_s
        self._duration = duration_s
        self._bin_s = 1.0
        while duration_s > BINS_MOST * self._bin_s:
            self._bin_s *= 2.0
        bins = int(np.ceil(duration_s / self._bin_s))
        self._timeline = np.zeros((bins, 4), dtype=np.int64)
        """By bin: arrivals, on time, refused, other."""
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._note: dict[tuple[str, str], Callable[[_Note], None]] = {}
        self._noted = 0
        self._requests = requests
        if requests is not None:
            requests.write("arrival_s,model,application,rows,outcome,reason,latency_s\n")

    def answered(self, request: Request | Notice, outcome: Outcome) -> None:
        """`request` has ended. The rows of a notice are taken to be one."""
        rows = request.rows if isinstance(request, Request) else 1
        note = self._note.get((request.model, request.application))
        if note is None:
            note = self._open(request)
        note((request.arrival, outcome.at, rows, outcome.reason))
        self._noted += 1
        if self._noted >= _FOLD:
            self._fold()

    def _open(self, request: Request | Notice) -> Callable[[_Note], None]:
        key = (request.model, request.application)
        stream = self._streams[key] = _Stream(self._requests is not None)
        note = self._note[key] = stream.noted.append
        return note

    def _fold(self) -> None:
        """Count what was noted."""
        self._noted = 0
        for key, stream in self._streams.items():
            if stream.noted:
                if self._requests is not None:
                    self._list(self._requests, key, stream.noted)
                self._count(stream)
                stream.noted.clear()

    def _list(self, file: TextIO, key: tuple[str, str], noted: Iterable[_Note]) -> None:
        """A line for each; model and application are quoted where they must be."""
        rows = csv.writer(file, lineterminator="\n")
        for arrival, end, count, reason in noted:
            if self._start <= arrival < self._start + self._duration:
                kind = reason.kind.value
                rows.writerow((arrival, *key, count, kind, reason.label, f"{end - arrival:.9f}"))

    def _count(self, stream: _Stream) -> None:
        arrivals, ends, row_counts, reasons = zip(*stream.noted, strict=True)
        arrival = np.array(arrivals, dtype=np.float64)
        inside = (arrival >= self._start) & (arrival < self._start + self._duration)
        arrival = arrival[inside]
        latency = np.array(ends, dtype=np.float64)[inside] - arrival
        rows = np.array(row_counts, dtype=np.int64)[inside]
        reason = np.array([_NUMBER_OF[each] for each in reasons], dtype=np.int64)[inside]
        served, refused = _IS_SERVED[reason], _IS_REFUSAL[reason]
        stream.reasons += np.bincount(reason, minlength=len(_REASONS))
        stream.rows_submitted += int(rows.sum())
        stream.rows_on_time += int(rows[served].sum())
        stream.answers.add(latency[_IS_ANSWER[reason]])
        stream.refusals.add(latency[refused])
        bins = len(self._timeline)
        when = np.minimum(((arrival - self._start) / self._bin_s).astype(np.int64), bins - 1)
        which = np.where(served, 1, np.where(refused, 2, 3))
        counts = np.bincount(when * 4 + which, minlength=4 * bins).reshape(bins, 4)
        counts[:, 0] = counts.sum(axis=1)
        self._timeline += counts

    def report(
        self,
        *,
        title: str,
        seed: int,
        configuration: Mapping[str, Any],
        provenance: Provenance,
        warnings: tuple[str, ...] = (),
        cores: float | None = None,
        allocated: CoreMeter | None = None,
    ) -> Report:
        """Everything so far. Streams are sorted by model and application."""
        self._fold()
        end = self._start + self._duration
        used = None if allocated is None else allocated.seconds(self._start, end)
        steps: tuple[float, ...] = ()
        if allocated is not None:
            edges = self._start + self._bin_s * np.arange(len(self._timeline) + 1)
            steps = allocated.means(np.minimum(edges, end).tolist())
        arrivals, on_time, refused, other = (tuple(column.tolist()) for column in self._timeline.T)
        return Report(
            kind="simulate",
            title=title,
            seed=seed,
            configuration=configuration,
            provenance=provenance,
            warmup_s=self._start,
            duration_s=self._duration,
            total=self._summed("total", "", "", list(self._streams.values())),
            streams=tuple(
                self._summed(f"{model}/{application}".rstrip("/"), model, application, [stream])
                for (model, application), stream in sorted(self._streams.items())
            ),
            lateness=None,
            timeline=Timeline(arrivals, on_time, refused, other, self._bin_s, steps),
            warnings=warnings,
            cores=cores,
            mean_cores=None if used is None else used / self._duration,
            core_seconds=used,
            latency_from="first byte",
        )

    def _summed(
        self, name: str, model: str, application: str, parts: list[_Stream]
    ) -> StreamReport:
        """The numbers of `parts` together."""
        reasons = sum((part.reasons for part in parts), np.zeros(len(_REASONS), dtype=np.int64))
        outcomes = dict.fromkeys((kind.value for kind in OutcomeKind), 0)
        for reason, count in zip(_REASONS, reasons.tolist(), strict=True):
            outcomes[reason.kind.value] += count
        submitted = int(reasons.sum())
        answers = Latencies.merged(part.answers for part in parts)
        refusals = Latencies.merged(part.refusals for part in parts)
        return StreamReport(
            name=name,
            model=model,
            application=application,
            submitted=submitted,
            outcomes=outcomes,
            reasons={
                reason.label: count
                for reason, count in zip(_REASONS, reasons.tolist(), strict=True)
                if count
            },
            rows_submitted=sum(part.rows_submitted for part in parts),
            rows_on_time=sum(part.rows_on_time for part in parts),
            offered_rps=submitted / self._duration,
            on_time_rps=outcomes[OutcomeKind.SERVED.value] / self._duration,
            latency=answers.percentiles(),
            refusal_latency=refusals.percentiles(),
            latency_curve=answers.curve(),
        )
