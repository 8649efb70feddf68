"""Whole exchanges with the `h2` package as the other end, its bytes cut anywhere."""

from __future__ import annotations

from collections import deque

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypothesis import given
from hypothesis import strategies as st

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.reading import Http2Reader


class Client:
    """An `h2` client that sends bodies as windows allow, and takes answers."""

    def __init__(self, window: int, frame: int, table: int) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: window,
                codes.MAX_FRAME_SIZE: frame,
                codes.HEADER_TABLE_SIZE: table,
                codes.ENABLE_PUSH: 0,
            },
        )
        self.h2.max_inbound_frame_size = frame
        self.h2.decoder.max_allowed_table_size = table
        self.h2.initiate_connection()
        self.bodies: dict[int, memoryview] = {}
        self.answers: dict[int, bytearray] = {}
        self.ended: dict[int, list[tuple[bytes, bytes]]] = {}

    def ask(self, fields: list[tuple[bytes, bytes]], body: bytes) -> int:
        id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(id, fields)
        self.bodies[id] = memoryview(body)
        self.answers[id] = bytearray()
        return id

    def send(self) -> bytes:
        """What can be sent now, a frame of each body."""
        for id, body in list(self.bodies.items()):
            most = min(self.h2.local_flow_control_window(id), self.h2.max_outbound_frame_size)
            piece = bytes(body[: max(0, most)])
            if piece or not body:
                last = len(piece) == len(body)
                self.h2.send_data(
                    id,
                    piece,
                    end_stream=last,
                    pad_length=3 if len(piece) > 9 and most > len(piece) + 9 else None,
                )
                self.bodies[id] = body[len(piece) :]
                if last:
                    del self.bodies[id]
        return self.h2.data_to_send()

    def take(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self.answers[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.TrailersReceived):
                self.ended[event.stream_id] = list(event.headers)
            else:
                assert not isinstance(
                    event, h2.events.StreamReset | h2.events.ConnectionTerminated
                ), event


def exchange(bench, client: Client, cuts: list[int], answer) -> None:
    """Until both have nothing more to say. `cuts`: lengths of the pieces, in turn."""
    lengths = deque(cuts)

    def pieces(data: bytes):
        while data:
            lengths.rotate(-1)
            yield data[: lengths[0]]
            data = data[lengths[0] :]

    answered = set()
    quiet = 0
    while quiet < 3:
        quiet += 1
        for piece in pieces(client.send()):
            quiet = 0
            bench.say(piece)
        for stream in bench.streams:
            if stream.whole and stream.id not in answered:
                answered.add(stream.id)
                answer(stream)
        bench.connection.pump()
        out = b"".join(bench.connection.out)
        bench.connection.out.clear()
        for piece in pieces(out):
            quiet = 0
            client.take(piece)


@given(
    sizes=st.lists(st.integers(0, 150_000), min_size=1, max_size=6),
    cuts=st.lists(
        st.one_of(st.integers(1, 40), st.integers(1000, 70_000)), min_size=1, max_size=5
    ).filter(lambda cuts: max(cuts) > 500),
    window=st.sampled_from([10, 300, 16_384, 65_535, 1_000_000]),
    frame=st.sampled_from([16_384, 20_000, 100_000]),
    table=st.sampled_from([0, 100, 4096]),
    changing=st.booleans(),
)
def test_every_body_comes_back_whole(http2, sizes, cuts, window, frame, table, changing):
    if window < 1000:
        sizes = [size % 300 for size in sizes]
    bench, client = http2.Bench(opened=False), Client(window, frame, table)
    bodies = {}
    for number, size in enumerate(sizes):
        fields = list(http2.FIELDS)
        if changing:
            fields += [(b"x-number", b"%d" % number), (b"x-same", b"y" * 50)]
        body = bytes([number + 1]) * size
        bodies[client.ask(fields, body)] = body

    def answer(stream):
        data = [stream.body[:10], stream.body[10:]]
        bench.answer(stream, data)

    exchange(bench, client, cuts, answer)
    assert {id: bytes(data) for id, data in client.answers.items()} == bodies
    assert set(client.ended) == set(bodies)
    assert [stream.body for stream in bench.streams] == list(bodies.values())
    assert all(dict(stream.head.headers)[b":path"] == b"/a/b" for stream in bench.streams)
    assert not bench.connection.streams
    assert not bench.connection.blocked


@given(
    messages=st.lists(st.integers(1, 60_000), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 30_000), min_size=1, max_size=4).filter(
        lambda cuts: max(cuts) > 500
    ),
)
def test_an_answer_in_parts_comes_in_order(http2, messages, cuts):
    bench, client = http2.Bench(opened=False), Client(65_535, 16_384, 4096)
    id = client.ask(list(http2.FIELDS), b"")

    def answer(stream):
        bench.connection.begin(stream, http2.ANSWER)
        for number, size in enumerate(messages):
            bench.connection.send(stream, [bytes([number]) * size], size)
        bench.connection.finish(stream, http2.TRAILERS)

    exchange(bench, client, cuts, answer)
    assert client.answers[id] == b"".join(bytes([n]) * size for n, size in enumerate(messages))
    assert id in client.ended


def test_a_header_block_is_read_once_while_the_table_stays(http2):
    bench, client = http2.Bench(opened=False), Client(65_535, 16_384, 4096)
    heads = []
    for _ in range(4):
        client.ask(list(http2.FIELDS), b"")
        exchange(bench, client, [1000], lambda stream: None)
        heads.append(bench.streams[-1].head)
    # The first enters its fields; the others are the same few bytes.
    assert heads[0] is not heads[1]
    assert heads[1] is heads[2] is heads[3]
    client.ask([*http2.FIELDS, (b"x-new", b"1")], b"")
    exchange(bench, client, [1000], lambda stream: None)
    client.ask(list(http2.FIELDS), b"")
    exchange(bench, client, [1000], lambda stream: None)
    assert bench.streams[-1].head.headers == heads[0].headers


def test_small_answers_pass_a_long_one(http2):
    bench = http2.Bench()
    bench.say(f.window_update(0, 1_000_000))
    bench.ask(1)
    bench.ask(3)
    long, short = bench.streams
    long.send_window = 1_000_000
    bench.answer(long, [bytes(600_000)])
    bench.connection.pump()
    before = len(bench.connection.out)
    bench.answer(short, [b"short"])
    assert 0 < before < 60
    kinds = [(kind, id) for kind, _, id, _ in bench.heard()]
    assert kinds.index((f.HEADERS, 3)) < len(kinds) - 1 - kinds[::-1].index((f.DATA, 1))


def test_streams_take_turns_when_windows_open(http2):
    bench = http2.Bench()
    for id in (1, 3, 5):
        bench.ask(id)
    bench.connection.send_window = 0
    for stream in bench.streams:
        bench.answer(stream, [bytes(40_000)])
    bench.heard()
    bench.say(f.window_update(0, 200_000))
    data = [id for kind, _, id, _ in bench.heard() if kind == f.DATA]
    assert data == [1, 3, 5] * 3


def test_windows_are_granted_again_as_data_is_taken(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    for _ in range(1200):
        bench.say(f.frame(f.DATA, 0, 1, bytes(16_384)))
    granted = {0: 0, 1: 0}
    for kind, _, id, payload in bench.heard():
        if kind == f.WINDOW_UPDATE:
            granted[id] += int.from_bytes(payload)
    assert bench.connection.closed is False
    assert granted[1] >= 18 << 20
    assert granted[0] > 0
    assert len(bench.streams[0].body) == 1200 * 16_384


def test_a_stream_that_holds_is_granted_no_more_until_it_goes_on(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    (stream,) = bench.streams
    stream.holds = True
    for _ in range(50):
        bench.say(f.frame(f.DATA, 0, 1, bytes(16_384)))
    assert not [id for kind, _, id, _ in bench.heard() if kind == f.WINDOW_UPDATE and id]
    stream.holds = False
    bench.connection.grant(stream)
    ((_, _, _, more),) = [row for row in bench.heard() if row[0] == f.WINDOW_UPDATE and row[2]]
    assert int.from_bytes(more) == 50 * 16_384


def test_a_request_that_is_answered_early_need_not_be_sent(http2):
    bench = http2.Bench()
    bench.ask(1, ends=False)
    bench.connection.finish(bench.streams[0], http2.ANSWER)
    kinds = [(kind, id) for kind, _, id, _ in bench.heard()]
    assert kinds == [(f.HEADERS, 1), (f.RST_STREAM, 1)]
    bench.say(f.frame(f.DATA, 0, 1, bytes(1000)) + f.frame(f.DATA, f.END_STREAM, 1, b"x"))
    bench.ask(1, http2.TRAILERS)
    bench.ask(3)
    assert [stream.id for stream in bench.streams] == [1, 3]
    assert bench.end() is None


def test_a_client_may_take_its_request_back(http2):
    bench = http2.Bench()
    bench.ask(1)
    bench.say(f.reset(1, f.ErrorCode.CANCEL))
    assert bench.streams[0].lost
    assert not bench.connection.streams
    assert bench.end() is None


def test_no_request_that_begins_after_goaway_is_taken(http2):
    bench = http2.Bench()
    bench.ask(1)
    bench.connection.go_away()
    bench.ask(3)
    assert [stream.id for stream in bench.streams] == [1]
    goaway = next(payload for kind, _, _, payload in bench.heard() if kind == f.GOAWAY)
    assert int.from_bytes(goaway[:4]) == 1
    bench.answer(bench.streams[0], [b"x"])
    assert [kind for kind, *_ in bench.heard()] == [f.HEADERS, f.DATA, f.HEADERS]


def test_frames_of_a_request_behind_goaway_are_passed_over(http2):
    bench = http2.Bench()
    bench.ask(1)
    bench.connection.go_away()
    bench.ask(3, ends=False)
    bench.say(f.frame(f.DATA, 0, 3, bytes(1000)))
    bench.ask(3, http2.TRAILERS)
    bench.heard()
    assert [stream.id for stream in bench.streams] == [1]
    assert not bench.connection.closed


def test_a_smaller_table_is_acknowledged_in_the_next_block_of_any_kind(http2):
    bench, table = http2.Bench(), f.settings(((f.TABLE_SIZE, 0),))
    bench.ask(1)
    bench.connection.begin(bench.streams[0], http2.ANSWER)
    bench.say(table)
    bench.connection.finish(bench.streams[0], http2.TRAILERS)
    heads = [payload for kind, *_, payload in bench.heard() if kind == f.HEADERS]
    assert heads == [http2.ANSWER, f.SHRINK_TABLE + http2.TRAILERS]


def test_a_later_goaway_promises_no_more(http2):
    bench = http2.Bench()
    bench.ask(1)
    bench.connection.go_away()
    bench.ask(3)
    bench.heard()
    bench.connection.end(f.ErrorCode.ENHANCE_YOUR_CALM, "enough")
    ((_, _, _, payload),) = bench.heard()
    assert int.from_bytes(payload[:4]) == 1


def elapsed(since, now):
    return now - since


def test_an_answer_is_stuck_from_when_it_stops_not_from_its_request(http2):
    bench = http2.Bench()
    bench.ask(1)
    connection = bench.connection
    connection.send_window = 100
    bench.now = 1000.0
    bench.answer(bench.streams[0], [bytes(300)])
    bench.heard()
    assert [connection.is_stuck(now, 30.0, elapsed) for now in (1000.0, 1029.0)] == [False, False]
    bench.say(f.window_update(0, 100))
    bench.heard()
    assert not connection.is_stuck(1029.5, 30.0, elapsed)
    assert connection.is_stuck(1030.5, 30.0, elapsed)


def test_an_answer_that_is_taken_in_morsels_is_stuck(http2):
    bench = http2.Bench()
    bench.ask(1)
    connection = bench.connection
    bench.answer(bench.streams[0], [bytes(400_000)])
    for now in range(0, 200, 10):
        bench.now = float(now)
        bench.say(f.window_update(0, 100) + f.window_update(1, 100))
        bench.heard()
        if connection.is_stuck(bench.now, 30.0, elapsed):
            break
    assert 30 <= bench.now < 50
    bench.say(f.window_update(0, 250_000) + f.window_update(1, 250_000))
    bench.heard()
    assert not connection.is_stuck(bench.now + 1, 30.0, elapsed)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_frames_are_the_same_however_they_are_cut(cuts):
    raw = f.PREFACE + b"".join(
        (
            f.settings(((f.MAX_FRAME, 20_000),)),
            f.frame(f.HEADERS, f.PADDED | f.HAS_PRIORITY, 1, b"\2" + bytes(5) + b"abc" + b"pp"),
            f.frame(f.CONTINUATION, f.END_HEADERS, 1, b"def"),
            f.frame(f.DATA, f.PADDED, 1, b"\7" + b"x" * 40 + bytes(7)),
            f.frame(f.DATA, 0, 1, b""),
            f.frame(f.PING, 0, 0, b"12345678"),
        )
    )
    reader, frames, at = Http2Reader(), [], 0
    for cut in [*cuts, len(raw)]:
        reader.feed(raw[at : at + cut])
        at += cut
        while reader.next():
            if reader.is_first:
                frames.append([reader.kind, reader.id, reader.length, reader.size, b""])
            frames[-1][-1] += reader.payload
        reader.hold()
    assert not reader.unfinished
    assert frames == [
        [f.SETTINGS, 0, 6, 6, f.SETTING.pack(f.MAX_FRAME, 20_000)],
        [f.HEADERS, 1, 3, 3, b"abcdef"],
        [f.DATA, 1, 48, 40, b"x" * 40],
        [f.DATA, 1, 0, 0, b""],
        [f.PING, 0, 8, 8, b"12345678"],
    ]


def test_a_piece_of_work_is_bounded_and_the_rest_is_held(http2):
    bench = http2.Bench(max_streams=1000)
    flags = f.END_HEADERS | f.END_STREAM
    raw = b"".join(f.frame(f.HEADERS, flags, id, http2.HEAD) for id in range(1, 401, 2))
    bench.connection.receive(raw, 0.0)
    assert len(bench.streams) == 30
    assert bench.connection.can_resume
    bench.say(b"")
    assert len(bench.streams) == 200
    assert bench.connection.frames.pending == b""


def test_pings_and_settings_are_acknowledged(http2):
    bench = http2.Bench()
    bench.say(f.frame(f.PING, 0, 0, b"12345678") + f.settings(((f.INITIAL_WINDOW, 7), (99, 1))))
    assert bench.heard() == [
        (f.PING, f.ACK, 0, b"12345678"),
        (f.SETTINGS, f.ACK, 0, b""),
    ]
    assert bench.connection.initial_window == 7
