"""Clients that leave, limits on connections, draining, ports, and the access log."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import fields

import pytest
from tests.frontends.contract.speaker import infer_call
from tests.frontends.doubles import FakeControlPlane, FakeDataPlane, refusing

from slacktide.domain import Reason


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_client_that_leaves_cancels_what_waits(speak, how):
    async with speak() as speaker:
        speaker.data.holds = True
        exchange = await speaker.send(infer_call())
        await speaker.data.until(lambda: speaker.data.held)
        await exchange.leave(how)
        await speaker.data.until(lambda: speaker.data.cancelled)
        assert speaker.data.cancelled == [("7", speaker.abandoned)]
        assert [record.status in (499, "CANCELLED") for record in speaker.log] == [True]
        speaker.data.calls[0].answer()  # an answer that crosses the cancellation goes nowhere


async def test_an_answered_call_is_not_cancelled(speak):
    async with speak() as speaker:
        assert (await speaker.ask(infer_call())).is_ok
        await speaker.close()
        await speaker.server.close()
        assert speaker.data.cancelled == []


async def test_connections_are_limited(speak):
    async with speak(max_connections=2) as speaker:
        for _ in range(2):
            assert (await speaker.ask(infer_call())).is_ok
        exchange = await speaker.send(infer_call())
        reply = await exchange.reply()
        assert reply.status in (503, "UNAVAILABLE")
        assert reply.status == "UNAVAILABLE" or reply.fields["connection"] == "close"


async def test_a_drain_answers_what_is_here_and_takes_no_more(speak):
    async with speak() as speaker:
        speaker.data.holds = True
        exchange = await speaker.send(infer_call("a"))
        await speaker.data.until(lambda: speaker.data.held)
        draining = asyncio.create_task(speaker.server.drain(20))
        await speaker.until(lambda: speaker.server._context.draining)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", speaker.server.port)
        assert not draining.done()
        speaker.data.release("a")
        assert (await exchange.reply()).is_ok
        assert await draining is True
        assert speaker.data.cancelled == []


async def test_a_drain_gives_up_in_the_end_and_what_waits_is_cancelled(speak):
    async with speak() as speaker:
        speaker.data.holds = True
        exchange = await speaker.send(infer_call("a"))
        await speaker.data.until(lambda: speaker.data.held)
        assert await speaker.server.drain(0.02) is False
        await speaker.server.close()
        await speaker.server.close()
        assert speaker.data.cancelled == [("a", speaker.abandoned)]
        assert speaker.server.connections == 0
        assert not (await exchange.reply()).is_ok


async def test_an_address_that_cannot_be_had_is_told_as_a_plain_socket_would(speak):
    async with speak() as speaker:
        second = speaker.make_server((FakeDataPlane(), FakeControlPlane()))
        with pytest.raises(OSError, match="Address already in use") as in_use:
            await second.start("127.0.0.1", speaker.server.port)
        with pytest.raises(OSError, match="Cannot assign requested address") as elsewhere:
            await second.start("192.0.2.1", 0)
        with pytest.raises(socket.gaierror):
            await second.start("no-such-host.invalid", 0)
        assert second.port == 0
        assert (in_use.value.errno, elsewhere.value.errno) == (
            errno.EADDRINUSE,
            errno.EADDRNOTAVAIL,
        )


async def test_the_access_log_has_a_line_for_every_call(speak):
    async with speak() as speaker:
        await speaker.ask(infer_call("good"))
        speaker.data.answer = refusing(Reason.QUEUE_FULL)
        await speaker.ask(infer_call("busy"))
        speaker.data.holds = True
        exchange = await speaker.send(infer_call("gone"))
        await speaker.data.until(lambda: speaker.data.held)
        await exchange.leave("cancel")
        await speaker.data.until(lambda: speaker.data.cancelled)
        statuses = [(200, "OK"), (429, "RESOURCE_EXHAUSTED"), (499, "CANCELLED")]
        for record, id, pair in zip(speaker.log, ("good", "busy", "gone"), statuses, strict=True):
            assert record.request_id == id
            assert record.status in pair
            assert record.method in ("POST", "/inference.GRPCInferenceService/ModelInfer")
            assert record.target in ("/v2/models/m/infer", "m")
            assert record.client == "127.0.0.1"
            assert record.seconds >= 0
        reasons = [record.outcome and record.outcome.reason for record in speaker.log]
        gone = Reason.DISCONNECTED if speaker.transport == "http" else None
        assert reasons == [Reason.ON_TIME, Reason.QUEUE_FULL, gone]


def test_settings_must_be_positive(protocol):
    kind = protocol.kind.settings
    for field in fields(kind):
        if type(field.default) in (int, float):
            with pytest.raises(ValueError, match=field.name):
                kind(**{field.name: 0})
