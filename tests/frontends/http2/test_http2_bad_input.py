"""What breaks a rule ends its stream or connection with the code that RFC 9113 names; what is
legal but in excess ends it too. Each case says what is sent and what becomes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontends.http2.conformance import CASES

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.connection import WORK_AT_ONCE
from slacktide.frontends.http2.frames import ErrorCode
from slacktide.frontends.http2.heads import MAX_CACHED, HeadReader

ENDS = f.END_HEADERS | f.END_STREAM
WHOLE = f.header_block(
    None, ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b"te", b"trailers"))
)


def head(id: int, flags: int = f.END_HEADERS, block: bytes = WHOLE) -> bytes:
    return f.frame(f.HEADERS, flags, id, block)


OF_H2SPEC = {
    f"{number}: {case.words}": (
        b"".join(case.steps),
        ErrorCode[case.result.removeprefix("GOAWAY ")],
    )
    for number, case in enumerate(CASES)
    if case.result.startswith("GOAWAY") and not case.bare and not {*case.steps} & {"answer", "pong"}
}
"""Cases of `conformance.py` that end a connection, without those that wait for an answer."""
CONNECTION_ERRORS = OF_H2SPEC | {
    "data on a stream that was passed over": (
        head(5) + f.frame(f.DATA, 0, 3, b"x"), ErrorCode.PROTOCOL_ERROR),
    "priority without room for it": (
        head(1, f.END_HEADERS | f.HAS_PRIORITY, b"abc"), ErrorCode.PROTOCOL_ERROR),
    "a frame within a header block": (
        head(1, 0) + f.frame(f.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a block continued on another stream": (
        head(1, 0) + f.frame(f.CONTINUATION, f.END_HEADERS, 3), ErrorCode.PROTOCOL_ERROR),
    "an endless block": (
        head(1, 0) + f.frame(f.CONTINUATION, 0, 1, bytes(16_000)) * 9, ErrorCode.ENHANCE_YOUR_CALM),
    "an endless block of nothing": (
        head(1, 0, b"") + f.frame(f.CONTINUATION, 0, 1) * 50, ErrorCode.ENHANCE_YOUR_CALM),
    "a field that is in no table": (head(1, block=b"\xfe"), ErrorCode.COMPRESSION_ERROR),
    "a table larger than allowed": (
        head(1, block=b"\x3f\xe2\x1f" + WHOLE), ErrorCode.COMPRESSION_ERROR),
    "a table size behind fields": (head(1, block=WHOLE + b"\x20"), ErrorCode.COMPRESSION_ERROR),
    "three table sizes": (
        head(1, block=b"\x20\x3f\xe1\x1f\x20" + WHOLE), ErrorCode.COMPRESSION_ERROR),
    "a block of table sizes alone": (head(1, block=b"\x20" * 16_000), ErrorCode.COMPRESSION_ERROR),
    "a table size that does not end": (
        head(1, block=b"\x3f" + b"\xff" * 16_000), ErrorCode.COMPRESSION_ERROR),
    "an HPACK bomb": (
        head(1, block=b"\x40\x01x\x7f\x81\x1e" + b"v" * 4000 + b"\xbe" * 10_000),
        ErrorCode.ENHANCE_YOUR_CALM),
    "a window beyond all, before one that may be": (
        f.settings(((f.INITIAL_WINDOW, 2**31), (f.INITIAL_WINDOW, 1))),
        ErrorCode.FLOW_CONTROL_ERROR),
    "a stream's window moved beyond all": (
        head(1) + f.window_update(1, 2**31 - 1 - 65_535)
        + f.settings(((f.INITIAL_WINDOW, 65_536),)),
        ErrorCode.FLOW_CONTROL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("case", CONNECTION_ERRORS)
@pytest.mark.parametrize("cut", [False, True])
def test_connection_errors_end_the_connection(http2, case, cut):
    sent, code = CONNECTION_ERRORS[case]
    bench = http2.Bench()
    for piece in [sent[i : i + 1] for i in range(len(sent))] if cut else [sent]:
        bench.say(piece)
    ended = bench.end()
    assert ended is not None
    assert ended[0] is code
    assert ended[1]
    assert bench.connection.closed
    assert all(stream.lost for stream in bench.streams)
    bench.say(head(99))
    assert bench.heard() == []


def test_data_beyond_the_connections_window_ends_it(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.connection._credit = 1000
    bench.say(f.frame(f.DATA, 0, 1, bytes(1001)))
    assert bench.end()[0] is ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "preface", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSX", b"\x16\x03\x01"]
)
def test_a_wrong_preface_ends_the_connection(http2, preface):
    bench = http2.Bench(opened=False)
    bench.say(preface)
    assert bench.end() == (ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC)")


def test_a_preface_cut_is_awaited_and_dated(http2):
    bench = http2.Bench(opened=False)
    for at, byte in enumerate(f.PREFACE):
        bench.now = float(at)
        bench.say(bytes((byte,)))
        assert bench.connection.unfinished_since == 0.0
    assert bench.end() is None
    bench.say(f.settings(()))
    assert bench.connection.unfinished_since is None


def test_the_first_frame_is_settings(http2):
    bench = http2.Bench(opened=False)
    bench.say(f.PREFACE + head(1))
    assert bench.end() == (ErrorCode.PROTOCOL_ERROR, "expected SETTINGS as the first frame")
    assert bench.streams == []


def test_a_header_block_that_does_not_end_is_dated_from_its_beginning(http2):
    bench = http2.Bench()
    bench.now = 5.0
    bench.say(head(1, 0))
    for now in (6.0, 7.0):
        bench.now = now
        bench.say(f.frame(f.CONTINUATION, 0, 1, b""))
    assert bench.connection.unfinished_since == 5.0


STREAM_ERRORS = {
    "capitals in a name": ((b"Te", b"trailers"),),
    "a blank in a name": ((b"a b", b"x"),),
    "a line end in a value": ((b"a", b"x\r\nb: y"),),
    "a zero in a value": ((b"a", b"\0"),),
    "a blank before a value": ((b"a", b" x"),),
    "a header of HTTP/1.1 connections": ((b"connection", b"close"),),
    "a transfer coding": ((b"transfer-encoding", b"chunked"),),
    "te of another kind": ((b"te", b"gzip"),),
    "a pseudo-header behind others": ((b":authority", b"a"),),
    "an unknown pseudo-header": ((b":status", b"200"),),
    "a method twice": ((b":method", b"GET"),),
    "a length that is none": ((b"content-length", b"-1"),),
    "two lengths": ((b"content-length", b"1"), (b"content-length", b"2")),
    "three lengths, the outer ones equal": (
        (b"content-length", b"1"), (b"content-length", b"2"), (b"content-length", b"1")),
    "one length written in two ways": ((b"content-length", b"1"), (b"content-length", b"01")),
    "a list of lengths": ((b"content-length", b"1, 1"),),
    "two hosts": ((b"host", b"a"), (b"host", b"b")),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAM_ERRORS)
def test_a_malformed_head_ends_its_stream_alone(http2, case):
    bench = http2.Bench()
    bench.ask(1, WHOLE + f.header_block(None, STREAM_ERRORS[case]))
    assert bench.resets() == {1: ErrorCode.PROTOCOL_ERROR}
    bench.ask(3)
    assert [stream.id for stream in bench.streams] == [3]
    assert bench.end() is None


@pytest.mark.parametrize(
    ("authority", "host", "passes"),
    [
        (b"localhost:1", b"localhost:1", True),
        (b"localhost:1", b"LocalHost:1", True),
        (b"localhost:1", None, True),
        (None, b"localhost:1", True),
        (b"localhost:1", b"evil.example", False),
        (b"evil.example", b"localhost:1", False),
        (b"localhost:1", b"localhost:2", False),
        (b"localhost", b"", False),
        (b"user@localhost", None, False),
        (b"localhost:1@evil.example", b"localhost:1@evil.example", False),
    ],
)
def test_the_authority_and_the_host_header_name_one_host(http2, authority, host, passes):
    bench = http2.Bench()
    pseudo = () if authority is None else ((b":authority", authority),)
    fields = (*http2.FIELDS[:3], *pseudo, *(() if host is None else ((b"host", host),)))
    bench.ask(1, f.header_block(None, fields))
    assert bench.resets() == ({} if passes else {1: ErrorCode.PROTOCOL_ERROR})


def test_a_length_that_is_repeated_is_one_length(http2):
    bench = http2.Bench()
    lengths = ((b"content-length", b"2"), (b"content-length", b"2"))
    bench.ask(1, WHOLE + f.header_block(None, lengths), ends=False)
    bench.say(f.frame(f.DATA, f.END_STREAM, 1, b"ab"))
    assert bench.streams[0].whole


def test_two_table_sizes_may_begin_a_block(http2):
    bench = http2.Bench()
    bench.ask(1, b"\x20\x3f\xe1\x1f" + WHOLE)
    bench.ask(3, b"\x20" + WHOLE)
    assert [stream.whole for stream in bench.streams] == [True, True]
    assert bench.end() is None


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":path"])
def test_a_head_without_its_pseudo_headers_ends_its_stream(http2, missing):
    bench = http2.Bench()
    bench.ask(1, f.header_block(None, [pair for pair in http2.FIELDS if pair[0] != missing]))
    assert bench.resets() == {1: ErrorCode.PROTOCOL_ERROR}


@pytest.mark.parametrize(
    ("length", "body", "code"),
    [
        (5, (b"hello",), None),
        (5, (b"hell",), ErrorCode.PROTOCOL_ERROR),
        (5, (b"hel", b"lo!"), ErrorCode.PROTOCOL_ERROR),
        (0, (b"",), None),
        (0, (b"x",), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_body_is_as_long_as_its_content_length(http2, length, body, code):
    bench = http2.Bench()
    bench.ask(1, WHOLE + f.header_block(None, ((b"content-length", b"%d" % length),)), ends=False)
    for number, piece in enumerate(body):
        flags = f.END_STREAM if number == len(body) - 1 else 0
        bench.say(f.frame(f.DATA, flags, 1, piece))
    assert bench.resets().get(1) is code
    assert bench.streams[0].whole is (code is None)
    assert bench.streams[0].lost is (code is not None)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (f.frame(f.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
        (head(1, ENDS), ErrorCode.STREAM_CLOSED),
        (f.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (f.window_update(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_stream_errors_end_the_stream_alone(http2, sent, code):
    bench = http2.Bench()
    bench.ask(1)
    bench.ask(3)
    bench.say(sent)
    assert bench.resets() == {1: code}
    assert list(bench.connection.streams) == [3]
    assert not bench.connection.closed


@pytest.mark.parametrize(
    ("block", "flags"),
    [
        (WHOLE, ENDS),
        (f.header_block(None, ((b"end", b"1"),)), f.END_HEADERS),
        (f.header_block(None, ((b"End", b"1"),)), ENDS),
    ],
)
def test_trailers_end_a_body_and_are_plain_fields(http2, block, flags):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.say(head(1, flags, block))
    assert bench.resets() == {1: ErrorCode.PROTOCOL_ERROR}


def test_data_beyond_a_streams_window_ends_it(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.streams[0].holds = True
    for _ in range(70):
        bench.say(f.frame(f.DATA, 0, 1, bytes(16_384)))
    assert bench.resets() == {1: ErrorCode.FLOW_CONTROL_ERROR}
    assert len(bench.streams[0].body) <= 1 << 20


def test_data_behind_the_end_of_an_exchange_ends_the_connection(http2):
    bench = http2.Bench()
    bench.ask(1)
    bench.answer(bench.streams[0], [b"x"])
    bench.say(f.frame(f.DATA, 0, 1, b"x"))
    assert bench.end()[0] is ErrorCode.STREAM_CLOSED


def test_an_owner_may_reset_more_streams_than_a_client(http2):
    bench = http2.Bench()
    bench.connection.patience = 0.0
    bench.ask(1)
    bench.connection.reset(bench.streams[0], ErrorCode.ENHANCE_YOUR_CALM)
    assert bench.resets() == {1: ErrorCode.ENHANCE_YOUR_CALM}
    assert bench.streams[0].lost


def test_a_stream_beyond_the_limit_is_refused_unbegun(http2):
    bench = http2.Bench(max_streams=2)
    for id in (1, 3, 5):
        bench.ask(id, ends=False)
    assert bench.resets() == {5: ErrorCode.REFUSED_STREAM}
    assert [stream.id for stream in bench.streams] == [1, 3]


FLOODS = {
    "PING": f.frame(f.PING, 0, 0, bytes(8)),
    "SETTINGS": f.settings(()),
    "SETTINGS that move windows": f.settings(((f.INITIAL_WINDOW, 1), (f.INITIAL_WINDOW, 2)) * 90),
    "PRIORITY": f.frame(f.PRIORITY, 0, 1, bytes(5)),
    "windows": f.window_update(0, 1),
    "windows of a stream": f.window_update(1, 1),
    "empty data": f.frame(f.DATA, 0, 1),
    "data of padding": f.frame(f.DATA, f.PADDED, 1, b"\xff" + bytes(255)),
    "a byte at a time": f.frame(f.DATA, 0, 1, b"x"),
    "frames of no known kind": f.frame(77, 0, 0, b"x"),
    "GOAWAY": f.frame(f.GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("case", FLOODS)
def test_a_flood_ends_the_connection(http2, case):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.say(FLOODS[case] * 1500)
    assert bench.end()[0] is ErrorCode.ENHANCE_YOUR_CALM


def test_only_the_last_window_of_a_settings_frame_counts(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.say(f.window_update(1, 2**31 - 1 - f.WINDOW))
    bench.say(f.settings(((f.INITIAL_WINDOW, 2**31 - 1), (f.INITIAL_WINDOW, 1000)) * 1000))
    assert bench.end() is None
    assert bench.connection.initial_window == 1000
    assert bench.streams[0].send_window == 2**31 - 1 - f.WINDOW + 1000


def test_moving_the_windows_of_many_streams_is_work(http2):
    bench = http2.Bench(max_streams=255)
    for id in range(1, 511, 2):
        bench.ask(id, ends=False)
    connection = bench.connection
    moved, as_before = f.settings(((f.INITIAL_WINDOW, 1),)), f.settings(((f.INITIAL_WINDOW, 1),))
    connection.receive(moved, 0.0)
    moving = WORK_AT_ONCE - connection.work
    connection.receive(as_before, 0.0)
    assert moving > 10 * (WORK_AT_ONCE - connection.work)
    connection.receive(f.settings(((77, 0),) * 2000), 0.0)
    assert WORK_AT_ONCE - connection.work > 100
    both = b"".join(f.settings(((f.INITIAL_WINDOW, window % 2),)) for window in range(1000))
    bench.say(both)
    assert bench.end()[0] is ErrorCode.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection(http2):
    bench = http2.Bench()
    for id in range(1, 3001, 2):
        bench.ask(id)
        bench.say(f.reset(id, ErrorCode.CANCEL))
    assert bench.end()[0] is ErrorCode.ENHANCE_YOUR_CALM
    assert len(bench.streams) < 1100
    assert bench.connection.streams == {}


def test_streams_that_are_malformed_in_a_row_end_the_connection(http2):
    bench = http2.Bench()
    for id in range(1, 3001, 2):
        bench.ask(id, b"")
    assert bench.end()[0] is ErrorCode.ENHANCE_YOUR_CALM


def test_header_blocks_that_have_to_be_decoded_are_few_at_a_time(http2):
    bench = http2.Bench(max_streams=100, max_list=30_000)
    blocks = [WHOLE + f.header_block(None, ((b"x", b"%d" % n + b"y" * 8000),)) for n in range(9)]
    bench.connection.receive(b"".join(head(2 * n + 1, block=b) for n, b in enumerate(blocks)), 0.0)
    assert len(bench.streams) == 1
    assert bench.connection.can_resume


def test_requests_behind_goaway_use_up_patience(http2):
    bench = http2.Bench()
    bench.connection.go_away()
    bench.heard()
    for id in range(1, 3001, 2):
        bench.ask(id)
    assert bench.end()[0] is ErrorCode.ENHANCE_YOUR_CALM


def test_probes_at_a_clients_pace_pass(http2):
    bench = http2.Bench()
    for number in range(5000):
        bench.now = number * 0.1
        bench.say(FLOODS["PING"])
    assert bench.end() is None


def test_updates_beside_answers_pass(http2):
    bench = http2.Bench()
    bench.say(f.settings(((f.INITIAL_WINDOW, 2**30),)) + f.window_update(0, 2**30))
    for id in range(1, 401, 2):
        bench.ask(id)
        bench.answer(bench.streams[-1], [bytes(600_000)])
        data = sum(kind == f.DATA for kind, *_ in bench.heard())
        while bench.connection.blocked:
            data += sum(kind == f.DATA for kind, *_ in bench.heard())
        bench.say(f.window_update(0, 1) * 2 * data)
    assert bench.end() is None


def test_the_cache_of_header_blocks_is_bounded(http2):
    reader = HeadReader(4096)
    for number in range(1000):
        block = WHOLE + f.header_block(None, ((b"x", b"%d" % number),))
        assert reader.read(block) is reader.read(block)
        assert len(reader._cache) <= MAX_CACHED
    long = WHOLE + f.header_block(None, ((b"x", b"y" * 2000),))
    assert reader.read(long) is not reader.read(long)


def test_a_block_that_changes_the_table_is_read_anew(http2):
    reader = HeadReader(4096)
    entering = WHOLE + b"\x40\x01x\x01a"
    assert reader.read(entering).headers[b"x"] == b"a"
    named = WHOLE + b"\xbe"
    assert reader.read(named).headers[b"x"] == b"a"
    reader.read(WHOLE + b"\x40\x01x\x01b")
    assert reader.read(named).headers[b"x"] == b"b"
    assert reader.read(b"\x20" + WHOLE).fault == ""
    with pytest.raises(f.Http2Error):
        reader.read(named)


def test_a_list_of_headers_is_told_apart_from_one_far_too_long(http2):
    bench = http2.Bench(max_list=1000)
    bench.ask(1, WHOLE + f.header_block(None, ((b"x", b"y" * 5000),)))
    (stream,) = bench.streams
    assert stream.head.size > 5000
    assert bench.end() is None


@given(
    data=st.binary(max_size=300),
    kind=st.integers(0, 11),
    flags=st.integers(0, 63),
    id=st.integers(0, 5),
)
def test_noise_ends_in_no_exception(http2, data, kind, flags, id):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.say(f.frame(kind, flags, id, data))
    bench.say(data)
    bench.heard()
    for stream in list(bench.connection.streams.values()):
        bench.answer(stream, [b"x"])
    assert bench.connection.streams == {} or bench.connection.blocked
