"""StreamFrames over real sockets, on doubles of data plane and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from tests.frontends.doubles import FakeDataPlane, refusing
from tests.frontends.grpc.grpc_client import channel_to, serving

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.executors.hand_over.loop_watch import loop_watch
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall, InferReply, InputTensor, SizeAdvice
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import _files

METHOD = f"/{m.FRAME_SERVICE}/StreamFrames"
HELLO = m.Hello(model="m", rate=10, slo_ms=500)
LONG = 200_000


class Client:
    """A stock client of one stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, **message: Any) -> None:
        await self.call.write(m.ClientMessage(**message).SerializeToString())

    async def announce(self, id: int, nbytes: int = 16, **fields: Any) -> None:
        announcement = m.Announcement(id=id, bytes=nbytes, **fields)
        await self.send(announcement=announcement)

    async def frame(self, id: int, nbytes: int = 16, model: str = "m", rate: float = 0.0) -> None:
        await self.send(frame=m.Frame(id=id, bytes_per_s=rate, request=request(nbytes, model)))

    async def read(self) -> tuple[str, Any]:
        """The next message: its kind, and what it is."""
        try:
            async with asyncio.timeout(20):
                raw = await self.call.read()
        except grpc.aio.AioRpcError as error:
            return "end", error.code()
        if raw is grpc.aio.EOF:
            return "end", await self.call.code()
        message = m.ServerMessage.FromString(raw)
        kind = message.WhichOneof("message")
        return kind, getattr(message, kind)


def request(nbytes: int, model: str = "m") -> m.ModelInferRequest:
    tensor = InputTensor("x", Datatype.UINT8, (1, nbytes), bytes(range(256)) * (nbytes // 256 + 1))
    tensor.data = tensor.data[:nbytes]
    return m.ModelInferRequest.FromString(encode_call(InferCall(model, None, "", [tensor])))


@asynccontextmanager
async def streaming(
    data: Any = None, *, greet: bool = True, **settings: Any
) -> AsyncIterator[Client]:
    grpc_settings = GrpcSettings(**settings) if settings else None
    async with (
        serving(data, settings=grpc_settings) as server,
        channel_to(server) as channel,
    ):
        client = Client(channel.stream_stream(METHOD)())
        if greet:
            await client.send(hello=HELLO)
            assert (await client.read())[0] == "welcome"
        yield client
        client.call.cancel()


def refused(kind: str, answer: Any) -> str:
    assert kind == "answer"
    assert not answer.HasField("response")
    return answer.refusal.reason


async def test_a_hello_is_welcomed_with_what_there_is():
    data = FakeDataPlane()
    async with streaming(data, greet=False) as client:
        hello = m.Hello(
            model="m",
            version="3",
            rate=25,
            slo_ms=100,
            accuracy_floor=0.3,
            weight=2,
            name="cam",
        )
        await client.send(hello=hello)
        first = await client.read()
        data.sessions[0].advice = SizeAdvice(256, "256", True, 1e6)
        await client.send(hello=m.Hello(model="m", rate=5, slo_ms=200))
        (kind, welcome), (_, again), sessions = first, await client.read(), data.sessions
    assert kind == "welcome"
    assert (welcome.session, welcome.input) == ("s:1", "x")
    assert (welcome.keeps_shape, welcome.short_side) == (True, 1.25)
    assert [(variant.name, variant.size) for variant in welcome.variants] == [
        ("128", 128),
        ("256", 256),
    ]
    assert not welcome.HasField("advice")
    assert again.advice == m.Advice(size=256, variant="256", mapped=True, bytes_per_s=1e6)
    assert len(sessions) == 1
    terms = sessions[0].terms
    assert (terms.rate, terms.slo, terms.weight, terms.version) == (5.0, 0.2, 1.0, None)


async def test_a_client_is_told_where_it_would_be_answered_sooner():
    data = FakeDataPlane()
    async with streaming(data) as client:
        data.sessions[0].move("10.0.0.2:8001")
        kind, move = await client.read()
    assert (kind, move.address) == ("move", "10.0.0.2:8001")
    data.sessions[0].move("10.0.0.3:8001")  # its stream has ended


def test_an_older_client_passes_over_a_move():
    pool = DescriptorPool()
    for file in _files():
        for message in file.message_type:
            if message.name == "ServerMessage":
                kept = [field for field in message.field if field.name != "move"]
                del message.field[:]
                message.field.extend(kept)
        pool.Add(file)
    older = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("slacktide.v1.ServerMessage")
    )
    read = older.FromString(m.ServerMessage(move=m.Move(address="h:1")).SerializeToString())
    assert read.WhichOneof("message") is None


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        (m.Hello(rate=1, slo_ms=1), "model"),
        (m.Hello(model="m" * 200, rate=1, slo_ms=1), "model"),
        (m.Hello(model="m", name="a\nb", rate=1, slo_ms=1), "name"),
        (m.Hello(model="m", slo_ms=1), "rate"),
        (m.Hello(model="m", rate=-1, slo_ms=1), "rate"),
        (m.Hello(model="m", rate=float("nan"), slo_ms=1), "rate"),
        (m.Hello(model="m", rate=1e9, slo_ms=1), "rate"),
        (m.Hello(model="m", rate=1, slo_ms=float("inf")), "slo_ms"),
        (m.Hello(model="m", rate=1), "slo_ms"),
        (m.Hello(model="m", rate=1, slo_ms=1, accuracy_floor=1.5), "accuracy_floor"),
        (m.Hello(model="m", rate=1, slo_ms=1, weight=-0.5), "weight"),
        (m.Hello(model="m", rate=1, slo_ms=1, bytes_per_s=float("nan")), "bytes_per_s"),
    ],
)
async def test_a_bad_hello_is_refused_with_the_field_named(hello, field):
    data = FakeDataPlane()
    async with streaming(data, greet=False) as client:
        await client.send(hello=hello)
        kind, code = await client.read()
        details = await client.call.details()
        sessions = data.sessions
    assert (kind, code) == ("end", grpc.StatusCode.INVALID_ARGUMENT)
    assert details.startswith(f"{field}: ")
    assert not sessions


async def test_a_session_that_may_not_be_ends_the_stream():
    data = FakeDataPlane(no_session=WireError(Reason.CLIENT_LIMIT, "too many"))
    async with streaming(data, greet=False) as client:
        await client.send(hello=HELLO)
        assert (await client.read(), await client.call.details()) == (
            ("end", grpc.StatusCode.RESOURCE_EXHAUSTED),
            "too many",
        )


@pytest.mark.parametrize("nbytes", [16, LONG])
async def test_an_announced_frame_is_acknowledged_and_answered(nbytes):
    data = FakeDataPlane()
    async with streaming(data) as client:
        session = data.sessions[0]
        session.advice = SizeAdvice(128, "128", True, 2e6)
        session.rtt = 7.0  # measured anew with each announcement
        await client.announce(7, nbytes, age_us=100_000, width=128, height=96)
        await data.until(lambda: data.announced)
        await client.frame(7, nbytes, rate=3e6)
        taken, (kind, answer) = await client.read(), await client.read()
    assert taken[0] == "acknowledgement"
    assert taken[1].id == 7
    assert taken[1].transfer_us > 0
    assert kind == "answer"
    assert answer.id == 7
    assert answer.advice == m.Advice(size=128, variant="128", mapped=True, bytes_per_s=2e6)
    assert answer.response.raw_output_contents[0] == request(nbytes).raw_input_contents[0]
    (call,) = data.announced
    assert data.calls == [call]
    assert nbytes < call.length <= nbytes + 4096
    context = call.context
    assert context.session == "s:1"
    assert context.transport_budget_s == pytest.approx(0.4 - session.rtt)
    assert context.complete_at == pytest.approx(context.first_byte + nbytes / 1e6)
    advice, (arrived, moved, seconds, size), answered = session.steps
    assert advice == ("told", 3e6)
    assert (arrived, size) == ("arrived", (128, 96))
    assert 0.0 < seconds < 20.0
    assert nbytes < moved < nbytes + 200
    assert answered == ("answered", Reason.ON_TIME)


async def test_a_pause_between_announcement_and_frame_is_not_the_links():
    class Clock:
        now = 100.0

        def __call__(self) -> float:
            self.now += 0.001  # whenever it is looked at, and so with each piece
            return self.now

    data, clock = FakeDataPlane(), Clock()
    async with (
        serving(data, clock=clock) as server,
        channel_to(server) as channel,
    ):
        client = Client(channel.stream_stream(METHOD)())
        await client.send(hello=HELLO)
        await client.announce(1, 900_000)
        await data.until(lambda: data.announced)
        clock.now += 2.0
        await client.frame(1, 900_000)
        await client.read()
        (_, taken), (_, nbytes, seconds, _) = await client.read(), data.sessions[0].steps[0]
    assert taken.transfer_us > 2_000_000
    assert nbytes > 900_000
    assert 0.0 < seconds < 1.0


async def test_a_long_frame_comes_straight_into_its_place():
    whole = m.ClientMessage(frame=m.Frame(id=1, request=request(LONG))).SerializeToString()
    data = FakeDataPlane(holds=True)
    async with streaming(data) as client:
        await client.announce(1, LONG)
        await client.frame(1, LONG)
        await data.until(lambda: data.held)
        assert bytes(data.announced[0].memory).startswith(whole)


@pytest.mark.parametrize("nbytes", [16, LONG])
async def test_a_frame_without_announcement_is_served(nbytes):
    data = FakeDataPlane()
    async with streaming(data) as client:
        await client.frame(3, nbytes)
        taken = await client.read()
        kind, answer = await client.read()
        steps = data.sessions[0].steps
    assert taken == ("acknowledgement", m.Acknowledgement(id=3, transfer_us=0))
    assert (kind, answer.id) == ("answer", 3)
    assert answer.HasField("response")
    assert steps[0][2] == 0.0  # nothing was timed


async def test_a_frame_whose_fields_come_in_another_order_is_served():
    frame = m.Frame(request=request(16)).SerializeToString() + m.Frame(id=4).SerializeToString()
    message = bytes((3 << 3 | 2, len(frame))) + frame

    data = FakeDataPlane()
    async with streaming(data) as client:
        await client.announce(4)
        await client.call.write(message)
        (_, taken), (kind, answer) = await client.read(), await client.read()
    assert taken.id == 4
    assert (kind, answer.id) == ("answer", 4)
    assert answer.response.raw_output_contents[0] == request(16).raw_input_contents[0]


async def test_compressed_frames_are_served():
    data = FakeDataPlane()
    async with serving(data) as server, channel_to(server) as channel:
        call = channel.stream_stream(METHOD)(compression=grpc.Compression.Gzip)
        client = Client(call)
        await client.send(hello=HELLO)
        await client.announce(1, LONG)
        await client.frame(1, LONG)
        assert [(await client.read())[0] for _ in range(3)] == [
            "welcome",
            "acknowledgement",
            "answer",
        ]


async def test_a_frame_refused_at_its_announcement_is_answered_at_once_and_passed_over():
    reply = refusing(Reason.BEHIND_WORK, "busy")(InferCall("m", None, "", []))
    data = FakeDataPlane(refusal=reply)
    async with streaming(data) as client:
        await client.announce(1, LONG)
        answer = await client.read()
        await client.frame(1, LONG)
        taken = await client.read()
        data.refusal = None
        await client.announce(2)
        await client.frame(2)
        (kind, taken), others = taken, [await client.read(), await client.read()]
    assert refused(*answer) == "behind_work"
    assert (kind, taken.id) == ("acknowledgement", 1)
    assert taken.transfer_us > 0
    assert [kind for kind, _ in others] == ["acknowledgement", "answer"]
    assert len(data.calls) == 1
    assert data.sessions[0].steps[0] == ("answered", None)
    assert data.sessions[0].steps[1][:1] == ("arrived",)


def late_reply() -> InferReply:
    return InferReply(Outcome(Reason.EXPIRED, 0.0), "m", "1", "", None, "late")


async def test_an_announcement_without_frame_is_answered_when_it_is_given_up():
    data = FakeDataPlane()
    async with streaming(data) as client:
        await client.announce(1, 50_000)
        await data.until(lambda: data.announced)
        (call,) = data.announced
        call.given_up(late_reply())
        answer = await client.read()
        await client.frame(1, 50_000)  # too late: acknowledged, and no more
        taken = await client.read()
        await client.announce(2)
        await client.frame(2)
        others = [await client.read(), await client.read()]
    assert refused(*answer) == "expired"
    assert answer[1].server_us == 0
    assert taken[0] == "acknowledgement"
    assert [message.id for _, message in others] == [2, 2]
    assert call.steps == ["announce", "cancel no_body"]
    assert ("stalled", 0, 50_000) in data.sessions[0].steps


async def test_a_frame_given_up_on_its_way_keeps_its_place_until_it_is_here():
    data = FakeDataPlane()
    async with streaming(data) as client:
        await client.announce(1, 900_000)
        whole = m.ClientMessage(frame=m.Frame(id=1, request=request(900_000)))
        # The stream's window holds the rest back: a stock client sends no half messages.
        sending = asyncio.ensure_future(client.call.write(whole.SerializeToString()))
        await data.until(lambda: data.announced)
        (call,) = data.announced
        call.given_up(late_reply())
        answer = await client.read()
        await sending
        taken = await client.read()
        steps = call.steps
    assert refused(*answer) == "expired"
    assert taken[0] == "acknowledgement"
    assert steps[0] == "announce"
    assert steps[1].startswith("cancel")
    assert len(steps) == 2


async def test_impossible_frames_fail_alone():
    data = FakeDataPlane(holds=True)
    async with streaming(data, max_request_bytes=1_000_000) as client:
        await client.announce(1, 2_000_000)
        too_long = await client.read()
        await client.announce(2, 0)
        empty = await client.read()
        await client.announce(3, 100)
        await client.frame(3, LONG)  # far more than announced
        longer = [await client.read(), await client.read()]
        await client.announce(4, 16)
        await client.frame(4, model="other")
        other = [await client.read(), await client.read()]
        await client.announce(5)
        await client.announce(5)
        twice = await client.read()
        await client.frame(5)
        await data.until(lambda: data.held)
        taken = await client.read()
        data.held[0].answer()
        last = await client.read()
    assert refused(*too_long) == refused(*empty) == "too_large"
    assert sorted(kind for kind, _ in longer) == ["acknowledgement", "answer"]
    (wrong,) = (message for kind, message in longer if kind == "answer")
    assert wrong.refusal.reason == "bad_input"
    assert wrong.refusal.message.startswith("bytes: ")
    assert other[0][0] == "acknowledgement"
    assert other[1][1].refusal.message.startswith("model_name: ")
    assert twice[1].refusal.message.startswith("id: ")
    assert taken[0] == "acknowledgement"
    assert last[0] == "answer"
    assert last[1].HasField("response")


@pytest.mark.parametrize("message", [b"\xff\xff", b"", m.ClientMessage().SerializeToString()])
async def test_a_message_that_is_none_ends_the_stream(message):
    data = FakeDataPlane()
    async with streaming(data) as client:
        await client.call.write(message)
        end = await client.read()
        (kind, code), closed = end, data.sessions[0].closed
    assert (kind, code) == ("end", grpc.StatusCode.INVALID_ARGUMENT)
    assert closed == 1


@pytest.mark.parametrize("nbytes", [16, LONG])
async def test_nothing_goes_before_the_hello(nbytes):
    async with streaming(greet=False) as client:
        await client.frame(1, nbytes)
        assert (await client.read()) == ("end", grpc.StatusCode.INVALID_ARGUMENT)


async def test_advice_is_pushed_while_nothing_is_answered():
    data = FakeDataPlane()
    async with streaming(data) as client:
        data.sessions[0].advise(SizeAdvice(0, "", False, 5.0))
        assert (await client.read()) == ("advice", m.Advice(mapped=False, bytes_per_s=5.0))


async def test_a_flood_is_held_back_and_every_frame_answered():
    data = FakeDataPlane(holds=True)
    async with streaming(data, stream_in_flight=4) as client:
        for id in range(1, 21):
            await client.announce(id)
            await client.frame(id)
        await data.until(lambda: len(data.held) == 4)
        most, answers = len(data.held), []
        while len(answers) < 20:
            if data.held:
                data.held.pop(0).answer()
                most = max(most, len(data.held))
            kind, message = await client.read()
            if kind == "answer":
                answers.append(message.id)
    assert most <= 4
    assert answers == list(range(1, 21))


async def test_a_client_that_is_silent_for_three_seconds_is_gone():
    class Clock:
        now = 100.0

    data = FakeDataPlane()
    async with (
        serving(data, settings=GrpcSettings(tick_s=0.02), clock=lambda: Clock.now) as server,
        channel_to(server) as channel,
    ):
        client = Client(channel.stream_stream(METHOD)())
        await client.send(hello=HELLO)
        await client.read()
        Clock.now += 2.9
        await client.announce(1)
        await data.until(lambda: data.announced)
        Clock.now += 2.9
        await asyncio.sleep(0.1)
        assert not data.sessions[0].closed
        loop_watch()._stalls.append((Clock.now, Clock.now + 60.0))
        Clock.now += 60.0  # the server stands still: nobody was heard meanwhile
        await asyncio.sleep(0.1)
        assert not data.sessions[0].closed
        Clock.now += 0.2
        (kind, code), details = await client.read(), await client.call.details()
    assert (kind, code) == ("end", grpc.StatusCode.CANCELLED)
    assert details == "no message from the client for 3 s"
    assert data.sessions[0].closed
    assert data.announced[0].steps == ["announce", "cancel client_cancelled"]


async def test_a_cut_stream_gives_everything_back():
    data = FakeDataPlane(holds=True)
    async with streaming(data) as client:
        await client.announce(1)
        await client.frame(1)
        await client.announce(2, LONG)
        await data.until(lambda: len(data.announced) == 2 and data.held)
        client.call.cancel()
        await data.until(lambda: len(data.cancelled) == 2)
        assert (data.sessions[0].closed, [call.steps[-1] for call in data.announced]) == (
            1,
            ["cancel client_cancelled"] * 2,
        )


async def test_a_half_closed_stream_still_gets_its_answers():
    data = FakeDataPlane(holds=True)
    async with streaming(data) as client:
        await client.announce(1)
        await client.frame(1)
        await client.announce(2)  # never comes
        await client.call.done_writing()
        await data.until(lambda: data.held and len(data.announced) == 2)
        data.held[0].answer()
        messages_read = [await client.read() for _ in range(3)]
        kinds, code, closed = (
            [kind for kind, _ in messages_read],
            messages_read[2][1],
            data.sessions[0].closed,
        )
    assert kinds == ["acknowledgement", "answer", "end"]
    assert code is grpc.StatusCode.OK
    assert closed == 1


async def test_a_server_that_drains_answers_what_is_here_and_ends_the_stream():
    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        client = Client(channel.stream_stream(METHOD)())
        await client.send(hello=HELLO)
        await client.announce(1)
        await client.frame(1)
        await data.until(lambda: data.held)
        draining = asyncio.ensure_future(server.drain(10))
        await asyncio.sleep(0)
        data.held[0].answer()
        messages_read = [await client.read() for _ in range(4)]
        await draining
    assert [kind for kind, _ in messages_read] == ["welcome", "acknowledgement", "answer", "end"]
    assert messages_read[3][1] is grpc.StatusCode.UNAVAILABLE


async def test_a_hundred_sessions_share_a_connection():
    data = FakeDataPlane()
    async with serving(data) as server, channel_to(server) as channel:

        async def one(number: int) -> list[str]:
            client = Client(channel.stream_stream(METHOD)())
            await client.send(hello=m.Hello(model="m", rate=2, slo_ms=900, name=str(number)))
            for id in (1, 2):
                await client.announce(id, 3_000)
                await client.frame(id, 3_000)
            return [(await client.read())[0] for _ in range(5)]

        sessions_kinds = await asyncio.gather(*map(one, range(100)))
        connections = server.connections
    assert all(
        sorted(kinds) == ["acknowledgement"] * 2 + ["answer"] * 2 + ["welcome"]
        for kinds in sessions_kinds
    )
    assert connections == 1
    assert len({session.terms.name for session in data.sessions}) == 100


async def test_the_round_trip_is_measured():
    data = FakeDataPlane()
    async with streaming(data) as client:
        data.sessions[0].rtt = -1.0
        for id in range(1, 4):
            await client.announce(id)
            await client.frame(id)
            await client.read()
            await client.read()
        assert 0.0 < data.sessions[0].rtt < 1.0
