"""The client's side of HTTP/2, with the server's side and with `h2` as the other end."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.frontends.http2 import ErrorCode, Head
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.dialling import STREAM, Http2Dialling

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"t"),
    (b"te", b"trailers"),
]
PIECES = st.lists(st.binary(min_size=1, max_size=70_000), max_size=6)
CUTS = st.lists(st.integers(1, 30_000), min_size=1, max_size=8)


class Dialled:
    """A connection with its only stream, and what it noted."""

    def __init__(self, noted_stream) -> None:
        self.connection = Http2Dialling(max_list=4096, now=0.0)
        self.stream = noted_stream(self.connection, STREAM, Head(REQUEST))
        self.connection.open(self.stream, REQUEST)

    def take(self, data: bytes) -> None:
        self.connection.receive(data, 0.0)
        while self.connection.can_resume:
            self.connection.receive(b"", 0.0)
        self.connection.drop(9)

    def out(self) -> bytes:
        self.connection.pump()
        raw = b"".join(self.connection.out)
        self.connection.out.clear()
        return raw

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.send(self.stream, [piece], len(piece))


def cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    pieces, at, turn = [], 0, 0
    while at < len(raw):
        pieces.append(raw[at : at + cuts[turn % len(cuts)]])
        at, turn = at + cuts[turn % len(cuts)], turn + 1
    return pieces


@given(PIECES, PIECES, CUTS, CUTS)
def test_bodies_go_both_ways_to_our_server_however_bytes_are_cut(http2, ours, theirs, up, down):
    server, client = http2.Bench(opened=False), Dialled(http2.Noted)
    client.send(*ours)
    answered = False
    while True:
        sent, received = client.out(), b""
        for piece in cut(sent, up):
            server.say(piece)
        if server.streams and not answered:
            answered = True
            server.connection.begin(server.streams[0], http2.ANSWER)
            for piece in theirs:
                server.connection.send(server.streams[0], [piece], len(piece))
        server.connection.pump()
        received, server.connection.out[:] = b"".join(server.connection.out), []
        for piece in cut(received, down):
            client.take(piece)
        if not (sent or received):
            break
    assert bytes(server.streams[0].body) == b"".join(ours)
    assert bytes(client.stream.body) == b"".join(theirs)
    assert client.stream.heads[0][0][b":status"] == b"200"
    assert not client.stream.ended
    assert not client.connection.closed
    assert not server.connection.closed
    client.connection.finish(client.stream, b"")
    server.say(client.out())
    assert server.streams[0].ended
    server.connection.finish(server.streams[0], http2.TRAILERS)
    server.connection.pump()
    client.take(b"".join(server.connection.out))
    assert not client.connection.closed


def stock() -> h2.connection.H2Connection:
    config = h2.config.H2Configuration(client_side=False, header_encoding=None)
    server = h2.connection.H2Connection(config)
    server.initiate_connection()
    return server


@given(PIECES, PIECES, st.integers(0, 200_000), CUTS)
def test_bodies_go_both_ways_to_a_stock_server(http2, ours, theirs, window, cuts):
    server, client = stock(), Dialled(http2.Noted)
    client.send(*ours)
    body_read, ended = bytearray(), False
    body = memoryview(b"".join(theirs))
    first = True
    while True:
        sent = client.out()
        for piece in cut(sent, cuts):
            for event in server.receive_data(piece):
                if isinstance(event, h2.events.DataReceived):
                    body_read += event.data
                    server.acknowledge_received_data(event.flow_controlled_length, STREAM)
                ended = ended or isinstance(event, h2.events.StreamEnded)
        if first:
            server.send_headers(STREAM, [(b":status", b"200"), (b"x", b"y" * 200)])
            first = False
        while body and (most := min(server.local_flow_control_window(STREAM), 16_384)):
            server.send_data(STREAM, bytes(body[:most]), pad_length=3 if most > 9999 else None)
            body = body[most:]
            break
        received = server.data_to_send()
        for piece in cut(received, cuts):
            client.take(piece)
        if not (sent or received):
            break
    assert bytes(body_read) == b"".join(ours)
    assert bytes(client.stream.body) == b"".join(theirs)
    server.send_headers(STREAM, [(b"grpc-status", b"0")], end_stream=True)
    client.take(server.data_to_send())
    assert client.stream.heads[-1] == ({b"grpc-status": b"0"}, True)
    assert client.stream.ended
    assert client.stream.whole


def dialled(http2) -> Dialled:
    client = Dialled(http2.Noted)
    client.take(f.settings(()))
    client.out()
    return client


ANSWER = f.frame(f.HEADERS, f.END_HEADERS, STREAM, f.header_block(200, ()))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (f.frame(f.HEADERS, f.END_HEADERS, 3, b"\x88"), "HEADERS on a stream that was not opened"),
        (ANSWER + f.frame(f.HEADERS, f.END_HEADERS, STREAM, b""), "HEADERS in the middle"),
        (f.frame(f.HEADERS, f.END_HEADERS, STREAM, b"\xff"), "a header block cannot be read"),
        (f.frame(f.PUSH_PROMISE, f.END_HEADERS, STREAM, bytes(4)), "a client cannot push"),
        (f.frame(f.DATA, 0, 3, b"x" * 99), "data for no stream"),
        (f.goaway(1, ErrorCode.ENHANCE_YOUR_CALM, "calm"), "the server ended the connection"),
        (f.goaway(0, ErrorCode.NO_ERROR), "the server takes no connections"),
        (f.reset(STREAM, ErrorCode.CANCEL), "the server reset the stream (CANCEL)"),
        (f.frame(f.SETTINGS, 0, 0, b"x"), "SETTINGS of invalid length"),
    ],
)
def test_forbidden_frames_of_a_server_end_the_link_with_a_sentence(http2, data, why):
    client = dialled(http2)
    client.take(data)
    assert client.connection.why.startswith(why)
    if client.connection.closed or f"{ErrorCode.CANCEL.name}" in why:
        assert client.stream.lost


def test_the_first_frame_of_a_server_is_settings(http2):
    client = Dialled(http2.Noted)
    client.take(ANSWER)
    assert client.connection.why == "expected SETTINGS as the first frame"


def test_a_server_that_sends_more_than_its_credit_loses_the_stream(http2):
    client = dialled(http2)
    client.stream.holds = True
    for _ in range(65):
        client.take(f.frame(f.DATA, 0, STREAM, bytes(f.FRAME_BYTES)))
    assert client.stream.lost
    assert not client.connection.closed


def test_data_that_crosses_the_end_is_ignored(http2):
    client = dialled(http2)
    client.take(ANSWER)
    client.connection.finish(client.stream, b"")
    client.connection.go_away()
    client.take(f.frame(f.DATA, 0, STREAM, b"x"))
    client.take(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, STREAM, f.header_block(None, ())))
    assert not client.connection.closed
    assert client.connection.why == ""
