"""Workload specs: what they read, what they refuse and how they name it."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.lab.workloads import (
    Arrivals,
    Constant,
    Deadlines,
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    GammaWindows,
    Lengths,
    Mix,
    Mode,
    Modes,
    OnOff,
    Poisson,
    Replay,
    WorkloadError,
    parse_arrivals,
    parse_deadlines,
    parse_lengths,
    parse_seconds,
)
from slacktide.lab.workloads.deadlines import Uniform
from slacktide.lab.workloads.varying import Diurnal


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ("poisson:100", Poisson(100.0)),
        ("poisson:rate=100", Poisson(100.0)),
        ("gamma:100:cv=3", Gamma(100.0, 3.0)),
        ("gamma:100:3", Gamma(100.0, 3.0)),
        ("gamma:cv=3:rate=100", Gamma(100.0, 3.0)),
        ("constant:0.5", Constant(0.5)),
        ("onoff:200:20:1s:500ms", OnOff(200.0, 20.0, 1.0, 0.5)),
        ("onoff:200:20:mean_on=1s:mean_off=1m", OnOff(200.0, 20.0, 1.0, 60.0)),
        ("diurnal:10:90:24h", Diurnal(10.0, 90.0, 86_400.0)),
        ("windows:130:1m:cv=0.35", GammaWindows(130.0, 60.0, 0.35)),
    ],
)
def test_arrivals_are_read(text: str, process: Arrivals) -> None:
    parsed = parse_arrivals(text)
    assert parsed == process
    assert parse_arrivals(parsed.describe()) == process


def test_trace_files_are_read_by_the_caller() -> None:
    paths = []

    def read(path: str) -> Arrivals:
        paths.append(path)
        return Replay([0.0])

    assert isinstance(parse_arrivals("trace:day:one.csv", read), Replay)
    assert paths == ["day:one.csv"]
    with pytest.raises(WorkloadError, match="expected no trace file here"):
        parse_arrivals("trace:day.csv")


@pytest.mark.parametrize(
    ("text", "deadlines"),
    [
        ("fixed:50ms", Fixed(0.05)),
        ("50ms", Fixed(0.05)),
        ("mix:25ms,60ms,125ms", Mix((0.025, 0.06, 0.125))),
        ("mix:25ms@2,60ms", Mix((0.025, 0.06), (2.0, 1.0))),
        ("uniform:25ms:1s", Uniform(0.025, 1.0)),
        ("none", None),
    ],
)
def test_deadlines_are_read(text: str, deadlines: Deadlines | None) -> None:
    parsed = parse_deadlines(text)
    assert parsed == deadlines
    if parsed is not None:
        assert parse_deadlines(parsed.describe()) == deadlines


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("1.5s", 1.5), ("200us", 0.0002), ("2m", 120.0)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unknown process ''"),
        ("100", "expected a process such as poisson:100, got '100'"),
        ("12.5 req/s", "expected a process such as poisson:12.5, got"),
        ("100:cv=3", "unknown process '100'"),
        ("poison:100", "did you mean 'poisson'"),
        ("poisson", "poisson rate: missing; expected poisson:RATE"),
        ("poisson:fast", "poisson rate: expected a number, got 'fast'"),
        ("poisson:nan", "poisson rate: expected a finite number"),
        ("poisson:-1", "rate: must be positive"),
        ("poisson:1:2", "poisson: too many fields"),
        ("gamma:100", "gamma cv: missing; expected gamma:RATE:CV"),
        ("gamma:100:vc=3", "unknown field 'vc'"),
        ("gamma:100:rate=3", "gamma rate: given twice"),
        ("onoff:1:1:1:1", "onoff mean_on: expected a duration such as 50ms"),
        ("trace:", "expected trace:FILE"),
    ],
)
def test_bad_arrivals_name_the_field(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_arrivals(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unknown kind ''"),
        ("fixed", "fixed seconds: missing"),
        ("fixed:50", "fixed seconds: expected a duration"),
        ("50", "deadlines: expected a duration such as 50ms"),
        ("-50ms", "deadlines: expected a duration such as 50ms"),
        (".5", "deadlines: expected a duration such as 50ms"),
        ("fixed:0ms", "deadline: must be positive"),
        ("fixed:1.2.3ms", "fixed seconds: expected a number"),
        ("mix:", "mix: expected a duration"),
        ("mix:24ms@x", "mix: expected a number, got 'x'"),
        ("uniform:2s:1s", "high: must be at least low"),
        ("unifrom:1s:2s", "did you mean 'uniform'"),
    ],
)
def test_bad_deadlines_name_the_field(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_deadlines(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("constant:10", Modes((Mode(10.0),))),
        ("exponential:10", Exponential(10.0)),
        ("exponential:mean=10", Exponential(10.0)),
        ("modes:3~1,17~1", Modes((Mode(3.0, 1.0), Mode(17.0, 1.0)))),
        (
            "modes:short=3~2@9,long=17~0.5",
            Modes((Mode(3.0, 2.0, 9.0, "short"), Mode(17.0, 0.5, 1.0, "long"))),
        ),
    ],
)
def test_lengths_are_read(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text) == lengths


def test_recorded_lengths_are_read_by_the_caller() -> None:
    recorded = Empirical([1.0, 2.0, 3.0], in_order=True)
    in_order = parse_lengths("trace:a:b.csv", lambda path: recorded)
    by_chance = parse_lengths("sample:a.csv", lambda path: recorded)
    rng = np.random.default_rng(0)
    assert in_order.draw(4, rng).lengths.tolist() == [1.0, 2.0, 3.0, 1.0]
    assert sorted(set(by_chance.draw(100, rng).lengths.tolist())) == [1.0, 2.0, 3.0]
    with pytest.raises(WorkloadError, match="expected no trace file here"):
        parse_lengths("trace:a.csv")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "unknown source ''"),
        ("17", "expected lengths such as constant:17, got '17'"),
        ("mods:3", "did you mean 'modes'"),
        ("constant", "constant length: missing"),
        ("modes:", "modes: expected a number, got ''"),
        ("modes:3~x", "modes: expected a number, got 'x'"),
        ("modes:=3", "modes: expected [APPLICATION=]MEAN"),
        ("modes:0", "mean: must be positive"),
        ("modes:3~-1", "sigma: must be finite and not negative"),
        ("modes:3@0", "weight: must be positive"),
        ("sample:", "expected sample:FILE"),
    ],
)
def test_bad_lengths_name_the_field(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse_lengths(text)
    assert complaint in str(caught.value)
