"""A small gRPC server in a thread: StreamFrames and plain inference, with faults on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from threading import Thread
from typing import Any

import grpc
import grpc.aio
import numpy as np

from slacktide.wire.proto import messages as m


class FakeServer:
    """Each frame is answered with its size in bytes, `nbytes`; its fields may be changed at any
    time. A context manager; `restart` keeps the port."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self._credentials = credentials
        self.size, self.mapped = 256, True
        self.keeps_shape, self.short_side = False, 0.0
        self.delay = 0.0
        self.silent = False
        """It takes frames, and says nothing."""
        self.corrupt = False
        self.refusal = ""
        self.moves_to = ""
        """Address to which each answer is followed by advice to move."""
        self.open_streams = 0
        self.hello_fails: grpc.StatusCode | None = None
        self.streams = True
        self.outputs: dict[str, np.ndarray] = {}
        """What every frame is answered with besides `nbytes`: float32."""
        self.image_input = ("image", "UINT8", [-1, -1, -1, 3])
        self.hellos: list[m.Hello] = []
        self.frames: list[bytes] = []
        self.metadata: list[dict[str, str]] = []
        self.peers: set[str] = set()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._run(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stop(self) -> None:
        if self._server is not None:
            self._run(self._server.stop(None))
        self._server = None

    def restart(self) -> None:
        self._run(self._start())

    async def _settle(self) -> None:
        """Let grpcio end what it has begun."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {
            f"/{m.FRAME_SERVICE}/StreamFrames": grpc.stream_stream_rpc_method_handler(
                self._stream, m.ClientMessage.FromString, m.ServerMessage.SerializeToString
            ),
            f"/{m.INFERENCE_SERVICE}/ModelMetadata": grpc.unary_unary_rpc_method_handler(
                self._describe,
                m.ModelMetadataRequest.FromString,
                m.ModelMetadataResponse.SerializeToString,
            ),
            f"/{m.INFERENCE_SERVICE}/ModelInfer": grpc.unary_unary_rpc_method_handler(
                self._infer, m.ModelInferRequest.FromString, m.ModelInferResponse.SerializeToString
            ),
        }

        class Handler(grpc.GenericRpcHandler):
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        self._server.add_generic_rpc_handlers((Handler(),))
        address = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, self._credentials)
        await self._server.start()

    def _advice(self) -> m.Advice:
        return m.Advice(size=self.size, variant=str(self.size), mapped=self.mapped)

    async def _stream(
        self, messages: AsyncIterator[m.ClientMessage], context: Any
    ) -> AsyncIterator[m.ServerMessage]:
        if not self.streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        self.metadata.append(dict(context.invocation_metadata()))
        self.peers.add(context.peer())
        self.open_streams += 1
        try:
            async for message in self._answers(messages, context):
                yield message
        finally:
            self.open_streams -= 1

    async def _answers(
        self, messages: AsyncIterator[m.ClientMessage], context: Any
    ) -> AsyncIterator[m.ServerMessage]:
        announced: dict[int, float] = {}
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "hello":
                if self.hello_fails is not None:
                    await context.abort(self.hello_fails, f"no model {message.hello.model!r}")
                self.hellos.append(message.hello)
                variants = [m.Variant(name=str(s), size=s, accuracy=s / 1000) for s in (128, 256)]
                welcome = m.Welcome(
                    session="s:1",
                    variants=variants,
                    advice=self._advice(),
                    input="image",
                    keeps_shape=self.keeps_shape,
                    short_side=self.short_side,
                )
                yield m.ServerMessage(welcome=welcome)
            elif kind == "announcement":
                announced[message.announcement.id] = self._loop.time()
            elif kind == "frame" and not self.silent:
                frame = message.frame
                took = self._loop.time() - announced.pop(frame.id)
                taken = m.Acknowledgement(id=frame.id, transfer_us=max(int(took * 1e6), 1))
                yield m.ServerMessage(acknowledgement=taken)
                await asyncio.sleep(self.delay)
                answer = m.Answer(id=frame.id, advice=self._advice(), variant=str(self.size))
                if self.refusal:
                    answer.refusal.reason = self.refusal
                else:
                    answer.response.CopyFrom(self._response(frame.request))
                yield m.ServerMessage(answer=answer)
                if self.moves_to:
                    yield m.ServerMessage(move=m.Move(address=self.moves_to))

    def _response(self, request: m.ModelInferRequest) -> m.ModelInferResponse:
        data = request.raw_input_contents[0]
        self.frames.append(data)
        response = m.ModelInferResponse(model_name=request.model_name)
        response.outputs.add(name="nbytes", datatype="INT64", shape=[1, 2 if self.corrupt else 1])
        response.raw_output_contents.append(np.int64(len(data)).tobytes())
        for name, value in self.outputs.items():
            response.outputs.add(name=name, datatype="FP32", shape=value.shape)
            response.raw_output_contents.append(value.tobytes())
        return response

    async def _describe(self, request: m.ModelMetadataRequest, context: Any) -> Any:
        if self.hello_fails is not None:
            await context.abort(self.hello_fails, f"no model {request.name!r}")
        metadata = m.ModelMetadataResponse(name=request.name)
        name, kind, shape = self.image_input
        metadata.inputs.add(name=name, datatype=kind, shape=shape)
        return metadata

    async def _infer(self, request: m.ModelInferRequest, context: Any) -> Any:
        self.last = request
        await asyncio.sleep(self.delay)
        if self.refusal:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self.refusal)
        return self._response(request)
