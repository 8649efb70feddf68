"""Framing, order, limits, time-outs, disconnects and drain, over real sockets."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.frontends.http.http_client import binary, post, serve

from slacktide.domain import Reason
from slacktide.executors.hand_over.loop_watch import loop_watch
from slacktide.frontends.http import HttpServer, metrics_routes
from slacktide.frontends.settings import HttpSettings
from slacktide.testing import FakeClock

pytestmark = pytest.mark.usefixtures("run")
"""Every test runs on both kinds of event loops."""

GET = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"


def limits(**changes) -> HttpSettings:
    return HttpSettings(tick_s=0.01, **changes)


# ------------------------------------------------------------------------------- framing


async def test_a_connection_serves_one_request_after_another():
    async with serve() as front_end:
        client = await front_end.connect()
        for _ in range(3):
            client.send(GET)
            answer = await client.answer()
            assert (answer.status, answer.json) == (200, {"live": True})
            assert not answer.closes


async def test_byte_by_byte_is_the_same_as_at_once():
    async with serve() as front_end:
        data, line = binary(b"abc")
        raw = post(data, line)
        whole = await front_end.ask(raw)
        client = await front_end.connect()
        for index in range(len(raw)):
            client.send(raw[index : index + 1])
            await asyncio.sleep(0)
        dripped = await client.answer()
        client.close()
        assert (dripped.status, dripped.body) == (whole.status, whole.body)
        assert front_end.data.tensors == [[b"abc"], [b"abc"]]


async def test_pipelined_answers_keep_the_order_of_requests():
    async with serve() as front_end:
        front_end.data.holds = True
        client = await front_end.connect()
        bodies = [binary(b"x", request_id=str(number)) for number in range(5)]
        client.send(b"".join(post(data, line) for data, line in bodies) + GET)
        await front_end.data.until(lambda: len(front_end.data.calls) == 5)
        for call in reversed(front_end.data.calls):
            call.answer()
        replies = [await client.answer() for _ in range(6)]
        client.close()
        assert [b'"id":"%d"' % n in replies[n].body for n in range(5)] == [True] * 5
        assert replies[5].json == {"live": True}


async def test_pipelining_is_bounded():
    async with serve(limits(max_pipelined=3)) as front_end:
        front_end.data.holds = True
        client = await front_end.connect()
        data, line = binary(b"x")
        client.send(post(data, line) * 10)
        await front_end.data.until(lambda: len(front_end.data.calls) == 3)
        for answered in range(10):
            assert len(front_end.data.calls) == min(3 + answered, 10)
            front_end.data.calls[answered].answer()
            assert (await client.answer()).status == 200


async def test_a_flood_of_requests_waits_for_turns_while_another_client_is_answered():
    async with serve() as front_end:
        ticks = iter(range(1_000_000))
        front_end.context.turns.clock = lambda: next(ticks) / 1000  # each look costs a millisecond
        other = await front_end.connect()
        flood = await front_end.connect("127.0.0.2")
        flood.send(GET * 4000)
        await front_end.until(lambda: front_end.context.turns.waiting)
        assert len(front_end.log) < 1000  # a few turns' shares, in pieces
        other.send(GET)
        assert (await other.answer()).status == 200
        clients = [access.client for access in front_end.log]
        assert clients.count("127.0.0.2") < 2000
        for _ in range(4000):
            assert (await flood.answer()).status == 200


async def test_large_bodies_go_straight_into_the_upload():
    async with serve(limits(receive_bytes=1024)) as front_end:
        payload = bytes(range(256)) * 800
        data, line = binary(payload)
        client = await front_end.connect()
        client.send(post(data, line, "slacktide-application: cam") * 2 + GET)
        first, second, third = [await client.answer() for _ in range(3)]
        client.close()
        assert first.status == second.status == third.status == 200
        assert first.body.endswith(payload)
        announced = front_end.data.announced[0]
        assert (announced.model, announced.version) == ("m", None)
        assert announced.length == len(data)
        assert announced.parameters == {"application": "cam"}
        assert announced.context.client == "127.0.0.1"
        assert announced.context.transport == "http"
        assert bytes(announced.memory) == data
        assert [call.steps for call in front_end.data.announced] == [["announce", "submit"]] * 2


async def test_a_known_head_with_its_body_cut_short_is_no_request():
    async with serve() as front_end:
        data, line = binary(b"hello")
        raw = post(data, line)
        assert (await front_end.ask(raw + raw)).status == 200  # two in one read
        assert len(front_end.context.heads) == 1
        for cut in (1, len(data), len(data) + 1):
            client = await front_end.connect()
            client.send(raw + raw[:-cut])
            assert (await client.answer()).status == 200
            client.close()
        assert len(front_end.context.heads) == 1
        await front_end.until(lambda: not front_end.context.connections)
        assert front_end.data.tensors == [[b"hello"]] * 5
        ended = [call.steps for call in front_end.data.announced]
        assert ended == [["announce", "cancel disconnected"]] * 2
        other = raw.replace(b"Host: test", b"Host: tesu")
        assert (await front_end.ask(other)).body == (await front_end.ask(raw)).body
        assert len(front_end.context.heads) == 2


async def test_expect_continue_is_met_when_the_body_is_wanted():
    async with serve() as front_end:
        data, line = binary(b"hello")
        client = await front_end.connect()
        client.send(post(b"", line, "Expect: 100-continue", length=len(data)))
        assert (await client.answer()).status == 100
        client.send(data)
        assert (await client.answer()).body.endswith(b"hello")
        client.send(post(b"", line, "Expect: 100-continue", path="/nope", length=len(data)))
        refused = await client.answer()
        assert (refused.status, refused.closes) == (404, True)


EXPECT = "Expect: 100-continue"
ALLOW = "slacktide-redirect: allow"


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/v2/models/m/infer", "/v2/models/m/infer?"),
        ("/v2/models/m/versions/1/infer?a=b%20c", "/v2/models/m/versions/1/infer?a=b%20c&"),
        ("http://localhost:80/v2/models/m/infer", "/v2/models/m/infer?"),
    ],
)
async def test_a_client_that_allows_it_is_sent_elsewhere_before_its_body(target, location):
    async with serve() as front_end:
        front_end.data.elsewhere = "http://10.0.0.2:8000"
        client = await front_end.connect()
        client.send(post(b"", ALLOW, EXPECT, path=target, length=100_000))
        answer = await client.answer()
        assert (answer.status, answer.closes, answer.body) == (307, True, b"")
        redirected = f"{location}slacktide-redirect=followed"
        assert answer.headers["location"] == f"http://10.0.0.2:8000{redirected}"
        assert await client.ended() == b""
        assert not front_end.data.announced
        assert not front_end.data.refused
        assert not front_end.data.cancelled
        await front_end.until(lambda: front_end.log)
        assert (front_end.log[0].status, front_end.log[0].outcome) == (307, None)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ((EXPECT,), "/v2/models/m/infer"),
        ((ALLOW,), "/v2/models/m/infer"),
        ((EXPECT, "slacktide-redirect: followed"), "/v2/models/m/infer"),
        ((EXPECT, ALLOW), "/v2/models/m/infer?x=1&slacktide-redirect=followed"),
    ],
)
async def test_other_clients_are_never_sent_elsewhere(lines, path):
    async with serve() as front_end:
        front_end.data.elsewhere = "http://10.0.0.2:8000"
        data, line = binary(bytes(100_000))
        client = await front_end.connect()
        client.send(post(b"", line, *lines, path=path, length=len(data)))
        if EXPECT in lines:
            assert (await client.answer()).status == 100
        client.send(data)
        assert (await client.answer()).status == 200
        assert front_end.data.asked_elsewhere == 0
        assert front_end.data.calls[0].context.redirected == ("followed" in f"{lines}{path}")


async def test_expect_of_http_1_0_is_ignored():
    async with serve() as front_end:
        front_end.data.elsewhere = "http://10.0.0.2:8000"
        data, line = binary(bytes(1000))
        request = post(data, line, EXPECT, ALLOW).replace(b" HTTP/1.1", b" HTTP/1.0")
        assert (await front_end.ask(request)).status == 200
        assert front_end.data.asked_elsewhere == 0


async def test_another_value_of_redirect_is_refused():
    async with serve() as front_end:
        answer = await front_end.ask(post(b"", "slacktide-redirect: perhaps"))
        assert answer.status == 400
        assert answer.json["error"].startswith("slacktide-redirect: expected allow or followed")


async def test_a_chunked_body_is_not_sent_elsewhere():
    async with serve() as front_end:
        front_end.data.elsewhere = "http://10.0.0.2:8000"
        client = await front_end.connect()
        head = post(b"", ALLOW, EXPECT, "Transfer-Encoding: chunked", length=0)
        client.send(head.replace(b"Content-Length: 0\r\n", b""))
        assert (await client.answer()).status == 100
        client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 400
        assert front_end.data.asked_elsewhere == 0


async def test_an_interim_answer_does_not_overtake_an_earlier_one():
    async with serve() as front_end:
        front_end.data.holds = True
        data, line = binary(b"hello")
        client = await front_end.connect()
        client.send(post(data, line))
        client.send(post(b"", line, "Expect: 100-continue", length=len(data)))
        await front_end.data.until(lambda: front_end.data.calls and front_end.data.announced)
        front_end.data.calls[0].answer()
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 100
        client.send(data)
        await front_end.data.until(lambda: len(front_end.data.calls) == 2)
        front_end.data.calls[1].answer()
        assert (await client.answer()).status == 200


async def test_an_offered_upgrade_is_passed_over():
    async with serve(limits(receive_bytes=256)) as front_end:
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x")
        client = await front_end.connect()
        for size in (5, 5000):
            data, line = binary(bytes(size))
            client.send(post(data, line, *offer) + GET)
            assert (await client.answer()).status == 200
            assert (await client.answer()).status == 200
        client.close()
        assert front_end.data.tensors == [[bytes(5)], [bytes(5000)]]


async def test_http_1_0_closes_unless_asked_not_to():
    async with serve() as front_end:
        client = await front_end.connect()
        client.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await client.answer()).headers["connection"] == "keep-alive"
        client.send(b"GET /v2 HTTP/1.0\r\n\r\n")
        assert (await client.answer()).closes
        assert await client.ended() == b""


@pytest.mark.parametrize(
    "target", ["/v2", "/v2/models/m/config", "/v2/models/x", "/nope", "/v2/models/m/infer"]
)
async def test_head_is_answered_like_get_without_the_body(target):
    async with serve() as front_end:
        client = await front_end.connect()
        request = b"%b " + target.encode() + b" HTTP/1.1\r\nHost: t\r\n\r\n"
        for _ in range(2):  # the second head is remembered
            client.send(request % b"GET" + request % b"HEAD" + request % b"GET")
            with_body = await client.answer()
            assert with_body.body
            head = await client.answer(head_only=True)
            assert (head.status, head.headers) == (with_body.status, with_body.headers)
            assert (await client.answer()).body == with_body.body
        client.close()
        sizes = [record.bytes_sent for record in front_end.log]
        assert sizes == [len(with_body.body), 0, len(with_body.body)] * 2


async def test_head_of_a_long_answer_has_the_coding_and_length_of_get():
    routes = metrics_routes(lambda: (200, "text/plain; version=0.0.4", [b"up 1\n" * 1000] * 8))

    server = HttpServer(routes)
    await server.start("127.0.0.1", 0)
    heads = []
    for method in (b"GET", b"HEAD"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        line = b"Host: t\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"
        writer.write(method + b" /metrics HTTP/1.1\r\n" + line)
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        heads.append(head)
        assert bool(content) is (method == b"GET")
        writer.close()
    await server.close()
    assert heads[0] == heads[1]
    assert b"Content-Encoding: gzip" in heads[1]


PAGE = [bytes([65 + number % 26]) * 700_000 for number in range(40)]
"""28 MB: more than the kernel takes at once."""


@pytest.mark.parametrize("last", [True, False])
def test_long_answers_are_written_in_pieces_and_in_order(run, last):
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    lists = []

    def pieces():
        lists.append(made_in := [])
        for piece in PAGE:
            made_in.append(turns)
            yield piece

    async def body():
        server = HttpServer(metrics_routes(lambda: (200, "text/plain", pieces())))
        await server.start("127.0.0.1", 0)
        counter = asyncio.create_task(count_turns())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = b"GET /metrics HTTP/1.1\r\nHost: t\r\n"
        end = b"Connection: close\r\n\r\n" if last else b"\r\n"
        writer.write(request + b"\r\n" + request + b"\r\n" + request + end)
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            content = await reader.readexactly(sum(map(len, PAGE)))
            assert content == b"".join(PAGE)
        if not last:
            drained = asyncio.create_task(server.drain())
            assert await drained is True
        assert await reader.read() == b""
        counter.cancel()
        writer.close()
        await server.close()
        for made_in in lists:
            assert len(made_in) == len(PAGE)
            assert all(before < after for before, after in pairwise(made_in))

    run(body())


async def test_a_server_drains_once_a_long_answer_is_written():
    server = HttpServer(metrics_routes(lambda: (200, "text/plain", PAGE)))
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    drained = asyncio.create_task(server.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    assert await reader.read() == b"".join(PAGE)
    assert await drained is True
    writer.close()
    await server.close()


async def test_a_client_that_leaves_amid_a_long_answer_ends_it():
    server = HttpServer(metrics_routes(lambda: (200, "text/plain", PAGE)))
    await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
    await writer.drain()
    writer.transport.abort()
    assert await server.drain() is True
    await server.close()


# ------------------------------------------------------------------------------- bad input

LINE = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: t\r\n"
BAD = {
    "noise": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "both lengths": (LINE + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "lengths the other way": (
        LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        400,
    ),
    "length twice": (LINE + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "length list": (LINE + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "negative length": (LINE + b"Content-Length: -3\r\n\r\nabc", 400),
    "length beyond 64 bits": (LINE + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
    "huge length": (LINE + b"Content-Length: 999999999999999999\r\n\r\n", 413),
    "other coding": (LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "bad chunk": (LINE + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "header twice": (
        LINE + b"Inference-Header-Content-Length: 2\r\n" * 2 + b"Content-Length: 2\r\n\r\n{}",
        400,
    ),
    "folded header": (b"GET /v2 HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    "space before colon": (b"GET /v2 HTTP/1.1\r\nA : b\r\n\r\n", 400),
    "bare line feeds": (b"GET /v2 HTTP/1.1\n\n", 400),
    "unknown method": (b"BREW /v2 HTTP/1.1\r\n\r\n", 400),
    "version two": (b"GET /v2 HTTP/2.0\r\n\r\n", 505),
    "preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "connect": (b"CONNECT host:80 HTTP/1.1\r\nHost: t\r\n\r\n", 404),
    "long target": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
    "many headers": (b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
    "long header": (b"GET /v2 HTTP/1.1\r\na: " + b"b" * 40_000 + b"\r\n\r\n", 431),
    "endless header": (b"GET /v2 HTTP/1.1\r\na: " + b"b" * 200_000, 431),
    "endless trailer": (
        LINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\na: " + b"b" * 200_000,
        431,
    ),
    "no host": (b"GET /v2 HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "two blanks": (b"GET  /v2 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "impossible chunk": (LINE + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
    "other expectation": (LINE + b"Expect: miracles\r\nContent-Length: 9\r\n\r\n", 417),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_http_gets_a_status_and_disturbs_nobody(case):
    raw, status = BAD[case]

    async with serve() as front_end:
        bystander = await front_end.connect()
        bystander.send(GET)
        assert (await bystander.answer()).status == 200
        client = await front_end.connect()
        client.send(raw)
        answer = await client.answer()
        assert answer.status == status
        assert next(iter(answer.json)) == "error"
        assert answer.json.get("reason") == answer.headers.get("slacktide-reason")
        if status != 404 and case != "other expectation":
            assert answer.closes
            assert await client.ended() == b""
        client.close()
        bystander.send(GET)
        assert (await bystander.answer()).status == 200
        bystander.close()
        assert front_end.data.calls == []


async def test_chunked_bodies_are_bounded():
    head = LINE + b"Transfer-Encoding: chunked\r\n\r\n"

    async with serve(limits(max_request_bytes=1000, max_chunks=50)) as front_end:
        many = await front_end.ask(head + b"1\r\na\r\n" * 60)
        assert (many.status, many.closes) == (413, True)
        large = await front_end.ask(head + b"3e9\r\n" + b"a" * 1001 + b"\r\n")
        assert (large.status, large.closes) == (413, True)


async def test_the_common_buffer_is_bounded_and_given_back():
    data, line = binary(bytes(600))
    head = LINE + line.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)

    async with serve(limits(max_buffered_bytes=1000)) as front_end:
        first = await front_end.connect()
        first.send(whole[:-200])
        await front_end.until(lambda: front_end.context.buffers.bytes_in_use)
        assert (await front_end.ask(whole)).status == 429
        first.send(whole[-200:])
        assert (await first.answer()).status == 200
        first.close()
        assert (await front_end.ask(whole)).status == 200
        assert front_end.context.buffers.bytes_in_use == 0


@pytest.mark.parametrize("strict", [False, True])
async def test_one_client_has_only_its_part_of_the_common_buffer(strict):
    data, line = binary(bytes(600))
    head = LINE + line.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)

    async with serve(limits(max_buffered_per_client=500, triton_strict=strict)) as front_end:
        assert (await front_end.ask(whole)).status == (503 if strict else 429)
        assert front_end.context.buffers.bytes_in_use == 0


async def test_refused_bodies_are_skipped_if_short_and_closed_on_if_long():
    async with serve(limits(max_request_bytes=1000, skip_bytes=10_000)) as front_end:
        client = await front_end.connect()
        client.send(post(length=5000))
        short = await client.answer()
        assert (short.status, short.closes) == (413, False)
        client.send(b"x" * 5000 + GET)
        assert (await client.answer()).status == 200
        client.send(post(length=50_000))
        long = await client.answer()
        assert (long.status, long.closes) == (413, True)
        client.close()
        assert [reason for _, reason, _ in front_end.data.refused] == [Reason.TOO_LARGE] * 2
        assert front_end.data.announced == []


async def test_a_client_that_sends_all_first_still_reads_the_refusal():
    """Without lingering, the reset for its unread bytes would overtake the answer."""

    async with serve(limits(max_request_bytes=1000, skip_bytes=10)) as front_end:
        client = await front_end.connect()
        client.send(post(length=3_000_000))
        for _ in range(30):
            client.send(bytes(100_000))
            await client.writer.drain()
        assert (await client.answer()).status == 413
        assert await client.ended() == b""


# ------------------------------------------------------------------------------- disconnects


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_cancels_what_waits(how):
    async with serve() as front_end:
        front_end.data.holds = True
        client = await front_end.connect()
        data, line = binary(b"x")
        client.send(post(data, line) * 2)
        await front_end.data.until(lambda: len(front_end.data.calls) == 2)
        getattr(client, how)()
        await front_end.data.until(lambda: len(front_end.data.cancelled) == 2)
        assert [reason for _, reason in front_end.data.cancelled] == [Reason.DISCONNECTED] * 2
        assert [access.status for access in front_end.log] == [499, 499]
        front_end.data.calls[0].answer()  # an answer that crosses the cancellation goes nowhere


async def test_a_client_that_does_not_read_is_not_read_from():
    async with serve(limits(write_high_bytes=10_000)) as front_end:
        client = await front_end.connect()
        data, line = binary(bytes(500_000))
        request = post(data, line)
        client.writer.transport.set_write_buffer_limits(high=1)
        client.reader._limit = 1 << 30
        client.writer.transport.pause_reading()
        sent = 0
        while sent < 200:
            client.send(request)
            try:
                async with asyncio.timeout(0.3):
                    await client.writer.drain()
            except TimeoutError:
                break
            sent += 1
        # The kernel's buffers hold some MB each way; 200 requests are 100 MB.
        assert sent < 200
        client.writer.transport.resume_reading()
        for _ in range(sent + 1):
            assert (await client.answer()).status == 200


async def test_reading_stops_while_answers_are_unread_and_goes_on_after():
    async with serve(limits(write_high_bytes=10_000)) as front_end:
        client = await front_end.connect()
        (connection,) = front_end.context.connections
        client.writer.transport.pause_reading()
        client.send(post(*binary(bytes(8_000_000))))
        await front_end.until(lambda: connection._clogged_since is not None)
        await front_end.until(lambda: not connection._transport.is_reading())
        assert not connection._reader.ready, "nothing else keeps it from reading"
        client.writer.transport.resume_reading()
        assert (await client.answer()).status == 200
        await front_end.until(connection._transport.is_reading)


async def test_reading_stops_while_requests_find_no_place():
    async with serve(limits(max_pipelined=1)) as front_end:
        front_end.data.holds = True
        client = await front_end.connect()
        (connection,) = front_end.context.connections
        client.send(post(*binary(b"x")) * 4)
        await front_end.until(lambda: not connection._transport.is_reading())
        assert connection._clogged_since is None, "its answers have a place"
        for index in range(4):
            await front_end.data.until(lambda index=index: len(front_end.data.calls) > index)
            assert len(front_end.data.calls) == index + 1
            front_end.data.calls[index].answer()
            assert (await client.answer()).status == 200
        await front_end.until(connection._transport.is_reading)


# ------------------------------------------------------------------------------- time-outs


async def test_slow_headers_get_408():
    clock = FakeClock()

    async with serve(limits(header_timeout_s=10), clock=clock) as front_end:
        client = await front_end.connect()
        client.send(GET + GET[:9])
        assert (await client.answer()).status == 200
        clock.now += 10
        answer = await client.answer()
        assert (answer.status, answer.closes) == (408, True)


def stand_still(clock, seconds):
    """The server's loop does, and nobody can be late."""
    loop_watch()._stalls.append((clock.now, clock.now + seconds))
    clock.now += seconds


async def test_a_client_is_not_late_while_the_server_stands_still():
    clock = FakeClock()
    settings = limits(header_timeout_s=10, body_timeout_s=10, idle_timeout_s=10, write_timeout_s=10)

    async with serve(settings, clock=clock) as front_end:
        head, upload, idle = [await front_end.connect() for _ in range(3)]
        head.send(GET[:9])
        upload.send(post(b"", length=100_000))
        idle.send(GET)
        assert (await idle.answer()).status == 200
        await front_end.data.until(lambda: len(front_end.data.announced) == 1)
        readers = [connection._reader for connection in front_end.context.connections]
        await front_end.until(lambda: sum(reader.current is not None for reader in readers) == 2)
        stand_still(clock, 60.0)
        front_end.check()
        clock.now += 9
        front_end.check()
        assert front_end.data.cancelled == []
        assert front_end.server.connections == 3
        clock.now += 2
        assert (await head.answer()).status == 408
        assert (await upload.answer()).status == 408
        assert await idle.ended() == b""


async def test_a_body_that_does_not_come_gets_408_and_ends_its_upload():
    clock = FakeClock()

    async with serve(limits(body_timeout_s=5, min_body_rate=100.0), clock=clock) as front_end:
        client = await front_end.connect()
        client.send(post(b"x" * 1000, length=100_000))
        await front_end.data.until(lambda: len(front_end.data.announced) == 1)
        clock.now += 14  # 1,000 bytes have earned ten seconds more
        front_end.check()
        assert front_end.data.cancelled == []
        clock.now += 2
        assert (await client.answer()).status == 408
        assert [reason for _, reason in front_end.data.cancelled] == [Reason.NO_BODY]
        assert front_end.data.announced[0].steps[-1].startswith("cancel")


async def test_a_body_given_up_behind_an_unanswered_request_is_written_no_further():
    clock = FakeClock()

    async with serve(limits(body_timeout_s=5), clock=clock) as front_end:
        front_end.data.holds = True
        client = await front_end.connect()
        client.send(post(b"{}", "Inference-Header-Content-Length: 0"))
        await front_end.data.until(lambda: len(front_end.data.calls) == 1)
        client.send(post(b"", length=100_000))
        await front_end.data.until(lambda: len(front_end.data.announced) == 1)
        (connection,) = front_end.context.connections
        clock.now += 6
        front_end.check()
        assert [reason for _, reason in front_end.data.cancelled] == [Reason.NO_BODY]
        assert connection.get_buffer(-1) is front_end.context.scratch
        front_end.data.calls[0].answer()
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 408


async def test_bytes_that_go_straight_into_the_upload_earn_time_as_well():
    clock = FakeClock()

    async with serve(limits(body_timeout_s=5, min_body_rate=100.0), clock=clock) as front_end:
        client = await front_end.connect()
        client.send(post(b"", length=100_000))
        await front_end.data.until(lambda: len(front_end.data.announced) == 1)
        (connection,) = front_end.context.connections
        client.send(b"x" * 1000)
        await front_end.until(lambda: connection._reader.current.filled == 1000)
        clock.now += 14
        front_end.check()
        assert front_end.data.cancelled == []
        clock.now += 2
        assert (await client.answer()).status == 408


async def test_idle_connections_are_closed_and_busy_ones_are_not():
    clock = FakeClock()

    async with serve(limits(idle_timeout_s=7), clock=clock) as front_end:
        front_end.data.holds = True
        busy, idle = await front_end.connect(), await front_end.connect()
        busy.send(post(*binary(b"x")))
        await front_end.data.until(lambda: len(front_end.data.calls) == 1)
        clock.now += 8
        assert await idle.ended() == b""
        front_end.data.calls[0].answer()
        assert (await busy.answer()).status == 200


async def test_a_client_that_leaves_its_answer_unread_is_cut():
    clock = FakeClock()

    async with serve(limits(write_high_bytes=1000, write_timeout_s=9), clock=clock) as front_end:
        client = await front_end.connect()
        client.writer.transport.pause_reading()
        data, line = binary(bytes(500_000))
        for _ in range(40):
            client.send(post(data, line))
        (connection,) = front_end.context.connections
        await front_end.until(lambda: connection._clogged_since is not None)
        clock.now += 8
        front_end.check()
        assert front_end.server.connections == 1
        clock.now += 1
        await front_end.until(lambda: front_end.server.connections == 0)
        client.writer.transport.abort()


async def test_a_lingering_connection_is_cut_in_the_end():
    clock = FakeClock()

    async with serve(limits(max_request_bytes=10, skip_bytes=10), clock=clock) as front_end:
        client = await front_end.connect()
        client.send(post(length=1_000_000))
        assert (await client.answer()).closes
        client.send(bytes(100_000))
        assert front_end.server.connections == 1
        clock.now += HttpSettings().linger_s
        await front_end.until(lambda: front_end.server.connections == 0)
        client.writer.transport.abort()


# ------------------------------------------------------------------------------- limits, drain


async def test_drain_answers_what_is_here_and_closes_what_is_idle():
    async with serve() as front_end:
        front_end.data.holds = True
        idle, busy, partial = [await front_end.connect() for _ in range(3)]
        data, line = binary(b"x")
        idle.send(GET)
        await idle.answer()
        busy.send(post(data, line) * 2)
        partial.send(post(data, line)[:-1])
        await front_end.data.until(lambda: len(front_end.data.calls) == 2)
        await front_end.data.until(lambda: len(front_end.data.announced) == 1)
        port = front_end.server.port
        drained = asyncio.create_task(front_end.server.drain())
        assert await idle.ended() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        partial.send(data[-1:])
        await front_end.data.until(lambda: len(front_end.data.calls) == 3)
        assert not drained.done()
        for call in front_end.data.calls:
            call.answer()
        answers = [await busy.answer(), await busy.answer(), await partial.answer()]
        assert [answer.closes for answer in answers] == [False, True, True]
        assert [answer.status for answer in answers] == [200] * 3
        assert await busy.ended() == b""
        partial.close()
        busy.close()
        idle.close()
        assert await drained is True


async def test_every_answer_is_logged_once_and_its_id_cannot_forge_lines():
    async with serve() as front_end:
        data, line = binary(b"x", request_id="a\nb")
        await front_end.ask(post(data, line, path="/v2/models/m/infer?secret=1"))
        await front_end.ask(b"GET /nope HTTP/1.1\r\nHost: t\r\n\r\n")
        await front_end.ask(b"nonsense\r\n\r\n")
        first, second, third = front_end.log
        assert (first.method, first.target, first.status) == ("POST", "/v2/models/m/infer", 200)
        assert (first.request_id, first.client) == (r"'a\nb'", "127.0.0.1")
        assert first.bytes_sent > 0
        assert first.seconds >= 0
        assert (second.target, second.status) == ("/nope", 404)
        assert third.status == 400


async def test_an_id_in_the_headers_is_logged_whatever_becomes_of_the_request():
    async with serve() as front_end:
        data, line = binary(b"x", request_id="inside")
        requests = [b"GET /nope HTTP/1.1\r\nHost: t\r\nX-Request-Id: lost\r\n\r\n"]
        requests.append(post(b"no JSON", "X-Request-Id: wrong"))
        requests.append(post(data, line, "X-Request-Id: outside"))
        for request in requests:
            await front_end.ask(request)
        client = await front_end.connect()
        client.send(post(data, line, "X-Request-Id: left")[:-1])
        client.writer.write_eof()
        await client.ended()
        client.close()
        assert [(access.request_id, access.status) for access in front_end.log] == [
            ("lost", 404),
            ("wrong", 400),
            ("inside", 200),
            ("left", 499),
        ]
