"""Builders: a report whose numbers follow from a handful of records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slacktide.domain import OutcomeKind
from slacktide.reports import (
    Ending,
    Provenance,
    Records,
    Report,
    merge,
    percentiles,
    score,
    timeline,
)

ENDINGS = (
    Ending("on_time", OutcomeKind.SERVED),
    Ending("after_deadline", OutcomeKind.LATE),
    Ending("overloaded", OutcomeKind.REJECTED),
    Ending("timeout", OutcomeKind.DROPPED),
    Ending("server_error", OutcomeKind.FAILED),
    Ending("transport_error", OutcomeKind.FAILED),
)


def make_records(name: str, triples: list[tuple[float, float, int]], **overrides: Any) -> Records:
    """From (intended, latency, ending) triples."""
    fields: dict[str, Any] = {
        "name": name,
        "model": "m",
        "application": "",
        "intended": np.array([row[0] for row in triples], dtype=np.float64),
        "lateness": np.zeros(len(triples)),
        "latency": np.array([row[1] for row in triples], dtype=np.float64),
        "rows": np.ones(len(triples), dtype=np.int64),
        "ending": np.array([row[2] for row in triples], dtype=np.int64),
        "endings": ENDINGS,
    }
    return Records(**{**fields, **overrides})


def make_report(*parts: Records, duration: float = 2.0, **overrides: Any) -> Report:
    every = merge("total", parts)
    fields: dict[str, Any] = {
        "kind": "load",
        "title": "a run",
        "seed": 7,
        "configuration": {"target": "http://127.0.0.1:1"},
        "provenance": Provenance("2026-01-01T00:00:00+00:00", {"python": "3.11"}, "Linux, 2 cores"),
        "warmup_s": 0.0,
        "duration_s": duration,
        "total": score(every, duration),
        "streams": tuple(score(part, duration) for part in parts),
        "lateness": percentiles(every.lateness),
        "timeline": timeline(every, 0.0, duration),
    }
    return Report(**{**fields, **overrides})


@pytest.fixture
def records() -> Callable[..., Records]:
    return make_records


@pytest.fixture
def report() -> Callable[..., Report]:
    return make_report
