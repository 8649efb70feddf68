"""Bodies that follow their headers, over HTTP against a fake server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from slacktide.lab.load.spec import LoadSpecError, Target, Transport
from slacktide.lab.workloads import Fixed, Replay

Kit = Any


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.usefixtures("run")
async def test_bodies_leave_later_than_their_headers(kit: Kit) -> None:
    async with kit.server() as server:
        spec = kit.spec(server.target, upload=0.02, connections=1, arrivals=Replay([0.0]))
        report, ledger = await kit.run(spec)
    assert report.total.reasons == {"on_time": 1}
    assert report.configuration["upload_s"] == 0.02
    (call,) = server.calls
    # From when the headers left, which may have been late: the answer cannot be earlier.
    assert ledger.latency()[0] - ledger.lateness()[0] >= 0.02 - 1e-9
    assert call.document["inputs"]
    assert call.timeout_us / 1e6 == pytest.approx(
        float(call.headers["x-request-timeout-seconds"]), abs=2e-6
    )


async def test_the_connection_is_used_again_after_a_whole_request(kit: Kit) -> None:
    async with kit.server() as server:
        report, _ = await kit.run(kit.spec(server.target, upload=0.001, connections=1))
    assert report.total.reasons == {"on_time": 10}
    assert server.connections == 1


@pytest.mark.parametrize(("status", "reason"), [(429, "overloaded"), (200, "on_time")])
async def test_an_answer_to_the_headers_keeps_the_body_back_and_costs_the_connection(
    kit: Kit, status: int, reason: str
) -> None:
    """A good answer, too: the server may still wait for the body."""

    def answer(number: int, headers: dict[str, str]) -> Any:
        return kit.error(status, "done")

    async with kit.server(gate=answer) as server:
        report, _ = await kit.run(kit.spec(server.target, upload=60.0, connections=1))
        while len(server.left_over) < 10:  # until the server has seen each of them leave
            await asyncio.sleep(0)
    assert report.total.reasons == {reason: 10}
    assert (server.left_over, server.calls) == ([b""] * 10, [])


async def test_a_server_that_leaves_before_the_body_is_a_transport_error(kit: Kit) -> None:
    def leave(number: int, headers: dict[str, str]) -> Any:
        raise ConnectionResetError

    async with kit.server(gate=leave) as server:
        report, _ = await kit.run(kit.spec(server.target, upload=0.02))
        assert report.total.reasons == {"transport_error": 10}


async def test_patience_may_end_before_the_body_leaves(kit: Kit) -> None:
    async with kit.server() as server:
        spec = kit.spec(server.target, upload=60.0, deadlines=Fixed(0.02), patience=0.01)
        report, _ = await kit.run(spec)
    assert report.total.reasons == {"gave_up": 10}
    assert server.calls == []


def test_the_server_is_told_nothing_ahead_that_it_is_not_to_know(kit: Kit) -> None:
    async def main() -> Any:
        async with kit.server() as server:
            spec = kit.spec(server.target, upload=0.001, send_deadlines=False, application="cam")
            await kit.run(spec)
            return server

    for call in uvloop.run(main()).calls:
        assert "x-request-timeout-seconds" not in call.headers
        assert call.headers["slacktide-application"] == "cam"
        assert call.timeout_us == 0


def test_a_delay_that_cannot_be_is_refused(kit: Kit) -> None:
    target = Target(Transport.HTTP, "h", 1)
    for upload in (-0.001, float("inf"), float("nan")):
        with pytest.raises(LoadSpecError, match="upload: must be at least 0 s"):
            kit.spec(target, upload=upload)
    with pytest.raises(LoadSpecError, match="upload: expected an http:// target"):
        kit.spec(Target(Transport.GRPC, "h", 1), upload=0.001)
