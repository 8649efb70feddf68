"""`Scorer`: makes a report of the same form as a live run's from the outcomes of a simulation.

Outcomes are noted as they come and counted with arrays, a few thousand at a time. This costs half a
microsecond per outcome, in constant memory. Only requests that arrive within the scored window
count. Latency counts from the arrival, which for an upload is its first byte.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

import numpy as np

from slacktide.domain import Notice, Outcome, Reason, Request
from slacktide.lab.load.report import Ending, Provenance, Report, StreamScore, Window
from slacktide.lab.simulation.world.hardware import CoreMeter

BINS_MOST = 3_600
"""Maximum bins of the timeline. A bin is one second long in runs of up to an hour."""
_FOLD = 8_192
"""Outcomes that are counted together."""

_ENDINGS = tuple(Ending(reason.label, reason.kind) for reason in Reason)
_NUMBER_OF = {reason: number for number, reason in enumerate(Reason)}

_Note = tuple[float, float, int, Reason]
"""(arrival, end, rows, reason)."""


class Scorer:
    """Counts outcomes. A `Simulation` calls `answered` for each of them."""

    def __init__(
        self, *, duration_s: float, warmup_s: float = 0.0, requests: TextIO | None = None
    ) -> None:
        """The scored window is [warmup_s, warmup_s + duration_s). `requests` gets one line of CSV
        for each request in it; percentiles are then exact. Raises ValueError for an empty window.
        """
        if not (warmup_s >= 0.0 and 0.0 < duration_s < float("inf")):
            window = f"{warmup_s} and {duration_s}"
            raise ValueError(f"expected warmup_s >= 0 and a finite duration_s > 0, got {window}")
        bin_s = 1.0
        while duration_s > BINS_MOST * bin_s:
            bin_s *= 2.0
        self._window = Window(warmup_s, duration_s, bin_s)
        self._scores: dict[tuple[str, str], StreamScore] = {}
        """By (model, application), like the next two dictionaries."""
        self._notes: dict[tuple[str, str], list[_Note]] = {}
        """Outcomes that have not been counted yet."""
        self._note: dict[tuple[str, str], Callable[[_Note], None]] = {}
        self._noted = 0
        self._requests = requests
        if requests is not None:
            requests.write("arrival_s,model,application,rows,outcome,reason,latency_s\n")

    def answered(self, request: Request | Notice, outcome: Outcome) -> None:
        """Note the outcome of `request`. A notice counts as one row."""
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
        self._scores[key] = self._score()
        notes = self._notes[key] = []
        note = self._note[key] = notes.append
        return note

    def _score(self) -> StreamScore:
        return StreamScore(_ENDINGS, self._window, exact=self._requests is not None)

    def _fold(self) -> None:
        """Count the noted outcomes."""
        self._noted = 0
        for key, notes in self._notes.items():
            if notes:
                if self._requests is not None:
                    self._list(self._requests, key, notes)
                arrivals, ends, rows, reasons = zip(*notes, strict=True)
                arrival = np.array(arrivals, dtype=np.float64)
                self._scores[key].add(
                    arrival,
                    np.array(ends, dtype=np.float64) - arrival,
                    np.array(rows, dtype=np.int64),
                    np.array([_NUMBER_OF[reason] for reason in reasons], dtype=np.int64),
                )
                notes.clear()

    def _list(self, file: TextIO, key: tuple[str, str], notes: Iterable[_Note]) -> None:
        """Write a line of CSV for each note in the window; names are quoted if necessary."""
        rows = csv.writer(file, lineterminator="\n")
        for arrival, end, count, reason in notes:
            if self._window.start <= arrival < self._window.end:
                kind = reason.kind.value
                rows.writerow((arrival, *key, count, kind, reason.label, f"{end - arrival:.9f}"))

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
        """Return a report of all outcomes so far. Streams are sorted by model and application."""
        self._fold()
        window = self._window
        total = self._score().merged(list(self._scores.values()))
        used: float | None = None
        steps: tuple[float, ...] = ()
        if allocated is not None:
            used = allocated.seconds(window.start, window.end)
            edges = window.start + window.bin_s * np.arange(window.bins + 1)
            steps = allocated.means(np.minimum(edges, window.end).tolist())
        return Report(
            kind="simulate",
            title=title,
            seed=seed,
            configuration=configuration,
            provenance=provenance,
            warmup_s=window.start,
            duration_s=window.duration,
            total=total.report("total"),
            streams=tuple(
                score.report(f"{model}/{application}".rstrip("/"), model, application)
                for (model, application), score in sorted(self._scores.items())
            ),
            lateness=None,
            timeline=total.timeline(steps),
            warnings=warnings,
            cores=cores,
            mean_cores=None if used is None else used / window.duration,
            core_seconds=used,
            latency_from="first byte",
        )
