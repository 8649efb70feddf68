"""From flags to a spec: what they mean, and how mistakes are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slacktide.lab.load.build import build_spec, parse_target
from slacktide.lab.load.spec import FilePayload, LoadSpecError, RandomPayload, Target, Transport
from slacktide.lab.workloads import Constant, Fixed, Gamma, Mix, Poisson, RateTrace, Replay


def test_one_stream_from_plain_flags() -> None:
    spec = build_spec(
        "localhost:9000",
        model="m",
        version="2",
        application="cam",
        arrivals="gamma:100:cv=3",
        deadline="mix:24ms,60ms",
        priority=1,
        rows="1,4",
        shape=["ids=16,64", "image=3x32x32", "scalar="],
        parameter=["late=discard", "report_timing=true", "work_hint=3", "ratio=0.5"],
        payload="random:integers=1000",
        duration="2m",
        warmup="500ms",
        seed=7,
        connections=3,
        patience="1s",
        upload="4ms",
        lateness_warning="2ms",
        send_deadlines=False,
        spin=True,
        title="t",
    )
    (stream,) = spec.streams
    assert spec.target == Target(Transport.HTTP, "localhost", 9000)
    assert stream.arrivals == Gamma(100.0, 3.0)
    assert stream.deadlines == Mix((0.024, 0.06))
    assert (stream.model, stream.version, stream.application) == ("m", "2", "cam")
    assert stream.rows == (1, 4)
    assert stream.shapes == {"ids": ((16,), (64,)), "image": ((3, 32, 32),), "scalar": ((),)}
    expected = {"late": "discard", "report_timing": True, "work_hint": 3, "ratio": 0.5}
    assert stream.parameters == expected
    assert stream.payload == RandomPayload(integers=1000)
    assert (spec.duration, spec.warmup, spec.length) == (120.0, 0.5, 120.5)
    assert (spec.seed, spec.connections, spec.patience, spec.upload) == (7, 3, 1.0, 0.004)
    assert (spec.lateness_warning, spec.send_deadlines, spec.spin) == (0.002, False, True)


def test_several_streams_take_what_they_do_not_say_from_the_flags() -> None:
    spec = build_spec(
        "h",
        deadline="50ms",
        shape=["ids=16"],
        stream=[
            "model=a arrivals=constant:5",
            "model=b deadline=none shape=ids=1 shape=x=2 payload='some file.npz,b.npy' name=bee",
        ],
    )
    first, second = spec.streams
    assert (first.arrivals, first.deadlines) == (Constant(5.0), Fixed(0.05))
    assert first.shapes == {"ids": ((16,),)}
    assert (second.arrivals, second.deadlines) == (Poisson(10.0), None)
    assert second.shapes == {"ids": ((1,),), "x": ((2,),)}
    assert second.payload == FilePayload((Path("some file.npz"), Path("b.npy")))
    assert second.label == "bee"


@pytest.mark.parametrize(
    ("text", "target", "url"),
    [
        ("h", Target(Transport.HTTP, "h", 8000), "http://h:8000"),
        ("h:1/base/", Target(Transport.HTTP, "h", 1, base_path="/base"), "http://h:1/base"),
        ("https://h", Target(Transport.HTTP, "h", 8000, tls=True), "https://h:8000"),
        ("grpc://h", Target(Transport.GRPC, "h", 8001), "grpc://h:8001"),
        ("grpcs://[::1]:5", Target(Transport.GRPC, "::1", 5, tls=True), "grpcs://[::1]:5"),
    ],
)
def test_targets(text: str, target: Target, url: str) -> None:
    assert parse_target(text) == target
    assert target.url == url


def test_traces_are_read_from_files(tmp_path: Path) -> None:
    times, rates = tmp_path / "times.csv", tmp_path / "rates.csv"
    times.write_text("time_s\n0\n0.5\n\n1.5\n")
    rates.write_text("time_s, rate_rps\r\n0,10\r\n5,20\r\n")
    first = build_spec("h", model="m", arrivals=f"trace:{times}").streams[0].arrivals
    second = build_spec("h", model="m", arrivals=f"trace:{rates}").streams[0].arrivals
    assert isinstance(first, Replay)
    assert first.instants.tolist() == [0.0, 0.5, 1.5]
    assert first.describe() == "trace:times.csv"
    assert isinstance(second, RateTrace)
    assert second.rates.tolist() == [10.0, 20.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: expected a header such as time_s or time_s,rate_rps, got ''"),
        ("when\n1\n", "line 1: unknown column 'when'"),
        ("time_s\n", "time_s: the trace is empty"),
        ("time_s\n1\nx\n", "line 3, time_s: expected a number, got 'x'"),
        ("time_s\n1\n\n2,3\n", "line 4: expected 1 values, got 2"),
        ("time_s\n2\n1\n", "line 3, time_s: must not decrease, but comes after 2, got '1'"),
        ("time_s,rate_rps\n0,nan\n", "line 2, rate_rps: expected a finite number"),
        ("time_s,rate_rps\n0,-1\n", "line 2, rate_rps: must not be negative, got '-1'"),
        ("time_s,rate_rps\n0,1\n0,1\n", "line 3, time_s: must rise"),
    ],
)
def test_bad_traces_name_line_and_column(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(LoadSpecError) as caught:
        build_spec("h", model="m", arrivals=f"trace:{path}")
    assert caught.value.flag == "--arrivals"
    assert "t.csv" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "flag", "complaint"),
    [
        ({"model": ""}, "--model", "expected the name of a model"),
        ({"arrivals": "poisson:x"}, "--arrivals", "poisson rate: expected a number"),
        ({"arrivals": "100"}, "--arrivals", "--arrivals: expected a process such as poisson:100"),
        ({"deadline": "soon"}, "--deadline", "--deadline: unknown kind 'soon'"),
        ({"arrivals": "trace:/no/such.csv"}, "--arrivals", "No such file"),
        ({"deadline": "50"}, "--deadline", "expected a duration"),
        ({"priority": 6}, "--priority", "must be 0 to 5"),
        ({"rows": "0"}, "--rows", "must be 1 or more"),
        ({"rows": "a"}, "--rows", "expected a whole number, got 'a'"),
        ({"shape": ["16"]}, "--shape", "expected INPUT=DIMS"),
        ({"shape": ["ids=-1"]}, "--shape", "expected dimensions"),
        ({"shape": ["ids=9..8"]}, "--shape", "expected lengths such as 8..24, got 'ids=9..8'"),
        ({"shape": ["ids=8.."]}, "--shape", "expected lengths such as 8..24"),
        ({"shape": ["ids=1x2..3"]}, "--shape", "expected lengths such as 8..24"),
        ({"shape": ["ids=8..x"]}, "--shape", "expected dimensions"),
        ({"shape": ["a=1,2", "b=1,2,3"]}, "--shape", "equally many"),
        ({"payload": "rnd"}, "--payload", "files that end in .npy"),
        ({"payload": "random:size=3"}, "--payload", "expected random:integers=N"),
        ({"payload": "random:integers=0"}, "--payload", "integers must be at least 1"),
        ({"parameter": ["late"]}, "--parameter", "expected NAME=VALUE"),
        ({"parameter": ["timeout=3"]}, "--parameter", "--deadline sets it"),
        ({"duration": "10"}, "--duration", "expected a duration"),
        ({"duration": "0s"}, "--duration", "must be at least"),
        ({"warmup": "-1s"}, "--warmup", "expected a duration"),
        ({"lateness_warning": "x"}, "--lateness-warning", "expected a duration"),
        ({"upload": "4"}, "--upload", "expected a duration"),
        ({"upload": "4ms", "target": "grpc://h"}, "--upload", "expected an http:// target"),
        ({"seed": -1}, "--seed", "must not be negative"),
        ({"connections": 0}, "--connections", "must be at least 1"),
        ({"stream": ["model=a", "model=a"]}, "--stream", "expected distinct names"),
        ({"stream": ["model=a", "modle=b"]}, "--stream 2, stream", "did you mean 'model'?"),
        ({"stream": ["model=a rows=x"]}, "--stream 1, rows", "expected a whole number"),
        ({"stream": ["model=a model=b"]}, "--stream 1, model", "given twice"),
        ({"stream": ["model='a"]}, "--stream 1, stream", "No closing quotation"),
        ({"target": "ftp://h"}, "TARGET", "expected http(s):// or grpc(s)://"),
        ({"target": "h:99999"}, "TARGET", "expected a port"),
        ({"target": ""}, "TARGET", "expected HOST[:PORT]"),
        ({"target": "grpc://h/base"}, "TARGET", "expected no path prefix with gRPC"),
        ({"token_file": Path("/no/such")}, "--token-file", "cannot read"),
    ],
)
def test_mistakes_name_their_flag(flags: dict[str, Any], flag: str, complaint: str) -> None:
    with pytest.raises(LoadSpecError) as caught:
        build_spec(**{"target": "h", "model": "m", **flags})
    assert caught.value.flag == flag
    assert str(caught.value).startswith(f"{flag}: ")
    assert complaint in str(caught.value)


def test_the_token_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    target = parse_target("h", token_file=path)
    assert target.token == "s3cret"
    assert "s3cret" not in repr(target)
    path.write_text("two\nlines")
    with pytest.raises(LoadSpecError, match="expected a token of printable ASCII"):
        parse_target("h", token_file=path)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("ids=8..11", [8, 9, 10, 11]),
        ("ids=5..5", [5]),
        ("ids=3,8..9", [3, 8, 9]),
        ("ids=0..150", list(range(0, 151, 10))),
    ],
)
def test_a_range_of_lengths(text: str, lengths: list[int]) -> None:
    (stream,) = build_spec("127.0.0.1", model="m", shape=[text]).streams
    assert stream.shapes == {"ids": tuple((length,) for length in lengths)}
