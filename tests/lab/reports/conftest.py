"""Builders: a report whose numbers follow from a handful of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from slacktide.domain import OutcomeKind
from slacktide.lab.load.report import (
    Ending,
    Provenance,
    Report,
    StreamScore,
    Window,
    percentiles,
)

ENDINGS = (
    Ending("on_time", OutcomeKind.SERVED),
    Ending("after_deadline", OutcomeKind.LATE),
    Ending("overloaded", OutcomeKind.REJECTED),
    Ending("timeout", OutcomeKind.DROPPED),
    Ending("server_error", OutcomeKind.FAILED),
    Ending("transport_error", OutcomeKind.FAILED),
)


@dataclass(frozen=True)
class Records:
    """The requests of one stream, as arrays of shape (n,)."""

    name: str
    due: Any
    latency: Any
    rows: Any
    ending: Any

    def score(self, window: Window) -> StreamScore:
        score = StreamScore(ENDINGS, window)
        score.add(self.due, self.latency, self.rows, self.ending)
        return score


def make_records(name: str, triples: list[tuple[float, float, int]], rows: Any = None) -> Records:
    """From (intended, latency, ending) triples."""
    due_times, latency, ending = (
        (np.array(column) for column in zip(*triples, strict=True))
        if triples
        else [np.empty(0)] * 3
    )
    single_rows = np.ones(len(triples), dtype=np.int64)
    return Records(
        name, due_times, latency, single_rows if rows is None else rows, ending.astype(np.int64)
    )


def make_report(*parts: Records, duration: float = 2.0, **overrides: Any) -> Report:
    window = Window(0.0, duration)
    first, *later_scores = scores = [part.score(window) for part in parts]
    every = first.merged(later_scores)
    fields: dict[str, Any] = {
        "kind": "load",
        "title": "a run",
        "seed": 7,
        "configuration": {"target": "http://127.0.0.1:1"},
        "provenance": Provenance("2026-01-01T00:00:00+00:00", {"python": "3.11"}, "Linux, 2 cores"),
        "warmup_s": 0.0,
        "duration_s": duration,
        "total": every.report("total"),
        "streams": tuple(
            score.report(part.name, "m") for part, score in zip(parts, scores, strict=True)
        ),
        "lateness": percentiles(np.zeros(sum(part.due.size for part in parts))),
        "timeline": every.timeline(),
    }
    return Report(**{**fields, **overrides})


@pytest.fixture
def records() -> Callable[..., Records]:
    return make_records


@pytest.fixture
def report() -> Callable[..., Report]:
    return make_report
