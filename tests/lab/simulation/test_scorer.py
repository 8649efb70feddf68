"""The report of a simulation: same document as of a live run, in memory that does not grow."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slacktide.domain import Outcome, OutcomeKind, Reason, Request
from slacktide.lab.load.report import Provenance, Report, percentiles
from slacktide.lab.load.report.latencies import ERROR, EXACT, LOWEST_S, Latencies
from slacktide.lab.reports import render
from slacktide.lab.simulation import rng_for
from slacktide.lab.simulation.world.results import BINS_MOST, Scorer

PROVENANCE = Provenance(started="2026-01-01T00:00:00+00:00", versions={}, machine="none")


def report(scorer: Scorer) -> Report:
    return scorer.report(title="t", seed=1, configuration={}, provenance=PROVENANCE)


def end(scorer: Scorer, make, id: int, arrival: float, reason: Reason, at: float, **fields) -> None:
    scorer.answered(make.request(id, arrival, **fields), Outcome(reason, at))


def test_outcomes_reasons_rates_and_latencies_by_stream(make):
    scorer = Scorer(warmup_s=1.0, duration_s=4.0)
    end(scorer, make, 0, 0.5, Reason.ON_TIME, 0.75)  # in the warm-up
    end(scorer, make, 1, 1.0, Reason.ON_TIME, 1.5, rows=3, application="short")
    end(scorer, make, 2, 2.5, Reason.AFTER_DEADLINE, 4.5, application="long")
    end(scorer, make, 3, 2.75, Reason.BEHIND_WORK, 2.75, application="long")
    end(scorer, make, 4, 4.75, Reason.HOPELESS, 5.75, application="short")
    end(scorer, make, 5, 5.0, Reason.ON_TIME, 5.25)  # after the window
    summary = report(scorer)
    assert (summary.kind, summary.warmup_s, summary.duration_s) == ("simulate", 1.0, 4.0)
    assert [stream.name for stream in summary.streams] == ["m", "m/long", "m/short"]
    _, long, short = summary.streams
    assert short.reasons == {"on_time": 1, "hopeless": 1}
    assert (short.rows_submitted, short.rows_on_time, short.offered_rps) == (4, 3, 0.5)
    assert long.outcomes[OutcomeKind.LATE.value] == long.outcomes["rejected"] == 1
    assert summary.total.submitted == sum(summary.total.outcomes.values()) == 4
    assert summary.goodput == 0.25
    assert summary.total.latency == percentiles(np.array([0.5, 2.0]))
    assert summary.total.refusal_latency == percentiles(np.array([0.0, 1.0]))
    assert summary.total.latency_curve == (0.5,) * 51 + (2.0,) * 50
    line = summary.timeline
    assert line.arrivals == (1, 2, 0, 1)
    assert (line.on_time, line.refused, line.other) == ((1, 0, 0, 0), (0, 1, 0, 1), (0, 1, 0, 0))
    assert Report.from_json(summary.to_json()) == summary


def test_the_timeline_of_a_long_run_has_longer_bins(make):
    scorer = Scorer(duration_s=BINS_MOST * 3.0)
    end(scorer, make, 1, BINS_MOST * 3.0 - 0.5, Reason.ON_TIME, BINS_MOST * 3.0)
    line = report(scorer).timeline
    assert (line.bin_s, len(line.arrivals)) == (4.0, BINS_MOST * 3 // 4)
    assert line.arrivals[-1] == line.on_time[-1] == 1


def test_an_empty_run_is_a_report_too():
    summary = report(Scorer(duration_s=1.0))
    assert (summary.total.submitted, summary.goodput, summary.total.latency) == (0, 0.0, None)
    assert summary.total.latency_curve == ()


@pytest.mark.parametrize("window", [(-1.0, 1.0), (0.0, 0.0), (0.0, float("inf"))])
def test_a_window_must_be_one(window):
    with pytest.raises(ValueError, match="finite duration_s"):
        Scorer(warmup_s=window[0], duration_s=window[1])


def test_many_outcomes_are_counted_as_few_are(make):
    count = 100_000
    generator = rng_for(1, "scores")
    scorer = Scorer(duration_s=100.0)
    arrivals = np.sort(generator.random(count) * 100.0)
    latencies = generator.exponential(0.01, count)
    kinds = generator.choice([Reason.ON_TIME, Reason.AFTER_DEADLINE, Reason.EXPIRED], count)
    for arrival, latency, reason in zip(arrivals, latencies, kinds, strict=True):
        request = Request(1, "m", float(arrival), float(arrival) + 1.0)
        scorer.answered(request, Outcome(reason, float(arrival + latency)))
    summary = report(scorer)
    assert summary.total.submitted == sum(summary.timeline.arrivals) == count
    assert (
        summary.total.on_time
        == sum(summary.timeline.on_time)
        == int((kinds == Reason.ON_TIME).sum())
    )
    assert not any(scorer._notes.values())


def test_a_report_says_what_latency_counts_from_and_how_exact_it_is(make):
    scorer = Scorer(duration_s=1.0)
    end(scorer, make, 0, 0.0, Reason.ON_TIME, 0.25)
    few = report(scorer)
    for id in range(1, EXACT + 1):
        end(scorer, make, id, 0.0, Reason.ON_TIME, 0.25)
    many = report(scorer)
    assert few.latency_from == many.latency_from == "first byte"
    assert few.total.latency.error == 0.0
    assert many.total.latency.error == ERROR
    assert Report.from_json(many.to_json()) == many
    older = many.to_dict()
    del older["latency_from"], older["total"]["latency"]["error"]
    assert Report.from_dict(older).latency_from == "intended send"
    shown = [shown_text(summary) for summary in (few, many)]
    assert all("Latency from the first byte (ms)" in text for text in shown)
    assert ["up to 0.5 % too high, never too low" in text for text in shown] == [False, True]


def shown_text(summary: Report) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(summary))
    return console.export_text()


samples = st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=50)


@given(samples)
def test_few_samples_are_exact(values):
    latencies = Latencies()
    for value in values:
        latencies.add(np.array([value]))
    exact = np.quantile(values, (0.5, 0.99), method="inverted_cdf")
    figures = latencies.percentiles()
    assert figures is not None
    assert figures.mean == pytest.approx(np.mean(values))
    assert (figures.p50, figures.p99, figures.max) == (*exact, max(values))
    assert figures.error == 0.0


@given(samples, st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0]))
def test_many_samples_are_never_understated_and_hardly_overstated(values, level):
    latencies = Latencies()
    repeated = np.repeat(np.array(values), EXACT // len(values) + 1)
    latencies.add(repeated)
    (exact,) = np.quantile(repeated, [level], method="inverted_cdf")
    (quantile,) = latencies.quantiles([level])
    assert exact * (1.0 - 1e-12) <= quantile <= exact * (1.0 + ERROR) * (1.0 + 1e-12)
    assert ERROR <= 0.005


def test_times_beyond_the_bins_count_at_their_ends():
    latencies = Latencies()
    latencies.add(np.concatenate([np.zeros(EXACT), np.full(EXACT, LOWEST_S / 2), [1e9]]))
    assert latencies.quantiles([0.0, 0.5, 0.9]) == (0.0, 0.0, 0.0)
    assert latencies.quantiles([1.0])[0] <= 1e9
    figures = latencies.percentiles()
    assert figures is not None
    assert figures.max == 1e9


@given(st.lists(st.sampled_from([1, 1000, EXACT]), min_size=1, max_size=4))
def test_merging_is_counting_together(sizes):
    generator = rng_for(3, "parts")
    parts, together = [], Latencies()
    for size in sizes:
        part, values = Latencies(), generator.exponential(1.0, size)
        part.add(values)
        together.add(values)
        parts.append(part)
    merged = Latencies.merged(parts)
    assert merged.count == together.count
    assert merged.curve() == together.curve()
    assert [part.count for part in parts] == sizes
