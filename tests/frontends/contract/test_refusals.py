"""Calls that get no result: their status, their reason, and what they state in numbers."""

from __future__ import annotations

import re

import pytest
from tests.frontends.contract.speaker import infer_call
from tests.frontends.doubles import refusing

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire.calls import InferReply
from slacktide.wire.status import status_of

WITHOUT_RESULT = [reason for reason in Reason if reason.kind is not OutcomeKind.SERVED]
STATUSES = {
    Reason.BEHIND_WORK: ((429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")),
    Reason.MEMORY_LIMIT: ((429, "RESOURCE_EXHAUSTED"), (503, "UNAVAILABLE")),
    Reason.EXPIRED: ((504, "DEADLINE_EXCEEDED"), (503, "UNAVAILABLE")),
    Reason.UNAVAILABLE: ((503, "UNAVAILABLE"), (503, "UNAVAILABLE")),
    Reason.CRASHED: ((500, "INTERNAL"), (500, "INTERNAL")),
    Reason.BAD_INPUT: ((400, "INVALID_ARGUMENT"), (400, "INVALID_ARGUMENT")),
    Reason.NOT_FOUND: ((404, "NOT_FOUND"), (404, "NOT_FOUND")),
    Reason.AFTER_DEADLINE: ((504, "DEADLINE_EXCEEDED"), (503, "UNAVAILABLE")),
}
"""Usual and strict statuses of some reasons; the table of all is `slacktide.wire.status`."""


def refused_with(**numbers: float) -> InferReply:
    outcome = Outcome(Reason.BEHIND_WORK, 0.0, **numbers)
    return InferReply(outcome, "m", "1", "", None, "too much ahead", retry_after_s=2.5)


@pytest.mark.parametrize("strict", [False, True])
async def test_every_reason_ends_in_its_status(speak, strict):
    async with speak(triton_strict=strict) as speaker:
        for reason in WITHOUT_RESULT:
            speaker.data.answer = refusing(reason, f"because of {reason.label}", 0.2)
            reply = await speaker.ask(infer_call())
            expected = status_of(reason, has_result=False, triton_strict=strict)
            assert expected == STATUSES.get(reason, (expected, expected))[strict]
            assert reply.status in expected
            assert reply.message == f"because of {reason.label}"
            assert reply.fields["slacktide-reason"] == reason.label
            assert speaker.log[-1].outcome.reason is reason
            assert expected.http != 429 or reply.fields["retry-after"] == "1"


async def test_a_refusal_says_when_to_come_back(speak):
    async with speak() as speaker:
        speaker.data.answer = refusing(Reason.QUEUE_FULL, "full", 0.25)
        reply = await speaker.ask(infer_call())
        assert reply.fields["retry-after"] == "1"
        if speaker.transport == "grpc":
            assert reply.fields["grpc-retry-pushback-ms"] == "250"
            speaker.data.answer = refusing(Reason.QUEUE_FULL, "full")
            assert "retry-after" not in (await speaker.ask(infer_call())).fields


@pytest.mark.parametrize(
    ("stated", "numbers"),
    [
        ({"budget_s": 0.05, "needed_s": 0.01}, {"budget_us": 50_000, "needed_us": 10_000}),
        (
            {"budget_s": 0.05, "needed_s": 0.0123456, "wait_s": 0.1},
            {"budget_us": 50_000, "needed_us": 12_346, "queue_us": 100_000},
        ),
    ],
)
async def test_a_refusal_says_how_much_time_was_short(speak, stated, numbers):
    async with speak() as speaker:
        speaker.data.answer = lambda call: refused_with(**stated)
        assert (await speaker.ask(infer_call())).numbers == numbers


async def test_an_announced_call_may_be_refused_before_its_body(speak):
    async with speak() as speaker:
        speaker.data.refusal = refused_with(budget_s=0.05)
        reply = await (await speaker.begin(infer_call(nbytes=600_000))).reply()
        assert reply.status in (429, "RESOURCE_EXHAUSTED")
        assert reply.message == "too much ahead"
        assert reply.fields["slacktide-reason"] == "behind_work"
        assert reply.fields["retry-after"] == "3"
        assert reply.numbers == {"budget_us": 50_000}
        assert speaker.data.calls == []


async def test_a_refusal_for_lack_of_time_states_what_reading_took(speak):
    async with speak() as speaker:
        for reason, nbytes, states_it in (
            (Reason.SHORTER_THAN_ALONE, 200_000, True),
            (Reason.SHORTER_THAN_ALONE, 40, False),
            (Reason.RUNTIME_ERROR, 200_000, False),
        ):
            outcome = Outcome(reason, 1.0, budget_s=0.01)
            speaker.data.answer = lambda call, outcome=outcome: InferReply(
                outcome, call.model, "1", call.id, None, "no"
            )
            reply = await speaker.ask(infer_call(nbytes=nbytes), text=True)
            assert reply.status in status_of(reason)
            assert (reply.numbers.get("read_us", 0) > 0) is states_it
            assert ("send " in reply.message) is states_it


@pytest.mark.replaces_parts
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_long_text_is_read_beside_the_loop(speak, monkeypatch, encoding):
    """Whether it is announced, packed or neither, and also what is wrong with it."""
    lengths = []
    async with speak() as speaker:
        module, name = speaker.parser
        real = getattr(module, name)

        def spy(data, *rest):
            lengths.append(len(data))
            return real(data, *rest)

        monkeypatch.setattr(module, name, spy)
        sent = infer_call(nbytes=240_000)
        reply = await speaker.ask(sent, encoding=encoding, text=True)
        assert reply.outputs[0].data == sent.inputs[0].data
        sent.inputs[0].shape = (1, 60_001)
        reply = await speaker.ask(sent, encoding=encoding, text=True)
        assert reply.status in (400, "INVALID_ARGUMENT")
        assert re.search("expected 60001 values.*, got 60000", reply.message)
        assert [row[:2] for row in speaker.data.refused] == [("m", Reason.BAD_INPUT)]
        assert max(lengths) < DIRECT_BYTES
        if speaker.data.announced:
            assert speaker.steps == [["announce", "submit"], ["announce", "refuse bad_input"]]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_refused_and_never_inflated(speak, encoding):
    async with speak(max_request_bytes=1_000_000) as speaker:
        sent = infer_call()
        sent.inputs[0].data, sent.inputs[0].shape = bytes(5_000_000), (1, 1_250_000)
        reply = await speaker.ask(sent, encoding=encoding)
        assert reply.status in (413, "RESOURCE_EXHAUSTED")
        assert speaker.data.calls == []
        if speaker.transport == "http":
            assert [reason for _, reason, _ in speaker.data.refused] == [Reason.TOO_LARGE]


async def test_a_black_frame_is_inflated_as_far_as_its_model_takes_it(speak):
    async with speak() as speaker:
        sent = infer_call()
        sent.inputs[0].data, sent.inputs[0].shape = bytes(3_000_000), (1, 750_000)
        for largest, text, statuses in (
            (0, False, (413, "RESOURCE_EXHAUSTED")),
            (3_000_000, False, (200, "OK")),
            (3_000_000, True, (200, "OK")),
            (90_000, False, (413, "RESOURCE_EXHAUSTED")),
        ):
            speaker.data.largest = {None: largest, "m": largest}
            assert (await speaker.ask(sent, encoding="gzip", text=text)).status in statuses


async def test_a_body_over_the_limit_is_refused_alone(speak):
    async with speak(max_request_bytes=100_000) as speaker:
        reply = await speaker.ask(infer_call(nbytes=200_000))
        assert reply.status in (413, "RESOURCE_EXHAUSTED")
        assert (await speaker.ask(infer_call())).is_ok


@pytest.mark.parametrize("nbytes", [16, 300_000])
async def test_a_bug_in_the_data_plane_shows_nothing_of_itself(speak, caplog, nbytes):
    """And ends a call that was announced."""
    async with speak() as speaker:
        speaker.data.bug = RuntimeError("/secret/path")
        exchange = await speaker.begin(infer_call(nbytes=nbytes))
        if nbytes > 16:
            await speaker.data.until(lambda: speaker.data.announced)
        await exchange.finish()
        reply = await exchange.reply()
        assert reply.status in (500, "INTERNAL")
        assert reply.message == "internal error"
        assert all(steps == ["announce", "cancel runtime_error"] for steps in speaker.steps)
    assert "/secret/path" in caplog.text
