"""Encoded requests: what the server's own readers make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype
from slacktide.lab.load.encode import (
    HttpRequest,
    grpc_tensors,
    grpc_timeout,
    http_json,
    http_tensors,
)
from slacktide.lab.load.spec import LoadSpecError, Stream, Target, Transport
from slacktide.lab.load.tensors import Tensors
from slacktide.lab.workloads import Constant
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.grpc_messages import read_request
from slacktide.wire.oip_json import parse_infer
from slacktide.wire.parameters import read_headers

TARGET = Target(Transport.HTTP, "host", 80, base_path="/base", token="t0k")
STREAM = Stream("a model", Constant(1.0), application="cam", parameters={"late": "discard"})
TENSORS = Tensors(
    2,
    (
        InputTensor("x", Datatype.FP32, (2, 1), np.array([1.5, 2.5], "<f4").tobytes()),
        InputTensor("e", Datatype.INT64, (2, 0), b""),
    ),
)


def read(request: HttpRequest, timeout_us: int | None) -> tuple[str, dict[str, str], InferCall]:
    """(request line, headers, call), by the server's own parser."""
    head, _, body = b"".join(request.parts(timeout_us)).partition(b"\r\n\r\n")
    line, *header_lines = head.decode().split("\r\n")
    headers = dict(item.split(": ", 1) for item in header_lines)
    assert int(headers["Content-Length"]) == len(body)
    length = headers.get("Inference-Header-Content-Length")
    call, _ = parse_infer("m", None, body, None if length is None else int(length))
    return line, headers, call


@given(st.one_of(st.none(), st.integers(1, 10**14)))
def test_http_requests_read_back_whatever_the_timeout(timeout_us: int | None) -> None:
    line, headers, call = read(http_tensors(TARGET, STREAM, TENSORS), timeout_us)
    assert line == "POST /base/v2/models/a%20model/infer HTTP/1.1"
    assert headers["Host"] == "host:80"
    assert headers["Authorization"] == "Bearer t0k"
    assert call.parameters == {
        "timeout": min(timeout_us or 0, 10**12 - 1),
        "binary_data_output": True,
        "application": "cam",
        "late": "discard",
    }
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs] == [
        (t.name, t.datatype, t.shape, t.data) for t in TENSORS.inputs
    ]


@given(st.one_of(st.none(), st.integers(1, 10**11)))
def test_headers_that_travel_ahead_name_timeout_and_application(timeout_us: int | None) -> None:
    request = http_tensors(TARGET, STREAM, TENSORS)
    headers, body = b"".join(request.notice(timeout_us)), b"".join(request.body(timeout_us))
    whole = b"".join(request.parts(timeout_us))
    plain, _, payload = whole.partition(b"\r\n\r\n")
    assert (headers.startswith(plain), body) == (True, payload)
    pairs = [line.split(": ", 1) for line in headers.decode().rstrip().split("\r\n")[1:]]
    fields = read_headers((name.lower(), value) for name, value in pairs)
    assert fields.parameters == {"application": "cam"}
    if timeout_us is None:
        assert fields.budget_s is None
    else:
        assert fields.budget_s == pytest.approx(timeout_us / 1e6, abs=1e-6)


@pytest.mark.parametrize("application", ["", "caf\u00e9", "a\r\nHost: other"])
def test_an_application_that_no_header_can_carry_stays_in_the_body(application: str) -> None:
    request = http_tensors(TARGET, replace(STREAM, application=application), TENSORS)
    plain = b"".join(request.parts(None)).partition(b"\r\n\r\n")[0]
    assert b"".join(request.notice(None)) == plain + b"\r\n\r\n"


@given(st.integers(1, 10**14))
def test_grpc_requests_read_back_with_their_timeout(timeout_us: int) -> None:
    message = grpc_tensors(STREAM, TENSORS).message + grpc_timeout()(timeout_us)
    call = read_request(message).call({})
    assert call.model == "a model"
    assert call.parameters == {"timeout": timeout_us, "application": "cam", "late": "discard"}
    assert [bytes(tensor.data) for tensor in call.inputs] == [t.data for t in TENSORS.inputs]


def test_json_bodies_keep_what_they_say_but_not_their_timeout(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    inputs = [{"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 3]}]
    document = {"id": "7", "parameters": {"timeout": 1, "own": 2}, "inputs": inputs}
    path.write_bytes(orjson.dumps(document))
    request = http_json(TARGET, STREAM, path, batches=True)
    assert request.rows == 3
    _, headers, call = read(request, 5000)
    assert headers["Content-Type"] == "application/json"
    assert call.id == "7"
    assert call.parameters == {"timeout": 5000, "own": 2, "application": "cam", "late": "discard"}
    assert np.frombuffer(call.inputs[0].data, "<f4").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "a list 'inputs'"),
        ('{"inputs": [], "parameters": 1}', "'parameters' must be an object"),
    ],
)
def test_bad_json_bodies_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(LoadSpecError, match=complaint):
        http_json(TARGET, STREAM, path, batches=True)
    with pytest.raises(LoadSpecError, match="cannot read"):
        http_json(TARGET, STREAM, tmp_path / "absent.json", batches=True)
