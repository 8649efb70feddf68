"""Fuzzed: what clients send, as HTTP, JSON, gRPC messages, tensors and parameters."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from mutate import of_bytes, of_json
from target import Target, documents, messages, sentence, text

from slacktide.domain import (
    Outcome,
    Reason,
)
from slacktide.domain.tensors import Datatype
from slacktide.executors.jpeg_header import jpeg_header
from slacktide.frontends.http.context import HttpContext
from slacktide.frontends.http.reader import RequestReader
from slacktide.frontends.http.router import Router
from slacktide.frontends.http2 import Http2Connection, Http2Stream
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import HttpSettings
from slacktide.wire.calls import InferCall, InferReply, OutputValue
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.frame_messages import frame_head, read_client_message, terms_of
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.grpc_messages import encode_call, read_request
from slacktide.wire.infer_reader import InferReader
from slacktide.wire.oip_json import format_reply, parse_infer
from slacktide.wire.parameters import parse_length, parse_parameters, read_headers
from slacktide.wire.proto.messages import (
    Announcement,
    ClientMessage,
    Frame,
    Hello,
    ModelInferRequest,
)
from slacktide.wire.raw_tensors import (
    check_raw,
    check_shape,
    datatype_of,
    encode_strings,
    from_json,
    split_strings,
    to_json,
)

# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────


def http_examples() -> list[bytes]:
    post = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
    return [
        b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n" * 3,
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        post + b"Content-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: 1\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40 + b"0\r\n\r\n",
        post
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab",
        post + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        post + b"X: " + b"y" * 3000 + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ]


HTTP_WORDS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b": ", b" ", b"\t", b"\0", b"HTTP/1.1", b"HTTP/2.0",
    b"Content-Length: ", b"Content-Length: 3, 3", b"Transfer-Encoding: ", b"chunked",
    b"gzip, chunked",
    b"Host: a\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"CONNECT a:1 HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b";a=b", b"%00",
)  # fmt: skip
STEPS = 10_000
"""Calls of `feed` for one input: far more than any needs."""


def run_http(data: bytes) -> None:
    whole = _read_http(data, len(data) or 1)
    pieces = _read_http(data, 1 + len(data) % 7)
    assert whole[0] == pieces[0], f"read at once: {whole}; in pieces: {pieces}"
    # Which refusal comes first depends on what is there; 500 would be a fault of ours.
    assert 500 not in (whole[1], pieces[1])


def _read_http(data: bytes, size: int) -> tuple[list[Any], int | None]:
    """The requests in `data`, and the status of the refusal that ended it, fed `size` at a time."""
    settings = HttpSettings(max_header_bytes=4096, max_request_bytes=65536, max_json_bytes=65536)
    context = HttpContext(Router(()), settings, None, None)
    reader = RequestReader(context, "client")
    requests: list[Any] = []
    refusal = None
    at = steps = 0
    while (at < len(data) or reader.pending) and refusal is None and not reader.ended:
        steps += 1
        assert steps < STEPS, "it does not get on"
        refusal = reader.feed(data[at : at + size], 0.0)
        at += size
        current = reader.current
        whole_head = current is not None and current.head.whole and refusal is None
        if current is not None and whole_head and not current.head.chunked:
            # A connection receives the rest of such a body past the reader.
            reader.bypass()
            piece = data[at : at + current.head.length - current.filled]
            current.body = bytes(current.body) + piece
            current.filled += len(piece)
            at += len(piece)
            if current.filled == current.head.length:
                reader.complete(current)
        assert reader.gathered <= settings.max_header_bytes + size
        for request in reader.ready:
            head = request.head
            assert len(head.headers) <= settings.max_headers
            body = bytes(request.body)
            requests.append((head.method, bytes(head.target), head.headers, body))
            context.release(request)
        reader.ready.clear()
    reader.close()
    return requests, None if refusal is None else refusal.status


# ── calls ────────────────────────────────────────────────────────────────────────────────────────

FP32 = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2.5, -3, 0]}


def json_examples() -> list[bytes]:
    raw = {"name": "r", "datatype": "INT64", "shape": [2], "parameters": {"binary_data_size": 16}}
    cases: list[tuple[dict[str, Any], bytes]] = [
        ({"inputs": [FP32]}, b""),
        ({"id": "7", "parameters": {"timeout": 5}, "inputs": [FP32]}, b""),
        ({"parameters": {"binary_data_output": True}, "inputs": [FP32]}, b""),
        ({"inputs": [{"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "é"]}]}, b""),
        ({"inputs": [{**FP32, "datatype": "BOOL", "shape": [1, 1], "data": [[True]]}]}, b""),
        ({"inputs": [raw, FP32], "outputs": [{"name": "y"}]}, bytes(16)),
        ({"inputs": [raw, {**raw, "name": "q"}]}, bytes(range(32))),
        (
            {
                "inputs": [FP32],
                "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            },
            b"",
        ),
    ]  # fmt: skip
    examples = []
    for document, tail in cases:
        head = json.dumps(document).encode()
        examples.append(b"%d\n" % len(head) + head + tail if tail else b"-\n" + head)
    return [*examples, b"0\nraw bytes"]


def change_json_call(data: bytes, chance: random.Random) -> bytes:
    """The JSON part changed as a document, the length before it set right again."""
    length, _, body = data.partition(b"\n")
    if not length.isdigit() or len(length) > 9:
        return length + b"\n" + of_json(body, chance)
    head = of_json(body[: int(length)], chance)
    return b"%d\n" % len(head) + head + body[int(length) :]


def run_json(data: bytes) -> None:
    length, _, body = data.partition(b"\n")
    size = int(length) if length.isdigit() and len(length) < 18 else None
    reader = InferReader()
    outcomes = [
        _said(lambda: parse_infer("m", None, body, size)),
        _said(lambda: reader.read("m", None, body, size)),
        _said(lambda: reader.read("m", None, body, size)),
    ]
    assert outcomes[0] == outcomes[1] == outcomes[2], outcomes
    outcome = outcomes[0]
    if isinstance(outcome, str):
        return
    call, answer = outcome
    reply = _echo(call)
    head, buffers = format_reply(reply, answer)
    document = json.loads(head)
    assert sorted(o["name"] for o in document["outputs"]) == sorted(t.name for t in call.inputs)
    assert sum(map(len, buffers)) == sum(
        o["parameters"]["binary_data_size"] for o in document["outputs"] if "parameters" in o
    )


def _said(read: Callable[[], Any]) -> Any:
    """What was read, or the sentence of the refusal."""
    try:
        return read()
    except WireError as error:
        return sentence(error)


def _echo(call: InferCall) -> InferReply:
    outputs = [OutputValue(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    return InferReply(Outcome(Reason.ON_TIME, at=1.0), "m", "1", call.id, outputs)


def grpc_examples() -> list[bytes]:
    examples = []
    for data in json_examples()[:-1]:
        length, _, body = data.partition(b"\n")
        size = int(length) if length.isdigit() else None
        examples.append(encode_call(parse_infer("m", "1", body, size)[0]))
    typed = ModelInferRequest(model_name="m", id="typed")
    tensor = typed.inputs.add(name="x", datatype="INT32", shape=[2])
    tensor.contents.int_contents.extend([1, -2])
    text = typed.inputs.add(name="s", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(b"abc")
    typed.parameters["timeout"].int64_param = 5
    return [*examples, typed.SerializeToString()]


def run_grpc(data: bytes) -> None:
    codec = GrpcCodec()
    plain = _said(lambda: read_request(data).call({}))
    first = _said(lambda: codec.read(data).call({}))
    again = _said(lambda: codec.read(data).call({}))
    assert repr(_plain(plain)) == repr(_plain(first)) == repr(_plain(again)), (plain, first, again)
    if isinstance(plain, InferCall):
        back = read_request(encode_call(plain)).call({})
        assert repr(_plain(back)) == repr(_plain(plain))
        codec.reply_pieces(_echo(plain))
        codec.stream_reply_pieces(_echo(plain))


def _plain(call: Any) -> Any:
    if not isinstance(call, InferCall):
        return call
    inputs = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    return call.model, call.version, call.id, inputs, call.outputs, sorted(call.parameters.items())


def tensor_examples() -> list[bytes]:
    cases: list[dict[str, Any]] = []
    for datatype in Datatype:
        value: Any = {"BOOL": True, "BYTES": "ab"}.get(datatype.wire_name, 1)
        raw = (
            encode_strings([b"ab", b"\xff"])
            if datatype is Datatype.BYTES
            else bytes(2 * datatype.itemsize)
        )
        cases.append(
            {"datatype": datatype.wire_name, "shape": [2], "data": [value, value], "raw": raw.hex()}
        )  # fmt: skip
    return [json.dumps(case).encode() for case in cases]


def run_tensors(data: bytes) -> None:
    case = _json(data)
    if not isinstance(case, dict):
        return
    try:
        datatype = datatype_of(case.get("datatype"), "datatype")
        shape = check_shape(case.get("shape"), "shape")
    except BadField:
        return
    try:
        content = from_json(case.get("data"), datatype, shape, "data")
    except WireError:
        pass
    else:
        check_raw(content, datatype, shape, "data")
        plain = to_json(content, datatype, shape)
        listed = plain.tolist() if isinstance(plain, np.ndarray) else plain
        assert from_json(listed, datatype, shape, "data") == content
    try:
        raw = bytes.fromhex(str(case.get("raw")))
        check_raw(raw, datatype, shape, "raw")
    except (BadField, ValueError):
        return
    to_json(raw, datatype, shape)
    if datatype is Datatype.BYTES:
        count = int(np.prod(shape, dtype=object)) if shape else 1
        assert encode_strings(split_strings(raw, count)) == raw


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def parameter_examples() -> list[bytes]:
    cases = [
        {
            "headers": [["slacktide-application", "a"], ["slacktide-late", "discard"], ["x", "y"]],
            "parameters": {"timeout": 5000, "priority": 2, "work_hint": 3.5},
            "length": "12",
        },
        {
            "headers": [
                ["x-request-timeout-seconds", "1.5"],
                ["x-envoy-expected-rq-timeout-ms", "20"],
                ["slacktide-network-us", "7"],
                ["slacktide-report-timing", "true"],
                ["slacktide-work-hint", "4"],
            ],
            "parameters": {"late": "deliver", "application": "b", "report_timing": True},
            "length": "999999999999999999",
        },
    ]
    return [json.dumps(case).encode() for case in cases]


def run_parameters(data: bytes) -> None:
    case = _json(data)
    if not isinstance(case, dict):
        return
    headers, parameters = case.get("headers"), case.get("parameters")
    pairs = [
        pair
        for pair in headers if isinstance(pair, list) and list(map(type, pair)) == [str, str]
    ] if isinstance(headers, list) else []  # fmt: skip
    merged: dict[str, Any] = {}
    outcome = _said(lambda: read_headers([(name, value) for name, value in pairs]))
    if not isinstance(outcome, str):
        assert outcome.budget_s is None or 0.0 < outcome.budget_s < float("inf")
        merged |= outcome.parameters
    if isinstance(parameters, dict):
        merged |= {
            name: value
            for name, value in parameters.items()
            if isinstance(value, bool | int | float | str)
        }
    options = _said(lambda: parse_parameters(merged))
    if not isinstance(options, str):
        for number in (options.timeout_s, options.work_hint, options.network_s):
            assert number is None or 0.0 <= number < float("inf")
    length = _said(lambda: parse_length("n", str(case.get("length"))))
    assert isinstance(length, str) or 0 <= length < 10**18


# ── HTTP/2 ───────────────────────────────────────────────────────────────────────────────────────

_FIELDS = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b"te", b"trailers"))
_BLOCK = f.header_block(None, _FIELDS)
HTTP2_WORDS = (
    b"\0\0\0\x04\0\0\0\0\0", f.frame(f.PING, 0, 0, bytes(8)), f.window_update(1, 9),
    f.reset(1, f.ErrorCode.CANCEL), f.frame(f.CONTINUATION, 4, 1), f.settings(((4, 1), (1, 0))),
    f.frame(f.DATA, 1, 1, b"x"), f.frame(f.DATA, 8, 1, b"\x02xyz"), b"\x40\x01x\x01y", b"\xbe",
    b"\x20", b"\x3f\xe1\x1f", b"\0\x81\xff\x81\xff", b"\x7f\xff\xff\xff\xff\xff",
)  # fmt: skip


def http2_examples() -> list[bytes]:
    head = f.frame(f.HEADERS, f.END_HEADERS, 1, _BLOCK + b"\x40\x01x\x01y")
    return [
        head + f.frame(f.DATA, f.END_STREAM, 1, b"hello"),
        head + f.frame(f.DATA, f.PADDED, 1, b"\x03helloxyz") + f.frame(f.HEADERS, 5, 1, b"\xbe"),
        f.frame(f.HEADERS, 0, 1, _BLOCK[:9]) + f.frame(f.CONTINUATION, 4, 1, _BLOCK[9:]),
        f.frame(f.HEADERS, 0x25, 3, bytes(5) + _BLOCK) + f.frame(f.HEADERS, 5, 5, _BLOCK),
        f.settings(((f.INITIAL_WINDOW, 3), (f.TABLE_SIZE, 0))) + head + f.frame(f.DATA, 1, 1),
    ]


class _Echo(Http2Stream):
    __slots__ = ("body",)

    def opened(self) -> None:
        self.body = bytearray()

    def received(self, data: memoryview) -> None:
        self.body += data

    def received_all(self) -> None:
        self.connection.begin(self, _BLOCK)
        self.connection.send(self, [bytes(self.body)], len(self.body))
        self.connection.finish(self, _BLOCK)


def run_http2(data: bytes) -> None:
    whole = _read_http2(data, len(data) or 1)
    pieces = _read_http2(data, 1 + len(data) % 7)
    assert whole == pieces, f"read at once: {whole!r}; in pieces: {pieces!r}"


def _read_http2(data: bytes, size: int) -> bytes:
    """What is said to `data`, fed `size` at a time."""
    connection = Http2Connection(
        lambda id, head: _Echo(connection, id, head), max_streams=4, max_list=4096, now=0.0
    )
    connection.receive(f.PREFACE + f.settings(()), 0.0)
    for at in range(0, len(data), size):
        connection.receive(data[at : at + size], 0.0)
        while connection.can_resume:
            connection.receive(b"", 0.0)
        assert len(connection.streams) <= 4
        assert len(connection.frames.pending) <= f.FRAME_BYTES + f.HEAD_BYTES
        assert all(stream.id <= connection.last_id for stream in connection.streams.values())
    return b"".join(connection.out)


# ── JPEG ─────────────────────────────────────────────────────────────────────────────────────────

JPEG_WORDS = (b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4",
              b"\xff\xe1\0\x02", b"\xff\xff", b"\xff\xd0", b"\xff\xfe\xff\xff")  # fmt: skip


def jpeg_examples() -> list[bytes]:
    """Headers as cameras write them, about one grey block."""
    tables = b"\xff\xdb\0\x43\0" + bytes(range(1, 65)) + b"\xff\xc4\0\x14\0" + bytes(17)
    frame = b"\0\x0b\x08\0\x08\0\x10\x01\x01\x11\0"
    scan = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0\x7f\xff\xd9"
    exif = b"\xff\xe1\0\x0aExif\0\0\xff\xd9"
    return [
        b"\xff\xd8" + exif * count + tables + kind + frame + scan
        for kind, count in ((b"\xff\xc0", 0), (b"\xff\xc1", 1), (b"\xff\xc2", 9))
    ]


def run_jpeg(data: bytes) -> None:
    try:
        width, height = jpeg_header(memoryview(data))[:2]
    except ValueError as error:
        sentence(error)
    else:
        assert 0 < width < 1 << 16
        assert 0 < height < 1 << 16


# ── streams of frames ────────────────────────────────────────────────────────────────────────────


def frame_examples() -> list[bytes]:
    infer = ModelInferRequest.FromString(grpc_examples()[0])
    hello = Hello(model="m", version="1", rate=10, slo_ms=100, accuracy_floor=0.5, weight=2)
    messages = (
        ClientMessage(hello=hello),
        ClientMessage(announcement=Announcement(id=3, bytes=9, age_us=5, width=2, height=2)),
        ClientMessage(frame=Frame(id=3, bytes_per_s=1e6, request=infer)),
        ClientMessage(frame=Frame(id=2**63, request=infer)),
    )
    return [message.SerializeToString() for message in messages]


def run_frames(data: bytes) -> None:
    head = frame_head(data, len(data))
    for size in range(0, min(len(data), 80), 7):  # what is known early does not change
        assert frame_head(data[:size], len(data)) in (None, head)
    try:
        message = read_client_message(data)
    except WireError as error:
        sentence(error)
        return
    if head is not None:
        assert message.frame.id == head.id
        assert message.frame.request == ModelInferRequest.FromString(data[head.start :])
    if message.WhichOneof("message") == "hello":
        try:
            terms = terms_of(message.hello)
        except BadField as error:
            reason = sentence(error)
            assert reason.split(":")[0] in Hello.DESCRIPTOR.fields_by_name
        else:
            assert 0.0 < terms.rate <= 1e3
            assert 0.0 < terms.slo <= 600.0
            assert 0.0 <= terms.floor <= 1.0
            assert 0.0 < terms.weight < float("inf")


TARGETS = (
    Target("frames", frame_examples, run_frames, messages(ClientMessage)),
    Target("http2", http2_examples, run_http2, text(*HTTP2_WORDS)),
    Target("http", http_examples, run_http, text(*HTTP_WORDS)),
    Target("json", json_examples, run_json, lambda e: [change_json_call, of_bytes(e)]),
    Target("grpc", grpc_examples, run_grpc, messages(ModelInferRequest)),
    Target("tensors", tensor_examples, run_tensors, documents()),
    Target("parameters", parameter_examples, run_parameters, documents()),
    Target("jpeg", jpeg_examples, run_jpeg, text(*JPEG_WORDS)),
)
