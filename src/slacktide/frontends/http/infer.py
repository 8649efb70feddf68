"""Converts an HTTP inference request for the data plane, and the reply back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.call_headers import STEERING, read_steering
from slacktide.frontends.common.load_reports import report_format, report_line
from slacktide.frontends.common.refusals import refusal_in
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
from slacktide.frontends.http.pictures import file_of_form, picture_boundary
from slacktide.frontends.ports import DataPlane
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import DIRECT_BYTES, Inflation, Unpacker, states_timeout
from slacktide.wire.calls import Buffer, InferReply, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.infer_reader import InferReader
from slacktide.wire.oip_json import ALL_JSON, AnswerFormat, format_reply, long_outputs, write_values
from slacktide.wire.parameters import parse_length

PLACE = b"\0"
"""Placeholder for long values in an answer; a byte that JSON never contains."""
_NOTHING: Mapping[str, Sequence[bytes]] = {}
_TEXT_TIMES = 8
"""Generous bound on how many times longer values are in JSON than in binary."""
_REDIRECT = b"slacktide-redirect"
_ALLOW, _FOLLOWED = b"allow", b"followed"
_REDIRECTED = _REDIRECT + b"=" + _FOLLOWED
_AUTHORITY = re.compile(rb"^[^/]*//[^/?]*")
_JSON_LENGTH = b"inference-header-content-length"


@dataclass(slots=True, eq=False, repr=False)
class InferHead:
    """The fields of a request's head that describe its call. Requests share it with the head."""

    model: str
    version: str | None
    json_length: int | None = None
    encoding: bytes = b""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    budget_s: float | None = None
    boundary: bytes | None = None
    """Boundary of a form with a picture; empty: the body is the picture; None: neither."""
    redirect: bytes = b""
    """`allow`: the client follows a redirect before it sends the body; `followed`: it has."""
    load_format: bytes = b""
    """Format of the load report that answers have; empty: none."""


class InferEndpoint:
    """The endpoint POST …/infer, which takes over a request at its headers. Call `open`, then
    `announce` if the body has not arrived with the headers, then `submit`. `refuse` or `abandon`
    may end the request at any time after `open`."""

    def __init__(self, data: DataPlane, settings: HttpSettings, unpacker: Unpacker) -> None:
        self._data = data
        self._unpacker = unpacker
        self._settings = settings
        self._direct = min(DIRECT_BYTES, settings.max_json_bytes)
        self._reader = InferReader()

    def open(self, request: ClientRequest) -> HttpResponse | None:
        """Begin the call of a request whose headers have arrived. Returns a response that refuses
        it, or None. Raises WireError."""
        head = request.head.infer
        if head is None:
            headers, head = request.head.headers, InferHead(*target_of(request))
            try:
                length = headers.get(_JSON_LENGTH)
                if length is not None:
                    name = "Inference-Header-Content-Length"
                    head.json_length = parse_length(name, length.strip())
                else:
                    head.boundary = picture_boundary(headers.get(b"content-type", b""))
                    head.json_length = None if head.boundary is None else 0
                if not STEERING.isdisjoint(headers):
                    fields = read_steering(headers)
                    head.parameters, head.budget_s = fields.parameters, fields.budget_s
                head.redirect = _redirect_of(request)
            except WireError as error:
                self.refuse(request, error.reason, error.message)
                raise
            encoding = encoding_of(headers.get(b"content-encoding", b""))
            if encoding is None:
                message = "Content-Encoding: expected gzip or deflate"
                self.refuse(request, Reason.BAD_INPUT, message)
                return error_response(501, message, reason=Reason.BAD_INPUT, extra=SUPPORTED)
            head.encoding = encoding
            head.load_format = report_format(headers, always=self._settings.load_reports)
            request.head.infer = head
        request.transport_budget_s = head.budget_s
        request.redirected = head.redirect == _FOLLOWED
        request.call = self._data.call(head.model, head.version, request)
        return None

    def announce(self, request: ClientRequest, length: int) -> memoryview | HttpResponse:
        """Announce a body of `length` bytes. Returns the place to receive it, or the refusal."""
        call, head = request.call, request.head.infer
        assert call is not None
        assert head is not None
        waits = b"expect" in request.head.headers and not request.head.is_http_1_0
        if waits and head.redirect == _ALLOW:
            origin = call.elsewhere(length, head.parameters)
            if origin:
                request.call = None
                return _redirection(origin, request.head.target)
        place = call.announce(length, head.parameters)
        if isinstance(place, InferReply):
            request.call = None
            request.outcome = place.outcome
            return self._response(request, place, request.answer)
        return place

    def submit(self, request: ClientRequest) -> None:
        """Submit a request whose body has arrived. It is answered once, at any time."""
        head, body = request.head.infer, request.body
        assert head is not None
        request.body = b""  # the call keeps what it needs
        length = head.json_length
        try:
            inflation = None
            if head.encoding:
                largest = self._data.largest_body(head.model, head.version)
                if length is None:
                    largest *= _TEXT_TIMES
                most = self._settings.max_request_bytes
                inflation = Inflation(body, head.encoding, most, largest)
                if inflation.step(DIRECT_BYTES):
                    body, inflation = inflation.data, None
            if inflation is None and (
                (len(body) if length is None else length) <= self._direct
                or self._json_size(body, length) <= DIRECT_BYTES
            ):
                self._submit(request, head, body, length)
                return
        except WireError as error:
            self._fail(request, error)
            return
        request.unpacking = asyncio.ensure_future(self._unpack(request, head, body, inflation))

    async def _unpack(
        self, request: ClientRequest, head: InferHead, body: Buffer, inflation: Inflation | None
    ) -> None:
        """Unpack a long body off the event loop, then submit."""
        length = head.json_length
        try:
            if inflation is not None:
                body = await self._unpacker.inflate(inflation, request.client)
            if self._json_size(body, length) > DIRECT_BYTES:
                since = time.monotonic()
                urgent = (
                    head.budget_s is not None
                    or self._data.has_slo(head.model, head.version)
                    or states_timeout(memoryview(body)[:length])
                )
                body, length = await self._unpacker.binary_form(
                    body, length, request.client, urgent=urgent
                )
                request.read_s = time.monotonic() - since
            self._submit(request, head, body, length)
        except Exception as error:
            request.unpacking = None
            self._fail(request, error)
        request.unpacking = None

    def _submit(
        self, request: ClientRequest, head: InferHead, body: Buffer, json_length: int | None
    ) -> None:
        """Submit a body that is short enough to read on the loop. Raises WireError."""
        call = request.call
        assert call is not None
        if head.boundary:
            body = file_of_form(body, head.boundary)
        infer, request.answer = self._reader.read(
            head.model, head.version, body, json_length, head.parameters
        )
        if head.boundary is not None:
            request.answer = ALL_JSON
        if infer.id:
            request.request_id = infer.id
        call.submit(infer, request.replied)

    def _fail(self, request: ClientRequest, error: Exception) -> None:
        """End a request whose body cannot be read or submitted."""
        if isinstance(error, WireError):
            self.refuse(request, error.reason, error.message)
        else:
            self.abandon(request, Reason.RUNTIME_ERROR)
        request.respond(failure_response(error, triton_strict=self._settings.triton_strict))

    def replied(self, request: ClientRequest, reply: InferReply) -> None:
        """Answer a request whose call has ended with `reply`."""
        request.call = None
        request.outcome = reply.outcome
        answer = request.answer
        if long_outputs(reply, answer):
            request.unpacking = asyncio.ensure_future(self._write(request, reply))
            return
        try:
            response = self._response(request, reply, answer)
        except Exception as error:
            response = failure_response(error)
        request.respond(response)

    async def _write(self, request: ClientRequest, reply: InferReply) -> None:
        """Answer with long outputs in JSON, written in pieces, one per turn of the loop."""
        answer = request.answer
        written: dict[str, list[bytes]] = {}
        binary = dict(answer.binary)
        try:
            for output in long_outputs(reply, answer):
                pieces = written[output.name] = [b"["]
                try:
                    for piece in write_values(output):
                        pieces.append(b"," + piece if len(pieces) > 1 else piece)
                        await asyncio.sleep(0)
                except UnicodeDecodeError:  # JSON cannot express it
                    binary[output.name] = True
                    del written[output.name]
                    continue
                pieces.append(b"]")
            # A copy, because the reader may share the format among calls.
            places = dict.fromkeys(written, PLACE)
            response = self._response(
                request, reply, replace(answer, binary=binary, written=places), written
            )
        except Exception as error:
            response = failure_response(error)
        request.unpacking = None
        request.respond(response)

    def _json_size(self, body: Buffer, json_length: int | None) -> int:
        """Length of the JSON. Raises BadField if it is too long."""
        size = len(body) if json_length is None else json_length
        if size > self._settings.max_json_bytes:
            expected = f"at most {self._settings.max_json_bytes} bytes of JSON"
            raise BadField("body", expected, size, Reason.TOO_LARGE)
        return size

    def refuse(self, request: ClientRequest, reason: Reason, message: str) -> None:
        """Count a request that the connection itself has refused."""
        request.outcome = Outcome(reason, request.first_byte)
        call, request.call = request.call, None
        if request.receiver is None:  # not opened yet
            call = self._data.call(*target_of(request), request)
        if call is not None:
            call.refuse(reason, message)

    def abandon(self, request: ClientRequest, reason: Reason) -> None:
        """Cancel a request that gets no reply, for instance because its client has gone."""
        request.outcome = Outcome(reason, request.first_byte)
        unpacking, request.unpacking = request.unpacking, None
        if unpacking is not None:
            unpacking.cancel()
        call, request.call = request.call, None
        if call is not None:
            call.cancel(reason)

    def _response(
        self,
        request: ClientRequest,
        reply: InferReply,
        answer: AnswerFormat,
        written: Mapping[str, Sequence[bytes]] = _NOTHING,
    ) -> HttpResponse:
        """`written`: pieces of long outputs, by name; `answer` has a `PLACE` for each such output.
        Joining the pieces would take as long as writing them."""
        response = self._without_report(request, reply, answer, written)
        head = request.head.infer
        if head is not None and head.load_format:
            response.extra += report_line(head.load_format, self._data.offered_share())
        return response

    def _without_report(
        self,
        request: ClientRequest,
        reply: InferReply,
        answer: AnswerFormat,
        written: Mapping[str, Sequence[bytes]],
    ) -> HttpResponse:
        if reply.outputs is not None:
            document, buffers = format_reply(reply, answer)
            texts: tuple[bytes, ...] = (document,)
            length = len(document)
            if written:
                names = [output.name for output in reply.in_order(answer.order)]
                values = [written[name] for name in names if name in written]
                first, *between = document.split(PLACE)
                joined = [first]
                for pieces, text in zip(values, between, strict=True):
                    joined += (*pieces, text)
                texts, length = tuple(joined), sum(map(len, joined))
            if not buffers:
                return HttpResponse(200, texts)
            line = b"Inference-Header-Content-Length: %d\r\n" % length
            return HttpResponse(200, (*texts, *buffers), OCTETS, line)
        refusal = refusal_in(
            reply, triton_strict=self._settings.triton_strict, read_s=request.read_s
        )
        return refusal_response(refusal)


def _redirect_of(request: ClientRequest) -> bytes:
    """The client's choice about redirects, from its headers or query. Raises BadField."""
    text = request.head.headers.get(_REDIRECT, b"").strip().lower()
    if text not in (b"", _ALLOW, _FOLLOWED):
        raise BadField(_REDIRECT.decode(), "allow or followed", text)
    # Clients such as curl repeat their headers, so the target says it too.
    return _FOLLOWED if _REDIRECTED in request.head.target.partition(b"?")[2] else text


def _redirection(origin: str, target: bytes) -> HttpResponse:
    """The answer that sends a client, before it has sent its body, to another server."""
    path = _AUTHORITY.sub(b"", target)
    mark = b"&" if b"?" in path else b"?"
    location = b"Location: %b%b%b%b\r\n" % (origin.encode(), path, mark, _REDIRECTED)
    return HttpResponse(307, extra=location)


def target_of(request: ClientRequest) -> tuple[str, str | None]:
    """The model and version in a request's path."""
    params = request.head.params
    return params["model"], params.get("version")
