"""From an HTTP inference request to the data plane and back. Holds no rule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.frontends.call_headers import STEERING, context_of, read_steering
from slacktide.frontends.http.messages import (
    OCTETS,
    SUPPORTED,
    ClientRequest,
    HttpResponse,
    encoding_of,
    error_response,
    failure_response,
    refusal_response,
)
from slacktide.frontends.ports import DataPlane, InferenceCall
from slacktide.frontends.refusals import refusal_in
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import DIRECT_BYTES, Inflation, Unpacker
from slacktide.wire.calls import Buffer, CallContext, InferReply, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.infer_reader import InferReader
from slacktide.wire.oip_json import AnswerFormat, format_reply, long_outputs, write_values
from slacktide.wire.parameters import parse_length

_JSON_LENGTH = b"inference-header-content-length"
Respond = Callable[[HttpResponse], None]
_NO_PARAMETERS: Mapping[str, Parameter] = {}


@dataclass(slots=True)
class _State:
    """What the endpoint keeps of one request, in `request.state`."""

    target: tuple[str, str | None]
    """Model and version."""
    call: InferenceCall | None
    """None once it has ended."""
    context: CallContext
    parameters: Mapping[str, Parameter]
    json_length: int | None = None
    encoding: bytes = b""
    unpacking: asyncio.Task[None] | None = None


class InferEndpoint:
    """What is behind POST …/infer: gets a request at its headers and says where its body goes.

    Order: `open`, then `announce` if the body has not arrived with the headers, then `submit`.
    `refuse` or `abandon` may end it at any time after `open`.
    """

    def __init__(self, data: DataPlane, settings: HttpSettings, unpacker: Unpacker) -> None:
        self._data = data
        self._unpacker = unpacker
        self._settings = settings
        self._direct = min(DIRECT_BYTES, settings.max_json_bytes)
        self._reader = InferReader()

    def open(self, request: ClientRequest) -> HttpResponse | None:
        """The headers are here. A response refuses the request. May raise WireError."""
        headers = request.headers
        target, context = target_of(request), _context(request)
        state = request.state = _State(
            target, self._data.call(*target, context), context, _NO_PARAMETERS
        )
        try:
            length = headers.get(_JSON_LENGTH)
            if length is not None:
                state.json_length = parse_length("Inference-Header-Content-Length", length.strip())
            if not STEERING.isdisjoint(headers):
                fields = read_steering(headers)
                state.parameters = fields.parameters
                context.transport_budget_s = fields.budget_s
        except WireError as error:
            self.refuse(request, error.reason, error.message)
            raise
        if b"content-encoding" in headers:
            encoding = encoding_of(headers[b"content-encoding"])
            if encoding is None:
                message = "Content-Encoding: expected gzip or deflate"
                self.refuse(request, Reason.BAD_INPUT, message)
                return error_response(501, message, reason=Reason.BAD_INPUT, extra=SUPPORTED)
            state.encoding = encoding
        return None

    def announce(self, request: ClientRequest, length: int) -> memoryview | HttpResponse:
        """`length` bytes are to come. Where to receive them, or the refusal."""
        state: _State = request.state
        assert state.call is not None
        place = state.call.announce(length, state.parameters)
        if isinstance(place, InferReply):
            state.call = None
            request.outcome = place.outcome
            return self._response(place, AnswerFormat())
        request.body = place
        return place

    def submit(self, request: ClientRequest, respond: Respond) -> None:
        """The body is here: where `announce` said, else in `request.body`. Calls `respond` once,
        at any time."""
        state: _State = request.state
        body = request.body
        try:
            inflation = None
            length = state.json_length
            if state.encoding:
                inflation = Inflation(body, state.encoding, self._settings.max_request_bytes)
                if inflation.step(DIRECT_BYTES):
                    body, inflation = inflation.data, None
            if inflation is None and (
                (len(body) if length is None else length) <= self._direct
                or self._json_size(body, state) <= DIRECT_BYTES
            ):
                self._submit(request, body, length, respond)
                return
        except WireError as error:
            self.refuse(request, error.reason, error.message)
            raise
        state.unpacking = asyncio.ensure_future(self._unpack(request, body, inflation, respond))

    async def _unpack(
        self, request: ClientRequest, body: Buffer, inflation: Inflation | None, respond: Respond
    ) -> None:
        """Have done beside the loop what would take it too long, then submit."""
        state: _State = request.state
        length = state.json_length
        try:
            if inflation is not None:
                body = await self._unpacker.inflate(inflation, request.client)
            if self._json_size(body, state) > DIRECT_BYTES:
                body, length = await self._unpacker.binary_form(body, length, request.client)
            self._submit(request, body, length, respond)
        except Exception as error:
            state.unpacking = None
            if isinstance(error, WireError):
                self.refuse(request, error.reason, error.message)
            else:
                self.abandon(request, Reason.RUNTIME_ERROR)
            respond(failure_response(error, triton_strict=self._settings.triton_strict))
        state.unpacking = None

    def _submit(
        self, request: ClientRequest, body: Buffer, json_length: int | None, respond: Respond
    ) -> None:
        """Hand a body on that takes no time to read. Raises WireError."""
        state: _State = request.state
        call = state.call
        assert call is not None
        infer, answer = self._reader.read(*state.target, body, json_length, state.parameters)
        if infer.id:
            state.context.request_id = request.request_id = infer.id

        def reply(result: InferReply) -> None:
            state.call = None
            request.outcome = result.outcome
            if long_outputs(result, answer):
                state.unpacking = asyncio.ensure_future(self._write(result, answer, state, respond))
                return
            try:
                response = self._response(result, answer)
            except Exception as error:
                response = failure_response(error)
            respond(response)

        call.submit(infer, reply)

    async def _write(
        self, reply: InferReply, answer: AnswerFormat, state: _State, respond: Respond
    ) -> None:
        """Answer with long outputs in JSON, written in pieces, a turn of the loop for each."""
        written = {}
        try:
            for output in long_outputs(reply, answer):
                pieces = []
                for piece in write_values(output):
                    pieces.append(piece)
                    await asyncio.sleep(0)
                written[output.name] = b"[%b]" % b",".join(pieces)
            # Not changed in place: the reader may have shared it among calls.
            response = self._response(reply, replace(answer, written=written))
        except Exception as error:
            response = failure_response(error)
        state.unpacking = None
        respond(response)

    def _json_size(self, body: Buffer, state: _State) -> int:
        """Bytes of JSON. Raises BadField if they are too many."""
        size = len(body) if state.json_length is None else state.json_length
        if size > self._settings.max_json_bytes:
            expected = f"at most {self._settings.max_json_bytes} bytes of JSON"
            raise BadField("body", expected, size, Reason.TOO_LARGE)
        return size

    def refuse(self, request: ClientRequest, reason: Reason, message: str) -> None:
        """The connection has refused the request itself; it is only to be counted."""
        state: _State | None = request.state
        request.outcome = Outcome(reason, request.first_byte)
        if state is None:
            call: InferenceCall | None = self._data.call(*target_of(request), _context(request))
        else:
            call, state.call = state.call, None
        if call is not None:
            call.refuse(reason, message)

    def abandon(self, request: ClientRequest, reason: Reason) -> None:
        """The client has gone: the answer is not wanted any more."""
        state: _State = request.state
        request.outcome = Outcome(reason, request.first_byte)
        if state.unpacking is not None:
            state.unpacking.cancel()
        call, state.call = state.call, None
        if call is not None:
            call.cancel(reason)

    def _response(self, reply: InferReply, answer: AnswerFormat) -> HttpResponse:
        if reply.outputs is not None and reply.outcome.kind in _ANSWERED:
            head, buffers = format_reply(reply, answer)
            if not buffers:
                return HttpResponse(200, (head,))
            line = b"Inference-Header-Content-Length: %d\r\n" % len(head)
            return HttpResponse(200, (head, *buffers), OCTETS, line)
        refusal = refusal_in(reply, triton_strict=self._settings.triton_strict)
        return refusal_response(refusal)


_ANSWERED = frozenset((OutcomeKind.SERVED, OutcomeKind.LATE))


def _context(request: ClientRequest) -> CallContext:
    """Where a request comes from, by its headers."""
    return context_of(
        request.headers, request.first_byte, request.client, "http", request.connection
    )


def target_of(request: ClientRequest) -> tuple[str, str | None]:
    """Model and version that its path names."""
    return request.params["model"], request.params.get("version")
