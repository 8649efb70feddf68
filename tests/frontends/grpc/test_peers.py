"""Links between two gRPC servers on one loop, and with peers that break the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import grpc
import grpc.aio
import pytest
from tests.frontends.doubles import QUICK, FakeDataPlane, refusing
from tests.frontends.grpc.grpc_client import RawClient, channel_to, framed
from tests.frontends.grpc.grpc_client import serving as serving_clients
from tests.frontends.grpc.peer_hosts import FakeHost, call_of, dial, forwarded, hosting, linked

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.security import Gate, PeerAccess, PortRules
from slacktide.frontends.grpc import peers
from slacktide.frontends.grpc.peer_calls import MAX_CALLS
from slacktide.frontends.http2 import ErrorCode
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import GrpcSettings
from slacktide.peers import LoadReport, ModelLoad, PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.calls import CallContext, InferReply
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.proto import messages as m

TOKEN = "peers-know-this-token"
LONG = 98_304
CONTEXT = CallContext(0.0, "", "grpc")


async def test_calls_go_both_ways_straight_into_their_slots():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        for host, peer in ((a, b), (b, a)):
            for nbytes in (16, LONG):
                call = call_of(nbytes)
                reply = await forwarded(host, call)
                assert reply.outputs[0].data == call.inputs[0].data
                assert (reply.model, reply.id, reply.outcome.reason) == ("m", "7", Reason.ON_TIME)
                executed = peer.data.calls[-1]
                assert executed.steps == (["announce"] if nbytes == LONG else []) + ["submit"]
                context = executed.context
                assert (context.transport, context.client) == ("peer", host.machine)
                assert (context.request_id, context.traceparent) == ("r", "00-t")
                assert 0.0 < context.transport_budget_s <= 1.0
        assert (a.hellos[0].machine, b.hellos[0].machine) == ("b", "a")
        assert a.hellos[0].instance == "i-b"


async def test_the_budget_loses_half_of_the_round_trip_and_may_be_missing():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        async with asyncio.timeout(10):
            while not b.links[0].rtt:
                await asyncio.sleep(0)
        for budget, expected in ((1.0, 0.75), (0.1, 0.0), (None, None)):
            b.links[0].rtt = 0.5
            await forwarded(a, call_of(), budget)
            assert b.data.calls[-1].context.transport_budget_s == expected


async def test_both_sides_of_a_link_know_the_address_of_the_other():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b) as (_, second, _):
        assert a.links[0].address == f"127.0.0.1:{second.port}"
        assert b.links[0].address == "127.0.0.1"


async def test_round_trips_are_measured():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        async with asyncio.timeout(10):
            while not (a.links[0].rtt and b.links[0].rtt):
                await asyncio.sleep(0.01)


async def test_a_thousand_short_calls_that_are_cancelled_do_not_end_the_link():
    a, b = FakeHost("a"), FakeHost("b")
    b.data.holds = True
    async with linked(a, b):
        call = call_of(1, id="")
        calls = [a.links[0].forward(call, CONTEXT, 1.0, print) for _ in range(MAX_CALLS)]
        assert not a.links[0].has_room(1)
        await b.data.until(lambda: len(b.data.held) == len(calls))
        for call_id in calls:
            a.links[0].withdraw(call_id)
        await b.data.until(lambda: not b.data.held)
        b.data.holds = False
        assert (await forwarded(a, call_of(id="3"))).id == "3"


@pytest.mark.parametrize("nbytes", [16, LONG])
async def test_a_refusal_comes_back_whole(nbytes):
    a, b = FakeHost("a"), FakeHost("b")
    refusal = refusing(Reason.BEHIND_WORK, "too late", 1.5)(call_of())
    outcome = Outcome(Reason.BEHIND_WORK, 0.0, budget_s=0.1, needed_s=0.2, wait_s=0.3)
    refusal.outcome = outcome
    b.data.answer = lambda call: refusal
    b.data.refusal = refusal
    async with linked(a, b):
        reply = await forwarded(a, call_of(nbytes))
        assert reply.outputs is None
        assert (reply.message, reply.retry_after_s) == ("too late", 1.5)
        numbers = reply.outcome.budget_s, reply.outcome.needed_s, reply.outcome.wait_s
        assert (reply.outcome.reason, *numbers) == (Reason.BEHIND_WORK, 0.1, 0.2, 0.3)
        b.data.refusal, b.data.answer = None, lambda call: InferReply(outcome, "m", "1", "", [])
        assert (await forwarded(a, call_of(nbytes))).outputs == []


async def test_tensors_that_do_not_fit_fail_alone():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        for nbytes in (16, LONG):
            call = call_of(nbytes)
            call.inputs[0].shape = (1, nbytes + 1)
            reply = await forwarded(a, call)
            assert reply.outcome.reason is Reason.BAD_INPUT
            assert "raw_input_contents" in reply.message
        assert (await forwarded(a, call_of())).outputs


async def test_a_cancelled_call_is_cancelled_there_and_its_answer_is_ignored():
    a, b = FakeHost("a"), FakeHost("b")
    b.data.holds = True
    async with linked(a, b):
        replies: list[InferReply | None] = []
        first = a.links[0].forward(call_of(id="1"), CONTEXT, 1.0, replies.append)
        second = a.links[0].forward(call_of(id="2"), CONTEXT, 1.0, replies.append)
        await b.data.until(lambda: len(b.data.held) == 2)
        b.data.release("1")
        a.links[0].withdraw(first)  # crosses the answer
        a.links[0].withdraw(second)
        a.links[0].withdraw(second)
        await b.data.until(lambda: b.data.cancelled)
        assert b.data.cancelled == [("2", Reason.CLIENT_CANCELLED)]
        b.data.holds = False
        assert (await forwarded(a, call_of(id="3"))).id == "3"
        assert replies == []


@pytest.mark.parametrize("nbytes", [16, LONG, 4_000_000])
async def test_tensors_may_change_once_a_call_is_forwarded(nbytes):
    """A cancelled call gives its slot to another while some of its bytes wait to be sent."""
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        call = call_of(nbytes, id="1")
        tensor = bytes(call.inputs[0].data)
        memory = bytearray(tensor)
        call.inputs[0].data = memoryview(memory)
        replies: list[InferReply | None] = []
        a.links[0].forward(call, CONTEXT, 1.0, replies.append)
        memory[:] = bytes(nbytes)
        assert (await forwarded(a, call_of(id="3"))).id == "3"
        assert replies[0].outputs[0].data == tensor


async def test_calls_that_cross_a_hello_with_other_models_are_refused():
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO, ends=False)
        await host.data.until(lambda: host.links)
        host.links[0].greet(PeerHello(1, "0.1", "a", {"m:1": "other"}))
        client.give(1, raw_call(1) + raw_call(2, LONG), ends=False)
        await client.until(lambda: bytes(client.data.get(1, b"")).count(b"unavailable") == 2)
        assert host.data.calls == []
        for ping in range(1, 3):  # of both hellos
            client.give(1, message(pong=m.PeerPing(id=ping)), ends=False)
        client.give(1, raw_call(3), ends=False)
        await host.data.until(lambda: host.data.calls)
        host.links[0].greet(PeerHello(1, "0.1", "a", {}))  # it shuts down
        client.give(1, raw_call(4), ends=False)
        await host.data.until(lambda: len(host.data.calls) == 2)


async def test_reports_are_merged_and_ride_with_an_answer():
    a, b = FakeHost("a"), FakeHost("b")
    b.data.holds = True

    def load(model: str, wait: float) -> ModelLoad:
        return ModelLoad(model, wait, 0.1, 0.01)

    async with linked(a, b):
        task = asyncio.create_task(forwarded(a, call_of(id="1")))
        await b.data.until(lambda: b.data.held)
        b.links[0].report(LoadReport((load("m", 1.0), load("n", 2.0)), 99))
        b.links[0].report(LoadReport((load("m", inf),), 99))
        b.data.release("1")
        await task
        assert a.reports == [LoadReport((load("m", inf), load("n", 2.0)), 1)]
        b.links[0].report(LoadReport((load("m", 0.0),), 99))
        await a.data.until(lambda: len(a.reports) == 2)
        assert a.reports[1] == LoadReport((load("m", 0.0),), 1)


async def test_models_that_change_before_the_peer_says_hello_are_told_to_it():
    host = FakeHost()
    async with raw_peer(host) as client:
        await client.until(lambda: b"abc" in bytes(client.data.get(1, b"")))
        host.models = {"m:1": "changed"}
        client.give(1, HELLO, ends=False)
        await client.until(lambda: b"changed" in bytes(client.data[1]))


async def test_a_hello_said_again_brings_other_models():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b):
        b.links[0].greet(PeerHello(1, "0.1", "b", {"n:1": "d"}))
        await a.data.until(lambda: len(a.hellos) == 2)
        assert (a.hellos[1].models, a.hellos[1].instance) == ({"n:1": "d"}, "i-b")


@pytest.mark.parametrize("dialler_ends", [True, False])
async def test_a_link_that_is_closed_answers_what_is_under_way(dialler_ends):
    a, b = FakeHost("a"), FakeHost("b")
    a.data.holds = b.data.holds = True
    async with linked(a, b) as (_, _, ends):
        tasks = [asyncio.create_task(forwarded(host, call_of(id="1"))) for host in (a, b)]
        await b.data.until(lambda: b.data.held)
        await a.data.until(lambda: a.data.held)
        links = a.links[0], b.links[0]
        links[not dialler_ends].close("enough")
        b.data.release("1")
        a.data.release("1")
        assert [reply.id for reply in await asyncio.gather(*tasks)] == ["1", "1"]
        await a.data.until(lambda: ends)
        await b.data.until(lambda: b.gone)
        assert a.gone == b.gone == ["enough"]
        assert not any(link.has_room(1) for link in links)
        replies: list[InferReply | None] = []
        links[0].forward(call_of(), CONTEXT, 1.0, replies.append)
        assert replies == []
        await asyncio.sleep(0)
        assert replies == [None]


@pytest.mark.parametrize("dialler_ends", [True, False])
async def test_a_server_that_drains_says_goodbye(dialler_ends):
    a, b = FakeHost("a"), FakeHost("b")
    a.data.holds = b.data.holds = True
    async with linked(a, b) as servers:
        tasks = [asyncio.create_task(forwarded(host, call_of(id="1"))) for host in (a, b)]
        await b.data.until(lambda: b.data.held)
        await a.data.until(lambda: a.data.held)
        server, links = servers[not dialler_ends], (a.links[0], b.links[0])
        drain = asyncio.create_task(server.drain(20.0))
        async with asyncio.timeout(10):
            while any(link.has_room(1) for link in links):
                await asyncio.sleep(0)
        b.data.release("1")
        a.data.release("1")
        assert None not in await asyncio.gather(*tasks)
        assert await drain
        await a.data.until(lambda: a.gone)
        await b.data.until(lambda: b.gone)
        assert a.gone == b.gone == ["the server is shutting down"]


@pytest.mark.parametrize("dialler_ends", [True, False])
async def test_a_server_that_dies_leaves_nothing_unanswered(dialler_ends):
    a, b = FakeHost("a"), FakeHost("b")
    a.data.holds = b.data.holds = True
    async with linked(a, b) as servers:
        tasks = [asyncio.create_task(forwarded(host, call_of(LONG, "1"))) for host in (a, b)]
        await b.data.until(lambda: b.data.held)
        await a.data.until(lambda: a.data.held)
        order: list[str] = []
        survivor = b if dialler_ends else a
        tasks[dialler_ends].add_done_callback(lambda task: order.append(f"{survivor.gone}"))
        await servers[not dialler_ends].close()
        assert await asyncio.gather(*tasks) == [None, None]
        assert order != ["[]"]  # it has left before
        assert [host.data.cancelled for host in (a, b)] == [[("1", Reason.DISCONNECTED)]] * 2
        assert len(survivor.gone) == 1


async def test_a_link_has_room_for_what_windows_and_the_peer_let_through():
    a, b = FakeHost("a"), FakeHost("b")
    async with linked(a, b, GrpcSettings(max_request_bytes=4 << 20)):
        link = a.links[0]
        assert link.has_room(3 << 20)
        assert not link.has_room(4 << 20)
        replies: list[InferReply | None] = []
        while link.has_room(LONG):
            link.forward(call_of(LONG), CONTEXT, 1.0, replies.append)
            assert len(replies) < MAX_CALLS
        await b.data.until(lambda: len(b.data.calls) >= 20)
        async with asyncio.timeout(10):
            while not link.has_room(LONG):
                await asyncio.sleep(0)


async def test_unread_memory_of_a_busy_link_is_charged_once():
    a, b = FakeHost("a"), FakeHost("b")
    settings = GrpcSettings(max_buffered_per_client=16 << 20, max_buffered_bytes=32 << 20)
    async with linked(a, b, settings) as (first, second, ends):

        async def ask() -> None:
            for _ in range(12):
                assert await forwarded(a, call_of(600_000))

        await asyncio.gather(*(ask() for _ in range(4)))
        assert ends == []
        assert first.state.buffers.bytes_in_use == second.state.buffers.bytes_in_use == 0


async def test_a_refused_hello_ends_the_link_with_its_sentence():
    a, b = FakeHost("a"), FakeHost("b", refuses="two servers are named 'a'")
    async with hosting(a) as first, hosting(b) as second:
        ends = await dial(first, a, second.port)
        await a.data.until(lambda: ends)
        assert ends == b.gone == ["two servers are named 'a'"]


# -------------------------------------------------------------------- credentials


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (None, "a bearer token is required"),
        ("clients-know-this-token", "the bearer token is not valid"),
        (TOKEN, None),
    ],
)
async def test_peers_show_a_token_of_their_own(token, sentence):
    a, b = FakeHost("a"), FakeHost("b")
    gate = Gate("clients-know-this-token").on(PortRules())
    options = {"authorize": gate, "peer_access": PeerAccess(TOKEN)}
    async with hosting(a) as first, hosting(b, **options) as second:
        ends = await dial(first, a, second.port, token)
        await a.data.until(lambda: ends or a.links)
        assert ends == b.gone == ([] if sentence is None else [sentence])
        assert b.links == [] or sentence is None


async def test_the_token_of_peers_opens_nothing_else():
    gate = Gate("clients-know-this-token").on(PortRules())
    async with (
        hosting(FakeHost(), authorize=gate, peer_access=PeerAccess(TOKEN)) as server,
        channel_to(server) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{m.INFERENCE_SERVICE}/ServerMetadata")(
                b"", metadata=[("authorization", f"Bearer {TOKEN}")]
            )
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("access", "address", "certificate", "passes"),
    [
        (PeerAccess(), "127.0.0.1", None, True),
        (PeerAccess(), "::1", None, True),
        (PeerAccess(), "10.0.0.1", None, False),
        (PeerAccess(local=False), "127.0.0.1", None, False),
        (PeerAccess(names=frozenset({"b.lan"})), "127.0.0.1", None, False),
        (
            PeerAccess(names=frozenset({"b.lan"})),
            "10.0.0.1",
            {"subjectAltName": (("DNS", "B.lan"),)},
            True,
        ),
        (
            PeerAccess(names=frozenset({"b.lan"})),
            "10.0.0.1",
            {"subject": ((("commonName", "client"),),), "subjectAltName": (("DNS", "c"),)},
            False,
        ),
    ],
)
def test_without_a_token_peers_have_a_certificate_or_are_local(
    access, address, certificate, passes
):
    assert (access.judge({}, address, certificate).value == "pass") is passes


async def test_without_peers_there_is_no_such_method():
    a = FakeHost("a")
    async with hosting(a) as first, serving_clients() as second:
        ends = await dial(first, a, second.port)
        await a.data.until(lambda: ends)
        assert ends == ["unknown method /slacktide.v1.Peers/Connect"]


# -------------------------------------------------------------------- raw peers

HELLO = framed(pm.hello_message(PeerHello(1, "0", "raw", {}), 1 << 26))
CODEC = GrpcCodec()


def message(**content) -> bytes:
    return framed(m.PeerMessage(**content).SerializeToString())


def raw_call(id: int, nbytes: int = 16) -> bytes:
    return framed(
        b"".join(pm.forwarded_pieces(id, GrpcCodec().call_pieces(call_of(nbytes)), CONTEXT, 1.0))
    )


@asynccontextmanager
async def raw_peer(host: FakeHost, **settings) -> AsyncIterator[RawClient]:
    """A peer that sends what a test says. Its stream has id 1."""
    async with hosting(host, GrpcSettings(**{**QUICK, **settings})) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = RawClient(reader, writer)
        client.server = server
        client.open()
        client.ask(1, peers.CONNECT.encode())
        try:
            yield client
        finally:
            writer.close()


def goodbye(client: RawClient) -> str:
    """The sentence that came before the end."""
    data, why = bytes(client.data.get(1, b"")), ""
    while data:
        length = int.from_bytes(data[1:5])
        content = m.PeerMessage.FromString(data[5 : 5 + length])
        why, data = content.goodbye.why or why, data[5 + length :]
    return why


SWAPPED = b"\x2a\x04\x7a\x00\x08\x09"
"""A call whose id comes after its request."""
MANY = m.HelloPeer(machine="raw", models={str(i): "d" for i in range(10_000)})
ANSWER = b"".join(
    pm.reply_pieces(1, InferReply(Outcome(Reason.ON_TIME, 0.0), "m", "1", "", []), [b""])
)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ([message(hello=MANY)], "models: expected at most 1024 models, got 10000"),
        ([message(hello=m.HelloPeer())], "machine: expected the name of a machine"),
        ([message(loads=m.LoadsOfPeer())], "message: expected a hello first"),
        ([raw_call(1)], "message: expected a hello first"),
        ([raw_call(1, LONG)], "message: expected a hello first"),
        ([HELLO, message(hello=m.HelloPeer(machine="x"))], "machine: expected 'raw', as before"),
        ([HELLO, framed(b"\xff\xff")], "message: not a PeerMessage"),
        ([HELLO, framed(b"")], "message: expected one of protocol 1"),
        ([HELLO, framed(SWAPPED)], "message: expected one of protocol 1, a call's request last"),
        ([HELLO, framed(b"\x32\x02\x08\x01")], "reason: expected a known reason"),
        ([HELLO, framed(bytes(70_000), flag=2)], "message: expected 0 or 1"),
        ([HELLO, framed(b"x", flag=1)], "message: compressed, but grpc-encoding"),
        ([HELLO, raw_call(1), raw_call(1)], "call.id: expected an id that is not in use"),
        ([HELLO, b"\0\xff\xff\xff\xff"], "message: expected at most"),
        (
            [HELLO, message(loads=m.LoadsOfPeer(loads=[m.LoadOfModel(model="m", wait_s=-1)]))],
            "loads of 'm': expected seconds",
        ),
        (
            [HELLO, *(raw_call(id, 64) for id in range(1025))],
            "call: expected at most 1024",
        ),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_told_why(sent, sentence):
    host = FakeHost(data=FakeDataPlane(holds=True))
    async with raw_peer(host) as client:
        for piece in sent:
            client.give(1, piece, ends=False)
        code, words = await client.status(1)
        assert code != 0
        assert words.startswith(sentence)
        assert goodbye(client).startswith(sentence[:200])
        assert host.links == []
        assert all(why.startswith(sentence) for why in host.gone)
        assert host.data.held == []


@pytest.mark.parametrize("piece", [raw_call(1, LONG)[:50_000], b"\0\0", raw_call(1)[:9]])
async def test_half_a_message_before_the_end_breaks_the_protocol(piece):
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO, ends=False)
        client.give(1, piece)
        assert (await client.status(1))[0] != 0
        assert len(host.gone) == 1
        assert host.gone[0].startswith("message: expected")
        for call in host.data.announced:
            assert call.steps == ["announce", "cancel disconnected"]


async def test_half_a_message_before_a_reset_gives_the_slot_back():
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO + raw_call(1, LONG)[:50_000], ends=False)
        await host.data.until(lambda: host.data.announced)
        client.send(f.reset(1, ErrorCode.CANCEL))
        await host.data.until(lambda: host.gone)
        assert host.data.announced[0].steps == ["announce", "cancel disconnected"]


async def test_a_message_may_come_in_one_frame():
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO, ends=False)
        await host.data.until(lambda: host.links)
        client.send(f.frame(f.DATA, 0, 1, raw_call(1, 500_000)))
        await host.data.until(lambda: host.data.announced)
        await client.until(lambda: b"on_time" in client.data.get(1, b""))


async def test_answers_and_cancels_of_unknown_ids_are_ignored():
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO + framed(ANSWER), ends=False)
        client.give(1, message(cancel=m.CancelOfPeer(id=5)), ends=False)
        client.give(1, message(pong=m.PeerPing(id=77)), ends=False)
        client.give(1, message(ping=m.PeerPing(id=78)), ends=False)
        expected = m.PeerMessage(pong=m.PeerPing(id=78)).SerializeToString()
        await client.until(lambda: expected in client.data.get(1, b""))
        assert host.gone == []


async def test_a_silent_peer_is_gone_within_one_and_a_half_seconds():
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO, ends=False)
        await host.data.until(lambda: host.links)
        begin = asyncio.get_running_loop().time()
        await host.data.until(lambda: host.gone)
        assert host.gone == ["silent for 1.4 s"]
        assert asyncio.get_running_loop().time() - begin >= 1.3
        await client.end()


@pytest.mark.replaces_parts
async def test_a_peer_that_never_reads_is_gone(monkeypatch):
    monkeypatch.setattr(peers, "UNREAD_S", 0.3)
    monkeypatch.setattr(peers, "PING_S", 0.1)
    host = FakeHost()
    async with raw_peer(host) as client:
        client.give(1, HELLO, ends=False)
        await host.data.until(lambda: host.links)
        while not host.gone:
            client.give(1, message(ping=m.PeerPing(id=1)), ends=False)
            await asyncio.sleep(0.02)
        assert host.gone == ["it has read nothing for 0.3 s"]


async def test_a_port_that_speaks_no_http2_is_said_so():
    a = FakeHost("a")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with hosting(a) as first:
        ends = await dial(first, a, other.sockets[0].getsockname()[1])
        await a.data.until(lambda: ends)
        assert ends == ["a frame is too long"]
    other.close()


# -------------------------------------------------------------------- stock gRPC


async def test_a_stock_client_can_be_a_peer():
    host = FakeHost("a")
    async with hosting(host) as server, channel_to(server) as channel:
        stream = channel.stream_stream(peers.CONNECT)()
        hello = m.HelloPeer(protocol=1, release="0", machine="stock", max_bytes=1 << 26)
        await stream.write(m.PeerMessage(hello=hello).SerializeToString())
        first = m.PeerMessage.FromString(await stream.read())
        assert (first.hello.machine, first.hello.models) == ("a", {"m:1": "abc"})
        request = m.PeerMessage.FromString(raw_call(1)[5:]).call.request
        call = m.CallOfPeer(id=4, budget_us=10**6, request=request)
        await stream.write(m.PeerMessage(call=call).SerializeToString())
        while True:
            content = m.PeerMessage.FromString(await stream.read())
            if content.WhichOneof("message") == "answer":
                break
        assert (content.answer.id, content.answer.reason) == (4, "on_time")
        assert content.answer.response.raw_output_contents == request.raw_input_contents
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        assert host.gone == ["the peer ended the link"]


async def test_a_stock_server_can_be_a_peer():
    a = FakeHost("a")

    async def connect(requests, context) -> AsyncIterator[bytes]:
        hello = m.HelloPeer(protocol=1, release="0", machine="stock", max_bytes=1 << 26)
        yield m.PeerMessage(hello=hello).SerializeToString()
        async for raw in requests:
            content = m.PeerMessage.FromString(raw)
            kind = content.WhichOneof("message")
            if kind == "ping":
                yield m.PeerMessage(pong=content.ping).SerializeToString()
            elif kind == "call":
                request = content.call.request
                response = m.ModelInferResponse(model_name="m", model_version="1", id=request.id)
                response.outputs.add(name="x", datatype="UINT8", shape=[1, LONG])
                response.raw_output_contents.extend(request.raw_input_contents)
                answer = m.AnswerOfPeer(id=content.call.id, reason="on_time", response=response)
                yield m.PeerMessage(answer=answer).SerializeToString()
            elif kind == "goodbye":
                return

    handler = grpc.stream_stream_rpc_method_handler(connect)
    server = grpc.aio.server()
    service = grpc.method_handlers_generic_handler(m.PEER_SERVICE, {"Connect": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with hosting(a) as first:
        ends = await dial(first, a, port)
        await a.data.until(lambda: a.links)
        call = call_of(LONG)
        reply = await forwarded(a, call)
        assert reply.outputs[0].data == call.inputs[0].data
        a.links[0].close("enough")
        await a.data.until(lambda: ends)
        assert ends == ["enough"]
    await server.stop(None)
