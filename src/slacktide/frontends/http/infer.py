"""From an HTTP inference request to the data plane and back. Holds no rule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from slacktide.domain import OutcomeKind, Reason
from slacktide.frontends.http.compression import SUPPORTED, encoding_of
from slacktide.frontends.http.messages import (
    OCTETS,
    Request,
    Response,
    error_response,
    failure_response,
    retry_after,
)
from slacktide.frontends.http.settings import HttpSettings
from slacktide.frontends.ports import DataPlane, Ticket, Upload
from slacktide.frontends.unpacking import DIRECT_BYTES, Inflation, Unpacker
from slacktide.wire.calls import Buffer, CallContext, InferReply, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.infer_reader import InferReader
from slacktide.wire.oip_json import AnswerFormat, format_reply, long_outputs, write_values
from slacktide.wire.parameters import (
    PARAMETER_HEADERS,
    TIMEOUT_HEADERS,
    parse_length,
    parse_parameters,
    read_headers,
)
from slacktide.wire.status import status_of

_JSON_LENGTH = b"inference-header-content-length"
_STEERING = frozenset(name.encode() for name in (*PARAMETER_HEADERS, *TIMEOUT_HEADERS))
Respond = Callable[[Response], None]
_NO_PARAMETERS: Mapping[str, Parameter] = {}
_MAX_ID = 256


class _Call:
    """What the endpoint keeps of one request, in `request.state`."""

    __slots__ = (
        "context",
        "encoding",
        "json_length",
        "parameters",
        "ticket",
        "unpacking",
        "upload",
    )

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.json_length: int | None = None
        self.encoding = b""
        self.parameters = _NO_PARAMETERS
        self.upload: Upload | None = None
        """Announced and not ended."""
        self.ticket: Ticket | None = None
        self.unpacking: asyncio.Task[None] | None = None


class InferEndpoint:
    """The receiver behind POST …/infer."""

    def __init__(self, data: DataPlane, settings: HttpSettings, unpacker: Unpacker) -> None:
        self._data = data
        self._unpacker = unpacker
        self._settings = settings
        self._direct = min(DIRECT_BYTES, settings.max_json_bytes)
        self._reader = InferReader()

    def open(self, request: Request) -> Response | None:
        headers = request.headers
        request.state = call = _Call(_context(request))
        try:
            length = headers.get(_JSON_LENGTH)
            if length is not None:
                call.json_length = parse_length("Inference-Header-Content-Length", length.strip())
            if not _STEERING.isdisjoint(headers):
                self._read_steering(headers, call)
        except WireError as error:
            self.refuse(request, error.reason, error.message)
            raise
        if b"content-encoding" in headers:
            encoding = encoding_of(headers[b"content-encoding"])
            if encoding is None:
                message = "Content-Encoding: expected gzip or deflate"
                self.refuse(request, Reason.BAD_INPUT, message)
                return error_response(501, message, extra=SUPPORTED)
            call.encoding = encoding
        return None

    def _read_steering(self, headers: Mapping[bytes, bytes], call: _Call) -> None:
        fields = read_headers(
            (name.decode(), headers[name].decode("latin-1").strip())
            for name in _STEERING.intersection(headers)
        )
        # Found out now, so that a bad one is refused before the body is read.
        parse_parameters(fields.parameters)
        call.parameters = fields.parameters
        call.context.transport_budget_s = fields.budget_s

    def announce(self, request: Request, length: int) -> memoryview | Response:
        call: _Call = request.state
        model, version = _target(request)
        answer = self._data.announce(model, version, length, call.parameters, call.context)
        if isinstance(answer, InferReply):
            return self._response(answer, AnswerFormat())
        call.upload = answer
        return answer.body()

    def submit(self, request: Request, respond: Respond) -> None:
        call: _Call = request.state
        body = request.body if call.upload is None else call.upload.body()
        try:
            inflation = None
            length = call.json_length
            if call.encoding:
                inflation = Inflation(body, call.encoding, self._settings.max_body_bytes)
                if inflation.step(DIRECT_BYTES):
                    body, inflation = inflation.data, None
            if inflation is None and (
                (len(body) if length is None else length) <= self._direct
                or self._json_size(body, call) <= DIRECT_BYTES
            ):
                self._submit(request, body, length, respond)
                return
        except WireError as error:
            self.refuse(request, error.reason, error.message)
            raise
        call.unpacking = asyncio.ensure_future(self._unpack(request, body, inflation, respond))

    async def _unpack(
        self, request: Request, body: Buffer, inflation: Inflation | None, respond: Respond
    ) -> None:
        """Have done beside the loop what would take it too long, then submit."""
        call: _Call = request.state
        length = call.json_length
        try:
            if inflation is not None:
                body = await self._unpacker.inflate(inflation, request.client)
            if self._json_size(body, call) > DIRECT_BYTES:
                body, length = await self._unpacker.binary_form(body, length, request.client)
            self._submit(request, body, length, respond)
        except Exception as error:
            call.unpacking = None
            if isinstance(error, WireError):
                self.refuse(request, error.reason, error.message)
            else:
                self.abandon(request, Reason.RUNTIME_ERROR)
            respond(failure_response(error, triton_strict=self._settings.triton_strict))
        call.unpacking = None

    def _submit(
        self, request: Request, body: Buffer, json_length: int | None, respond: Respond
    ) -> None:
        """Hand a body on that takes no time to read. Raises WireError."""
        call: _Call = request.state
        upload = call.upload
        model, version = _target(request)
        infer, answer = self._reader.read(model, version, body, json_length, call.parameters)
        if infer.id:
            call.context.request_id = request.request_id = infer.id

        def reply(result: InferReply) -> None:
            call.ticket = None
            if long_outputs(result, answer):
                call.unpacking = asyncio.ensure_future(self._write(result, answer, call, respond))
                return
            try:
                response = self._response(result, answer)
            except Exception as error:
                response = failure_response(error)
            respond(response)

        if upload is None:
            call.ticket = self._data.infer(infer, call.context, reply)
        else:
            call.ticket = upload.complete(infer, reply)
            call.upload = None

    async def _write(
        self, reply: InferReply, answer: AnswerFormat, call: _Call, respond: Respond
    ) -> None:
        """Answer with long outputs in JSON, written in pieces, a turn of the loop for each."""
        written = {}
        try:
            for output in long_outputs(reply, answer):
                pieces = []
                for piece in write_values(output):
                    pieces.append(piece)
                    await asyncio.sleep(0)
                written[output.name] = orjson.Fragment(b"[%b]" % b",".join(pieces))
            # Not changed in place: the reader may have shared it among calls.
            response = self._response(reply, replace(answer, written=written))
        except Exception as error:
            response = failure_response(error)
        call.unpacking = None
        respond(response)

    def _json_size(self, body: Buffer, call: _Call) -> int:
        """Bytes of JSON. Raises BadField if they are too many."""
        size = len(body) if call.json_length is None else call.json_length
        if size > self._settings.max_json_bytes:
            expected = f"at most {self._settings.max_json_bytes} bytes of JSON"
            raise BadField("body", expected, size, Reason.TOO_LARGE)
        return size

    def refuse(self, request: Request, reason: Reason, message: str) -> None:
        call: _Call | None = request.state
        if call is not None and call.upload is not None:
            upload, call.upload = call.upload, None
            upload.refuse(reason, message)
        else:
            model, version = _target(request)
            context = _context(request) if call is None else call.context
            self._data.body_refused(model, version, reason, message, context)

    def abandon(self, request: Request, reason: Reason) -> None:
        call: _Call = request.state
        if call.unpacking is not None:
            call.unpacking.cancel()
        if call.upload is not None:
            upload, call.upload = call.upload, None
            upload.cancel(reason)
        elif call.ticket is not None:
            ticket, call.ticket = call.ticket, None
            ticket.cancel(reason)

    def _response(self, reply: InferReply, answer: AnswerFormat) -> Response:
        if reply.outputs is not None and reply.outcome.kind in _ANSWERED:
            head, buffers = format_reply(reply, answer)
            if not buffers:
                return Response(200, (head,))
            line = b"Inference-Header-Content-Length: %d\r\n" % len(head)
            return Response(200, (head, *buffers), OCTETS, line)
        reason = reply.outcome.reason
        status = status_of(
            reason, has_result=False, triton_strict=self._settings.triton_strict
        ).http
        return error_response(
            status,
            reply.message or reason.label.replace("_", " "),
            extra=retry_after(status, reply.retry_after_s),
        )


_ANSWERED = frozenset((OutcomeKind.SERVED, OutcomeKind.LATE))


def _context(request: Request) -> CallContext:
    """Where a request comes from, as its headers tell."""
    headers = request.headers
    context = CallContext(request.first_byte, request.client, "http", connection=request.connection)
    if b"x-request-id" in headers:
        context.request_id = headers[b"x-request-id"].decode("latin-1")[:_MAX_ID]
    if b"traceparent" in headers:
        context.traceparent = headers[b"traceparent"].decode("latin-1").strip()
    return context


def _target(request: Request) -> tuple[str, str | None]:
    return request.params["model"], request.params.get("version")
