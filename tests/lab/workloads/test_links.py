"""Links: when the server sees what, exactly."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from slacktide.lab.workloads import (
    BandwidthTrace,
    ConstantLink,
    SharedLink,
    TraceLink,
    WorkloadError,
)

# ── the same bandwidth for ever ──────────────────────────────────────────────────────────────────


def test_headers_come_after_half_a_round_trip_and_the_body_after_its_transfer() -> None:
    link = ConstantLink(bandwidth=1000.0, rtt=0.25)
    journey = link.deliver(500, sent=10.0)
    assert journey.arrival == 10.125
    assert journey.network_time == 0.125
    assert journey.complete_at == 10.625
    assert link.way_back == 0.125


def test_without_payload_the_body_is_complete_at_once() -> None:
    journey = ConstantLink(1e6).deliver(0, sent=3.0)
    assert journey.arrival == journey.complete_at == 3.0
    assert journey.network_time == 0.0


@pytest.mark.parametrize(
    ("bandwidth", "rtt", "field"), [(0.0, 0.0, "bandwidth"), (1.0, -1.0, "rtt")]
)
def test_invalid_fields_are_named(bandwidth: float, rtt: float, field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        ConstantLink(bandwidth, rtt)
    assert caught.value.field == field


# ── a bandwidth that changes ─────────────────────────────────────────────────────────────────────

STEPS = BandwidthTrace([0, 1, 3], [1000, 0, 500], period=5.0)
"""1000 bytes in the first second, an outage of two, 1000 bytes in the last two."""


def test_bytes_move_at_the_rate_of_the_moment() -> None:
    link = TraceLink(STEPS, rtt=0.5)
    journey = link.deliver(500, sent=0.25)
    assert journey.arrival == 0.5
    assert journey.network_time == 0.25
    assert journey.complete_at == 0.25 + 0.5 + 0.25


def test_a_payload_waits_out_an_outage_in_its_midst() -> None:
    assert TraceLink(STEPS).deliver(1500, sent=0.0).complete_at == 4.0


def test_a_payload_sent_in_an_outage_has_its_first_byte_after_it() -> None:
    link = TraceLink(STEPS, rtt=1.0)
    for size in (0, 500):
        journey = link.deliver(size, sent=1.5)
        assert journey.arrival == 3.5
        assert journey.network_time == 2.0
        assert journey.complete_at == 3.5 + size / 500


def test_a_payload_that_just_fits_does_not_wait_for_the_outage_behind_it_to_end() -> None:
    assert TraceLink(STEPS).deliver(1000, sent=0.0).complete_at == 1.0
    # Thirds do not add up exactly; no crumb of rounding may wait two seconds.
    thirds = BandwidthTrace([0, 0.1, 0.3, 1.0], [1000 / 3, 100 / 3, 0, 7], period=2.0)
    for start in (0.0, 0.05, 0.13):
        remaining = float(thirds.moved(0.3) - thirds.moved(start))
        assert thirds.finish(remaining, start=start) == pytest.approx(0.3, abs=1e-9)


def test_the_trace_begins_again_when_it_has_ended() -> None:
    link = TraceLink(STEPS)
    assert link.deliver(2000, sent=0.0).complete_at == 5.0
    assert link.deliver(2001, sent=0.0).complete_at == 5.001
    assert link.deliver(4500, sent=5.0).complete_at == 15.5
    assert link.deliver(500, sent=1000.25).complete_at == 1000.75


def test_an_offset_begins_within_the_trace() -> None:
    late = TraceLink(STEPS, offset=3.0)
    assert late.deliver(500, sent=0.0).complete_at == 1.0
    assert late.deliver(1500, sent=0.0).complete_at == 2.5


def test_a_trace_without_any_bandwidth_never_delivers_and_divides_by_nothing() -> None:
    for link in (
        TraceLink(BandwidthTrace([0, 1], [0, 0]), rtt=0.1),
        SharedLink(TraceLink(BandwidthTrace([0], [0]))),
    ):
        for sent in (0.0, 0.5, 7.0):
            journey = link.deliver(10, sent=sent)
            assert journey.arrival == journey.complete_at == journey.network_time == math.inf
            assert link.deliver(0, sent=sent).arrival == math.inf
    assert BandwidthTrace([0], [0]).moving_from(3.0) == math.inf
    assert BandwidthTrace([0], [0]).moved(9.0) == 0.0
    assert BandwidthTrace([0], [0]).finish(1, start=0.0) == math.inf


def test_the_last_step_is_as_long_as_the_one_before_unless_a_period_is_stated() -> None:
    assert BandwidthTrace([0, 2, 7], [1, 1, 1]).period == 12.0
    assert BandwidthTrace([5], [1]).period == 1.0
    shifted = BandwidthTrace([10, 12], [3, 4], period=3.0)
    assert shifted.starts.tolist() == [0.0, 2.0]
    assert (shifted.rate(0.0), shifted.rate(2.5), shifted.rate(3.0)) == (3.0, 4.0, 3.0)
    assert shifted.mean == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("starts", "rates", "period", "field"),
    [
        ([], [], None, "time_s"),
        ([0, 1], [1], None, "bandwidth"),
        ([0, 0], [1, 1], None, "time_s"),
        ([0, 1], [1, -1], None, "bandwidth"),
        ([0, 1], [1, math.nan], None, "bandwidth"),
        ([0, 1], [1, 1], 1.0, "period"),
        ([0, 1], [1, 1], math.inf, "period"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_by_name(
    starts: list[float], rates: list[float], period: float | None, field: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        BandwidthTrace(starts, rates, period)
    assert caught.value.field == field


def test_a_negative_payload_or_offset_is_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="payload_bytes"):
        TraceLink(STEPS).deliver(-1, sent=0.0)
    with pytest.raises(WorkloadError, match="offset"):
        TraceLink(STEPS, offset=-1.0)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

rates = st.one_of(st.just(0.0), st.floats(10.0, 1e7), st.integers(10, 1000).map(float))


@st.composite
def traces(draw: st.DrawFn) -> BandwidthTrace:
    steps = draw(st.lists(st.tuples(st.floats(0.01, 20.0), rates), min_size=1, max_size=8))
    lengths = np.array([length for length, _ in steps])
    ends = np.cumsum(lengths)
    starts = np.concatenate(([0.0], ends[:-1]))
    return BandwidthTrace(starts, [rate for _, rate in steps], float(ends[-1]))


moments = st.floats(0.0, 500.0)
sizes = st.integers(1, 3_000_000)


def nearly(seconds: float) -> float:
    """What rounding may do to an instant."""
    return 1e-9 * (1.0 + seconds)


@given(traces(), moments, moments, sizes, sizes, st.floats(0.0, 1.0))
def test_later_or_larger_never_ends_earlier(
    trace: BandwidthTrace, start: float, later: float, small: int, more: int, rtt: float
) -> None:
    assume(trace.mean > 0.0)
    link = TraceLink(trace, rtt)
    first, last = sorted((start, later))
    early, late = link.deliver(small, sent=first), link.deliver(small, sent=last)
    assert early.arrival <= late.arrival + nearly(late.arrival)
    assert early.complete_at <= late.complete_at + nearly(late.complete_at)
    larger = link.deliver(small + more, sent=first)
    assert larger.complete_at >= early.complete_at - nearly(early.complete_at)
    assert larger.arrival == early.arrival
    for journey, sent in ((early, first), (late, last), (larger, first)):
        assert sent + rtt / 2 <= journey.arrival <= journey.complete_at
        assert journey.network_time == pytest.approx(journey.arrival - sent)


@given(traces(), moments, sizes)
def test_a_payload_arrives_when_the_trace_has_moved_it(
    trace: BandwidthTrace, sent: float, size: int
) -> None:
    assume(trace.mean > 0.0)
    end = trace.finish(size, start=sent)
    moved = float(trace.moved(end) - trace.moved(sent))
    fastest = float(trace.rates.max())
    assert moved == pytest.approx(size, rel=1e-9, abs=1e-2 + fastest * nearly(end))


@given(traces(), moments, sizes, sizes)
def test_a_payload_may_be_cut_anywhere(
    trace: BandwidthTrace, sent: float, head: int, tail: int
) -> None:
    assume(trace.mean > 0.0)
    whole = trace.finish(head + tail, start=sent)
    cut = trace.finish(tail, start=trace.finish(head, start=sent))
    slowest = float(trace.rates[trace.rates > 0.0].min())
    assert cut == pytest.approx(whole, abs=nearly(whole) + 1e-2 / slowest)


@given(
    st.floats(10.0, 1e8),
    st.integers(1, 6),
    moments,
    st.integers(0, 3_000_000),
    st.floats(0.0, 1.0),
    st.floats(0.0, 50.0),
)
def test_a_flat_trace_is_a_constant_link(
    rate: float, steps: int, sent: float, size: int, rtt: float, offset: float
) -> None:
    flat = TraceLink(BandwidthTrace(np.arange(steps), np.full(steps, rate)), rtt, offset)
    plain = ConstantLink(rate, rtt)
    ours, theirs = flat.deliver(size, sent=sent), plain.deliver(size, sent=sent)
    assert ours.arrival == theirs.arrival
    assert ours.network_time == theirs.network_time
    assert ours.complete_at == pytest.approx(theirs.complete_at, abs=1e-8 + 1e-2 / rate)


@example(
    BandwidthTrace([0.0, 1.0], [0.0, 10.0], 1.01), [(0.0, 1), (0.0, 1), (0.0, 2602849), (0.0, 1)]
)
@given(traces(), st.lists(st.tuples(st.floats(0.0, 5.0), sizes), min_size=1, max_size=10))
def test_payloads_that_share_a_link_leave_one_behind_the_other(
    trace: BandwidthTrace, gaps: list[tuple[float, int]]
) -> None:
    assume(trace.mean > 0.0)
    alone, shared = TraceLink(trace, 0.2), SharedLink(TraceLink(trace, 0.2))
    slowest = float(trace.rates[trace.rates > 0.0].min())
    lengths = np.diff([*trace.starts, trace.period])
    stretches = groupby(
        [*zip(trace.rates == 0.0, lengths, strict=True)] * 2, lambda segment: segment[0]
    )
    pauses = [sum(length for _, length in stretch) for idle, stretch in stretches if idle]
    sent = before = busy_since = 0.0
    backlog = 0
    for gap, size in gaps:
        sent += gap
        journey = shared.deliver(size, sent=sent)
        assert journey.complete_at >= alone.deliver(size, sent=sent).complete_at - nearly(sent)
        assert journey.arrival >= before
        assert journey.network_time == pytest.approx(journey.arrival - sent)
        if sent >= before - 0.1:  # the line was free: half a round trip is no part of it
            busy_since, backlog = sent, 0
        backlog += size
        end = alone.deliver(backlog, sent=busy_since).complete_at
        # A last byte at the very edge of a pause may round to either side of it.
        off = abs(journey.complete_at - end)
        assert any(abs(off - pause) <= nearly(end) + 0.1 / slowest for pause in (0.0, *pauses))
        before = journey.complete_at
