"""Whole runs over HTTP against a fake server: what is sent, how it is judged, what is reported."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from slacktide.lab.load.discover import model_names
from slacktide.lab.load.generate import carry_out, prepare
from slacktide.lab.load.generate import run_load as run_whole
from slacktide.lab.load.run import Progress, StartClock
from slacktide.lab.load.spec import LoadError, Stream, Target, TargetError, Transport
from slacktide.lab.reports import Report
from slacktide.lab.workloads import Constant, Fixed, Mix, Poisson, Replay

Kit = Any


async def test_every_request_is_sent_and_counted(kit: Kit) -> None:
    async with kit.server() as server:
        report, _ = await kit.run(kit.spec(server.target, arrivals=Poisson(300.0)))
    assert report.total.submitted == len(server.calls) > 0
    assert report.goodput == 1.0
    assert report.total.outcomes["served"] == report.total.submitted
    assert report.total.latency is not None
    assert report.total.latency.count == report.total.submitted
    assert not report.interrupted
    assert report.seed == 0
    assert report.configuration["streams"][0]["arrivals"] == "poisson:300"
    assert {"python", "httptools"} <= set(report.provenance.versions)


def test_requests_say_what_they_should(kit: Kit) -> None:
    async def main() -> list[Any]:
        async with kit.server() as server:
            spec = kit.spec(
                server.target,
                application="cam",
                priority=1,
                version="3",
                rows=(2,),
                shapes={"ids": ((7,),)},
                deadlines=Fixed(1.5),
                parameters={"late": "discard"},
            )
            await kit.run(spec)
            return list(server.calls)

    for call in asyncio.run(main()):
        assert call.path == "/v2/models/m/versions/3/infer"
        parameters = call.document["parameters"]
        assert 0 < call.timeout_us <= 1_500_000
        assert parameters["application"] == "cam"
        assert parameters["priority"] == 1
        assert parameters["late"] == "discard"
        assert parameters["binary_data_output"] is True
        shapes = {tensor["name"]: tensor["shape"] for tensor in call.document["inputs"]}
        assert shapes == {"ids": [2, 7], "x": [2, 4]}
        head = int(call.headers["inference-header-content-length"])
        assert len(call.body) - head == 2 * 7 * 8 + 2 * 4 * 4
        assert "authorization" not in call.headers


async def test_the_deadline_can_be_kept_secret(kit: Kit) -> None:
    async with kit.server() as server:
        report, _ = await kit.run(kit.spec(server.target, send_deadlines=False))
        calls = list(server.calls)
    assert {call.timeout_us for call in calls} == {0}
    assert report.goodput == 1.0


async def test_the_timeout_sent_is_what_is_left_of_the_deadline(kit: Kit) -> None:
    """Both requests are due at once, but one connection carries one after the other."""

    async def slow(number: int, call: Any) -> Any:
        await asyncio.sleep(0.02)
        return kit.reply()

    async with kit.server(slow) as server:
        spec = kit.spec(server.target, arrivals=Replay([0.0, 0.0]), connections=1)
        await kit.run(spec)
        first, second = [sent.timeout_us for sent in server.calls]
    assert second <= first - 20_000


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (429, "rejected", "overloaded"),
        (504, "dropped", "timed_out"),
        (503, "rejected", "unavailable"),
        (400, "rejected", "bad_request"),
        (404, "rejected", "bad_request"),
        (500, "failed", "server_error"),
        (302, "failed", "server_error"),
    ],
)
async def test_statuses_become_outcomes(kit: Kit, status: int, kind: str, reason: str) -> None:
    async def refuse(number: int, call: Any) -> Any:
        return kit.error(status, "no <b>room</b>")

    async with kit.server(refuse) as server:
        report, _ = await kit.run(kit.spec(server.target))
        total = (report := report).total
    assert total.outcomes[kind] == total.submitted == 10
    assert total.reasons == {reason: 10}
    assert total.goodput == 0.0
    assert total.latency is None
    assert (total.refusal_latency is not None) == (kind in ("rejected", "dropped"))
    assert report.errors == {f"{reason}: {status} no <b>room</b>": 10}


async def test_a_late_answer_is_late_and_best_effort_is_never_late(kit: Kit) -> None:
    async def slow(number: int, call: Any) -> Any:
        await asyncio.sleep(0.03)
        return kit.reply()

    async with kit.server(slow) as server:
        arrivals = Replay([0.0])
        streams = (
            Stream("m", arrivals, Fixed(0.01), name="tight"),
            Stream("m", arrivals, None, name="best effort"),
        )
        report, _ = await kit.run(kit.spec(server.target, streams=streams))
        tight, best_effort = report.streams
    assert tight.reasons == {"after_deadline": 1}
    assert best_effort.reasons == {"on_time": 1}


async def test_no_coordinated_omission(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server stalls, requests keep coming due and every one of them feels the stall:
    each ends after it, and its latency counts from when it should have left."""
    stall: list[float] = []
    clocks: list[StartClock] = []

    def clock() -> StartClock:
        clocks.append(StartClock())
        return clocks[-1]

    monkeypatch.setattr("slacktide.lab.load.generate.StartClock", clock)

    passed = asyncio.Event()

    async def script(number: int, call: Any) -> Any:
        if number == 20:
            stall.append(time.monotonic())
            await asyncio.sleep(0.3)
            stall.append(time.monotonic())
            passed.set()
        elif stall:
            await passed.wait()
        return kit.reply()

    async with kit.server(script) as server:
        # Two connections: a closed loop would let only two requests feel anything.
        report, ledger = await kit.run(kit.spec(server.target, duration=0.8, connections=2))
    begins, ends = (instant - clocks[0].origin for instant in stall)
    assert report.total.submitted == report.total.outcomes["served"] == 80

    # Whatever was due during the stall left during or after it, so it cannot have ended before.
    due_times, latency = np.array(ledger.due), ledger.latency()
    during = (due_times >= begins) & (due_times < ends)
    assert during.sum() >= 10
    assert np.all(latency[during] >= ends - due_times[during])
    assert report.total.latency is not None
    assert report.total.latency.max >= ends - begins

    # With both connections busy the others waited in line: lateness shows it, warnings say so.
    late = ledger.lateness()[during] >= ends - due_times[during]
    assert late.sum() >= during.sum() - 2
    assert any("all 2 connections were busy" in warning for warning in report.warnings)
    assert any("the load generator was late" in warning for warning in report.warnings)


async def test_latency_is_at_least_lateness(kit: Kit) -> None:
    async with kit.server() as server:
        _, ledger = await kit.run(kit.spec(server.target, arrivals=Poisson(500.0)))
    assert np.all(ledger.lateness() >= 0.0)
    assert np.all(ledger.latency() >= ledger.lateness())


async def test_connections_are_kept_alive_and_reused(kit: Kit) -> None:
    async with kit.server() as server:
        await kit.run(kit.spec(server.target, arrivals=Constant(100.0), connections=1))
    assert len(server.calls) == 10
    assert server.connections == 1


async def test_as_many_connections_open_as_requests_wait(kit: Kit) -> None:
    gathered = asyncio.Event()

    async def script(number: int, call: Any) -> Any:
        if number == 9:
            gathered.set()
        await gathered.wait()
        return kit.reply()

    async with kit.server(script) as server:
        report, _ = await kit.run(kit.spec(server.target, arrivals=Replay([0.0] * 10)))
    assert server.connections == 10
    assert report.goodput == 1.0


async def test_a_server_that_closes_after_each_answer_costs_nothing_but_connections(
    kit: Kit,
) -> None:
    async def closing(number: int, call: Any) -> Any:
        return kit.reply(close=True)

    async with kit.server(closing) as server:
        report, _ = await kit.run(kit.spec(server.target))
    assert report.total.reasons == {"on_time": 10}
    assert server.connections == 10


@pytest.mark.parametrize(
    "part",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"nonsense"],
)
async def test_a_broken_connection_is_a_transport_error_and_the_run_goes_on(
    kit: Kit, part: bytes
) -> None:
    async def script(number: int, call: Any) -> Any:
        return kit.reply(cut=True, part=part) if number % 2 else kit.reply()

    async with kit.server(script) as server:
        report, _ = await kit.run(kit.spec(server.target, connections=1))
        total = report.total
    assert total.reasons == {"on_time": 5, "transport_error": 5}
    assert total.outcomes["failed"] == 5


async def test_a_server_that_goes_away_is_a_transport_error(kit: Kit) -> None:
    async with kit.server() as server:
        prepared = await prepare(kit.spec(server.target))
    report, _ = await carry_out(prepared)
    assert report.total.reasons == {"transport_error": 10}
    assert any("cannot connect" in text for text in report.errors)


async def test_patience_ends_and_the_server_sees_its_client_leave(kit: Kit) -> None:
    async def never(number: int, call: Any) -> Any:
        await asyncio.Event().wait()

    async with kit.server(never) as server:
        spec = kit.spec(server.target, deadlines=Fixed(0.02), patience=0.3)
        report, _ = await kit.run(spec)
        # On a busy machine a request may be given up before it is there.
        while server.disconnects < len(server.calls):
            await asyncio.sleep(0.001)
        assert server.disconnects >= 1
    assert report.total.reasons == {"gave_up": 10}
    assert report.total.outcomes["cancelled"] == 10


async def test_the_warm_up_is_not_scored(kit: Kit) -> None:
    async def cold(number: int, call: Any) -> Any:
        return kit.error(503, "cold") if number < 10 else kit.reply()

    async with kit.server(cold) as server:
        report, ledger = await kit.run(kit.spec(server.target, warmup=0.1))
    assert ledger.submitted == 20
    assert report.total.reasons == {"on_time": 10}
    assert (report.warmup_s, report.duration_s) == (0.1, pytest.approx(0.1))


async def test_streams_are_reported_apart_and_together(kit: Kit) -> None:
    async def picky(number: int, call: Any) -> Any:
        guest = call.document["parameters"].get("application") == "guest"
        return kit.error(429, "busy") if guest else kit.reply()

    async with kit.server(picky) as server:
        streams = (
            Stream("m", Constant(100.0), Mix((0.5, 1.0)), application="host"),
            Stream("m", Constant(50.0), None, application="guest", rows=(1, 2)),
        )
        report, _ = await kit.run(kit.spec(server.target, streams=streams))
    assert [stream.name for stream in report.streams] == ["m/host", "m/guest"]
    assert [stream.goodput for stream in report.streams] == [1.0, 0.0]
    assert [stream.submitted for stream in report.streams] == [10, 5]
    assert report.total.submitted == 15
    assert report.total.outcomes["rejected"] == 5
    assert report.timeline.arrivals == (15,)


async def test_stopping_ends_with_a_report_of_what_was_done(kit: Kit) -> None:
    stop = asyncio.Event()

    async def script(number: int, call: Any) -> Any:
        if number == 5:
            stop.set()
        return kit.reply()

    async with kit.server(script) as server:
        spec = kit.spec(server.target, duration=60.0)
        report = await run_whole(spec, stop=stop)
    assert report.interrupted
    assert 0.0 < report.duration_s < 60.0
    assert report.total.submitted == len(server.calls) >= 6
    assert report.goodput == 1.0


async def test_stopping_during_the_warm_up_reports_an_empty_window(kit: Kit) -> None:
    stop = asyncio.Event()
    stop.set()
    async with kit.server() as server:
        report = await run_whole(kit.spec(server.target, warmup=10.0), stop=stop)
    assert report.interrupted
    assert report.total.submitted == 0
    assert report.duration_s == 0.0
    assert Report.from_json(report.to_json()).total == report.total


async def test_progress_ends_with_everything_and_a_failing_observer_is_removed(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Progress] = []

    def broken(progress: Progress) -> None:
        raise RuntimeError("observer")

    async with kit.server() as server:
        await run_whole(kit.spec(server.target), calls.append)
        report = await run_whole(kit.spec(server.target, duration=0.4), broken)
    last = calls[-1]
    assert (last.planned, last.submitted, last.ended, last.on_time) == (10, 10, 10, 10)
    assert report.goodput == 1.0
    assert caplog.text.count("observer failed and was removed") == 1


async def test_spinning_sends_the_same_requests(kit: Kit) -> None:
    async with kit.server() as server:
        report, _ = await kit.run(kit.spec(server.target, spin=True))
        assert report.total.reasons == {"on_time": 10}


async def test_the_token_travels_and_stays_out_of_the_report(kit: Kit) -> None:
    async with kit.server() as server:
        target = Target(Transport.HTTP, "127.0.0.1", server.port, token="hush")
        report, _ = await kit.run(kit.spec(target))
        calls = list(server.calls)
    assert {call.headers["authorization"] for call in calls} == {"Bearer hush"}
    assert b"hush" not in report.to_json()
    assert "hush" not in repr(calls and report.configuration)


async def test_an_unknown_model_or_a_missing_server_ends_the_run_before_it_starts(kit: Kit) -> None:
    async with kit.server() as server:
        target = server.target
        with pytest.raises(TargetError, match="model 'other': 404 unknown model"):
            await run_whole(kit.spec(target, model="other"))
    with pytest.raises(LoadError, match="cannot connect to http://127"):
        await run_whole(kit.spec(target))


async def test_a_server_without_configuration_is_understood_from_its_shapes(kit: Kit) -> None:
    async with kit.server(config=None) as server:
        await kit.run(kit.spec(server.target, rows=(3,)))
        shapes = {tuple(call.document["inputs"][1]["shape"]) for call in list(server.calls)}
    assert shapes == {(3, 4)}


async def test_tls(kit: Kit, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)

    async with kit.server(tls=tls) as server:
        target = Target(Transport.HTTP, "127.0.0.1", server.port, tls=True)
        with pytest.raises(TargetError, match="cannot connect"):
            await run_whole(kit.spec(target))  # the system does not know this authority
        with pytest.raises(TargetError, match="cannot use the certificates"):
            await run_whole(kit.spec(replace(target, ca_file=tmp_path / "absent")))
        report, _ = await kit.run(kit.spec(replace(target, ca_file=ca_file)))
        assert report.goodput == 1.0


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, "invalid metadata: KeyError('inputs')"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": ["a"]}]}, "invalid metadata"),
        ({"inputs": [{"name": "x", "datatype": "FP8", "shape": [1]}]}, "unknown datatype 'FP8'"),
    ],
)
def test_metadata_that_cannot_be_used_is_refused(
    kit: Kit, metadata: dict[str, Any], complaint: str
) -> None:
    async def main() -> None:
        async with kit.server(metadata=metadata) as server:
            await run_whole(kit.spec(server.target))

    with pytest.raises(TargetError) as caught:
        asyncio.run(main())
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "statistics", [{}, [], {"model_stats": [7]}, {"model_stats": None}], ids=str
)
def test_statistics_that_name_no_models_are_refused(kit: Kit, statistics: Any) -> None:
    async def main() -> None:
        async with kit.server(metadata=statistics) as server:
            await model_names(server.target)

    with pytest.raises(TargetError, match="invalid statistics"):
        asyncio.run(main())
