"""From records to numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import OutcomeKind
from slacktide.lab.load.report import Ending, StreamReport, StreamScore, Window, percentiles

Build = Callable[..., Any]


def score(records: Any, duration: float) -> StreamReport:
    report: StreamReport = records.score(Window(0.0, duration)).report(records.name)
    return report


def test_outcomes_goodput_and_rates(records: Build) -> None:
    stream = score(
        records("s", [(0.0, 0.01, 0), (0.5, 0.02, 0), (1.0, 0.9, 1), (1.5, 0.001, 2)]), 2.0
    )
    assert stream.submitted == 4
    assert stream.outcomes == {
        "served": 2,
        "late": 1,
        "dropped": 0,
        "rejected": 1,
        "failed": 0,
        "cancelled": 0,
    }
    assert stream.reasons == {"on_time": 2, "after_deadline": 1, "overloaded": 1}
    assert stream.goodput == 0.5
    assert stream.refused == 1
    assert (stream.offered_rps, stream.on_time_rps) == (2.0, 1.0)


def test_refusals_have_percentiles_of_their_own(records: Build) -> None:
    stream = score(records("s", [(0.0, 0.5, 0), (0.0, 0.001, 2), (0.0, 0.003, 3)]), 1.0)
    assert stream.latency is not None
    assert (stream.latency.count, stream.latency.max) == (1, 0.5)
    assert stream.refusal_latency is not None
    assert (stream.refusal_latency.count, stream.refusal_latency.max) == (2, 0.003)


def test_rows_are_counted_beside_requests(records: Build) -> None:
    part = records("s", [(0.0, 0.1, 0), (0.0, 0.1, 2)], rows=np.array([4, 8]))
    stream = score(part, 1.0)
    assert (stream.rows_submitted, stream.rows_on_time) == (12, 4)


def test_nothing_submitted_is_goodput_zero_and_no_percentiles(records: Build) -> None:
    stream = score(records("s", []), 1.0)
    assert stream.goodput == 0.0
    assert stream.latency is None
    assert stream.latency_curve == ()


def test_the_window_is_half_open(records: Build) -> None:
    part = records("s", [(0.9, 0.1, 0), (1.0, 0.1, 0), (1.9, 0.1, 0), (2.0, 0.1, 0)])
    scored = part.score(Window(1.0, 1.0))
    assert scored.report("s").submitted == 2
    assert scored.timeline().arrivals == (2,)


def test_the_timeline_counts_by_the_second_of_the_intended_send(records: Build) -> None:
    part = records("s", [(10.0, 5.0, 0), (10.9, 0.1, 2), (11.2, 0.1, 4), (12.4, 0.1, 0)])
    line = part.score(Window(10.0, 2.5)).timeline()
    assert line.arrivals == (2, 1, 1)
    assert line.on_time == (1, 0, 1)
    assert line.refused == (1, 0, 0)
    assert line.other == (0, 1, 0)


def test_percentiles_are_samples() -> None:
    summary = percentiles(np.arange(1.0, 1001.0))
    assert summary is not None
    assert (summary.p50, summary.p90, summary.p99, summary.p999) == (500.0, 900.0, 990.0, 999.0)
    assert (summary.count, summary.mean, summary.max) == (1000, 500.5, 1000.0)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50))
def test_percentiles_never_fall_and_are_always_samples(samples: list[float]) -> None:
    summary = percentiles(np.array(samples))
    assert summary is not None
    levels = [summary.p50, summary.p90, summary.p99, summary.p999, summary.max]
    assert levels == sorted(levels)
    assert set(levels) <= set(samples)


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 2.0), st.integers(0, 5))))
def test_nothing_is_lost_between_records_and_report(rows: list[tuple[float, float, int]]) -> None:
    endings = tuple(Ending(f"r{number}", kind) for number, kind in enumerate(OutcomeKind))
    scored = StreamScore(endings, Window(0.0, 5.5))
    due_times, latency = (
        np.array([row[place] for row in rows], dtype=np.float64) for place in (0, 1)
    )
    ending = np.array([row[2] for row in rows], dtype=np.int64)
    scored.add(due_times, latency, np.ones(len(rows), dtype=np.int64), ending)
    stream = scored.report("s")
    assert sum(stream.outcomes.values()) == sum(stream.reasons.values()) == len(rows)
    line = scored.timeline()
    assert sum(line.arrivals) == len(rows)
    assert sum(line.on_time) + sum(line.refused) + sum(line.other) == len(rows)


def test_merged_streams_add_up(records: Build) -> None:
    first = records("one", [(0.0, 0.1, 0)])
    two = records("two", [(0.1, 0.2, 2), (0.2, 0.3, 0)])
    window = Window(0.0, 1.0)
    parts = [part.score(window) for part in (first, two)]
    total = parts[0].merged(parts[1:]).report("total")
    assert total.submitted == 3
    assert total.on_time == 2
    assert [part.report("").submitted for part in parts] == [1, 2]


def test_unequal_arrays_are_refused(records: Build) -> None:
    part = records("s", [(0.0, 0.1, 0)], rows=np.ones(2, dtype=np.int64))
    with pytest.raises(ValueError, match="unequal length"):
        part.score(Window(0.0, 1.0))
