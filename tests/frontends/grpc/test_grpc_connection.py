"""A gRPC connection, byte by byte: what is legal but idle, slow or in excess, and bad messages."""

from __future__ import annotations

import asyncio
import gc
import gzip
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from hpack import Decoder
from tests.frontends.doubles import decode_response

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc.inference import InferRequest
from slacktide.frontends.grpc.protocol import GrpcConnection
from slacktide.frontends.http2 import ErrorCode
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall, InferReply, InputTensor
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    ModelInferRequest,
    ModelStreamInferResponse,
    ServerReflectionRequest,
)
from slacktide.wire.proto.messages import ServerReflectionResponse as Reflected

QUICK = {"tick_s": 0.01, "linger_s": 0.2}
INFER = f"/{INFERENCE_SERVICE}/ModelInfer".encode()
STREAM = f"/{INFERENCE_SERVICE}/ModelStreamInfer".encode()
REFLECTION = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def message(nbytes: int = 16, id: str = "7", **changes) -> bytes:
    tensor = InputTensor("x", Datatype.FP32, (1, nbytes // 4), bytes(nbytes))
    return encode_call(InferCall("m", None, id, [tensor], **changes))


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


class RawClient:
    """Frames to a server, and frames from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = Decoder()
        self.data: dict[int, bytearray] = {}
        self.fields: dict[int, dict[str, str]] = {}
        """Of headers and trailers."""
        self.ended: set[int] = set()
        self.resets: dict[int, ErrorCode] = {}
        self.goaway: tuple[int, ErrorCode, str] | None = None
        self.pings = 0

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def ask(self, id: int, path: bytes = INFER, *fields: tuple[bytes, bytes]) -> None:
        head = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b"content-type", b"application/grpc"),
            *fields,
        )
        self.send(f.frame(f.HEADERS, f.END_HEADERS, id, f.header_block(None, head)))

    def give(self, id: int, body: bytes, *, ends: bool = True) -> None:
        for at in range(0, len(body) or 1, f.FRAME_BYTES):
            last = ends and at + f.FRAME_BYTES >= len(body)
            piece = body[at : at + f.FRAME_BYTES]
            self.send(f.frame(f.DATA, f.END_STREAM if last else 0, id, piece))

    async def hear(self) -> None:
        """One frame. Raises IncompleteReadError at the end of the stream."""
        word, flags, id = f.FRAME_HEAD.unpack(await self.reader.readexactly(f.HEAD_BYTES))
        payload = await self.reader.readexactly(word >> 8)
        kind = word & 0xFF
        if kind == f.HEADERS:
            self.fields.setdefault(id, {}).update(self._decoder.decode(payload))
        elif kind == f.DATA:
            self.data.setdefault(id, bytearray()).extend(payload)
        elif kind == f.RST_STREAM:
            self.resets[id] = ErrorCode(int.from_bytes(payload))
        elif kind == f.GOAWAY:
            code = ErrorCode(int.from_bytes(payload[4:8]))
            self.goaway = int.from_bytes(payload[:4]), code, payload[8:].decode()
        elif kind == f.PING and not flags & f.ACK:
            self.pings += 1
        if kind in (f.HEADERS, f.DATA) and flags & f.END_STREAM:
            self.ended.add(id)

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.hear()

    async def status(self, id: int) -> tuple[int, str]:
        """Of an answer, awaited: gRPC's number and message."""
        await self.until(lambda: id in self.ended)
        fields = self.fields[id]
        return int(fields["grpc-status"]), fields.get("grpc-message", "")

    async def end(self) -> None:
        """Read to the end of the connection."""
        async with asyncio.timeout(10):
            try:
                while True:
                    await self.hear()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass


@asynccontextmanager
async def raw(fakes, data=None, settings=None, **options) -> AsyncIterator[RawClient]:
    settings = GrpcSettings(**{**QUICK, **(settings or {})})
    async with fakes.serving(data, settings=settings, **options) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = RawClient(reader, writer)
        client.server = server
        client.send(f.PREFACE, f.settings(((f.INITIAL_WINDOW, 2**30),)))
        client.send(f.window_update(0, 2**30))
        try:
            yield client
        finally:
            writer.close()


def play(scene):
    return uvloop.run(scene())


# ---- messages


def test_a_call_byte_by_byte(fakes):
    async def scene():
        async with raw(fakes) as client:
            client.ask(1)
            for byte in framed(message()):
                client.send(f.frame(f.DATA, 0, 1, bytes((byte,))))
            client.send(f.frame(f.DATA, f.END_STREAM, 1))
            assert (await client.status(1))[0] == 0
            return decode_response(bytes(client.data[1][5:]))

    head, tensors = play(scene)
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
        (framed(message(), 2), (), 3, "message: expected 0 or 1 before its length"),
        (framed(message(), 1), (), 13, "no grpc-encoding is named"),
        (framed(message(), 1), ((b"grpc-encoding", b"identity"),), 13, "no grpc-encoding"),
        (framed(message(), 1), ((b"grpc-encoding", b"gzip"),), 3, "gzip stream"),
        (framed(message()), ((b"grpc-encoding", b"br"),), 12, "identity, gzip or deflate"),
        (framed(message()), ((b"grpc-timeout", b"1.5S"),), 3, "grpc-timeout"),
        (framed(message()), ((b"grpc-timeout", b"123456789S"),), 3, "grpc-timeout"),
        (framed(message()), ((b"x-long", b"y" * 16_180),), 8, "metadata"),
        (b"", (), 3, "no message"),
    ],
)
def test_a_bad_message_is_refused_and_the_connection_goes_on(fakes, body, fields, status, words):
    async def scene():
        async with raw(fakes) as client:
            client.ask(1, INFER, *fields)
            client.give(1, body)
            refused = await client.status(1)
            client.ask(3)
            client.give(3, framed(message()))
            return refused, await client.status(3)

    (code, said), after = play(scene)
    assert code == status
    assert words in said.replace("%27", "'")
    assert after[0] == 0


def test_a_second_message_takes_back_the_first(fakes):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data) as client:
            client.ask(1)
            client.give(1, framed(message()) * 2)
            return (await client.status(1))[0], data.calls[0].steps

    assert play(scene) == (3, ["submit", "cancel bad_input"])


def test_a_black_frame_is_inflated_as_far_as_any_model_takes_it(fakes):
    async def scene():
        data, statuses = fakes.FakeDataPlane(), []
        async with raw(fakes, data) as client:
            for stream, largest in ((1, 0), (3, 3_000_000)):
                data.largest[None] = largest
                client.ask(stream, INFER, (b"grpc-encoding", b"gzip"))
                client.give(stream, framed(gzip.compress(message(3_000_000)), 1))
                statuses.append((await client.status(stream))[0])
        return statuses

    assert play(scene) == [8, 0]


def test_a_refusal_for_lack_of_time_states_what_reading_took(fakes):
    def refused(call):
        outcome = Outcome(Reason.SHORTER_THAN_ALONE, 1.0, budget_s=0.01)
        return InferReply(outcome, call.model, "1", call.id, None, "no")

    request = ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[50_000])
    tensor.contents.fp32_contents.extend(range(50_000))

    async def scene():
        async with raw(fakes, fakes.FakeDataPlane(answer=refused)) as client:
            client.ask(1)
            client.give(1, framed(request.SerializeToString()))
            return await client.status(1), client.fields[1]

    (status, message), fields = play(scene)
    assert status == 4
    assert "send" in message
    assert int(fields["slacktide-read-us"]) > 0


def test_a_compressed_message_is_inflated(fakes):
    async def scene():
        async with raw(fakes) as client:
            client.ask(1, INFER, (b"grpc-encoding", b"gzip"))
            client.give(1, framed(gzip.compress(message(400_000)), 1))
            assert (await client.status(1))[0] == 0
            return decode_response(bytes(client.data[1][5:]))[1]

    assert play(scene)[0] == bytes(400_000)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({b":method": b"GET"}, "405"),
        ({b"content-type": b"application/json"}, "415"),
        ({b"content-type": b"application/grpc-web"}, "415"),
    ],
)
def test_what_is_not_grpc_gets_an_http_status(fakes, fields, status):
    head = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": INFER,
        b"content-type": b"application/grpc+proto",
    }

    async def scene():
        async with raw(fakes) as client:
            block = f.header_block(None, (head | fields).items())
            client.send(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, block))
            await client.until(lambda: 1 in client.ended)
            return client.fields[1]

    assert play(scene) == {":status": status}


def test_an_unknown_method_is_unimplemented(fakes):
    async def scene():
        async with raw(fakes) as client:
            client.ask(1, b"/inference.GRPCInferenceService/Nothing")
            return await client.status(1)

    assert play(scene) == (12, "unknown method /inference.GRPCInferenceService/Nothing")


# ---- large messages


def test_a_long_message_is_announced_by_its_beginning_and_comes_into_its_place(fakes):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data) as client:
            client.ask(1)
            body = framed(message(600_000))
            client.give(1, body[:20_000], ends=False)
            await data.until(lambda: data.announced)
            assert data.calls == []
            client.give(1, body[20_000:])
            assert (await client.status(1))[0] == 0
            return data, len(body) - 5

    data, length = play(scene)
    (told,) = data.announced
    assert (told.model, told.length, told.steps) == ("m", length, ["announce", "submit"])
    assert bytes(told.memory) == message(600_000)


def test_a_long_message_may_be_refused_before_its_end(fakes):
    async def scene():
        refusal = fakes.refusing(Reason.BEHIND_WORK, "busy")(InferCall("m", None, "", []))
        async with raw(fakes, fakes.FakeDataPlane(refusal=refusal)) as client:
            client.ask(1)
            client.give(1, framed(message(600_000))[:20_000], ends=False)
            status = await client.status(1)
            await client.until(lambda: client.resets)
            return status, client.resets

    assert play(scene) == ((8, "busy"), {1: ErrorCode.NO_ERROR})


def test_a_message_that_names_another_model_at_its_end_is_refused(fakes):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data) as client:
            client.ask(1)
            client.give(1, framed(message(100_000) + b"\x0a\x05other"))
            status = await client.status(1)
            return status, data.announced[0].steps

    status, steps = play(scene)
    assert status[0] == 3
    assert status[1].startswith("model_name")
    assert steps == ["announce", "refuse bad_input"]


def cut(data: bytes | bytearray) -> list[bytes]:
    """The messages in the body of an answer."""
    found, at = [], 0
    while at < len(data):
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        found.append(bytes(data[at + 5 : end]))
        at = end
    return found


def streamed(client: RawClient, id: int) -> list[tuple[str, str]]:
    """Id and error of each answer on a stream."""
    answers = [ModelStreamInferResponse.FromString(each) for each in cut(client.data[id])]
    return [(each.infer_response.id, each.error_message) for each in answers]


def test_long_messages_of_a_stream_come_into_their_places_too(fakes):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data) as client:
            client.ask(1, STREAM)
            body = framed(message(300_000, "a")) + framed(message(id="b"))
            client.give(1, body[:20_000], ends=False)
            await data.until(lambda: data.announced)
            assert data.calls == []
            client.give(1, body[20_000:] + framed(message(100_000, "c")))
            assert (await client.status(1))[0] == 0
            return data, streamed(client, 1)

    data, answers = play(scene)
    assert answers == [("a", ""), ("b", ""), ("c", "")]
    assert [bytes(call.memory) for call in data.announced] == [
        message(300_000, "a"),
        message(100_000, "c"),
    ]
    assert [call.context.transport for call in data.calls] == ["grpc-stream"] * 3


def test_a_message_of_a_stream_that_is_inflated_does_not_take_the_place_of_the_next(fakes):
    """Stock clients compress each message by itself, if it gets smaller so."""
    plain = framed(message(600_000, "plain"))

    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data) as client:
            client.ask(1, STREAM, (b"grpc-encoding", b"gzip"))
            client.give(1, framed(gzip.compress(message(400_000, "gzip")), 1), ends=False)
            client.give(1, plain[:100_000], ends=False)
            await data.until(lambda: data.calls)
            client.give(1, plain[100_000:])
            assert (await client.status(1))[0] == 0
            return data, streamed(client, 1)

    data, answers = play(scene)
    assert sorted(answers) == [("gzip", ""), ("plain", "")]
    (announced,) = data.announced
    assert announced.infer.id == "plain"


def test_a_stream_waits_for_a_message_that_is_inflated_after_its_end(fakes):
    async def scene():
        async with raw(fakes) as client:
            client.ask(1, STREAM, (b"grpc-encoding", b"gzip"))
            client.give(1, framed(gzip.compress(message(400_000)), 1))
            assert (await client.status(1))[0] == 0
            return streamed(client, 1)

    assert play(scene) == [("7", "")]


def test_a_long_message_of_a_stream_that_is_refused_is_passed_over(fakes):
    async def scene():
        refusal = fakes.refusing(Reason.BEHIND_WORK, "busy")(InferCall("m", None, "", []))
        data = fakes.FakeDataPlane(refusal=refusal)
        async with raw(fakes, data) as client:
            client.ask(1, STREAM)
            client.give(1, framed(message(300_000))[:20_000], ends=False)
            await client.until(lambda: 1 in client.data)
            early = streamed(client, 1)
            client.give(1, framed(message(300_000))[20_000:] + framed(message(id="b")))
            assert (await client.status(1))[0] == 0
            return early, streamed(client, 1), client.server._context.buffers.bytes_in_use

    early, answers, held = play(scene)
    assert early == [("", "busy")]
    assert answers == [("", "busy"), ("b", "")]
    assert held == 0


def test_a_stream_whose_message_is_cut_is_refused_and_takes_its_request_back(fakes):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data) as client:
            client.ask(1, STREAM)
            client.give(1, framed(message(300_000))[:-1])
            return await client.status(1), data.announced[0].steps

    status, steps = play(scene)
    assert status[0] == 3
    assert steps == ["announce", "cancel client_cancelled"]


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_client_that_leaves_in_its_message_leaves_nothing_to_the_garbage_collector(fakes, path):
    """A request that only a cycle holds keeps its slot, and so the memory of a retired version."""

    def requests(kind: type = InferRequest) -> int:
        return sum(isinstance(each, kind) for each in gc.get_objects())

    async def scene():
        data = fakes.FakeDataPlane()
        before, connections = requests(), requests(GrpcConnection)
        async with raw(fakes, data) as client:
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


def test_messages_that_are_not_announced_count_as_buffered(fakes):
    limits = {"max_buffered_bytes": 300_000, "max_buffered_per_client": 300_000}
    typed = b"\x2a\x8c\x84\x3d" + bytes(999_948)

    async def scene():
        async with raw(fakes, settings=limits) as client:
            client.ask(1)
            client.give(1, framed(typed[:200_000])[:100_000], ends=False)
            client.ask(3)
            client.give(3, framed(typed[:200_000])[:100_000], ends=False)
            refused = await client.status(3)
            client.send(f.reset(1, ErrorCode.CANCEL))
            client.ask(5)
            client.give(5, framed(typed[:200_000]))
            return refused, await client.status(5), client.server._context.buffers

    refused, after, buffers = play(scene)
    assert refused[0] == 8
    assert after[0] == 3
    assert buffers.bytes_in_use == 0


# ---- time


def test_a_message_that_trickles_is_given_up(fakes):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data, {"body_timeout_s": 0.1}) as client:
            client.ask(1)
            client.give(1, framed(message(600_000))[:20_000], ends=False)
            return await client.status(1), data.announced[0].steps

    status, steps = play(scene)
    assert status == (1, "the message did not arrive in time")
    assert steps == ["announce", "cancel no_body"]


def test_a_deadline_ends_a_call_whose_client_says_nothing(fakes):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data) as client:
            client.ask(1, INFER, (b"grpc-timeout", b"50m"))
            client.give(1, framed(message()))
            return await client.status(1), data.cancelled

    status, cancelled = play(scene)
    assert status == (4, "the deadline has passed")
    assert cancelled == [("7", Reason.EXPIRED)]


@pytest.mark.parametrize("sent", [b"", f.PREFACE[:7], f.PREFACE, f.PREFACE + f.settings(())[:5]])
def test_a_connection_that_says_too_little_is_ended(fakes, sent):
    async def scene():
        settings = GrpcSettings(**QUICK, header_timeout_s=0.1)
        async with fakes.serving(settings=settings) as server:
            client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
            client.send(sent)
            await client.end()
            client.writer.close()
            return client.goaway

    _, code, said = play(scene)
    assert (code, said) == (ErrorCode.ENHANCE_YOUR_CALM, "the headers took too long")


def test_a_header_block_that_does_not_end_is_ended(fakes):
    async def scene():
        async with raw(fakes, settings={"header_timeout_s": 0.1}) as client:
            client.send(f.frame(f.HEADERS, 0, 1, b""))
            await client.end()
            return client.goaway

    assert play(scene)[1] is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("window", [0, 1000])
def test_answers_that_wait_for_a_window_end_the_connection_in_time(fakes, window):
    async def scene():
        data = fakes.FakeDataPlane()
        async with raw(fakes, data, {"write_timeout_s": 0.1}) as client:
            client.send(f.settings(((f.INITIAL_WINDOW, window),)))
            client.ask(1)
            client.give(1, framed(message(4000)))
            await client.end()
            return client.goaway, len(client.data.get(1, b"")), client.server._context.buffers

    goaway, sent, buffers = play(scene)
    assert goaway[1:] == (ErrorCode.ENHANCE_YOUR_CALM, "answers are not taken")
    assert sent == window
    assert buffers.bytes_in_use == 0


def test_answers_that_wait_for_a_window_are_bounded(fakes):
    limits = {"max_buffered_bytes": 100_000, "max_buffered_per_client": 100_000}

    async def scene():
        async with raw(fakes, settings=limits) as client:
            client.send(f.settings(((f.INITIAL_WINDOW, 0),)))
            for id in range(1, 21, 2):
                client.ask(id)
                client.give(id, framed(message(16_000)))
            await client.until(lambda: len(client.resets) == 4)
            return client.resets, client.server._context.buffers.bytes_in_use

    resets, held = play(scene)
    assert set(resets.values()) == {ErrorCode.ENHANCE_YOUR_CALM}
    assert held <= 100_000


def test_a_client_that_never_reads_is_cut(fakes):
    async def scene():
        settings = {"write_timeout_s": 0.2, "write_high_bytes": 65_536}
        lines = []
        async with raw(fakes, settings=settings, access_log=lines.append) as client:
            for id in range(1, 161, 2):
                client.ask(id)
                client.give(id, framed(message(500_000)))
            async with asyncio.timeout(20):
                while client.server.connections:
                    await asyncio.sleep(0.01)
            return client.server._context.buffers.bytes_in_use

    assert play(scene) == 0


def test_an_idle_connection_is_closed_politely(fakes):
    async def scene():
        async with raw(fakes, settings={"connection_idle_s": 0.1}) as client:
            client.ask(1)
            client.give(1, framed(message()))
            await client.end()
            return client.goaway, client.ended

    goaway, ended = play(scene)
    assert goaway[:2] == (1, ErrorCode.NO_ERROR)
    assert ended == {1}


def test_probes_do_not_keep_an_idle_connection(fakes):
    async def scene():
        async with raw(fakes, settings={"connection_idle_s": 0.2}) as client:

            async def probe():
                while True:
                    client.send(f.frame(f.PING, 0, 0, bytes(8)))
                    await asyncio.sleep(0.02)

            probing = asyncio.create_task(probe())
            await client.end()
            probing.cancel()
            return client.goaway

    assert play(scene)[:2] == (0, ErrorCode.NO_ERROR)


def test_a_silent_client_is_probed_and_then_cut(fakes):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        settings = {"keepalive_s": 0.1, "keepalive_timeout_s": 0.1}
        async with raw(fakes, data, settings) as client:
            client.ask(1)
            client.give(1, framed(message()))
            await client.end()
            return client.pings, data.cancelled

    assert play(scene) == (1, [("7", Reason.CLIENT_CANCELLED)])


def test_a_client_that_answers_probes_stays(fakes):
    async def scene():
        settings = {"keepalive_s": 0.05, "keepalive_timeout_s": 0.2}
        async with raw(fakes, settings=settings) as client:
            for number in range(5):
                await client.until(lambda number=number: client.pings > number)
                client.send(f.frame(f.PING, f.ACK, 0, bytes(8)))
            return client.goaway

    assert play(scene) is None


# ---- excess


def test_a_flood_is_told_why_it_ends(fakes):
    async def scene():
        async with raw(fakes) as client:
            client.send(f.frame(f.PING, 0, 0, bytes(8)) * 3000)
            await client.end()
            return client.goaway

    assert play(scene)[1] is ErrorCode.ENHANCE_YOUR_CALM


def test_a_client_that_speaks_http_1_is_told(fakes):
    async def scene():
        async with fakes.serving(settings=GrpcSettings(**QUICK)) as server:
            client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.end()
            client.writer.close()
            return client.goaway

    assert play(scene)[1:] == (ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC)")


@pytest.mark.parametrize("begun", [b"\0\0", framed(message(20_000))[:9000]])
def test_a_message_of_a_stream_that_trickles_is_given_up(fakes, begun):
    async def scene():
        async with raw(fakes, settings={"body_timeout_s": 0.1}) as client:
            client.ask(1, STREAM)
            client.give(1, framed(message()), ends=False)
            await client.until(lambda: 1 in client.data)
            await asyncio.sleep(0.2)  # between messages there is no hurry
            client.give(1, begun, ends=False)
            return await client.status(1)

    assert play(scene) == (1, "the message did not arrive in time")


@pytest.mark.parametrize("path", [STREAM, REFLECTION])
def test_countless_messages_in_one_frame_take_turns(fakes, path):
    """One client's share of a turn is bounded, however many messages a frame has."""

    async def scene():
        async with raw(fakes) as client:
            client.ask(1, path)
            client.give(1, framed(b"") * 3000)
            status = await client.status(1)
            return status, len(cut(client.data[1])), client.server._context.buffers.bytes_in_use

    assert play(scene) == ((0, ""), 3000, 0)


def test_messages_beyond_the_limit_wait_and_are_bounded(fakes):
    limits = {
        "stream_in_flight": 2,
        "max_buffered_bytes": 50_000,
        "max_buffered_per_client": 50_000,
    }

    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data, limits) as client:
            client.ask(1, STREAM)
            client.give(1, framed(message(1000)) * 100, ends=False)
            status = await client.status(1)
            return status, len(data.calls), client.server._context.buffers.bytes_in_use

    status, taken, held = play(scene)
    assert status[0] == 8
    assert (taken, held) == (2, 0)


def test_calls_over_all_connections_are_limited(fakes):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data, {"max_calls": 2}) as client:
            for id in (1, 3, 5):
                client.ask(id, STREAM)
            refused = await client.status(5)
            client.give(1, b"")
            await client.status(1)
            client.ask(7)
            client.give(7, framed(message()))
            await data.until(lambda: data.held)
            data.release("7")
            return refused, await client.status(7), client.server._context.calls

    refused, after, left = play(scene)
    assert refused == (8, "there are too many calls at a time")
    assert after[0] == 0
    assert left == 1


# ---- the end


@pytest.mark.parametrize("how", ["close", "error"])
def test_the_calls_of_a_client_that_is_gone_are_cancelled_in_turns(fakes, how):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data) as client:
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
            return first, len(data.cancelled), client.server._context.calls

    first, last, left = play(scene)
    assert first < 100
    assert (last, left) == (100, 0)


def test_a_drain_answers_what_is_here_and_closes(fakes):
    async def scene():
        data = fakes.FakeDataPlane(holds=True)
        async with raw(fakes, data) as client:
            client.ask(1)
            client.give(1, framed(message()))
            await data.until(lambda: "7" in data.held_ids)
            draining = asyncio.create_task(client.server.drain(10))
            await client.until(lambda: client.goaway)
            client.ask(3)
            client.give(3, framed(message(id="late")))
            data.release("7")
            await client.end()
            return client.goaway, client.ended, await draining, data.held_ids

    goaway, ended, drained, held = play(scene)
    assert goaway == (1, ErrorCode.NO_ERROR, "")
    assert ended == {1}
    assert drained
    assert held == []


# ---- reflection


def test_reflection_names_services_and_gives_their_files(fakes):
    asked = (
        ServerReflectionRequest(host="h", list_services=""),
        ServerReflectionRequest(file_containing_symbol=INFERENCE_SERVICE),
        ServerReflectionRequest(file_by_filename="slacktide/wire/proto/health.proto"),
        ServerReflectionRequest(file_containing_symbol=f"{INFERENCE_SERVICE}.ModelInfer"),
        ServerReflectionRequest(file_containing_symbol="no.Such"),
        ServerReflectionRequest(all_extension_numbers_of_type="a.B"),
    )

    async def scene(path):
        async with raw(fakes) as client:
            client.ask(1, path)
            client.give(1, b"".join(framed(each.SerializeToString()) for each in asked))
            assert (await client.status(1))[0] == 0
            return [Reflected.FromString(each) for each in cut(client.data[1])]

    for path in (REFLECTION, REFLECTION.replace(b"v1", b"v1alpha")):
        services, file, health, method, missing, extensions = uvloop.run(scene(path))
        names = {each.name for each in services.list_services_response.service}
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
