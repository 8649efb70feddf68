"""The contract over gRPC: in frames of HTTP/2, and with grpc.aio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from tests.frontends.contract.speaker import PACK, Exchange, Message, Planes, Reply, Speaker
from tests.frontends.doubles import decode_response
from tests.frontends.grpc.grpc_client import INFER, RawClient, framed

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http2 import ErrorCode
from slacktide.frontends.http2 import frames as f
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire import grpc_codec
from slacktide.wire.calls import InferCall, OutputValue
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import ModelInferRequest

COMPRESSION = {
    "": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}
STATUS_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def encode(call: InferCall, text: bool) -> bytes:
    """A serialized ModelInferRequest."""
    if not text:
        return encode_call(call)
    request = ModelInferRequest(model_name=call.model, id=call.id)
    for tensor in call.inputs:
        typed = request.inputs.add(
            name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
        )
        typed.contents.fp32_contents.extend(np.frombuffer(tensor.data, np.float32).tolist())
    return request.SerializeToString()


def decode(status: str, message: str, fields: Mapping[str, str], body: bytes) -> Reply:
    numbers = {
        name.removeprefix("slacktide-").replace("-", "_"): int(value)
        for name, value in fields.items()
        if name.startswith("slacktide-") and name.endswith("-us")
    }
    if status != "OK":
        return Reply(status, message, fields, numbers)
    head, raw = decode_response(body)
    outputs = [
        OutputValue(output.name, Datatype[output.datatype], tuple(output.shape), bytes(data))
        for output, data in zip(head.outputs, raw, strict=True)
    ]
    return Reply(status, "", fields, numbers, head.id, head.model_version, outputs)


class Http2Exchange(Exchange):
    def __init__(self, client: RawClient, rest: bytes, length: int) -> None:
        self.client, self.rest, self.length = client, rest, length

    async def finish(self) -> None:
        self.client.give(1, self.rest)

    async def leave(self, how: str) -> None:
        if how == "cancel":
            self.client.send(f.reset(1, ErrorCode.CANCEL))
        else:
            self.client.writer.transport.abort()

    async def reply(self) -> Reply:
        try:
            number, message = await self.client.status(1)
        except (asyncio.IncompleteReadError, ConnectionError):
            return Reply("UNAVAILABLE", "the connection has ended")
        body = bytes(self.client.data.get(1, b""))[5:]
        return decode(STATUS_NAMES[number], message, self.client.fields[1], body)


class Http2Speaker(Speaker):
    """The beginning of a long message announces it."""

    transport = "grpc"
    abandoned = Reason.CLIENT_CANCELLED
    settings = GrpcSettings
    parser = (grpc_codec, "parse_head")
    stock = tritonclient.grpc
    stock_aio = tritonclient.grpc.aio

    @staticmethod
    def make_server(planes: Planes, settings: Any = None, **options: Any) -> GrpcServer:
        return GrpcServer(*planes, settings, **options)

    async def open(self, message: Message) -> Exchange:
        encoded = encode(message.call, message.text)
        fields = [(name.encode(), value.encode()) for name, value in message.fields.items()]
        if message.encoding:
            encoded = PACK[message.encoding](encoded)
            fields.append((b"grpc-encoding", message.encoding.encode()))
        body = framed(encoded, int(bool(message.encoding)))
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        client.open()
        client.ask(1, INFER, *fields)
        sent = min(20_000, len(body) - 1)
        client.give(1, body[:sent], ends=False)
        return Http2Exchange(client, body[sent:], len(encoded))

    async def close(self) -> None:
        for client in self.clients:
            client.writer.close()


class StockExchange(Exchange):
    def __init__(self, channel: grpc.aio.Channel, call: Any, message: bytes = b"") -> None:
        self.channel, self.call, self.message = channel, call, message
        self.length = len(message)

    async def finish(self) -> None:
        await self.call.write(self.message)
        await self.call.done_writing()

    async def leave(self, how: str) -> None:
        if how == "cancel":
            self.call.cancel()
        else:
            await self.channel.close()

    async def reply(self) -> Reply:
        async with asyncio.timeout(20):
            code = (await self.call.code()).name
            body = await self.call if code == "OK" else b""
            fields = dict(await self.call.trailing_metadata() or ())
            return decode(code, await self.call.details(), fields, body)


class GrpcSpeaker(Http2Speaker):
    """grpc.aio sends no parts of messages, so its metadata announce what is to come."""

    def _channel(self, encoding: str) -> grpc.aio.Channel:
        """A channel with a connection of its own; by default, channels of one process share."""
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("receive", "send")]
        options.append(("grpc.use_local_subchannel_pool", 1))
        packing = COMPRESSION[encoding]
        self.clients.append(grpc.aio.insecure_channel(self.url, options, compression=packing))
        return self.clients[-1]

    async def open(self, message: Message) -> Exchange:
        encoded, channel = encode(message.call, message.text), self._channel(message.encoding)
        fields = {"slacktide-bytes": str(len(encoded)), "slacktide-model": message.call.model}
        metadata = tuple((fields | dict(message.fields)).items())
        return StockExchange(
            channel, channel.stream_unary(INFER.decode())(metadata=metadata), encoded
        )

    async def send(self, call: InferCall, **how: Any) -> Exchange:
        """Send a whole call, which is not announced."""
        message = Message(call, **how)
        encoded, channel = encode(call, message.text), self._channel(message.encoding)
        metadata = tuple(message.fields.items())
        return StockExchange(
            channel, channel.unary_unary(INFER.decode())(encoded, metadata=metadata)
        )

    async def close(self) -> None:
        for channel in self.clients:
            await channel.close()
