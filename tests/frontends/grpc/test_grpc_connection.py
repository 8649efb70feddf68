"""A gRPC connection, byte by byte: what is legal but idle, slow or in excess, and bad messages."""

from __future__ import annotations

import asyncio
import gc
import gzip
import struct

import pytest
import uvloop
from tests.frontends.doubles import QUICK, FakeDataPlane, decode_response, refusing
from tests.frontends.grpc.grpc_client import (
    INFER,
    REFLECTION,
    STREAM,
    RawClient,
    framed,
    message,
    raw,
    serving,
)

from slacktide.domain import Reason
from slacktide.frontends.grpc.inference import InferRequest
from slacktide.frontends.grpc.protocol import GrpcConnection
from slacktide.frontends.http2 import ErrorCode
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    ModelStreamInferResponse,
    ServerReflectionRequest,
)
from slacktide.wire.proto.messages import ServerReflectionResponse as Reflected


def play(scene):
    return uvloop.run(scene())


# ---- messages


async def test_a_call_byte_by_byte():
    async with raw() as client:
        client.ask(1)
        for byte in framed(message()):
            client.send(f.frame(f.DATA, 0, 1, bytes((byte,))))
        client.send(f.frame(f.DATA, f.END_STREAM, 1))
        assert (await client.status(1))[0] == 0
        head, tensors = decode_response(bytes(client.data[1][5:]))
    assert head.id == "7"
    assert bytes(tensors[0]) == bytes(16)


@pytest.mark.parametrize(
    ("body", "fields", "status", "words"),
    [
        (framed(message())[:-1], (), 3, "bytes, got"),
        (framed(message())[:3], (), 3, "message: expected 5 bytes, got 3"),
        (framed(message()) + b"x", (), 3, "message: expected"),
        (framed(message()) + framed(message()), (), 3, "message: expected one, got 'more'"),
        (struct.pack(">BI", 0, 2**31), (), 8, "expected at most"),
        (framed(message(), 2), (), 3, "message: expected 0 or 1 as compression flag"),
        (framed(message(), 1), (), 13, "but grpc-encoding is missing"),
        (framed(message(), 1), ((b"grpc-encoding", b"identity"),), 13, "grpc-encoding is missing"),
        (framed(message(), 1), ((b"grpc-encoding", b"gzip"),), 3, "gzip stream"),
        (framed(message()), ((b"grpc-encoding", b"br"),), 12, "identity, gzip or deflate"),
        (framed(message()), ((b"grpc-timeout", b"1.5S"),), 3, "grpc-timeout"),
        (framed(message()), ((b"grpc-timeout", b"123456789S"),), 3, "grpc-timeout"),
        (framed(message()), ((b"x-long", b"y" * 16_180),), 8, "metadata"),
        (b"", (), 3, "no message"),
    ],
)
async def test_a_bad_message_is_refused_and_the_connection_goes_on(body, fields, status, words):
    async with raw() as client:
        client.ask(1, INFER, *fields)
        client.give(1, body)
        refused = await client.status(1)
        client.ask(3)
        client.give(3, framed(message()))
        (code, reason), after = refused, await client.status(3)
    assert code == status
    assert words in reason.replace("%27", "'")
    assert after[0] == 0


async def test_a_second_message_takes_back_the_first():
    data = FakeDataPlane(holds=True)
    async with raw(data) as client:
        client.ask(1)
        client.give(1, framed(message()) * 2)
        assert (await client.status(1))[0], data.calls[0].steps == (
            3,
            ["submit", "cancel bad_input"],
        )


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({b":method": b"GET"}, "405"),
        ({b"content-type": b"application/json"}, "415"),
        ({b"content-type": b"application/grpc-web"}, "415"),
    ],
)
async def test_requests_other_than_grpc_get_an_http_status(fields, status):
    head = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": INFER,
        b"content-type": b"application/grpc+proto",
    }

    async with raw() as client:
        block = f.header_block(None, (head | fields).items())
        client.send(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, block))
        await client.until(lambda: 1 in client.ended)
        assert client.fields[1] == {":status": status}


async def test_an_unknown_method_is_unimplemented():
    async with raw() as client:
        client.ask(1, b"/inference.GRPCInferenceService/Nothing")
        assert (await client.status(1)) == (
            12,
            "unknown method /inference.GRPCInferenceService/Nothing",
        )


# ---- large messages


async def test_a_long_message_may_be_refused_before_its_end():
    refusal = refusing(Reason.BEHIND_WORK, "busy")(InferCall("m", None, "", []))
    async with raw(FakeDataPlane(refusal=refusal)) as client:
        client.ask(1)
        client.give(1, framed(message(600_000))[:20_000], ends=False)
        status = await client.status(1)
        await client.until(lambda: client.resets)
        assert (status, client.resets) == ((8, "busy"), {1: ErrorCode.NO_ERROR})


async def test_a_message_that_names_another_model_at_its_end_is_refused():
    data = FakeDataPlane()
    async with raw(data) as client:
        client.ask(1)
        client.give(1, framed(message(100_000) + b"\x0a\x05other"))
        status = await client.status(1)
        steps = data.announced[0].steps
    assert status[0] == 3
    assert status[1].startswith("model_name")
    assert steps == ["announce", "refuse bad_input"]


def cut(data: bytes | bytearray) -> list[bytes]:
    """The messages in the body of an answer."""
    parts, at = [], 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        parts.append(bytes(data[at + 5 : end]))
        at = end
    return parts


def streamed(client: RawClient, id: int) -> list[tuple[str, str]]:
    """Id and error of each answer on a stream."""
    answers = [ModelStreamInferResponse.FromString(part) for part in cut(client.data[id])]
    return [(answer.infer_response.id, answer.error_message) for answer in answers]


async def test_long_messages_of_a_stream_come_into_their_places_too():
    data = FakeDataPlane()
    async with raw(data) as client:
        client.ask(1, STREAM)
        body = framed(message(300_000, "a")) + framed(message(id="b"))
        client.give(1, body[:20_000], ends=False)
        await data.until(lambda: data.announced)
        assert data.calls == []
        client.give(1, body[20_000:] + framed(message(100_000, "c")))
        assert (await client.status(1))[0] == 0
        answers = streamed(client, 1)
    assert answers == [("a", ""), ("b", ""), ("c", "")]
    assert [bytes(call.memory) for call in data.announced] == [
        message(300_000, "a"),
        message(100_000, "c"),
    ]
    assert [call.context.transport for call in data.calls] == ["grpc-stream"] * 3


async def test_a_message_of_a_stream_that_is_inflated_does_not_take_the_place_of_the_next():
    """Stock clients compress each message by itself, if it gets smaller so."""
    plain = framed(message(600_000, "plain"))

    data = FakeDataPlane()
    async with raw(data) as client:
        client.ask(1, STREAM, (b"grpc-encoding", b"gzip"))
        client.give(1, framed(gzip.compress(message(400_000, "gzip")), 1), ends=False)
        client.give(1, plain[:100_000], ends=False)
        await data.until(lambda: data.calls)
        client.give(1, plain[100_000:])
        assert (await client.status(1))[0] == 0
        answers = streamed(client, 1)
    assert sorted(answers) == [("gzip", ""), ("plain", "")]
    (announced,) = data.announced
    assert announced.infer.id == "plain"


async def test_a_stream_waits_for_a_message_that_is_inflated_after_its_end():
    async with raw() as client:
        client.ask(1, STREAM, (b"grpc-encoding", b"gzip"))
        client.give(1, framed(gzip.compress(message(400_000)), 1))
        assert (await client.status(1))[0] == 0
        assert streamed(client, 1) == [("7", "")]


async def test_a_long_message_of_a_stream_that_is_refused_is_passed_over():
    refusal = refusing(Reason.BEHIND_WORK, "busy")(InferCall("m", None, "", []))
    data = FakeDataPlane(refusal=refusal)
    async with raw(data) as client:
        client.ask(1, STREAM)
        client.give(1, framed(message(300_000))[:20_000], ends=False)
        await client.until(lambda: 1 in client.data)
        early = streamed(client, 1)
        client.give(1, framed(message(300_000))[20_000:] + framed(message(id="b")))
        assert (await client.status(1))[0] == 0
        answers, held = streamed(client, 1), client.server._context.buffers.bytes_in_use
    assert early == [("", "busy")]
    assert answers == [("", "busy"), ("b", "")]
    assert held == 0


async def test_a_stream_whose_message_is_cut_is_refused_and_takes_its_request_back():
    data = FakeDataPlane()
    async with raw(data) as client:
        client.ask(1, STREAM)
        client.give(1, framed(message(300_000))[:-1])
        status, steps = await client.status(1), data.announced[0].steps
    assert status[0] == 3
    assert steps == ["announce", "cancel client_cancelled"]


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_client_that_leaves_in_its_message_leaves_nothing_to_the_garbage_collector(path):
    """A request that only a cycle holds keeps its slot, and so the memory of a retired version."""

    def requests(kind: type = InferRequest) -> int:
        return sum(isinstance(candidate, kind) for candidate in gc.get_objects())

    async def scene():
        data = FakeDataPlane()
        before, connections = requests(), requests(GrpcConnection)
        async with raw(data) as client:
            client.ask(1, path)
            client.give(1, framed(message(300_000))[:20_000], ends=False)
            await data.until(lambda: data.announced)
            assert requests() == before + 1
            client.send(f.reset(1, ErrorCode.CANCEL))
            await data.until(lambda: data.cancelled)
            await asyncio.sleep(0)
            left = requests() - before
            client.writer.close()
            await asyncio.wait_for(client.server._context.emptied.wait(), 10)
            await asyncio.sleep(0)
            return left, requests(GrpcConnection) - connections

    gc.collect()
    gc.disable()
    try:
        assert play(scene) == (0, 0)
    finally:
        gc.enable()


async def test_messages_that_are_not_announced_count_as_buffered():
    limits = {"max_buffered_bytes": 300_000, "max_buffered_per_client": 300_000}
    typed = b"\x2a\x8c\x84\x3d" + bytes(999_948)

    async with raw(settings=limits) as client:
        client.ask(1)
        client.give(1, framed(typed[:200_000])[:100_000], ends=False)
        client.ask(3)
        client.give(3, framed(typed[:200_000])[:100_000], ends=False)
        refused = await client.status(3)
        client.send(f.reset(1, ErrorCode.CANCEL))
        client.ask(5)
        client.give(5, framed(typed[:200_000]))
        after, buffers = await client.status(5), client.server._context.buffers
    assert refused[0] == 8
    assert after[0] == 3
    assert buffers.bytes_in_use == 0


# ---- time


async def test_a_deadline_ends_a_call_whose_client_says_nothing():
    data = FakeDataPlane(holds=True)
    async with raw(data) as client:
        client.ask(1, INFER, (b"grpc-timeout", b"50m"))
        client.give(1, framed(message()))
        status, cancelled = await client.status(1), data.cancelled
    assert status == (4, "the deadline has passed")
    assert cancelled == [("7", Reason.EXPIRED)]


@pytest.mark.parametrize("sent", [b"", f.PREFACE[:7], f.PREFACE, f.PREFACE + f.settings(())[:5]])
async def test_a_connection_that_says_too_little_is_ended(sent):
    settings = GrpcSettings(**QUICK, header_timeout_s=0.1)
    async with serving(settings=settings) as server:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
        client.send(sent)
        await client.end()
        client.writer.close()
        _, code, reason = client.goaway
    assert (code, reason) == (ErrorCode.ENHANCE_YOUR_CALM, "the headers took too long")


async def test_a_header_block_that_does_not_end_is_ended():
    async with raw(settings={"header_timeout_s": 0.1}) as client:
        client.send(f.frame(f.HEADERS, 0, 1, b""))
        await client.end()
        assert client.goaway[1] is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("window", [0, 1000])
async def test_answers_that_wait_for_a_window_end_the_connection_in_time(window):
    data = FakeDataPlane()
    async with raw(data, {"write_timeout_s": 0.1}) as client:
        client.send(f.settings(((f.INITIAL_WINDOW, window),)))
        client.ask(1)
        client.give(1, framed(message(4000)))
        await client.end()
        goaway = client.goaway
        sent = len(client.data.get(1, b""))
        buffers = client.server._context.buffers
    assert goaway[1:] == (ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its answers")
    assert sent == window
    assert buffers.bytes_in_use == 0


async def test_answers_that_wait_for_a_window_are_bounded():
    limits = {"max_buffered_bytes": 100_000, "max_buffered_per_client": 100_000}

    async with raw(settings=limits) as client:
        client.send(f.settings(((f.INITIAL_WINDOW, 0),)))
        for id in range(1, 21, 2):
            client.ask(id)
            client.give(id, framed(message(16_000)))
        await client.until(lambda: len(client.resets) == 4)
        resets, held = client.resets, client.server._context.buffers.bytes_in_use
    assert set(resets.values()) == {ErrorCode.ENHANCE_YOUR_CALM}
    assert held <= 100_000


async def test_a_client_that_never_reads_is_cut():
    settings = {"write_timeout_s": 0.2, "write_high_bytes": 65_536}
    lines = []
    async with raw(settings=settings, access_log=lines.append) as client:
        for id in range(1, 161, 2):
            client.ask(id)
            client.give(id, framed(message(500_000)))
        async with asyncio.timeout(20):
            while client.server.connections:
                await asyncio.sleep(0.01)
        assert client.server._context.buffers.bytes_in_use == 0


async def test_an_idle_connection_is_closed_politely():
    async with raw(settings={"connection_idle_s": 0.1}) as client:
        client.ask(1)
        client.give(1, framed(message()))
        await client.end()
        goaway, ended = client.goaway, client.ended
    assert goaway[:2] == (1, ErrorCode.NO_ERROR)
    assert ended == {1}


async def test_probes_do_not_keep_an_idle_connection():
    async with raw(settings={"connection_idle_s": 0.2}) as client:

        async def probe():
            while True:
                client.send(f.frame(f.PING, 0, 0, bytes(8)))
                await asyncio.sleep(0.02)

        probing = asyncio.create_task(probe())
        await client.end()
        probing.cancel()
        assert client.goaway[:2] == (0, ErrorCode.NO_ERROR)


async def test_a_silent_client_is_probed_and_then_cut():
    data = FakeDataPlane(holds=True)
    settings = {"keepalive_s": 0.1, "keepalive_timeout_s": 0.1}
    async with raw(data, settings) as client:
        client.ask(1)
        client.give(1, framed(message()))
        await client.end()
        assert (client.pings, data.cancelled) == (1, [("7", Reason.CLIENT_CANCELLED)])


async def test_a_client_that_answers_probes_stays():
    settings = {"keepalive_s": 0.05, "keepalive_timeout_s": 0.2}
    async with raw(settings=settings) as client:
        for number in range(5):
            await client.until(lambda number=number: client.pings > number)
            client.send(f.frame(f.PING, f.ACK, 0, bytes(8)))
        assert client.goaway is None


# ---- excess


async def test_a_flood_is_told_why_it_ends():
    async with raw() as client:
        client.send(f.frame(f.PING, 0, 0, bytes(8)) * 3000)
        await client.end()
        assert client.goaway[1] is ErrorCode.ENHANCE_YOUR_CALM


async def test_a_client_that_speaks_http_1_is_told():
    async with serving(settings=GrpcSettings(**QUICK)) as server:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.end()
        client.writer.close()
        assert client.goaway[1:] == (ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC)")


@pytest.mark.parametrize("begun", [b"\0\0", framed(message(20_000))[:9000]])
async def test_a_message_of_a_stream_that_trickles_is_given_up(begun):
    async with raw(settings={"body_timeout_s": 0.1}) as client:
        client.ask(1, STREAM)
        client.give(1, framed(message()), ends=False)
        await client.until(lambda: 1 in client.data)
        await asyncio.sleep(0.2)  # between messages there is no hurry
        client.give(1, begun, ends=False)
        assert (await client.status(1)) == (1, "the message did not arrive in time")


@pytest.mark.parametrize("path", [STREAM, REFLECTION])
async def test_countless_messages_in_one_frame_take_turns(path):
    """One client's share of a turn is bounded, however many messages a frame has."""

    async with raw() as client:
        client.ask(1, path)
        client.give(1, framed(b"") * 3000)
        status = await client.status(1)
        assert (status, len(cut(client.data[1])), client.server._context.buffers.bytes_in_use) == (
            (0, ""),
            3000,
            0,
        )


async def test_messages_beyond_the_limit_wait_and_are_bounded():
    limits = {
        "stream_in_flight": 2,
        "max_buffered_bytes": 50_000,
        "max_buffered_per_client": 50_000,
    }

    data = FakeDataPlane(holds=True)
    async with raw(data, limits) as client:
        client.ask(1, STREAM)
        client.give(1, framed(message(1000)) * 100, ends=False)
        status = await client.status(1)
        taken, held = len(data.calls), client.server._context.buffers.bytes_in_use
    assert status[0] == 8
    assert (taken, held) == (2, 0)


async def test_calls_over_all_connections_are_limited():
    data = FakeDataPlane(holds=True)
    async with raw(data, {"max_calls": 2}) as client:
        for id in (1, 3, 5):
            client.ask(id, STREAM)
        refused = await client.status(5)
        client.give(1, b"")
        await client.status(1)
        client.ask(7)
        client.give(7, framed(message()))
        await data.until(lambda: data.held)
        data.release("7")
        after, left = await client.status(7), client.server._context.calls
    assert refused == (8, "too many concurrent calls")
    assert after[0] == 0
    assert left == 1


# ---- the end


@pytest.mark.parametrize("how", ["close", "error"])
async def test_the_calls_of_a_client_that_is_gone_are_cancelled_in_turns(how):
    data = FakeDataPlane(holds=True)
    async with raw(data) as client:
        for number in range(100):
            client.ask(2 * number + 1)
            client.give(2 * number + 1, framed(message(id=str(number))))
        await data.until(lambda: len(data.held) == 100)
        if how == "close":
            client.writer.transport.abort()
        else:
            client.send(f.frame(f.PING, 0, 0, b"x"))
        await data.until(lambda: data.cancelled)
        first = len(data.cancelled)
        await data.until(lambda: not data.held)
        last, left = len(data.cancelled), client.server._context.calls
    assert first < 100
    assert (last, left) == (100, 0)


async def test_a_drain_answers_what_is_here_and_closes():
    data = FakeDataPlane(holds=True)
    async with raw(data) as client:
        client.ask(1)
        client.give(1, framed(message()))
        await data.until(lambda: "7" in data.held_ids)
        draining = asyncio.create_task(client.server.drain(10))
        await client.until(lambda: client.goaway)
        client.ask(3)
        client.give(3, framed(message(id="late")))
        data.release("7")
        await client.end()
        goaway, ended, drained, held = client.goaway, client.ended, await draining, data.held_ids
    assert goaway == (1, ErrorCode.NO_ERROR, "")
    assert ended == {1}
    assert drained
    assert held == []


# ---- reflection


def test_reflection_names_services_and_gives_their_files():
    questions = (
        ServerReflectionRequest(host="h", list_services=""),
        ServerReflectionRequest(file_containing_symbol=INFERENCE_SERVICE),
        ServerReflectionRequest(file_by_filename="slacktide/wire/proto/health.proto"),
        ServerReflectionRequest(file_containing_symbol=f"{INFERENCE_SERVICE}.ModelInfer"),
        ServerReflectionRequest(file_containing_symbol="no.Such"),
        ServerReflectionRequest(all_extension_numbers_of_type="a.B"),
    )

    async def scene(path):
        async with raw() as client:
            client.ask(1, path)
            client.give(1, b"".join(framed(question.SerializeToString()) for question in questions))
            assert (await client.status(1))[0] == 0
            return [Reflected.FromString(part) for part in cut(client.data[1])]

    for path in (REFLECTION, REFLECTION.replace(b"v1", b"v1alpha")):
        services, file, health, method, missing, extensions = uvloop.run(scene(path))
        names = {service.name for service in services.list_services_response.service}
        assert names == {
            INFERENCE_SERVICE,
            "slacktide.v1.FrameService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        }
        assert services.valid_host == "h"
        files = file.file_descriptor_response.file_descriptor_proto
        assert len(files) == 2  # with the model configuration that it imports
        assert b"GRPCInferenceService" in files[0]
        assert len(health.file_descriptor_response.file_descriptor_proto) == 1
        assert method.file_descriptor_response == file.file_descriptor_response
        assert missing.error_response.error_code == 5
        assert extensions.error_response.error_code == 12
