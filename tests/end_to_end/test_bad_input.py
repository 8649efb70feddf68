"""What bad input gets: a status, a sentence that names the field, and nobody else disturbed."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from slacktide.wire.proto import messages

ROW = [1.0, 0.0, 0.0, 0.0]


@pytest.fixture
def strict(house: Any) -> Iterator[Any]:
    """The common house, which still serves a good request afterwards."""
    yield house
    house.good()


def given(**fields: Any) -> dict[str, Any]:
    """One input of `matmul`, with some fields other than they should be."""
    return {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW, **fields}


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in given().items() if name != field}


JSON_CASES: dict[str, tuple[Any, int, str]] = {
    "wrong name": ({"inputs": [given(name="z")]}, 400, "'z'"),
    "missing input": ({"inputs": []}, 400, "'x'"),
    "input twice": ({"inputs": [given(), given()]}, 400, "inputs"),
    "one too many": ({"inputs": [given(), given(name="y")]}, 400, "'y'"),
    "wrong datatype": ({"inputs": [given(datatype="INT64", data=[1, 0, 0, 0])]}, 400, "datatype"),
    "no datatype at all": ({"inputs": [without("datatype")]}, 400, "datatype"),
    "unknown datatype": ({"inputs": [given(datatype="FP99")]}, 400, "datatype"),
    "wrong shape": ({"inputs": [given(shape=[1, 5], data=[*ROW, 1.0])]}, 400, "shape"),
    "too many axes": ({"inputs": [given(shape=[1, 1, 4])]}, 400, "shape"),
    "negative shape": ({"inputs": [given(shape=[-1, 4])]}, 400, "shape"),
    "no rows": ({"inputs": [given(shape=[0, 4], data=[])]}, 400, "shape"),
    "huge shape": ({"inputs": [given(shape=[2**62, 4])]}, 400, "shape"),
    "shape is no list": ({"inputs": [given(shape="1x4")]}, 400, "shape"),
    "too many rows": ({"inputs": [given(shape=[1025, 4], data=ROW * 1025)]}, 400, "1 to 1024 rows"),
    "too little data": ({"inputs": [given(data=ROW[:3])]}, 400, "data"),
    "too much data": ({"inputs": [given(data=[*ROW, 1.0])]}, 400, "data"),
    "words for numbers": ({"inputs": [given(data=["a", "b", "c", "d"])]}, 400, "data"),
    "no JSON number": ({"inputs": [given(data=[1, True, 0, 0])]}, 400, "data"),
    "ragged data": ({"inputs": [given(data=[[1, 0], [0]])]}, 400, "data"),
    "no data": ({"inputs": [without("data")]}, 400, "data"),
    "half precision in JSON": ({"inputs": [given(datatype="FP16")]}, 400, "FP16"),
    "unknown output": ({"inputs": [given()], "outputs": [{"name": "q"}]}, 400, "'q'"),
    "outputs no list": ({"inputs": [given()], "outputs": "y"}, 400, "outputs"),
    "inputs no list": ({"inputs": "x"}, 400, "inputs"),
    "input no object": ({"inputs": [7]}, 400, "inputs[0]"),
    "no inputs at all": ({}, 400, "inputs"),
    "not an object": ([1, 2], 400, "object"),
    "id no text": ({"id": 7, "inputs": [given()]}, 400, "id"),
    "parameters no object": ({"inputs": [given()], "parameters": 3}, 400, "parameters"),
    "a binary size without binary": (
        {"inputs": [{**without("data"), "parameters": {"binary_data_size": 16}}]},
        400,
        "input",
    ),
    "shared memory": (
        {"inputs": [{**without("data"), "parameters": {"shared_memory_region": "r"}}]},
        400,
        "shared",
    ),
}


@pytest.mark.parametrize("case", JSON_CASES)
def test_bad_json_requests(strict: Any, case: str) -> None:
    document, status, word = JSON_CASES[case]
    answer = strict.infer("matmul", document)
    assert answer.status == status, answer
    assert word in answer.error
    assert_clean(strict, answer.error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b"\xff\xfe",
        b'{"inputs": [}',
        b'{"inputs": NaN}',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"inputs": [{"name":"x","datatype":"FP32","shape":[1,4],"data":[1e999,0,0,0]}]}',
        b'{"inputs": [{"name":"x","datatype":"FP32","shape":[1,4],"data":' + b"[" * 3000 + b"1"
        + b"]" * 3000 + b"}]}",
    ],
    ids=range(10),
)  # fmt: skip
def test_bodies_that_are_no_request(strict: Any, body: bytes) -> None:
    answer = strict.ask(strict.server.http_port, "POST", "/v2/models/matmul/infer", body)
    assert answer.status == 400, answer
    assert answer.error
    assert_clean(strict, answer.error)


def binary(
    head: dict[str, Any], tail: bytes, length: Any = None, **headers: str
) -> tuple[bytes, dict[str, str]]:
    """A request with the binary extension; `length` lies about its JSON's."""
    text = json.dumps(head).encode()
    stated_length = len(text) if length is None else length
    return text + tail, {"Inference-Header-Content-Length": str(stated_length), **headers}


def sized(nbytes: Any) -> dict[str, Any]:
    return {"inputs": [{**without("data"), "parameters": {"binary_data_size": nbytes}}]}


BINARY_CASES: dict[str, tuple[tuple[bytes, dict[str, str]], int]] = {
    "a header longer than the body": (binary(sized(16), bytes(16), 10**6), 400),
    "a negative header": (binary(sized(16), bytes(16), -1), 400),
    "a header that is no number": (binary(sized(16), bytes(16), "ten"), 400),
    "a header that cuts the JSON": (binary(sized(16), bytes(16), 10), 400),
    "a header that is astronomical": (binary(sized(16), bytes(16), 10**30), 400),
    "a size below the tensor's": (binary(sized(12), bytes(12)), 400),
    "a size above what came": (binary(sized(1600), bytes(16)), 400),
    "a size below what came": (binary(sized(16), bytes(32)), 400),
    "a negative size": (binary(sized(-16), bytes(16)), 400),
    "a size that is no number": (binary(sized("16"), bytes(16)), 400),
    "a raw request of the wrong length": ((bytes(20), {"Inference-Header-Content-Length": "0"}),
                                          400),
}  # fmt: skip


@pytest.mark.parametrize("case", BINARY_CASES)
def test_header_lies(strict: Any, case: str) -> None:
    (body, headers), status = BINARY_CASES[case]
    port = strict.server.http_port
    answer = strict.ask(port, "POST", "/v2/models/matmul/infer", body, headers)
    assert answer.status == status, answer
    assert answer.error
    assert_clean(strict, answer.error)


def test_nan_where_the_model_forbids_it(strict: Any) -> None:
    """Everywhere else NaN is a number like any other."""
    for value in (np.nan, np.inf):
        rows = np.array([[1, value, 0, 0]], "<f4").tobytes()
        body, headers = binary(sized(16), rows)
        port = strict.server.http_port
        answer = strict.ask(port, "POST", "/v2/models/picky/infer", body, headers)
        assert (answer.status, "'x'" in answer.error, "finite" in answer.error) == (400, True, True)
        assert strict.ask(port, "POST", "/v2/models/matmul/infer", body, headers).status == 200


def test_more_rows_than_a_request_may_have(strict: Any) -> None:
    """Fewer than a batch holds, where the model's owner says so."""
    answer = strict.infer("picky", {"inputs": [given(shape=[3, 4], data=ROW * 3)]})
    assert (answer.status, "1 to 2 rows" in answer.error) == (400, True)


@pytest.mark.parametrize(
    "tensor",
    [
        struct.pack("<I", 100) + b"short",
        struct.pack("<I", 2**31) + b"x",
        b"\x01\x00",
        struct.pack("<I", 1) + b"x" + struct.pack("<I", 1) + b"y",
    ],
    ids=["too short", "astronomical", "no length", "one too many"],
)
def test_strings_whose_lengths_lie(strict: Any, tensor: bytes) -> None:
    head = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 1],
                        "parameters": {"binary_data_size": len(tensor)}}]}  # fmt: skip
    body, headers = binary(head, tensor)
    answer = strict.ask(strict.server.http_port, "POST", "/v2/models/text/infer", body, headers)
    assert answer.status == 400
    assert "inputs[0]" in answer.error


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────

HUGE = (-1, 5e-324, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**25, 1e300, 1.7e308)
STATED = ("timeout", "network_us", "work_hint", "priority", "sequence_id")


@pytest.mark.parametrize("number", HUGE)
def test_no_number_of_a_client_is_a_fault_of_ours(strict: Any, number: float) -> None:
    """Parameters and headers, with and without numbers in the answer."""
    statuses = set()
    for beside in ({}, {"report_timing": True}, {"timeout": 1}):
        for name in STATED:
            parameters = {**beside, name: number}
            answer = strict.infer("matmul", {**strict.matmul_call(), "parameters": parameters})
            statuses.add(answer.status)
    for name in ("slacktide-network-us", "slacktide-work-hint", "x-request-timeout-seconds"):
        for report in ("true", "false"):
            headers = {name: str(number), "slacktide-report-timing": report}
            answer = strict.infer("matmul", strict.matmul_call(), headers)
            statuses.add(answer.status)
    assert statuses <= {200, 400, 504}


@pytest.mark.parametrize("number", [n for n in HUGE if n != 10**25 and n != 2**64])
def test_no_number_of_a_grpc_client_is_a_fault_of_ours(strict: Any, number: float) -> None:
    kinds = {"double_param": float(number)}
    if isinstance(number, int):
        kinds["uint64_param" if number > 2**63 - 1 else "int64_param"] = number
    statuses, details = set(), []
    with grpc.insecure_channel(strict.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for name in STATED:
            for kind, value in kinds.items():
                for beside in ("report_timing", "final"):
                    request = message()
                    request.parameters[beside].bool_param = True
                    setattr(request.parameters[name], kind, value)
                    try:
                        infer(request.SerializeToString(), timeout=strict.PATIENCE)
                    except grpc.RpcError as error:
                        statuses.add(error.code().name)
                        details.append(error.details())
    assert all("matmul" in text or "expected" in text for text in details)
    assert statuses <= {"INVALID_ARGUMENT", "DEADLINE_EXCEEDED"}


# ── size ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("encoding", "deflate"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_decompression_bombs(strict: Any, encoding: str, deflate: Callable[[bytes], bytes]) -> None:
    """A hundred megabytes in a hundred kilobytes."""
    bomb = deflate(bytes(100 << 20))
    answer = strict.ask(
        strict.server.http_port,
        "POST",
        "/v2/models/matmul/infer",
        bomb,
        {"Content-Encoding": encoding},
    )
    assert answer.status == 413
    assert answer.error


@pytest.mark.parametrize("body", [b"not gzip at all", gzip.compress(b"{}" * 1000, mtime=0)[:-20]])
def test_compressed_bodies_that_are_none(strict: Any, body: bytes) -> None:
    answer = strict.ask(
        strict.server.http_port,
        "POST",
        "/v2/models/matmul/infer",
        body,
        {"Content-Encoding": "gzip"},
    )
    assert answer.status == 400
    assert answer.error


def test_an_oversize_body_is_refused_before_it_is_read(strict: Any) -> None:
    address = ("127.0.0.1", strict.server.http_port)
    with socket.create_connection(address, strict.PATIENCE) as connection:
        connection.sendall(
            b"POST /v2/models/matmul/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400),
        (b"Content-Length: 5\r\nContent-Length: 6", 400),
        (b"Content-Length: -5", 400),
        (b"Content-Length: five", 400),
        (b"Transfer-Encoding: gzip", 501),
    ],
)
def test_lengths_that_contradict_themselves(strict: Any, headers: bytes, status: int) -> None:
    address = ("127.0.0.1", strict.server.http_port)
    with socket.create_connection(address, strict.PATIENCE) as connection:
        connection.sendall(
            b"POST /v2/models/matmul/infer HTTP/1.1\r\nHost: localhost\r\n"
            + headers
            + b"\r\n\r\nhello"
        )
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]


# ── models, paths, methods ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/nobody/infer", 404),
        ("POST", "/v2/models/matmul/versions/9/infer", 404),
        ("POST", "/v2/models/matmul/versions/one/infer", 404),
        ("POST", "/v2/models/..%2f..%2fetc%2fpasswd/infer", 400),
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/nobody/config", 404),
        ("GET", "/v2/models/nobody/stats", 404),
        ("GET", "/v2/models/matmul/versions/9", 404),
        ("GET", "/v2/models/matmul/infer", 405),
        ("DELETE", "/v2/models/matmul", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v2/models/matmul/", 404),
        ("POST", "/v2/repository/elsewhere/index", 501),
        ("GET", "/metrics", 404),
    ],
)
def test_missing_models_and_paths_are_refused(
    strict: Any, method: str, path: str, status: int
) -> None:
    answer = strict.ask(strict.server.http_port, method, path, json.dumps(strict.matmul_call()))
    assert answer.status == status
    assert answer.error
    assert_clean(strict, answer.error)


# ── gRPC ─────────────────────────────────────────────────────────────────────────────────────────


def message(model: str = "matmul", **fields: Any) -> Any:
    request = messages.ModelInferRequest(model_name=model)
    values = {"name": "x", "datatype": "FP32", "shape": [1, 4], **fields}
    raw = values.pop("raw", bytes(16))
    request.inputs.add(**values)
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


def extended(build: Callable[[Any], Any]) -> Any:
    request = message()
    build(request)
    return request


GRPC_CASES: dict[str, tuple[Any, str, str]] = {
    "unknown model": (message("nobody"), "NOT_FOUND", "nobody"),
    "unknown version": (
        extended(lambda r: setattr(r, "model_version", "9")), "NOT_FOUND", "'9'"),
    "no model": (message(""), "NOT_FOUND", "model"),
    "wrong name": (message(name="z"), "INVALID_ARGUMENT", "'z'"),
    "wrong datatype": (message(datatype="INT32"), "INVALID_ARGUMENT", "datatype"),
    "unknown datatype": (message(datatype="FP99"), "INVALID_ARGUMENT", "datatype"),
    "wrong shape": (message(shape=[1, 5], raw=bytes(20)), "INVALID_ARGUMENT", "shape"),
    "huge shape": (message(shape=[2**62, 4]), "INVALID_ARGUMENT", "shape"),
    "negative shape": (message(shape=[-1, 4]), "INVALID_ARGUMENT", "shape"),
    "too many rows": (
        message(shape=[1025, 4], raw=bytes(1025 * 16)), "INVALID_ARGUMENT", "1024 rows"),
    "too few bytes": (message(raw=bytes(15)), "INVALID_ARGUMENT", "raw_input_contents[0]"),
    "too many bytes": (message(raw=bytes(17)), "INVALID_ARGUMENT", "raw_input_contents[0]"),
    "no data": (message(raw=None), "INVALID_ARGUMENT", "x"),
    "one raw tensor too many": (
        extended(lambda r: r.raw_input_contents.append(b"")), "INVALID_ARGUMENT", "raw"),
    "raw and typed mixed": (
        extended(lambda r: r.inputs[0].contents.fp32_contents.extend(ROW)),
        "INVALID_ARGUMENT", "contents"),
    "unknown output": (
        extended(lambda r: r.outputs.add(name="q")), "INVALID_ARGUMENT", "'q'"),
    "NaN": (
        message("picky", raw=np.array([[1, np.nan, 0, 0]], "<f4").tobytes()),
        "INVALID_ARGUMENT", "finite"),
}  # fmt: skip


def over_grpc(house: Any, method: str, message: bytes) -> grpc.RpcError:
    with grpc.insecure_channel(house.grpc) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(message, timeout=house.PATIENCE)
    return refused.value


@pytest.mark.parametrize("case", GRPC_CASES)
def test_bad_grpc_requests(strict: Any, case: str) -> None:
    request, status, word = GRPC_CASES[case]
    error = over_grpc(strict, "ModelInfer", request.SerializeToString())
    assert error.code().name == status, error
    assert word in error.details()
    assert_clean(strict, error.details())


@pytest.mark.parametrize(
    "raw", [b"\xff" * 50, b"\x0a\x7fshort", message().SerializeToString()[:-3]]
)
def test_messages_that_are_none(strict: Any, raw: bytes) -> None:
    error = over_grpc(strict, "ModelInfer", raw)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert_clean(strict, error.details())


def test_a_method_that_does_not_exist(strict: Any) -> None:
    assert over_grpc(strict, "ModelGuess", b"").code() is grpc.StatusCode.UNIMPLEMENTED


def assert_clean(house: Any, text: str) -> None:
    """No path, no trace, no name of ours."""
    assert str(house.zoo.root) not in text
    assert "Traceback" not in text
    assert "site-packages" not in text
    assert ".py" not in text
    assert len(text) < 500
