"""Long bodies: announced by their head, received in place, given up when they do not come."""

from __future__ import annotations

import pytest
from tests.frontends.contract.speaker import infer_call

from slacktide.testing import FakeClock

LONG = 600_000


async def test_a_long_body_is_announced_and_comes_into_its_place(speak):
    async with speak() as speaker:
        sent = infer_call(nbytes=LONG)
        exchange = await speaker.begin(sent, fields={"slacktide-application": "camera"})
        await speaker.data.until(lambda: speaker.data.announced)
        assert speaker.data.calls == []
        await exchange.finish()
        reply = await exchange.reply()
        (call,) = speaker.data.announced
        assert (call.model, call.version) == ("m", None)
        assert call.length == exchange.length
        assert call.parameters == {"application": "camera"}
        assert (call.context.client, call.context.transport) == ("127.0.0.1", speaker.transport)
        assert call.steps == ["announce", "submit"]
        assert bytes(sent.inputs[0].data) in bytes(call.memory)
        assert call.infer.inputs[0].data == reply.outputs[0].data == sent.inputs[0].data


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_client_that_leaves_in_its_body_takes_the_call_back(speak, how):
    async with speak() as speaker:
        exchange = await speaker.begin(infer_call(nbytes=LONG))
        await speaker.data.until(lambda: speaker.data.announced)
        await exchange.leave(how)
        await speaker.data.until(lambda: speaker.data.cancelled)
        how_it_ends = "disconnected" if speaker.transport == "http" else "no_body"
        assert speaker.steps == [["announce", f"cancel {how_it_ends}"]]
        assert speaker.data.calls == []


async def test_a_body_that_does_not_come_is_given_up(speak):
    clock = FakeClock()
    async with speak(clock=clock, body_timeout_s=5) as speaker:
        exchange = await speaker.begin(infer_call(nbytes=LONG))
        await speaker.data.until(lambda: speaker.data.announced)
        clock.now += 30
        reply = await exchange.reply()
        assert reply.status in (408, "CANCELLED")
        assert reply.message in ("the body took too long", "the message did not arrive in time")
        assert speaker.steps == [["announce", "cancel no_body"]]
        assert speaker.data.calls == []
