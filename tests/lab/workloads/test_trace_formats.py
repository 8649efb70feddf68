"""Recorded workloads, ours and public: errors name the file, the line and the column."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.lab.workloads import (
    RateTrace,
    Replay,
    Trace,
    WindowCounts,
    WorkloadError,
    parse_trace,
)


def read(text: str, only: str | None = None) -> Trace:
    return parse_trace(text.splitlines(keepends=True), "t.csv", only=only)


def replayed(trace: Trace) -> list[float]:
    assert isinstance(trace.arrivals, Replay)
    return trace.arrivals.instants.tolist()


def counted(trace: Trace) -> tuple[list[int], float]:
    assert isinstance(trace.arrivals, WindowCounts)
    return trace.arrivals.counts.tolist(), trace.arrivals.window


def test_our_own_format_carries_lengths_and_applications() -> None:
    text = "time_s,length,application\n0,3,a\n0.5,17,b\n0.5,4,a\n"
    everything = read(text)
    assert replayed(everything) == [0.0, 0.5, 0.5]
    lengths = everything.lengths["length"]
    assert lengths.values.tolist() == [3.0, 17.0, 4.0]
    assert lengths.applications == ("a", "b", "a")
    just_a = read(text, "a")
    assert replayed(just_a) == [0.0, 0.5]
    assert just_a.lengths["length"].values.tolist() == [3.0, 4.0]
    assert read("time_s,length\n1,2\n").lengths["length"].applications == ()


def test_twitter_per_second_per_minute_and_by_segment() -> None:
    seconds = read("time_s,rate_rps\n0,25\n1,43\n").arrivals
    minutes = read("time_s,rate_rps_mean,rate_rps_max\n0,46.4,64\n60,45.1,58\n").arrivals
    assert isinstance(seconds, RateTrace)
    assert isinstance(minutes, RateTrace)
    assert minutes.rates.tolist() == [46.4, 45.1]
    text = "segment,time_s,rate_rps\nbursty,0,54\nbursty,1,41\nsteady,0,9\n"
    steady = read(text, "steady").arrivals
    assert isinstance(steady, RateTrace)
    assert steady.rates.tolist() == [9.0]
    with pytest.raises(WorkloadError, match=r"t.csv: expected one segment: only=bursty \| steady"):
        read(text)


def test_azure_functions_2019_as_published_and_by_row() -> None:
    wide = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f1,http,5,0,1\no,a,f2,timer,1,1,0\n"
    assert counted(read(wide)) == ([6, 1, 1], 60.0)
    assert counted(read(wide, "f2")) == ([1, 1, 0], 60.0)
    rows = "function_id,time_s,invocations\n0,0,5\n0,60,0\n0,120,1\n1,0,1\n1,60,1\n"
    assert counted(read(rows)) == ([6, 1, 1], 60.0)
    assert counted(read(rows, "1")) == ([1, 1], 60.0)


def test_azure_functions_2021_as_published_by_end_and_by_start() -> None:
    published = read("app,func,end_timestamp,duration\na,f,10,1\na,g,12,8\n")
    assert replayed(published) == [0.0, 5.0]
    assert published.lengths["duration"].values.tolist() == [8.0, 1.0]
    assert published.lengths["duration"].applications == ("g", "f")
    by_start = read("time_s,function_id,duration_s\n0.5,0,0.078\n2,1,57\n", "1")
    assert replayed(by_start) == [2.0]
    assert by_start.lengths["duration_s"].values.tolist() == [57.0]


def test_azure_llm_as_published_and_in_seconds() -> None:
    published = read(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.5000000,4808,10\n"
        "2023-11-17 00:00:01.0000000,3180,8\n"
    )
    assert replayed(published) == [0.0, 1.5]
    assert published.lengths["ContextTokens"].values.tolist() == [4808.0, 3180.0]
    seconds = read("time_s,context_tokens,generated_tokens\n0,4808,10\n0.052,3180,0\n")
    assert replayed(seconds) == [0.0, 0.052]
    assert seconds.lengths["generated_tokens"].values.tolist() == [10.0, 0.0]


def test_the_lengths_go_with_their_arrivals() -> None:
    trace = read("time_s,length\n0,1\n1,2\n2,3\n")
    rng = np.random.default_rng(0)
    times = trace.arrivals.times(1.5, rng)
    assert trace.lengths["length"].draw(times.size, rng).lengths.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time_s,lenght\n0,1\n", "t.csv, line 1: unknown column 'lenght'"),
        ("time_s,lenght\n0,1\n", "did you mean time_s,length?"),
        ("time_s,length\n", "t.csv: time_s,length: the trace is empty"),
        ("time_s,length\n0,1\n1\n", "t.csv, line 3: expected 2 values, got 1"),
        ("time_s,length\n0,-1\n", "t.csv, line 2, length: must not be negative, got '-1'"),
        ("time_s,length\n2,1\n\n1,1\n", "line 4, time_s: must not decrease, but comes after 2"),
        ("time_s,rate_rps\n0,1\n0,2\n", "line 3, time_s: must rise from row to row"),
        ("time_s,rate_rps\n0,inf\n", "line 2, rate_rps: expected a finite number, got 'inf'"),
        ("HashOwner,HashApp,HashFunction,Trigger,1,3\n", "expected the minutes 1,2,"),
        ("HashOwner,HashApp,HashFunction,Trigger,1\n", "t.csv: the trace is empty"),
        ("HashOwner,HashApp,HashFunction,Trigger,1\na,b,c,d,x\n", "line 2, 1: expected a number"),
        ("HashOwner,HashApp,HashFunction,Trigger,1\na,b,c,d,-1\n", "line 2, 1: must not be neg"),
        ("function_id,time_s,invocations\n0,0,1\n0,60,1\n0,90,1\n", "windows of 60 s each"),
        ("function_id,time_s,invocations\n0,0,1\n0,1e-6,1\n0,1e6,1\n", "1e+12 windows of 1e-06"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n", "line 2, TIMESTAMP: expected a d"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-02,1,1\n2023-01-01,1,1\n",
            "line 3, TIMESTAMP: must not decrease",
        ),
    ],
)
def test_bad_traces_name_line_and_column(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time_s,length,application\n0,1,web\n", "only: no 'wep'; did you mean 'web'?"),
        ("time_s\n0\n", "expected no choice, got 'wep'"),
        ("time_s,length\n0,1\n", "expected no choice, got 'wep'"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=r"t\.csv") as caught:
        read(text, "wep")
    assert complaint in str(caught.value)
