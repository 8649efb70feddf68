"""ModelStreamInfer: many requests in flight on one stream, answers as they finish.

One task reads requests, the handler's own task writes answers; a semaphore counts what is between
the two, so that a client that sends without reading is held back by flow control and not by our
memory. A request's clock starts when its message is complete (gRPC gives no other); the stream's
own gRPC deadline limits every request on it.

A request that fails is answered with an `error_message` and the stream goes on, unless the client's
metadata says `triton_grpc_error: true`: then the first failure ends the stream with its status.
Each request gets exactly one answer, marked `triton_final_response`, so there is never an empty
final one to send: `triton_enable_empty_final_response` is accepted and changes nothing. When the
stream ends, whatever is unanswered is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slacktide.domain import Reason
from slacktide.frontends.grpc.inference import read_metadata
from slacktide.frontends.grpc.rpc import GrpcCall
from slacktide.frontends.ports import DataPlane, InferenceCall
from slacktide.frontends.refusals import Refusal, refusal_in, refusal_of
from slacktide.frontends.unpacking import DIRECT_BYTES, Unpacker
from slacktide.wire.calls import CallContext, InferReply
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.grpc_messages import REASON, encode_stream_error, model_of
from slacktide.wire.status import status_of

GRPC_ERROR_KEY = "triton_grpc_error"


@dataclass(slots=True)
class ModelStreamInfer:
    """The handler of ModelStreamInfer."""

    data: DataPlane
    codec: GrpcCodec
    in_flight: int
    clock: Callable[[], float]
    triton_strict: bool
    unpacker: Unpacker
    open: set[_Session] = field(default_factory=set)

    async def __call__(self, rpc: GrpcCall) -> None:
        session = _Session(self, rpc)
        self.open.add(session)
        try:
            await session.run()
        finally:
            self.open.discard(session)

    def drain(self) -> None:
        """Read no more requests on any stream; what is in flight is answered, then streams end."""
        for session in self.open:
            session.drain()


class _About(NamedTuple):
    """Which request an error is about; all empty if its message could not be parsed."""

    model: str = ""
    version: str | None = None
    id: str = ""


class _Session:
    """One stream."""

    def __init__(self, owner: ModelStreamInfer, rpc: GrpcCall) -> None:
        self._owner = owner
        self._rpc = rpc
        self._context, self._parameters = read_metadata(rpc)
        self._fail_stream = rpc.metadata.get(GRPC_ERROR_KEY, "").lower() == "true"
        self._room = asyncio.Semaphore(owner.in_flight)
        self._calls: dict[int, InferenceCall] = {}
        self._unanswered = 0
        self._outbox: deque[bytes] = deque()
        self._failure: Refusal | None = None
        self._news = asyncio.Event()
        self._draining = False
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._reader = reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                await self._write()
                if self._failure is not None:
                    raise self._failure
                if reader.done():
                    if not reader.cancelled() and reader.exception() is not None:
                        break  # what it was taking in will have no answer: wait for none
                    if self._unanswered == 0 and not self._outbox:
                        break
                self._news.clear()
                await self._news.wait()
            if self._draining and reader.cancelled():
                raise Refusal(status_of(Reason.DRAINING), "the server is shutting down")
            await reader  # raises what ended it, if anything did
        finally:
            reader.cancel()
            for call in self._calls.values():
                call.cancel(Reason.CLIENT_CANCELLED)

    def drain(self) -> None:
        self._draining = True
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        number = 0
        while True:
            await self._room.acquire()
            message = await self._rpc.next_message()
            if message is None:
                return
            number += 1
            await self._submit(number, message)

    async def _write(self) -> None:
        while self._outbox:
            await self._rpc.context.write(self._outbox.popleft())
            self._room.release()

    async def _submit(self, number: int, message: bytes) -> None:
        data, codec = self._owner.data, self._owner.codec
        strict = self._owner.triton_strict
        about = _About()
        call: InferenceCall | None = None
        self._unanswered += 1
        try:
            if len(message) > DIRECT_BYTES:
                about = _About(model_of(message))
                call = data.call(about.model, None, self._next_context())
                message = await self._owner.unpacker.raw_form(message, self._rpc.client)
            request = codec.read(message)
            about = _About(request.model, request.version, request.id)
            call = data.call(request.model, request.version, self._next_context())
            infer = request.call(self._parameters)
        except WireError as error:
            if call is not None:
                call.refuse(error.reason, error.message)
            self._refuse(refusal_of(error, triton_strict=strict), error.reason, about)
            return
        wanted = infer.outputs

        # Holds no part of the message: the data plane has copied the tensors.
        def reply(answer: InferReply) -> None:
            del self._calls[number]
            if answer.outputs is None:
                refusal = refusal_in(answer, triton_strict=strict)
                self._refuse(refusal, answer.outcome.reason, about)
            else:
                self._answer(codec.encode_stream_reply(answer, wanted))

        call.submit(infer, reply)
        self._calls[number] = call

    def _next_context(self) -> CallContext:
        """The stream's context for a request that is complete now."""
        now = self._owner.clock()
        context = self._context
        budget = context.transport_budget_s
        if budget is not None:
            budget = max(0.0, budget - (now - context.first_byte))
        return replace(context, first_byte=now, transport="grpc-stream", transport_budget_s=budget)

    def _refuse(self, refusal: Refusal, reason: Reason, about: _About) -> None:
        if self._fail_stream:
            self._failure = self._failure or refusal
            self._news.set()
            return
        self._answer(
            encode_stream_error(
                refusal.message,
                model=about.model,
                version=about.version,
                id=about.id,
                parameters={REASON: reason.label, **refusal.numbers},
            )
        )

    def _answer(self, message: bytes) -> None:
        self._unanswered -= 1
        self._outbox.append(message)
        self._news.set()
