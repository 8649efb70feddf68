"""Requests as bytes, made once before the run, so that sending one costs next to nothing.

Only the timeout, the time left until the deadline, differs between two sends of a payload. Over
HTTP, it has a fixed width in the JSON (spaces may precede a JSON number), so no length changes; if
headers travel ahead of the body, a header repeats the timeout. Over gRPC, the timeout is appended
to the message: protobuf merges concatenated messages, and maps key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from slacktide.lab.load.spec import LoadSpecError, Stream, Target
from slacktide.lab.load.tensors import Tensors
from slacktide.wire.calls import InferCall, Parameter
from slacktide.wire.parameters import (
    BYTES_HEADER,
    MODEL_KEY,
    PARAMETER_HEADERS,
    TIMEOUT_HEADERS,
    VERSION_KEY,
)

Metadata = tuple[tuple[str, str], ...]

_WIDTH = 12
"""Digits reserved for the timeout: 10¹² µs are eleven days."""
_LONGEST = 10**_WIDTH - 1
_TIMEOUT_HEADER = next(name for name, unit in TIMEOUT_HEADERS.items() if unit == 1.0).encode()
"""The timeout header in seconds."""
_APPLICATION_HEADER = next(
    name for name, parameter in PARAMETER_HEADERS.items() if parameter == "application"
).encode()


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request, cut at the place of its timeout."""

    head: bytes
    tail: bytes
    """Empty: the request is `head` alone and carries no timeout."""
    rows: int
    body_at: int
    """Offset of the body in `head`."""
    application: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, except the few extra headers of `notice`."""
        return len(self.head) + len(self.tail) + (_WIDTH if self.tail else 0)

    def parts(self, timeout_us: int | None) -> Sequence[bytes]:
        """Return the buffers to send. None is sent as timeout 0, which servers treat as none."""
        return (self.head, *self._trailing_buffers(timeout_us))

    def notice(self, timeout_us: int | None) -> Sequence[bytes]:
        """Return only the headers, extended by the facts that a server needs before the body
        arrives: the timeout and the application."""
        lines = [self.head[: self.body_at - 2]]  # without the empty line
        if self.tail and timeout_us is not None:
            lines.append(b"%b: %.6f\r\n" % (_TIMEOUT_HEADER, min(timeout_us, _LONGEST) / 1e6))
        if self.application:
            lines.append(b"%b: %b\r\n" % (_APPLICATION_HEADER, self.application))
        return (*lines, b"\r\n")

    def body(self, timeout_us: int | None) -> Sequence[bytes]:
        """Return the buffers that follow the headers."""
        return (self.head[self.body_at :], *self._trailing_buffers(timeout_us))

    def _trailing_buffers(self, timeout_us: int | None) -> Sequence[bytes]:
        if not self.tail:
            return ()
        return (b"%*d" % (_WIDTH, min(timeout_us or 0, _LONGEST)), self.tail)


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """A serialized ModelInferRequest, to which a timeout may be added."""

    message: bytes
    rows: int
    model: str = ""
    version: str = ""
    application: str = ""
    """Empty if the name is not ASCII, which gRPC metadata require."""

    @property
    def nbytes(self) -> int:
        """Bytes of the message without the timeout."""
        return len(self.message)

    def notice(self, nbytes: int, timeout_us: int | None) -> Metadata:
        """Return metadata with the facts that a server can use before a message of `nbytes` is
        complete: model, version, timeout and application."""
        metadata = [(BYTES_HEADER, str(nbytes)), (MODEL_KEY, self.model)]
        if self.version:
            metadata.append((VERSION_KEY, self.version))
        if timeout_us is not None:
            metadata.append((_TIMEOUT_HEADER.decode(), f"{min(timeout_us, _LONGEST) / 1e6:.6f}"))
        if self.application:
            metadata.append((_APPLICATION_HEADER.decode(), self.application))
        return tuple(metadata)


def http_tensors(target: Target, stream: Stream, tensors: Tensors) -> HttpRequest:
    """Return an inference request with binary tensors that asks for binary outputs."""
    inputs = [
        {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype.wire_name,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors.inputs
    ]
    parameters = {"binary_data_output": True, **_parameters(stream)}
    tail = b"".join(bytes(tensor.data) for tensor in tensors.inputs)
    return _http(target, stream, parameters, {"inputs": inputs}, tail, tensors.rows)


def http_json(target: Target, stream: Stream, path: Path, *, batches: bool) -> HttpRequest:
    """Return a request with the JSON body in a file. Raises LoadSpecError naming the file."""
    try:
        document: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise LoadSpecError("payload", f"cannot read {path}: {error.strerror}") from None
    except orjson.JSONDecodeError as error:
        raise LoadSpecError("payload", f"{path.name} is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("inputs"), list):
        raise LoadSpecError("payload", f"{path.name}: expected an object with a list 'inputs'")
    stated = document.pop("parameters", {})
    if not isinstance(stated, dict):
        raise LoadSpecError("payload", f"{path.name}: 'parameters' must be an object")
    stated.pop("timeout", None)
    return _http(
        target, stream, {**stated, **_parameters(stream)}, document, None, _rows(document, batches)
    )


def grpc_tensors(stream: Stream, tensors: Tensors) -> GrpcRequest:
    """Return an inference request for gRPC."""
    from slacktide.wire.grpc_messages import encode_call

    call = InferCall(
        model=stream.model,
        version=stream.version,
        id="",
        inputs=list(tensors.inputs),
        parameters=dict(_parameters(stream)),
    )
    return GrpcRequest(
        encode_call(call),
        tensors.rows,
        stream.model,
        stream.version or "",
        _for_headers(stream.application).decode(),
    )


def grpc_timeout() -> Callable[[int], bytes]:
    """Return a function from microseconds to the bytes to append to a message as its timeout."""
    from slacktide.wire.proto.messages import ModelInferRequest

    message = ModelInferRequest()
    parameter = message.parameters["timeout"]

    def suffix(timeout_us: int) -> bytes:
        parameter.int64_param = timeout_us
        return message.SerializeToString()

    return suffix


def common_headers(target: Target) -> dict[str, str]:
    """Return the headers of every request to `target`."""
    headers = {"Host": target.authority}
    if target.token is not None:
        headers["Authorization"] = f"Bearer {target.token}"
    return headers


def format_head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parameters(stream: Stream) -> Mapping[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    if stream.application:
        parameters["application"] = stream.application
    if stream.priority:
        parameters["priority"] = stream.priority
    return {**parameters, **stream.parameters}


def _http(
    target: Target,
    stream: Stream,
    parameters: Mapping[str, Parameter],
    document: Mapping[str, Any],
    binary: bytes | None,
    rows: int,
) -> HttpRequest:
    """Return a request. `binary`: tensors that follow the JSON; None: the request is only JSON."""
    encoded = orjson.dumps(parameters)[1:]  # without its opening brace
    before = b'{"parameters":{"timeout":'
    after = (b"," if parameters else b"") + encoded + b"," + orjson.dumps(document)[1:]
    length = len(before) + _WIDTH + len(after)
    headers = {"Content-Type": "application/json"}
    if binary is not None:
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(length),
        }
    tail = after + (binary or b"")
    version = f"/versions/{quote(stream.version, safe='')}" if stream.version else ""
    path = f"/v2/models/{quote(stream.model, safe='')}{version}/infer"
    head = _head(target, path, len(before) + _WIDTH + len(tail), headers)
    application = _for_headers(stream.application)
    return HttpRequest(head + before, tail, rows, len(head), application)


def _for_headers(application: str) -> bytes:
    """Return a name as header bytes; empty if no header can carry it (it stays in the body)."""
    plain = application.isascii() and application.isprintable()
    return application.encode() if plain else b""


def _head(target: Target, path: str, length: int, headers: Mapping[str, str]) -> bytes:
    every = {**common_headers(target), **headers, "Content-Length": str(length)}
    return format_head("POST", target.base_path + path, every)


def _rows(document: Mapping[str, Any], batches: bool) -> int:
    """Return the rows of a request from a file: the first axis of its first input."""
    try:
        return int(document["inputs"][0]["shape"][0]) if batches else 1
    except (KeyError, IndexError, TypeError, ValueError):
        return 1
