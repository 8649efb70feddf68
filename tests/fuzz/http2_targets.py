"""Fuzzed with another implementation as the other end: `h2` reads what our HTTP/2 reads, and grpcio
calls our gRPC. Both must come to the same.

    python tests/fuzz exchange grpcio --seconds 600
"""

from __future__ import annotations

import asyncio
import atexit
import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from mutate import Change, of_bytes, of_json
from target import Target

from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http2 import Http2Connection, Http2Stream
from slacktide.frontends.http2 import frames as f
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import INFERENCE_SERVICE, ModelInferRequest, ModelInferResponse

# ── h2 beside our HTTP/2 ─────────────────────────────────────────────────────────────────────────

_FIELDS = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"a"),
    (b"te", b"trailers"),
)  # fmt: skip
_BLOCK = f.header_block(None, _FIELDS)
_ENDS = f.END_HEADERS | f.END_STREAM
_FRAMES = (
    f.frame(f.PING, 0, 0, bytes(8)), f.settings(()), f.settings(((f.INITIAL_WINDOW, 9),)),
    f.settings(((f.INITIAL_WINDOW, 1), (f.INITIAL_WINDOW, 1 << 31))), f.frame(f.SETTINGS, 1, 0),
    f.window_update(0, 5), f.window_update(1, 5), f.window_update(1, (1 << 31) - 1),
    f.window_update(0, 0), f.reset(1, f.ErrorCode.CANCEL), f.frame(f.PRIORITY, 0, 3, bytes(5)),
    f.frame(f.HEADERS, 4, 1, _BLOCK), f.frame(f.HEADERS, 5, 3, _BLOCK),
    f.frame(f.HEADERS, 5, 1, f.header_block(None, ((b"x", b"y"),))),
    f.frame(f.HEADERS, 5, 7, _BLOCK + b"\x40\x01x\x01y\xbe"),
    f.frame(f.HEADERS, 5, 9, b"\x20\x3f\xe1\x1f" + _BLOCK), f.frame(f.HEADERS, 5, 9, b"\xc6"),
    f.frame(f.HEADERS, 0x2D, 11, b"\x02" + bytes(5) + _BLOCK + b"\0\0"),
    f.frame(f.HEADERS, 5, 13, _BLOCK + f.header_block(None, ((b"content-length", b"0"),))),
    f.frame(f.DATA, 0, 1, b"hello"), f.frame(f.DATA, 1, 1, b"!"), f.frame(f.DATA, 9, 1, b"\x01a\0"),
    f.frame(f.HEADERS, 0, 1, _BLOCK[:9]), f.frame(f.CONTINUATION, 4, 1, _BLOCK[9:]),
    f.goaway(0, f.ErrorCode.NO_ERROR), f.frame(f.PUSH_PROMISE, 4, 1, bytes(4)),
    f.frame(99, 0, 1, b"?"),
)  # fmt: skip
"""What is put between the frames of an example."""


def exchange_examples() -> list[bytes]:
    def head(id: int, flags: int = f.END_HEADERS, more: bytes = b"") -> bytes:
        return f.frame(f.HEADERS, flags, id, _BLOCK + more)

    length = f.header_block(None, ((b"content-length", b"5"),))
    return [
        head(1) + f.frame(f.DATA, 0, 1, b"hel") + f.frame(f.DATA, 1, 1, b"lo") + head(3, _ENDS),
        head(1, more=length) + f.frame(f.DATA, 1, 1, b"hello"),
        head(1) + head(3, more=b"\x40\x01x\x01y") + head(5, _ENDS, b"\xbe") + _FRAMES[19],
        head(1) + f.frame(f.DATA, 8, 1, b"\x02hello\0\0") + _FRAMES[13],
        _FRAMES[22] + _FRAMES[23] + f.settings(((f.INITIAL_WINDOW, 3), (f.TABLE_SIZE, 0))),
    ]


def _cut(data: bytes) -> list[bytes]:
    """The frames of an input."""
    frames, at = [], 0
    while at < len(data):
        size = f.HEAD_BYTES + int.from_bytes(data[at : at + 3])
        frames.append(data[at : at + size])
        at += size
    return frames


def change_frames(data: bytes, chance: random.Random) -> bytes:
    """Frames dropped, repeated, swapped, put in between; flags, streams and payloads changed."""
    frames = _cut(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(frames) + 1)
        kind = chance.randrange(7)
        if at == len(frames) or kind == 0:
            frames.insert(at, chance.choice(_FRAMES))
        elif kind == 1:
            del frames[at]
        elif kind == 2:
            frames.insert(chance.randrange(len(frames) + 1), frames[at])
        elif len(frames[at]) >= f.HEAD_BYTES:
            changed = bytearray(frames[at])
            if kind == 3:
                changed[4] ^= 1 << chance.randrange(6)
            elif kind == 4:
                changed[5:9] = f.LONG.pack(chance.choice((0, 1, 2, 3, 5, 7, 101)))
            elif len(changed) > f.HEAD_BYTES:
                changed[chance.randrange(f.HEAD_BYTES, len(changed))] = chance.randrange(256)
            frames[at] = bytes(changed)
    return b"".join(frames)


@dataclass
class Reading:
    """What an implementation made of the bytes of a client."""

    requests: dict[int, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    bodies: dict[int, bytearray] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    resets: set[int] = field(default_factory=set)
    """Streams that it has reset, or whose client has."""
    error: str = ""
    """Why the connection ended."""
    late: bool = False
    """A frame came for a stream that was no more."""

    @property
    def kept(self) -> dict[int, tuple[Any, bytes, bool]]:
        return {
            id: (dict(fields), bytes(self.bodies.get(id, b"")), id in self.ended)
            for id, fields in self.requests.items()
            if id not in self.resets
        }


class _Noting(Http2Stream):
    __slots__ = ("reading",)

    reading: Reading

    def received(self, data: memoryview) -> None:
        self.reading.bodies.setdefault(self.id, bytearray()).extend(data)

    def received_all(self) -> None:
        self.reading.ended.add(self.id)

    def aborted(self) -> None:
        self.reading.resets.add(self.id)


def read_by_us(data: bytes) -> Reading:
    reading = Reading()

    def begin(id: int, head: Any) -> Http2Stream:
        reading.requests[id] = list(head.headers.items())
        stream = _Noting(connection, id, head)
        stream.reading = reading
        return stream

    connection = Http2Connection(begin, max_streams=100, max_list=32_768, now=0.0)
    connection.receive(f.PREFACE + f.settings(()) + data, 0.0)
    while connection.can_resume:
        connection.receive(b"", 0.0)
    for frame in _cut(b"".join(bytes(piece) for piece in connection.out)):
        if frame[3] == f.RST_STREAM:
            reading.resets.add(int.from_bytes(frame[5:9]))
        elif frame[3] == f.GOAWAY:
            code = f.ErrorCode(int.from_bytes(frame[f.HEAD_BYTES + 4 : f.HEAD_BYTES + 8]))
            reading.error = f"{code.name}: {frame[f.HEAD_BYTES + 8 :].decode()}"
    return reading


def read_by_h2(data: bytes) -> Reading:
    reading = Reading()
    config = h2.config.H2Configuration(
        client_side=False, header_encoding=None, normalize_inbound_headers=False
    )
    other = h2.connection.H2Connection(config)
    codes = h2.settings.SettingCodes
    values = {codes.INITIAL_WINDOW_SIZE: 1 << 20, codes.MAX_HEADER_LIST_SIZE: 65_536}
    other.local_settings = h2.settings.Settings(client=False, initial_values=values)
    other.initiate_connection()
    other.increment_flow_control_window((1 << 24) - (1 << 16))
    other.data_to_send()
    try:
        for frame in (f.PREFACE + f.settings(()), *_cut(data)):
            for event in other.receive_data(frame):
                _note(event, reading)
    except h2.exceptions.ProtocolError as error:
        reading.error = f"{type(error).__name__}: {error}"
    for frame in _cut(other.data_to_send()):
        if frame[3] == f.RST_STREAM:
            reading.resets.add(int.from_bytes(frame[5:9]))
            reading.late = True
    return reading


def _note(event: Any, reading: Reading) -> None:
    if isinstance(event, h2.events.RequestReceived):
        reading.requests[event.stream_id] = list(event.headers)
    elif isinstance(event, h2.events.DataReceived):
        reading.bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
    elif isinstance(event, h2.events.StreamEnded):
        reading.ended.add(event.stream_id)
    elif isinstance(event, h2.events.StreamReset):
        reading.resets.add(event.stream_id)


H2_ALONE = (
    "ConnectionState.CLOSED",  # frames behind the client's GOAWAY: we answer what has begun
    "does not have an :authority or Host header",  # RFC 9113 §8.3.1: it may be left out
    "Received frame with non-compliant data",  # the reserved bit of a window: to be ignored
    "Setting 8 has invalid value",  # of extended CONNECT, which we do not offer
)
"""Errors that h2 sees and we do not, each with the reason."""
OURS_ALONE = (
    "SETTINGS: window too large",  # the first of two, beyond 2^31 - 1: h2 looks at the last
    "a stream that was skipped",  # RFC 9113 §5.1.1; to h2 it is a closed one
    "an invalid table size update",  # the third in a block (RFC 7541 §4.2)
    "more padding than frame",  # of HEADERS that go on: h2 waits for the end of the block
    "HEADERS on a stream that is not a client's",  # likewise
    "a client cannot push",  # likewise
    "a frame for no stream",  # RST_STREAM on an idle stream: h2 passes over it
    "data for no stream",  # behind the client's reset, and its GOAWAY: h2 passes over it
)
_ALTSVC = 10
"""A frame that h2 knows: what is wrong in it is nothing to us."""


def run_exchange(data: bytes) -> None:
    # Either end may refuse a frame by its head, before the rest is here: not compared.
    frames = _cut(data)
    if frames and len(frames[-1]) < f.HEAD_BYTES + int.from_bytes(frames[-1][:3]):
        frames.pop()
    data = b"".join(frame for frame in frames if frame[3] != _ALTSVC)
    ours, theirs = read_by_us(data), read_by_h2(data)
    if not (ours.error or theirs.error):
        gone = ours.resets | theirs.resets
        ours.resets = theirs.resets = gone
        assert ours.kept == theirs.kept
    elif not ours.error:
        assert ours.resets or _h2_alone(theirs.error), f"only h2 refuses: {theirs.error}"
    elif not theirs.error:
        assert theirs.late or _ours_alone(ours.error), f"only we refuse: {ours.error}"


def _h2_alone(error: str) -> bool:
    return any(words in error for words in H2_ALONE)


def _ours_alone(error: str) -> bool:
    return any(words in error for words in OURS_ALONE)


# ── grpcio as the client of our gRPC ─────────────────────────────────────────────────────────────

MOST_CALLS, MOST_BYTES, MOST_TEXT = 8, 300_000, 2_000


def grpcio_examples() -> list[bytes]:
    plans = (
        [{"size": 4, "id": "a"}, {"size": 0}, {"size": 20_000, "messages": 3}],
        [{"size": 150_000, "compression": 2, "metadata": {"x-trace": "1"}}] * 2,
        [{"size": 70_000, "messages": 4, "compression": 1, "id": "b"}, {"size": 16_379}],
        [{"size": 100, "metadata": {f"x-{n}": "v" * 300 for n in range(5)}}] * 8,
    )
    return [json.dumps(plan).encode() for plan in plans]


@cache
def _channel() -> tuple[grpc.Channel, Any]:
    """To a server in a thread of its own, whose models answer what they are asked; and these."""
    from tests.frontends.doubles import FakeControlPlane, FakeDataPlane

    loop, ready = asyncio.new_event_loop(), threading.Event()
    models = FakeDataPlane()
    server = GrpcServer(models, FakeControlPlane())

    async def start() -> None:
        await server.start("127.0.0.1", 0)
        ready.set()

    loop.create_task(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    assert ready.wait(30)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}", options)

    atexit.register(channel.close)
    return channel, models


def run_grpcio(data: bytes) -> None:
    try:
        plan = json.loads(data)
    except (ValueError, RecursionError):
        return
    calls = [call for call in plan if isinstance(call, dict)] if isinstance(plan, list) else []
    for check in [_begin(call, number) for number, call in enumerate(calls[:MOST_CALLS])]:
        check()
    _, models = _channel()
    models.calls.clear()
    models.announced.clear()


def _number(value: object, most: int) -> int:
    return min(abs(value), most) if type(value) is int else 1


def _text(value: object) -> str:
    words = value[:MOST_TEXT] if isinstance(value, str) else ""
    return "".join(word for word in words if " " < word < "\x7f")


def _begin(call: dict[str, Any], number: int) -> Callable[[], None]:
    """Send one call of a plan; what is returned waits for its answers and compares them."""
    size, count = _number(call.get("size"), MOST_BYTES), call.get("messages")
    request = ModelInferRequest(model_name="m", id=_text(call.get("id")))
    request.inputs.add(name="x", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes((number + 1,)) * size)
    stated = call.get("metadata")
    pairs = list(stated.items())[:6] if isinstance(stated, dict) else []
    metadata = [(f"x-fuzz-{at}", _text(value)) for at, (_, value) in enumerate(pairs)]
    how: dict[str, Any] = {
        "metadata": metadata,
        "timeout": 60.0,
        "compression": grpc.Compression(_number(call.get("compression"), 2)),
    }

    def check(raw: bytes) -> None:
        response = ModelInferResponse.FromString(raw)
        assert response.id == request.id
        assert response.raw_output_contents == request.raw_input_contents

    message = request.SerializeToString()
    if count is None:
        method = _channel()[0].unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")
        future = method.future(message, **how)
        return lambda: check(future.result(60))
    messages = [message] * _number(count, 5)
    stream = _channel()[0].stream_stream(f"/{INFERENCE_SERVICE}/ModelStreamInfer")(
        iter(messages), **how
    )

    def check_all() -> None:
        answers = list(stream)
        assert len(answers) == len(messages)
        for raw in answers:
            # ModelStreamInferResponse: an error, then a response (fields 1 and 2).
            answer = m.ModelStreamInferResponse.FromString(raw)
            assert answer.error_message == ""
            check(answer.infer_response.SerializeToString())

    return check_all


def _of_frames(examples: Sequence[bytes]) -> Sequence[Change]:
    return [change_frames, change_frames, change_frames, of_bytes(examples, _FRAMES)]


TARGETS = (
    Target("exchange", exchange_examples, run_exchange, _of_frames),
    Target("grpcio", grpcio_examples, run_grpcio, lambda examples: [of_json], apart=True),
)
