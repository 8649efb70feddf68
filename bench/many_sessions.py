"""A thousand sessions of frames, two a second each, on a family that answers from its profile.

The client is frames of HTTP/2 of our own on five connections, so that one core can play them all.
What counts: that no frame is lost, that each session is mapped within a second of joining, and how
long the server keeps others waiting while plans for a thousand sessions are put in force (a canary
asks for readiness over HTTP all the while).
"""

from __future__ import annotations

import selectors
import shutil
import socket
import time
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench import servers
from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.processes import cpu_seconds, tree
from slacktide.frontends.http2 import frames as f
from slacktide.wire.proto import messages

MODEL = "tiny"
SIZES = (32, 48, 64)
RATE, SLO = 2.0, 0.25
CONNECTIONS = 5
SETTINGS = f"executor: profiled\nvariants: {{sizes: {list(SIZES)}}}\nslo: 250ms\n"


@dataclass(slots=True)
class _Session:
    stream: int
    joined: float
    next_at: float
    mapped_at: float | None = None
    size: int = SIZES[0]
    sent: dict[int, float] = field(default_factory=dict)
    answered: int = 0
    refused: int = 0
    held: bytes = b""


def run(options: Options) -> Result:
    pin(cores().client)
    result = Result("many_sessions")
    count, seconds = (1000, 15.0) if options.quick else (1000, 60.0)
    with servers.slacktide(_repository()) as serving:
        before = cpu_seconds(tree(serving.pid))
        offered = _Offer(serving, count)
        offered.play(seconds)
        spent = cpu_seconds(tree(serving.pid)) - before
    sessions = offered.sessions
    waits = [(session.mapped_at or np.inf) - session.joined for session in sessions]
    frames = sum(session.answered + session.refused for session in sessions)
    took = np.array(offered.seconds)
    result.figures += [
        Figure("sessions", len(sessions)),
        Figure("frames", frames),
        Figure("frames lost", sum(len(session.sent) for session in sessions), "", at_most(0)),
        Figure("refused", sum(session.refused for session in sessions) / frames, "×"),
        Figure("on time", float((took <= SLO).mean()), "×", at_least(0.98)),
        Figure("the last session is mapped after", max(waits), "s", at_most(1.0)),
        Figure("answer, p50", float(np.percentile(took, 50)) * 1e3, "ms"),
        Figure("answer, p99", float(np.percentile(took, 99)) * 1e3, "ms"),
        Figure("canary, worst", max(offered.canary) * 1e3, "ms"),
        Figure("canary, p99", float(np.percentile(offered.canary, 99)) * 1e3, "ms"),
        Figure("server's CPU for a frame", spent / frames * 1e6, "µs"),
    ]
    return result


def _repository() -> object:
    root = CACHE / "many_sessions"
    shutil.rmtree(root, ignore_errors=True)  # a profile of a busier day would decide what fits
    folder = root / MODEL / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (root / MODEL / "slacktide.yaml").write_text(SETTINGS)
    x = helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", "s", "s", 3])
    y = helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["n", 3])
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["mean"], axes=[1, 2], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "tiny", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return root


class _Offer:
    """Sessions over a few connections, and what became of their frames."""

    def __init__(self, serving: servers.Serving, count: int) -> None:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/slacktide.v1.FrameService/StreamFrames",
            ":authority": "127.0.0.1",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self.head = f.header_block(None, [(n.encode(), v.encode()) for n, v in fields.items()])
        self.seconds: list[float] = []
        self.sessions: list[_Session] = []
        self.canary: list[float] = []
        self._count = count
        self._serving = serving
        self._selector = selectors.DefaultSelector()
        self._connections = [_Connection(serving.grpc_port, self) for _ in range(CONNECTIONS)]
        for connection in self._connections:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._canary = socket.create_connection(("127.0.0.1", serving.port))
        self._selector.register(self._canary, selectors.EVENT_READ)
        self._asked: float | None = None

    def play(self, seconds: float) -> None:
        """All sessions join within a second, and send for so long."""
        begin = time.perf_counter()
        joining = 0
        while True:
            now = time.perf_counter()
            elapsed = now - begin
            while joining < min(self._count, int(elapsed * self._count) + 1):
                connection = self._connections[joining % CONNECTIONS]
                self.sessions.append(connection.join(now))
                joining += 1
            due = now + 0.002
            if elapsed < seconds:
                for at, session in enumerate(self.sessions):
                    if session.next_at <= now:
                        self._connections[at % CONNECTIONS].send(session, now)
                        session.next_at += 1.0 / RATE
            elif elapsed > seconds + 5.0 or not any(session.sent for session in self.sessions):
                return
            if self._asked is None:
                self._asked = now
                self._canary.sendall(_ready())
            for key, _ in self._selector.select(max(0.0, due - time.perf_counter())):
                if key.data is None:
                    self._canary.recv(1 << 16)
                    self.canary.append(time.perf_counter() - (self._asked or now))
                    self._asked = None
                else:
                    key.data.receive()


def _ready() -> bytes:
    return b"GET /v2/health/ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class _Connection:
    def __init__(self, port: int, offer: _Offer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = f.settings([(f.INITIAL_WINDOW, 1 << 20)]) + f.window_update(0, 1 << 30)
        self.socket.sendall(f.PREFACE + begin)
        self._offer = offer
        self._streams: dict[int, _Session] = {}
        self._next, self._held = 1, b""
        self._bodies = {size: bytes(size * size * 3) for size in SIZES}

    def join(self, now: float) -> _Session:
        session = _Session(self._next, now, now + 0.05 + (self._next * 7919 % 500) / 1000.0)
        self._streams[session.stream] = session
        self._next += 2
        hello = messages.ClientMessage()
        hello.hello.model = MODEL
        hello.hello.rate, hello.hello.slo_ms = RATE, SLO * 1e3
        head = f.frame(f.HEADERS, f.END_HEADERS, session.stream, self._offer.head)
        self.socket.sendall(head + _framed(session, hello))
        return session

    def send(self, session: _Session, now: float) -> None:
        id = session.answered + session.refused + len(session.sent) + 1
        body = self._bodies[session.size]
        announced, sent = messages.ClientMessage(), messages.ClientMessage()
        announced.announcement.id, announced.announcement.bytes = id, len(body)
        announced.announcement.width = announced.announcement.height = session.size
        sent.frame.id = id
        request = sent.frame.request
        request.model_name = MODEL
        image = request.inputs.add()
        image.name, image.datatype = "image", "UINT8"
        image.shape.extend((1, session.size, session.size, 3))
        request.raw_input_contents.append(body)
        session.sent[id] = now
        self.socket.sendall(_framed(session, announced) + _framed(session, sent))

    def receive(self) -> None:
        data, at = self._held + self.socket.recv(1 << 18), 0
        while len(data) - at >= f.HEAD_BYTES:
            word, flags, id = f.FRAME_HEAD.unpack_from(data, at)
            kind, end = word & 0xFF, at + f.HEAD_BYTES + (word >> 8)
            if end > len(data):
                break
            payload, at = data[at + f.HEAD_BYTES : end], end
            if kind == f.DATA:
                self._taken(self._streams[id], payload)
            elif kind in (f.RST_STREAM, f.GOAWAY) or (flags & f.END_STREAM and kind == f.HEADERS):
                raise RuntimeError(f"the server has ended stream {id}: {payload!r}")
            elif kind in (f.SETTINGS, f.PING) and not flags & f.ACK:
                answer = f.frame(kind, f.ACK, 0, payload if kind == f.PING else b"")
                self.socket.sendall(answer)
        self._held = data[at:]

    def _taken(self, session: _Session, payload: bytes) -> None:
        data, now = session.held + payload, time.perf_counter()
        while len(data) >= 5 and len(data) >= 5 + (length := int.from_bytes(data[1:5], "big")):
            message = messages.ServerMessage.FromString(data[5 : 5 + length])
            data = data[5 + length :]
            kind = message.WhichOneof("message")
            if kind == "answer":
                sent = session.sent.pop(message.answer.id)
                if message.answer.HasField("refusal"):
                    session.refused += 1
                else:
                    session.answered += 1
                    self._offer.seconds.append(now - sent)
            advice = message.advice if kind == "advice" else getattr(message, kind)
            if kind in ("welcome", "answer"):
                advice = advice.advice
            if kind != "acknowledgement" and advice.mapped and advice.size:
                session.mapped_at = session.mapped_at or now
                session.size = advice.size
        session.held = data


def _framed(session: _Session, message: messages.ClientMessage) -> bytes:
    body = message.SerializeToString()
    body = b"\0" + len(body).to_bytes(4, "big") + body
    return b"".join(
        f.frame(f.DATA, 0, session.stream, body[at : at + f.FRAME_BYTES])
        for at in range(0, len(body), f.FRAME_BYTES)
    )
