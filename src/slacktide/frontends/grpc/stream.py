"""ModelStreamInfer: many requests in flight on one stream, answers as they finish.

What is unanswered or unsent is counted; beyond a limit messages wait, and their stream is granted
no more, so that a client that sends without reading is held back by flow control and not by our
memory. A request's clock starts when its message is complete; the stream's own gRPC deadline limits
every request on it.

A request that fails is answered with an `error_message` and the stream goes on, unless the client's
metadata says `triton_grpc_error: true`: then the first failure ends the stream with its status.
Each request gets exactly one answer, marked `triton_final_response`, so there is never an empty
final one to send: `triton_enable_empty_final_response` is accepted and changes nothing. When the
stream ends, whatever is unanswered is cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from slacktide.domain import Reason
from slacktide.frontends.call_headers import context_of
from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import InferenceCall
from slacktide.frontends.refusals import Refusal, refusal_in, refusal_of
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire.calls import Buffer, CallContext, InferReply
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_messages import REASON, encode_stream_error, model_of, typed_bytes
from slacktide.wire.status import status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

GRPC_ERROR_KEY = b"triton_grpc_error"
MESSAGES_AT_ONCE = 32
"""Messages of one call that are taken in a turn."""
_TRIM_BYTES = 64 * 1024


class _About(NamedTuple):
    """Which request an error is about; all empty if its message could not be parsed."""

    model: str = ""
    version: str | None = None
    id: str = ""


class MessageStream(GrpcCall, ABC):
    """A call with many messages: so many are taken in a turn of the loop, the rest wait."""

    __slots__ = ("_left", "_queued", "_rest", "_rest_at", "_turn")

    many = True

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self.since = None
        self._rest = bytearray()
        """What has come and not been taken; up to `_rest_at` it has."""
        self._rest_at = 0
        self._turn, self._left = 0.0, 0
        """The turn of the loop in which messages were taken, and how many more may be."""
        self._queued = False

    @abstractmethod
    def take(self, message: Buffer) -> None:
        """It is a message's turn. What this raises ends the call."""

    def may_take(self) -> bool:
        """Whether there is room for another."""
        return True

    @abstractmethod
    def settle(self) -> None:
        """Nothing waits: end, if the client has ended and all is answered."""

    def message(self, message: Buffer) -> None:
        self._left -= 1
        self.take(message)

    def is_full(self) -> bool:
        return self._left <= 0 or not self.may_take()

    def received(self, data: memoryview) -> None:
        try:
            if self.protocol.now != self._turn:
                self._turn, self._left = self.protocol.now, MESSAGES_AT_ONCE
            taken = 0 if self._rest else self.take_messages(data)
            if taken < len(data) and not self.finished:
                self.state.hold(self.protocol.client, len(data) - taken)
                self._rest += data[taken:]
                self.holds = True
                self._wait()
        except Exception as error:
            self.fail(error)

    def received_all(self) -> None:
        if not self._rest:
            super().received_all()

    def _wait(self) -> None:
        if not self._queued and self.may_take():
            self._queued = True
            self.state.turns.wait(self.protocol.client, self._in_turn)

    def _in_turn(self) -> None:
        """Take a piece of what waits."""
        self._queued, self._left = False, MESSAGES_AT_ONCE
        try:
            with memoryview(self._rest) as view, view[self._rest_at :] as data:
                taken = self.take_messages(data)
            if self._rest:
                self._forget(taken)
        except Exception as error:
            self.fail(error)

    def _forget(self, taken: int) -> None:
        """So much of what waited has been taken."""
        rest, at = self._rest, self._rest_at + taken
        self.state.buffers.release(taken, self.protocol.client)
        self._rest_at = at
        if at == len(rest):
            self._rest, self._rest_at = bytearray(), 0
        elif at > _TRIM_BYTES and 2 * at > len(rest):
            del rest[:at]
            self._rest_at = 0
        if self.ended and not self._rest:
            super().received_all()
        else:
            self.go_on()

    def go_on(self) -> None:
        """There may be room again, or the call may have ended."""
        if self._rest:
            self._wait()
        elif not self.finished:
            if self.holds:
                self.holds = False
                self.connection.grant(self)
                self.protocol.flush()
            self.settle()

    def half_closed(self) -> None:
        self.go_on()

    def cancelled(self, reason: Reason) -> None:
        if self._rest:
            self.state.buffers.release(len(self._rest) - self._rest_at, self.protocol.client)
        self._rest, self._rest_at = bytearray(), 0


class StreamInfer(MessageStream):
    """A call of ModelStreamInfer."""

    __slots__ = ("_calls", "_draining", "_number", "_strict", "_unanswered", "_unsent")

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self._calls: dict[int, InferenceCall] = {}
        """Submitted, by their numbers in order."""
        self._number = self._unanswered = self._unsent = 0
        self._draining = False
        self._strict = self.state.limits.triton_strict

    # ---------------------------------------------------------------- requests

    def may_take(self) -> bool:
        return self._unanswered + self._unsent < self.state.settings.stream_in_flight

    def take(self, message: Buffer) -> None:
        if self._draining:
            return
        self._unanswered += 1
        try:
            long = len(message) > DIRECT_BYTES and typed_bytes(message) > DIRECT_BYTES
        except WireError as error:
            model = model_of(message)
            call = self.state.data.call(model, None, self._context())
            self._turn_away(error, _About(model), call)
            return
        if long:
            self.later(self._unpack(message), lambda _: None)
        else:
            self._infer(message)

    async def _unpack(self, message: Buffer) -> None:
        """Have long typed contents read beside the loop, then go on."""
        model = model_of(message)
        call = self.state.data.call(model, None, self._context())
        try:
            self._infer(await self.state.unpacker.raw_form(message, self.protocol.client))
        except WireError as error:
            self._turn_away(error, _About(model), call)

    def _infer(self, message: Buffer) -> None:
        about, call = _About(), None
        strict, codec = self._strict, self.state.codec
        try:
            request = codec.read(message)
            about = _About(request.model, request.version, request.id)
            call = self.state.data.call(request.model, request.version, self._context())
            infer = request.call(self.said.parameters)
        except WireError as error:
            self._turn_away(error, about, call)
            return
        self._number += 1
        number, wanted = self._number, infer.outputs

        # Holds no part of the message: the data plane has copied the tensors.
        def reply(answer: InferReply) -> None:
            del self._calls[number]
            try:
                if answer.outputs is None:
                    refusal = refusal_in(answer, triton_strict=strict)
                    self._refuse(refusal, answer.outcome.reason, about)
                else:
                    self._answer(codec.stream_reply_pieces(answer, wanted))
            except Exception as error:
                self.fail(error)

        call.submit(infer, reply)
        self._calls[number] = call

    def _context(self) -> CallContext:
        """For a request that is complete now."""
        protocol, now, budget = self.protocol, self.state.clock(), self.said.budget_s
        client, peer = protocol.client, protocol.peer
        context = context_of(self.said.headers, now, client, "grpc-stream", peer)
        if budget is not None:
            context.transport_budget_s = max(0.0, budget - (now - self.first_byte))
        return context

    # ---------------------------------------------------------------- answers

    def _turn_away(self, error: WireError, about: _About, call: InferenceCall | None) -> None:
        if call is not None:
            call.refuse(error.reason, error.message)
        self._refuse(refusal_of(error, triton_strict=self._strict), error.reason, about)

    def _refuse(self, refusal: Refusal, reason: Reason, about: _About) -> None:
        if self.said.headers.get(GRPC_ERROR_KEY, b"").lower() == b"true":
            self.fail(refusal)
            return
        error = encode_stream_error(
            refusal.message,
            model=about.model,
            version=about.version,
            id=about.id,
            parameters={REASON: reason.label, **refusal.numbers},
        )
        self._answer([error])

    def _answer(self, pieces: list[Buffer]) -> None:
        self._unanswered -= 1
        self._unsent += 1
        self.write(pieces)
        if not self.unsent:
            self._unsent = 0
        self.go_on()

    def sent(self) -> None:
        super().sent()
        if not self.unsent:
            self._unsent = 0
            self.go_on()

    def settle(self) -> None:
        if not self._unanswered:
            if self.ended:
                self.finish()
            elif self._draining:
                refusal = Refusal(status_of(Reason.DRAINING), "the server is shutting down")
                self.refuse(refusal)

    # ---------------------------------------------------------------- the end

    def drain(self) -> None:
        self._draining = True
        super().cancelled(Reason.DRAINING)
        self.go_on()

    def cancelled(self, reason: Reason) -> None:
        super().cancelled(reason)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.cancel(Reason.CLIENT_CANCELLED)
