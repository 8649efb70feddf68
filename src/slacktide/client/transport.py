"""The transports of a session: Slacktide's frame stream, or plain Open Inference Protocol calls.

Loads grpcio and protobuf when a connection is opened. A transport serves one connection of one
session: `run` lasts as long as the connection and passes events to the session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slacktide._datatypes import BY_NAME, Datatype, encode_strings
from slacktide.client.images import EncodedImage
from slacktide.client.messages import (
    Advice,
    AdviceChanged,
    ClientError,
    ClientEvent,
    Connected,
    FrameAcknowledged,
    FrameAnswered,
    FrameSent,
    MoveAdvised,
)
from slacktide.client.options import SessionOptions

if TYPE_CHECKING:
    import grpc.aio

    from slacktide.wire.proto import messages as m

KEEP_ALIVE_S = 1.0
"""Seconds without a frame after which a hello is sent again: the server ends a stream after 3 s of
silence."""

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]{0,255}):[0-9]{1,5}")
"""An address that the client may move to. gRPC accepts other addresses too, such as paths of
sockets."""
Outputs = Mapping[str, NDArray[Any]]
Tell = Callable[[ClientEvent, Outputs], None]
Metadata = tuple[tuple[str, str], ...]


class OutgoingFrame(NamedTuple):
    """A frame to send. `captured_at` is a time of the loop's clock."""

    id: int
    image: EncodedImage
    captured_at: float
    bytes_per_s: float


class FrameTransport(Protocol):
    """A connection of a session."""

    pixels: bool
    """Whether frames are sent as raw pixels, not as JPEG."""
    exact: tuple[int, int] | None
    """Width and height that every frame must have."""
    keeps_shape: bool
    """Whether both sides of a frame shrink by the same factor."""
    short_side: float
    """Short side of a frame that keeps its shape, as a multiple of the frame's size; 0: the size is
    that of the long side."""

    def __init__(
        self, channel: grpc.aio.Channel, terms: SessionOptions, metadata: Metadata, tell: Tell
    ) -> None: ...

    async def run(self) -> str:
        """Run until the connection ends. Returns the reason. Raises grpc.aio.AioRpcError, and
        ClientError if the server does not support such a session."""

    def send(self, frame: OutgoingFrame) -> None: ...

    def give_up(self, frame: int) -> None: ...


class StreamTransport:
    """Slacktide's frame stream (wire/proto/frames.proto)."""

    def __init__(
        self, channel: grpc.aio.Channel, terms: SessionOptions, metadata: Metadata, tell: Tell
    ) -> None:
        from slacktide.wire.proto import messages

        self.pixels = False
        self.exact: tuple[int, int] | None = None
        self.keeps_shape, self.short_side = False, 0.0
        self._m, self._tell, self._metadata = messages, tell, metadata
        self._method: Any = channel.stream_stream(
            f"/{messages.FRAME_SERVICE}/StreamFrames",
            request_serializer=messages.ClientMessage.SerializeToString,
            response_deserializer=messages.ServerMessage.FromString,
        )
        hello = messages.Hello(
            model=terms.model,
            version=terms.version,
            rate=terms.rate,
            slo_ms=terms.slo * 1e3,
            accuracy_floor=terms.floor,
            weight=terms.weight,
            name=terms.name,
            bytes_per_s=terms.bytes_per_s,
        )
        self._hello = messages.ClientMessage(hello=hello)
        self._frame = messages.ClientMessage()
        """Reused for each frame, because putting one message into another copies the image."""
        self._frame.frame.request.model_name = terms.model
        self._frame.frame.request.model_version = terms.version
        self.hello_after = 0.0
        """Seconds from the call's headers to the hello. A server without this method refuses the
        headers; if grpcio is writing the hello at that moment, it reports an internal error
        instead."""
        self._connected = False
        self._waiting: asyncio.Queue[OutgoingFrame] = asyncio.Queue()

    async def run(self) -> str:
        call = self._method(metadata=self._metadata)
        writer = asyncio.get_running_loop().create_task(self._write(call))
        try:
            async for message in call:
                self._read(message)
            return f"the server ended the stream: {await call.details() or 'no reason given'}"
        except asyncio.CancelledError:  # also raised by grpcio if a message could not be written
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "the call was interrupted"
        finally:
            writer.cancel()
            call.cancel()

    def send(self, frame: OutgoingFrame) -> None:
        self._waiting.put_nowait(frame)

    def give_up(self, frame: int) -> None:
        """Do nothing: a frame on a stream cannot be withdrawn."""

    async def _write(self, call: Any) -> None:
        from grpc.aio import AioRpcError

        try:
            await asyncio.sleep(self.hello_after)
            await call.write(self._hello)
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        frame = await self._waiting.get()
                except TimeoutError:
                    await call.write(self._hello)
                    continue
                await self._write_frame(call, frame)
        except (AioRpcError, asyncio.InvalidStateError):
            pass  # the call has ended; `run` returns the reason

    async def _write_frame(self, call: Any, frame: OutgoingFrame) -> None:
        now = asyncio.get_running_loop().time()
        self._tell(FrameSent(frame.id), {})
        announcement = self._m.Announcement(
            id=frame.id,
            bytes=len(frame.image.data),
            age_us=max(int((now - frame.captured_at) * 1e6), 0),
            width=frame.image.width,
            height=frame.image.height,
        )
        await call.write(self._m.ClientMessage(announcement=announcement))
        outgoing = self._frame.frame
        outgoing.id, outgoing.bytes_per_s = frame.id, frame.bytes_per_s
        outgoing.request.raw_input_contents[:] = [encode_strings([frame.image.data])]
        await call.write(self._frame)

    def _read(self, message: m.ServerMessage) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            welcome, request = message.welcome, self._frame.frame.request
            if self._connected:
                return
            if not welcome.input:
                raise ClientError(f"model {request.model_name!r} has no image input")
            self._connected = True
            request.inputs.add(name=welcome.input, datatype="BYTES", shape=[1])
            variants = tuple(
                (variant.name, variant.size, variant.accuracy) for variant in welcome.variants
            )
            self.keeps_shape, self.short_side = welcome.keeps_shape, welcome.short_side
            advice = _advice(welcome.advice) if welcome.HasField("advice") else None
            self._tell(Connected(variants, advice), {})
        elif kind == "acknowledgement":
            ack = message.acknowledgement
            self._tell(FrameAcknowledged(ack.id, ack.transfer_us * 1e-6), {})
        elif kind == "advice":
            self._tell(AdviceChanged(_advice(message.advice)), {})
        elif kind == "move" and _ADDRESS.fullmatch(message.move.address):
            self._tell(MoveAdvised(message.move.address), {})
        elif kind == "answer":
            answer = message.answer
            failed, outputs = _outputs(answer.response)
            if answer.HasField("refusal"):
                failed = f"{answer.refusal.reason}: {answer.refusal.message}".strip(": ")
                failed = failed or "refused"
            advice = _advice(answer.advice) if answer.HasField("advice") else None
            self._tell(FrameAnswered(answer.id, advice, answer.variant, failed), outputs)


class PlainTransport:
    """Calls any server of the Open Inference Protocol, once per frame; gets no advice."""

    def __init__(
        self, channel: grpc.aio.Channel, terms: SessionOptions, metadata: Metadata, tell: Tell
    ) -> None:
        from slacktide.wire.proto import messages

        self.pixels = False
        self.exact: tuple[int, int] | None = None
        self.keeps_shape, self.short_side = False, 0.0
        self._m, self._tell, self._terms = messages, tell, terms
        service = f"/{messages.INFERENCE_SERVICE}/"
        self._call: Callable[[str, Any, Any], Any] = lambda method, request, answer: (
            channel.unary_unary(
                service + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )(request, metadata=metadata)
        )
        self._input: m.ModelMetadataResponse.TensorMetadata | None = None
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> str:
        identity = {"name": self._terms.model, "version": self._terms.version}
        description = await self._call(
            "ModelMetadata", self._m.ModelMetadataRequest(**identity), self._m.ModelMetadataResponse
        )
        self._input = self._image_input(description)
        self._tell(Connected(acknowledges=False), {})
        try:
            return await self._broken
        finally:
            for call in self._calls.values():
                call.cancel()

    def send(self, frame: OutgoingFrame) -> None:
        self._calls[frame.id] = asyncio.get_running_loop().create_task(self._ask(frame))

    def give_up(self, frame: int) -> None:
        call = self._calls.pop(frame, None)
        if call is not None:
            call.cancel()

    def _image_input(self, description: m.ModelMetadataResponse) -> Any:
        inputs = list(description.inputs)
        shape = list(inputs[0].shape) if len(inputs) == 1 else []
        kind = inputs[0].datatype if len(inputs) == 1 else ""
        if kind == "UINT8" and len(shape) in (3, 4) and shape[-1] == 3:
            self.pixels = True
            self.exact = (shape[-2], shape[-3]) if min(shape[-3:]) > 0 else None
        elif kind != "BYTES" or len(shape) > 2:
            named = ", ".join(f"{spec.name} {spec.datatype} {list(spec.shape)}" for spec in inputs)
            expected = "one input, BYTES [rows] or UINT8 [rows, height, width, 3]"
            raise ClientError(f"model {self._terms.model!r}: expected {expected}, got {named}")
        return inputs[0]

    async def _ask(self, frame: OutgoingFrame) -> None:
        from grpc import StatusCode
        from grpc.aio import AioRpcError

        assert self._input is not None
        image, rank = frame.image, len(self._input.shape)
        shape, data = [1] * max(rank, 1), image.data
        if self.pixels:
            shape = [1, image.height, image.width, 3][-rank:]
        else:
            data = encode_strings([data])
        request = self._m.ModelInferRequest(
            model_name=self._terms.model,
            model_version=self._terms.version,
            raw_input_contents=[data],
        )
        request.inputs.add(name=self._input.name, datatype=self._input.datatype, shape=shape)
        now = asyncio.get_running_loop().time()
        remaining = max(frame.captured_at + self._terms.slo - now, 1e-6)
        request.parameters["timeout"].int64_param = int(remaining * 1e6)
        self._tell(FrameSent(frame.id), {})
        try:
            answer = await self._call("ModelInfer", request, self._m.ModelInferResponse)
            failed, outputs = _outputs(answer)
        except AioRpcError as error:
            failed, outputs = f"{error.code().name.lower()}: {error.details()}", {}
            if error.code() is StatusCode.UNAVAILABLE and not self._broken.done():
                self._broken.set_result(error.details() or "unavailable")
                return
        if self._calls.pop(frame.id, None) is not None:
            self._tell(FrameAnswered(frame.id, failed=failed), outputs)


def _advice(message: m.Advice) -> Advice:
    return Advice(message.size, message.variant, message.mapped, message.bytes_per_s)


def _outputs(response: m.ModelInferResponse) -> tuple[str, Outputs]:
    """The error in a response, or "", and its outputs."""
    outputs = {}
    try:
        if len(response.outputs) != len(response.raw_output_contents):
            raise ValueError("outputs are not raw")
        for spec, raw in zip(response.outputs, response.raw_output_contents, strict=True):
            datatype = BY_NAME[spec.datatype]
            if datatype is Datatype.BYTES:
                count = int(np.prod(spec.shape))
                elements = np.array([*_split_strings(raw, count), None], object)[:-1]
                outputs[spec.name] = elements.reshape(spec.shape)
            else:
                outputs[spec.name] = np.frombuffer(raw, datatype.dtype).reshape(spec.shape)
    except (ValueError, KeyError) as error:
        return f"malformed answer: {error}", {}
    return "", outputs


def _split_strings(data: bytes, count: int) -> list[bytes]:
    """Split a BYTES tensor into its elements. Raises ValueError."""
    elements, at = [], 0
    for _ in range(count):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data):
            break
        elements.append(data[begin:at])
    if len(elements) != count or at != len(data):
        raise ValueError(f"{len(data)} bytes are not {count} strings")
    return elements
