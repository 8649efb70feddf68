"""A gRPC server on doubles, channels to it, and clients that send frames to it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from hpack import Decoder
from tests.frontends.doubles import QUICK, FakeControlPlane, FakeDataPlane

from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http2 import ErrorCode
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import INFERENCE_SERVICE


@asynccontextmanager
async def serving(
    data: FakeDataPlane | None = None,
    control: FakeControlPlane | None = None,
    settings: GrpcSettings | None = None,
    **options: Any,
) -> AsyncIterator[GrpcServer]:
    """A server on a free port of the loopback."""
    server = GrpcServer(data or FakeDataPlane(), control or FakeControlPlane(), settings, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def channel_to(server: GrpcServer) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as opened:
        yield opened


def infer_method(opened: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """ModelInfer, bytes to bytes."""
    return opened.unary_unary(f"/{INFERENCE_SERVICE}/ModelInfer")


def stream_method(opened: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return opened.stream_stream(f"/{INFERENCE_SERVICE}/ModelStreamInfer")


INFER = f"/{INFERENCE_SERVICE}/ModelInfer".encode()
STREAM = f"/{INFERENCE_SERVICE}/ModelStreamInfer".encode()
REFLECTION = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def message(nbytes: int = 16, id: str = "7", **changes) -> bytes:
    tensor = InputTensor("x", Datatype.FP32, (1, nbytes // 4), bytes(nbytes))
    return encode_call(InferCall("m", None, id, [tensor], **changes))


def framed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(message)) + message


class RawClient:
    """Frames to a server, and frames from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = Decoder()
        self.data: dict[int, bytearray] = {}
        self.fields: dict[int, dict[str, str]] = {}
        """Fields of headers and trailers."""
        self.ended: set[int] = set()
        self.resets: dict[int, ErrorCode] = {}
        self.goaway: tuple[int, ErrorCode, str] | None = None
        self.pings = 0

    def open(self) -> None:
        """Send the preface, and windows that hold back no answer."""
        self.send(f.PREFACE, f.settings(((f.INITIAL_WINDOW, 2**30),)))
        self.send(f.window_update(0, 2**30))

    def send(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    def ask(self, id: int, path: bytes = INFER, *fields: tuple[bytes, bytes]) -> None:
        head = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b"content-type", b"application/grpc"),
            *fields,
        )
        self.send(f.frame(f.HEADERS, f.END_HEADERS, id, f.header_block(None, head)))

    def give(self, id: int, body: bytes, *, ends: bool = True) -> None:
        for at in range(0, len(body) or 1, f.FRAME_BYTES):
            last = ends and at + f.FRAME_BYTES >= len(body)
            piece = body[at : at + f.FRAME_BYTES]
            self.send(f.frame(f.DATA, f.END_STREAM if last else 0, id, piece))

    async def hear(self) -> None:
        """One frame. Raises IncompleteReadError at the end of the stream."""
        word, flags, id = f.FRAME_HEAD.unpack(await self.reader.readexactly(f.HEAD_BYTES))
        payload = await self.reader.readexactly(word >> 8)
        kind = word & 0xFF
        if kind == f.HEADERS:
            self.fields.setdefault(id, {}).update(self._decoder.decode(payload))
        elif kind == f.DATA:
            self.data.setdefault(id, bytearray()).extend(payload)
        elif kind == f.RST_STREAM:
            self.resets[id] = ErrorCode(int.from_bytes(payload))
        elif kind == f.GOAWAY:
            code = ErrorCode(int.from_bytes(payload[4:8]))
            self.goaway = int.from_bytes(payload[:4]), code, payload[8:].decode()
        elif kind == f.PING and not flags & f.ACK:
            self.pings += 1
        if kind in (f.HEADERS, f.DATA) and flags & f.END_STREAM:
            self.ended.add(id)

    async def until(self, condition) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await self.hear()

    async def status(self, id: int) -> tuple[int, str]:
        """Await an answer; gRPC's status number and message."""
        await self.until(lambda: id in self.ended)
        fields = self.fields[id]
        return int(fields["grpc-status"]), fields.get("grpc-message", "")

    async def end(self) -> None:
        """Read to the end of the connection."""
        async with asyncio.timeout(10):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self.hear()


@asynccontextmanager
async def raw(data=None, settings=None, **options) -> AsyncIterator[RawClient]:
    settings = GrpcSettings(**{**QUICK, **(settings or {})})
    async with serving(data, settings=settings, **options) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = RawClient(reader, writer)
        client.server = server
        client.open()
        try:
            yield client
        finally:
            writer.close()
