"""Whole runs over a link: what the server is told, what the report says, that all of it ends."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
import uvloop

from slacktide.lab.load.build import build_spec
from slacktide.lab.load.request_log import LinkModel
from slacktide.lab.load.spec import LoadError, LoadSpecError, Target, Transport
from slacktide.lab.netem import LinkProcess
from slacktide.lab.netem.proxy import Carried
from slacktide.lab.reports import Report
from slacktide.lab.workloads import BandwidthTrace, ConstantLink, Fixed, Replay, TraceLink

Kit = Any

HTTP = Target(Transport.HTTP, "h", 1)


async def test_the_server_is_told_what_the_link_leaves_and_hears_it_first(kit: Kit) -> None:
    link = ConstantLink(bandwidth=100_000.0, rtt=0.02)

    async with kit.server() as server:
        spec = kit.spec(server.target, link=link, application="cam", deadlines=Fixed(3.0))
        report, ledger = await kit.run(spec)
    assert report.total.reasons == {"on_time": 10}
    assert report.configuration["link"] == "0.8 Mbit/s, 20 ms there and back"
    # 3 s from when the client had the input, less what it waited itself, less both ways.
    timeouts = sorted(call.timeout_us / 1e6 for call in server.calls)
    assert timeouts == pytest.approx(sorted(3.0 - 0.02 - ledger.lateness()), abs=2e-6)
    size = max(len(call.body) for call in server.calls)
    for call in server.calls:
        assert float(call.headers["x-request-timeout-seconds"]) * 1e6 == pytest.approx(
            call.timeout_us, abs=2
        )
        assert call.headers["slacktide-application"] == "cam"
        assert call.headers["host"] == server.target.authority
    assert report.network is not None
    assert report.network.count == 10
    assert report.network.p50 > 0.02 + size / 100_000.0
    # What the link takes, no answer can be earlier than; departures are known exactly.
    assert np.all(ledger.latency() - ledger.lateness() >= ledger.network() - 1e-6)


async def test_requests_sent_in_an_outage_wait_for_its_end(kit: Kit) -> None:
    trace = BandwidthTrace([0.0, 0.15], [0.0, 1e7], period=30.0)

    async with kit.server() as server:
        spec = kit.spec(
            server.target, link=TraceLink(trace), arrivals=Replay([0.0, 0.05]), duration=0.1
        )
        report, ledger = await kit.run(spec)
    assert report.total.reasons == {"on_time": 2}
    assert np.all(ledger.latency() >= [0.15, 0.10])
    # The wait is counted: the server believes no more is left than there is.
    timeouts = sorted(call.timeout_us / 1e6 for call in server.calls)
    due_times = np.array(ledger.due)
    first_byte = np.maximum(0.15, due_times + ledger.lateness())
    assert timeouts == pytest.approx(sorted(due_times + 5.0 - first_byte), abs=2e-6)


async def test_over_a_link_that_never_carries_anything_requests_are_given_up(kit: Kit) -> None:
    link = TraceLink(BandwidthTrace([0.0], [0.0]))

    async with kit.server() as server:
        spec = kit.spec(server.target, link=link, deadlines=Fixed(0.02), patience=0.01)
        report, _ = await kit.run(spec)
    assert report.total.reasons == {"gave_up": 10}
    assert report.network is None
    assert server.calls == []


def test_all_requests_may_share_a_link(kit: Kit) -> None:
    async def main(shared: bool) -> Any:
        async with kit.server() as server:
            spec = kit.spec(
                server.target,
                link=ConstantLink(20_000.0),
                shared_link=shared,
                arrivals=Replay([0.0] * 5),
            )
            return await kit.run(spec)

    report, ledger = uvloop.run(main(True))
    assert report.total.reasons == {"on_time": 5}
    assert report.configuration["shared_link"]
    ends = np.sort(ledger.lateness() + ledger.network())
    assert np.all(np.diff(ends) >= ledger.network().min() - 1e-9)
    assert np.all(np.sort(ledger.latency()) >= ends - 1e-6)
    report, ledger = uvloop.run(main(False))
    assert np.ptp(ledger.network()) == pytest.approx(0.0, abs=1e-9)


async def test_tls_goes_through_and_names_the_server(kit: Kit, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)

    async with kit.server(tls=tls) as server:
        target = Target(Transport.HTTP, "localhost", server.port, tls=True, ca_file=ca_file)
        report, _ = await kit.run(kit.spec(target, link=ConstantLink(1e6, 0.01)))
        assert report.goodput == 1.0


async def test_a_proxy_that_cannot_start_says_why(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slacktide.lab.netem.process._MAIN", "import slacktide.nowhere")

    async with kit.server() as server:
        spec = kit.spec(server.target, link=ConstantLink(1e6))
        with pytest.raises(LoadError, match=r"--link: no proxy: it ended with status 1: .*now"):
            await kit.run(spec)


def test_a_proxy_that_dies_breaks_connections_and_the_report_says_so(kit: Kit) -> None:
    processes: list[LinkProcess] = []
    start = LinkProcess.__aenter__

    async def noted(self: LinkProcess) -> LinkProcess:
        processes.append(self)
        return await start(self)

    async def main() -> Report:
        async def script(number: int, call: Any) -> Any:
            if number == 3:
                processes[0]._process.kill()
            return kit.reply()

        async with kit.server(script) as server:
            report, _ = await kit.run(kit.spec(server.target, link=ConstantLink(1e6)))
            return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinkProcess, "__aenter__", noted)
        report = uvloop.run(main())
    assert report.total.outcomes["failed"] >= 6
    assert "the link failed: it ended with status -9: no output" in report.warnings


def test_warnings_are_for_what_a_reader_should_know() -> None:
    link = LinkProcess(ConstantLink(1e6), "h", 1)
    link.carried = Carried(3, 0, 10, 10, 0.004)
    assert link.warnings(0.005) == ()
    link.carried = Carried(3, 2, 10, 10, 0.006)
    late, unreachable = link.warnings(0.005)
    assert "the emulated link was late: 6.0 ms at p99 (threshold: 5 ms)" in late
    assert "did not accept 2 connections" in unreachable


PROGRAM = """
import sys
from slacktide.lab.load.build import build_spec
from slacktide.lab.load.generate import run_load_sync
spec = build_spec(
    sys.argv[1], model="m", arrivals="constant:100", deadline="5s", duration="60s",
    link="20Mbit/s", rtt="5ms",
)
sys.stdout.buffer.write(run_load_sync(spec).to_json())
"""


async def test_an_interrupt_ends_a_run_over_a_link_in_order(kit: Kit) -> None:
    """Ctrl-C reaches the whole group; the proxy lives on until the last answers are there."""

    enough = asyncio.Event()

    async def script(number: int, call: Any) -> Any:
        if number == 10:
            enough.set()
        return kit.reply()

    async with kit.server(script) as server:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, server.target.url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        await enough.wait()
        os.killpg(child.pid, signal.SIGINT)
        out, err = await child.communicate()
        code = child.returncode
    assert (code, err) == (0, b"")
    report = Report.from_json(out)
    assert report.interrupted
    assert report.goodput == 1.0
    assert not [warning for warning in report.warnings if "link failed" in warning]


# ── what is asked for ────────────────────────────────────────────────────────────────────────────


def test_links_are_asked_for_in_words(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("trace_id,time_s,bandwidth_mbps\n1,0,8\n2,0,4\n2,2,0\n")
    spec = build_spec("h", model="m", link=f"{tmp_path}/t.csv:only=2:offset=1s", rtt="40ms")
    assert isinstance(spec.link, TraceLink)
    assert (spec.link.rtt, spec.link.offset) == (0.04, 1.0)
    assert spec.link.trace.rates.tolist() == [500_000.0, 0.0]
    constant = build_spec("h", model="m", link="5Mbit/s", shared_link=True)
    assert (constant.link, constant.shared_link) == (ConstantLink(625_000.0), True)
    assert build_spec("h", model="m").link is None


@pytest.mark.parametrize(
    ("flags", "flag", "complaint"),
    [
        ({"link": "5Mbps"}, "--link", "expected a rate such as 5Mbit/s or 2MB/s, 4g, 5g or a file"),
        ({"link": "no.csv"}, "--link", "cannot read no.csv: No such file"),
        ({"link": "0bit/s"}, "--link", "bandwidth: must be positive"),
        ({"link": "4g", "rtt": "40"}, "--rtt", "expected a duration"),
        ({"rtt": "40ms"}, "--rtt", "needs --link"),
        ({"shared_link": True}, "--shared-link", "needs --link"),
        ({"link": "4g", "upload": "4ms"}, "--upload", "expected none with --link"),
    ],
)
def test_mistakes_name_their_flag(flags: dict[str, Any], flag: str, complaint: str) -> None:
    with pytest.raises(LoadSpecError) as caught:
        build_spec("h", model="m", **flags)
    assert caught.value.flag == flag
    assert complaint in str(caught.value)


def test_which_link_a_request_takes(kit: Kit) -> None:
    link = ConstantLink(1000.0, rtt=0.5)
    alone = kit.spec(HTTP, link=link)
    grpc = replace(alone, target=Target(Transport.GRPC, "h", 1), connections=2)
    shared = replace(alone, shared_link=True)
    assert LinkModel.of(kit.spec(HTTP), [1]) is None
    # Whole trips of three requests that leave at 0, of 1000, 500 and 1000 bytes.
    expected = [(alone, [1.5, 1.0, 1.5]), (grpc, [1.5, 1.0, 2.5]), (shared, [1.5, 2.0, 3.0])]
    for spec, trips in expected:
        model = LinkModel.of(spec, [1000, 500])
        assert model is not None
        delays = [model.delay(index, payload, now=0.0) for index, payload in enumerate((0, 1, 0))]
        assert [trip.whole for trip in delays] == pytest.approx(trips)
        # The server counts from the first byte: the body's own time is no secret to it.
        sizes = (1.0, 0.5, 1.0)
        unseen = [trip.whole - body_s for trip, body_s in zip(delays, sizes, strict=True)]
        assert [trip.unseen for trip in delays] == pytest.approx(unseen)
    never = LinkModel([TraceLink(BandwidthTrace([0.0], [0.0]))], [1])
    assert never.delay(0, 0, now=0.0) == (math.inf, math.inf)
