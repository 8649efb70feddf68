"""`RequestReader` without a socket: whole, one byte at a time, cut anywhere; every byte counted."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.frontends.common.security import Verdict
from slacktide.frontends.http import HttpRoute
from slacktide.frontends.http.context import MOST_HEADS, HttpContext
from slacktide.frontends.http.messages import HttpResponse
from slacktide.frontends.http.reader import (
    HEADS_AT_ONCE,
    LINES_AT_ONCE,
    MAX_REMEMBERED,
    RequestReader,
)
from slacktide.frontends.http.router import Router
from slacktide.frontends.ports import EndpointGroup
from slacktide.frontends.settings import HttpSettings

LIMIT = HttpSettings().max_header_bytes
GET = b"GET /v2 HTTP/1.1\r\nHost: t\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"


ROUTES = [
    HttpRoute(method, path, lambda request: HttpResponse(), EndpointGroup.METADATA)
    for method, path in (("GET", "/"), ("GET", "/v2"), ("POST", "/x"))
]


def shared(authorize=None, **settings) -> HttpContext:
    return HttpContext(Router(ROUTES), HttpSettings(**settings), authorize, None)


def make(context: HttpContext | None = None, **settings) -> RequestReader:
    return RequestReader(context or shared(**settings), "c")


class Read:
    """What a reader made of some bytes."""

    def __init__(self) -> None:
        self.requests: list[tuple] = []
        self.refusal = None
        self.fed = 0
        self.most_kept = 0

    @property
    def said(self):
        return self.requests, self.refusal


def read(reader: RequestReader, pieces) -> Read:
    """Feed pieces until a refusal, as a connection would: what is held is taken first."""
    done = Read()

    def note() -> None:
        done.most_kept = max(done.most_kept, reader.gathered)
        while reader.ready:
            request = reader.ready.popleft()
            head = request.head
            reader._context.open(request)  # as a connection does: it is what remembers heads
            done.requests.append(
                (head.method, head.target, dict(head.headers), bytes(request.body))
            )

    for piece in pieces:
        done.fed += len(piece)
        current = reader.current
        if current is not None and current.head.whole and not current.head.chunked:
            # Its body goes past the reader, which a connection receives in place.
            taken = piece[: current.head.length - current.filled]
            current.body += taken
            current.filled += len(taken)
            if current.filled == current.head.length:
                reader.bypass()
                reader.complete(current)
            piece = piece[len(taken) :]
        done.refusal = reader.feed(piece, 0.0)
        note()
        while reader.pending and done.refusal is None:
            done.refusal = reader.feed(b"", 0.0)
            note()
        if done.refusal is not None:
            break
    return done


def in_bytes(raw: bytes):
    return (raw[i : i + 1] for i in range(len(raw)))


def post(body: bytes) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


GOOD = {
    "no body": GET,
    "blank lines before it": b"\r\n\n" + GET,
    "a body": post(b"hello") + GET,
    "a body like a head": post(b"a\r\n\r\nGET / HTTP/1.1\r\n\r\n") + GET,
    "http/1.0 without a host": b"GET / HTTP/1.0\r\n\r\n",
    "an offered upgrade": post(b"ab").replace(b"Host", b"Connection: Upgrade\r\nUpgrade: x\r\nHost")
    + GET,
    "chunks": CHUNKED + b"3\r\nabc\r\n00a;x=y\r\n0123456789\r\n0\r\n\r\n" + GET,
    "a trailer": CHUNKED + b"1\r\na\r\n0\r\nDigest: x\r\nOther:\r\n\r\n" + GET,
    "blanks before an extension": CHUNKED + b"1 \t;x\r\na\r\n0;y=z\r\n\r\n",
}


@pytest.mark.parametrize("case", GOOD)
def test_whole_and_one_byte_at_a_time_are_read_alike(case):
    raw = GOOD[case]
    whole, dripped = read(make(), [raw]), read(make(), in_bytes(raw))
    assert whole.refusal is None
    assert whole.said == dripped.said
    assert len(whole.requests) == 1 + raw.endswith(GET) - (
        case in ("no body", "blank lines before it")
    )


@given(cuts=st.lists(st.integers(1, 120), max_size=8), order=st.permutations(sorted(GOOD)))
def test_any_cut_reads_alike(cuts, order):
    raw = b"".join(GOOD[case] for case in order if "1.0" not in case)
    pieces, rest = [], raw
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert read(make(), [*pieces, rest]).said == read(make(), [raw]).said


BAD = {
    "two blanks before the target": (b"GET  / HTTP/1.1\r\nHost: t\r\n\r\n", 400),
    "two blanks behind the target": (b"GET /  HTTP/1.1\r\nHost: t\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "the same host twice": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "only blank lines": (b"\r\n" * 100, 400),
    "endless target": (b"GET /" + b"a" * 2 * LIMIT, 414),
    "endless header": (b"GET / HTTP/1.1\r\nHost: t\r\nA: " + b"a" * 2 * LIMIT, 431),
    "endless trailer": (CHUNKED + b"0\r\nA: " + b"a" * 2 * LIMIT, 431),
    "endless trailers": (CHUNKED + b"0\r\n" + b"A: bcd\r\n" * LIMIT, 431),
    "endless extension": (CHUNKED + b"1;" + b"a" * 2 * LIMIT, 431),
    "endless extensions": (CHUNKED + (b"1;" + b"a" * 1000 + b"\r\nb\r\n") * 100, 431),
    "endless size": (CHUNKED + b"0" * 17, 400),
    "no size": (CHUNKED + b";x\r\n", 400),
    "a sign in a size": (CHUNKED + b"+1\r\n", 400),
    "a size beyond 64 bits": (CHUNKED + b"1" + b"0" * 16 + b"\r\n", 400),
    "a size beyond the body limit": (CHUNKED + b"4000001\r\n", 413),
    "sizes beyond the body limit together": (CHUNKED + b"1\r\na\r\n4000000\r\n", 413),
    "a bare line feed behind a size": (CHUNKED + b"1\n", 400),
    "no line end behind the data": (CHUNKED + b"1\r\nab", 400),
    "a trailer that is no header": (CHUNKED + b"0\r\nnonsense\r\n\r\n", 400),
    "a folded trailer": (CHUNKED + b"0\r\nA: b\r\n c: d\r\n\r\n", 400),
}


@pytest.mark.parametrize("case", BAD)
def test_malformed_requests_are_refused_whole(case):
    raw, status = BAD[case]
    for pieces in ([raw], in_bytes(raw), (raw[i : i + 100] for i in range(0, len(raw), 100))):
        done = read(make(), pieces)
        assert done.refusal is not None
        assert done.refusal.status == status
        assert done.requests == []


@pytest.mark.parametrize("case", [case for case in BAD if case.startswith("endless")])
def test_every_byte_to_the_end_of_a_message_counts_against_the_limit(case):
    raw, _ = BAD[case]
    done = read(make(), in_bytes(raw))
    assert done.fed <= LIMIT + len(CHUNKED) + 200  # sizes of chunks and their data do not count
    assert done.most_kept <= LIMIT + 1


def test_an_impossible_size_is_refused_before_any_data_has_come():
    reader = make(max_request_bytes=1000)
    done = read(reader, [CHUNKED + b"3e9\r\n"])
    assert done.refusal is not None
    assert (done.refusal.status, reader.gathered) == (413, 0)


@pytest.fixture
def parsed(monkeypatch):
    """What parsers are given, piece by piece."""
    pieces, parser = [], httptools.HttpRequestParser

    class Counting:
        def __init__(self, protocol) -> None:
            self._real = parser(protocol)

        def feed_data(self, data) -> None:
            pieces.append(bytes(data))
            self._real.feed_data(data)

        def __getattr__(self, name):
            return getattr(self._real, name)

    monkeypatch.setattr(httptools, "HttpRequestParser", Counting)
    return pieces


def test_a_head_in_single_bytes_is_not_parsed_or_copied_again_and_again(parsed):
    raw = b"GET / HTTP/1.1\r\nHost: t\r\nA: " + b"a" * 30_000 + b"\r\n\r\n"
    assert len(read(make(), in_bytes(raw)).requests) == 1
    assert list(map(len, parsed)) == [1, len(raw)]


def test_the_same_head_again_is_not_parsed_again_on_any_connection(parsed):
    context, head = shared(), post(b"one")[:-3]
    done = read(make(context), [head + b"one", head + b"two" + head, b"six", head + b"ten" + GET])
    assert [request[3] for request in done.requests] == [b"one", b"two", b"six", b"ten", b""]
    assert [request[:3] for request in done.requests[1:4]] == [done.requests[0][:3]] * 3
    assert read(make(context), [head + b"six" + GET]).requests[0][3] == b"six"
    assert parsed == [head, b"one", GET]


def with_lines(raw: bytes, *lines: bytes) -> bytes:
    return raw.replace(b"Host", b"\r\n".join([*lines, b"Host"]), 1)


UPGRADE = with_lines(post(b"ab"), b"Connection: Upgrade", b"Upgrade: x")
NOT_KEPT = {
    "chunks": CHUNKED + b"1\r\na\r\n0\r\n\r\n",
    "an upgrade": UPGRADE,
    "an expectation": with_lines(post(b"ab"), b"Expect: 100-continue"),
    "the last": with_lines(GET, b"Connection: close"),
    "http/1.0": with_lines(GET.replace(b"1.1", b"1.0"), b"Connection: keep-alive"),
    "a name of its own": with_lines(GET, b"X-Request-Id: 7"),
    "a trace": with_lines(GET, b"traceparent: 00-a-b-01"),
    "a long one": with_lines(GET, b"A: " + b"a" * MAX_REMEMBERED),
    "an unknown path": GET.replace(b"/v2", b"/v3"),
    "another method": GET.replace(b"GET", b"PUT"),
    "a body beyond the limit": post(bytes(2000)),
}


@pytest.mark.parametrize("case", NOT_KEPT)
def test_heads_that_do_not_come_again_or_need_more_are_not_remembered(case):
    context = shared(max_control_bytes=1000)
    done = read(make(context), [NOT_KEPT[case]])
    assert (len(done.requests), done.refusal, context.heads) == (1, None, {})


def test_heads_that_the_gate_refuses_are_not_remembered_and_it_judges_known_ones_again():
    verdicts, checked = [], []

    def gate(group: EndpointGroup, headers) -> Verdict:
        checked.append(dict(headers))
        return verdicts.pop(0)

    context = shared(gate)
    verdicts[:] = [Verdict.WRONG_TOKEN, Verdict.PASS, Verdict.WRONG_TOKEN, Verdict.PASS]
    for kept in (0, 1, 1, 1):
        assert len(read(make(context), [GET]).requests) == 1
        assert len(context.heads) == kept
    assert checked == [{b"host": b"t"}] * 4


def test_few_heads_are_remembered_however_many_come():
    context = shared()
    for number in range(MOST_HEADS + 10):
        read(make(context), [with_lines(GET, b"A: %d" % number)])
        assert len(context.heads) <= MOST_HEADS
    assert len(context.heads) == 10


class Forgetful(dict):
    """Keeps nothing."""

    def __setitem__(self, key, value) -> None:
        pass


KNOWN = [
    GET,
    post(b"hello"),
    post(b"h\r\n\r\n")[:-1] + b"x",
    with_lines(post(b"abc"), b"Connection: keep-alive"),
]
REQUESTS = [
    *KNOWN,
    UPGRADE,
    with_lines(GET.replace(b"1.1", b"1.0"), b"Connection: keep-alive"),
    CHUNKED + b"1\r\na\r\n0\r\n\r\n",
]


@given(
    heads=st.lists(st.sampled_from(REQUESTS), max_size=12),
    last=st.sampled_from(
        [
            b"",
            GET,
            with_lines(GET, b"Connection: close") * 2,
            GET.replace(b"1.1", b"1.0") * 2,
            b"GET / HTTP/1.1\r\n\r\n",
        ]
    ),
    cut=st.integers(1, 60),
)
def test_requests_mean_the_same_whatever_came_before_them_on_the_connection(heads, last, cut):
    raw = b"".join(heads) + last
    once = read(make(), [raw])
    cuts = read(make(), (raw[i : i + cut] for i in range(0, len(raw), cut)))
    alone = [request for head in [*heads, last] for request in read(make(), [head]).requests]
    assert once.said == cuts.said
    assert once.requests == alone


@given(data=st.data())
def test_any_bytes_mean_the_same_with_and_without_remembered_heads(data):
    raw = bytearray(b"".join(data.draw(st.lists(st.sampled_from(REQUESTS), max_size=6))))
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):  # damage: a byte, or a cut
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(st.sampled_from([b"", b" ", b"\r", b"\n", b"\0", b":", b"A", b"9", GET]))
        raw[at : at + data.draw(st.integers(0, 2))] = piece
        raw += post(b"end")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [bytes(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    knows, forgets = shared(), shared()
    for head in KNOWN:
        read(make(knows), [head])
    assert len(knows.heads) == len(KNOWN) - 1  # two have the same
    forgets.heads = Forgetful()
    remembered, parsed = (read(make(context), pieces) for context in (knows, forgets))
    assert remembered.said == parsed.said
    assert (remembered.fed, remembered.most_kept) == (parsed.fed, parsed.most_kept)


def test_one_call_takes_so_many_requests_and_holds_the_rest():
    reader = make()
    reader.feed(GET * 100, 0.0)
    assert len(reader.ready) == HEADS_AT_ONCE
    assert len(reader.pending) == len(GET) * (100 - HEADS_AT_ONCE)
    assert len(read(reader, [b""]).requests) == 100


def test_one_call_takes_so_many_chunks_and_holds_the_rest():
    reader = make()
    reader.feed(CHUNKED + b"1\r\na\r\n" * 4000, 0.0)
    assert reader.current is not None
    assert reader.current.filled == LINES_AT_ONCE // 2  # a line before its data, and one behind it
    assert len(reader.pending) == 6 * (4000 - LINES_AT_ONCE // 2)
    assert read(reader, [b"0\r\n\r\n"]).requests[0][3] == b"a" * 4000


def test_bytes_that_come_while_others_are_held_keep_their_place():
    reader = make()
    reader.feed(GET * (HEADS_AT_ONCE + 1), 0.0)
    reader.hold(post(b"last"))
    assert [request[0] for request in read(reader, [b""]).requests][-2:] == ["GET", "POST"]
