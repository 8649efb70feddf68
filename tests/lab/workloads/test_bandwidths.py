"""Bandwidths: recorded ones as they are published, drawn ones, and the texts that name them."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.lab.workloads import (
    BandwidthTrace,
    ConstantLink,
    TraceLink,
    WorkloadError,
    draw_4g,
    draw_5g,
    parse_bandwidth_trace,
    parse_bandwidths,
    parse_link,
)

MBIT = 1e6 / 8


def parsed(text: str, only: str | None = None, column: str | None = None) -> BandwidthTrace:
    return parse_bandwidths(text.splitlines(keepends=True), "t.csv", only=only, column=column)


# ── recorded ─────────────────────────────────────────────────────────────────────────────────────

IRISH = """\
trace_id,time_s,bandwidth_mbps,uplink_mbps,radio
0,0,5,0.5,LTE
0,1,0,0.1,5G
7,0,100,2,5G
7,2,50,1,5G
"""


def test_megabits_by_time() -> None:
    trace = parsed("time_s,bandwidth_mbps\n0,3.6\n1,8\n2,0\n")
    assert trace.rates.tolist() == [450_000.0, 1_000_000.0, 0.0]
    assert (trace.starts.tolist(), trace.period, trace.source) == ([0.0, 1.0, 2.0], 3.0, "t.csv")


def test_one_of_several_traces_and_columns_is_chosen() -> None:
    assert parsed(IRISH, "7").rates.tolist() == [100 * MBIT, 50 * MBIT]
    assert parsed(IRISH, "7").period == 4.0
    assert parsed(IRISH, "0", "uplink_mbps").rates.tolist() == [0.5 * MBIT, 0.1 * MBIT]
    assert parsed("trace_id,time_s,bandwidth_mbps\n3,0,8\n").rates.tolist() == [1e6]


def test_bytes_by_interval_count_where_they_are_there() -> None:
    rows = "time_s,interval_ms,bytes,bandwidth_mbps\n0.0,500,1000,9\n0.5,1001,2002,9\n"
    trace = parsed(rows)
    assert trace.rates.tolist() == pytest.approx([2000.0, 2000.0])
    assert trace.period == pytest.approx(1.501)
    assert parsed(rows, column="bandwidth_mbps").rates.tolist() == [9 * MBIT] * 2


def test_a_ghent_log_as_it_was_published() -> None:
    log = (
        "1453121790686 39287 51.0386528885778 3.73220785642186 2493100 1000\n"
        "1453121791687 40288 51.0386532820580 3.73222847166054 2763504 1001\n\n"
        "1453121792686 41287 51.0386553301824 3.73225142858955 2728896 0999\n"
    )
    trace = parsed(log)
    assert trace.starts.tolist() == pytest.approx([0.0, 1.0, 2.001])
    assert trace.moved(trace.period) == pytest.approx(2493100 + 2763504 + 2728896)
    with pytest.raises(WorkloadError, match=r"t\.csv, line 4: expected 6 values, got 2"):
        parsed(log.replace("2728896 0999\n", "").replace("51.0386553301824 3.73225142858955", ""))


@pytest.mark.parametrize(
    ("text", "only", "column", "message"),
    [
        ("", None, None, "t.csv, line 1: expected a header such as time_s,bandwidth_mbps, got ''"),
        ("time_s,rate_rps\n0,1\n", None, None, "expected a header such as time_s,bandwidth_mbps"),
        ("time_s,bandwidth_mbps\n", None, None, "the trace is empty"),
        ("time_s,bandwidth_mbps\n0,1\n1,-2\n", None, None, "line 3, bandwidth_mbps: must not be n"),
        ("time_s,bandwidth_mbps\n0,1\n0,2\n", None, None, "line 3, time_s: must rise"),
        ("time_s,bandwidth_mbps\n0,fast\n", None, None, "line 2, bandwidth_mbps: expected a numb"),
        ("time_s,bandwidth_mbps\n0,1,2\n", None, None, "line 2: expected 2 values, got 3"),
        ("time_s,bandwidth_mbps\n0,1\n", "3", None, "t.csv: expected no choice, got '3'"),
        ("time_s,up_mbps,down_mbps\n0,1,2\n", None, None, "column=up_mbps | down_mbps"),
        (IRISH, None, None, "t.csv: expected one trace: only=0 | 7"),
        (IRISH, "8", None, "t.csv: only: no '8'; "),
        (IRISH, "0", "radio", "column: no 'radio' of megabits; valid: bandwidth_mbps, upl"),
        ("time_s,interval_ms,bytes,x_mbps\n0,0,1,1\n", None, None, "interval_ms: must be positive"),
        ("1 2 3 4 5 6\n", "1", None, "t.csv: expected no choice, got '1'"),
        ("1 2 3 4 5 0\n", None, None, "t.csv, interval_ms: must be positive"),
        ("1 2 3 4 -5 6\n", None, None, "t.csv, line 1, bytes: must not be negative"),
    ],
)
def test_faults_of_a_bandwidth_file_are_named(
    text: str, only: str | None, column: str | None, message: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        parsed(text, only, column)
    assert message in str(caught.value)


# ── drawn ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("draw", [draw_4g, draw_5g])
def test_a_seed_gives_one_trace_and_a_longer_one_begins_with_it(draw: type) -> None:
    short = draw(30.0, np.random.default_rng(5))
    long = draw(99.5, np.random.default_rng(5))
    assert short.rates.tolist() == long.rates[:30].tolist()
    assert (long.rates.size, long.period) == (100, 100.0)
    assert draw(30.0, np.random.default_rng(6)).rates.tolist() != short.rates.tolist()
    for length in (0.0, 1e9, np.inf):
        with pytest.raises(WorkloadError, match="length"):
            draw(length, np.random.default_rng(0))


def test_4g_swings_as_recorded_and_is_never_gone() -> None:
    logs = np.log(draw_4g(20_000.0, np.random.default_rng(1)).rates / MBIT)
    assert np.exp(np.median(logs)) == pytest.approx(25.0, rel=0.1)
    assert logs.std() == pytest.approx(0.45, rel=0.1)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.8, abs=0.05)
    assert logs.min() >= np.log(2.0) - 1e-9


def test_5g_is_fast_or_slow_or_gone() -> None:
    trace = draw_5g(20_000.0, np.random.default_rng(2))
    gone = trace.rates == 0.0
    assert 0.02 <= gone.mean() <= 0.045
    assert 0.25 <= (trace.rates > 80 * MBIT).mean() <= 0.4
    begins = np.flatnonzero(np.diff(gone.astype(int)) == 1).size
    assert gone.sum() / begins == pytest.approx(2.0, rel=0.2)


# ── named ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("5Mbit/s", 625_000.0),
        ("800kbit/s", 100_000.0),
        ("2MB/s", 2e6),
        ("1.5 GB/s", 1.5e9),
        ("64bit/s", 8.0),
    ],
)
def test_rates(text: str, bandwidth: float) -> None:
    assert parse_link(text, rtt=0.04) == ConstantLink(bandwidth, 0.04)


def test_drawn_traces() -> None:
    link = parse_link("5g:seed=3:length=1m:offset=30s", rtt=0.01)
    assert isinstance(link, TraceLink)
    assert (link.rtt, link.offset, link.trace.period) == (0.01, 30.0, 60.0)
    assert link.trace.rates.tolist() == draw_5g(60.0, np.random.default_rng(3)).rates.tolist()
    trace, offset = parse_bandwidth_trace("4g")
    assert (trace.period, offset) == (600.0, 0.0)


def test_files_are_read_by_the_caller() -> None:
    calls = []

    def read(path: str, only: str | None, column: str | None) -> BandwidthTrace:
        calls.append((path, only, column))
        return BandwidthTrace([0], [1e6], source="file")

    parse_link("a.csv", read_bandwidths=read)
    link = parse_link("c:/b.csv:only=4:column=uplink_mbps:offset=2s", read_bandwidths=read)
    assert calls == [("a.csv", None, None), ("c:/b.csv", "4", "uplink_mbps")]
    assert isinstance(link, TraceLink)
    assert link.offset == 2.0
    assert link.describe() == "file from 2 s on (8 Mbit/s on average), 0 ms there and back"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5Mbps", "link: expected a rate such as 5Mbit/s"),
        ("-5Mbit/s", "link: expected a rate such as 5Mbit/s"),
        ("", "link: expected a rate"),
        ("0Mbit/s", "bandwidth: must be positive"),
        ("1.2.3Mbit/s", "link: expected a number"),
        ("4g:speed=3", "link: expected 4g, 4g:seed=N"),
        ("4g:seed=1.5", "link seed: expected a whole number"),
        ("4g:seed=-1", "link seed: expected a whole number"),
        ("5g:length=3", "link length: expected a duration"),
        ("5g:seed=1:seed=2", "link seed: given twice"),
        ("x.csv:offset=soon", "link: expected no trace file here"),
    ],
)
def test_texts_that_name_no_link(text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_link(text)
    assert message in str(caught.value)
