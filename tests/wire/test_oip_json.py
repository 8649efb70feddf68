"""Requests and answers in JSON with binary tensors, good, bad and random."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire.calls import InferReply, OutputValue
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.oip_json import (
    AnswerFormat,
    binary_form,
    format_reply,
    parse_infer,
    write_values,
)
from slacktide.wire.raw_tensors import encode_strings

FP32_DATA = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
FP32_RAW = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}


def parse(document: object, tail: bytes = b"", header: int | None = None):
    head = orjson.dumps(document)
    if tail and header is None:
        header = len(head)
    return parse_infer("m", None, head + tail, header)


def reply(*outputs: OutputValue, request_id: str = "", **parameters) -> InferReply:
    outcome = Outcome(Reason.ON_TIME, at=1.0)
    return InferReply(outcome, "m", "1", request_id, list(outputs), parameters=parameters)


def test_a_plain_json_request():
    call, answer = parse(
        {"id": "7", "parameters": {"timeout": 5, "mine": "x"}, "inputs": [FP32_DATA]}
    )
    assert (call.model, call.version, call.id) == ("m", None, "7")
    assert call.parameters == {"timeout": 5, "mine": "x"}
    assert call.outputs == []
    (tensor,) = call.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", Datatype.FP32, (2,))
    assert bytes(tensor.data) == np.array([1, 2], "<f4").tobytes()
    assert answer == AnswerFormat()


def test_binary_tensors_are_views_into_the_body():
    body = bytearray(orjson.dumps({"inputs": [FP32_RAW]}))
    start = len(body)
    body += bytes(8)
    call, _ = parse_infer("m", "3", body, start)
    body[start] = 9
    assert isinstance(call.inputs[0].data, memoryview)
    assert call.inputs[0].data[0] == 9


def test_the_body_of_the_stock_client():
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.arange(4, dtype="f4").reshape(1, 4))
    text = triton.InferInput("s", [2], "BYTES")
    text.set_data_from_numpy(np.array([b"ab", b""], object))
    body, header = triton.InferenceServerClient.generate_request_body(
        [tensor, text],
        outputs=[triton.InferRequestedOutput("b", binary_data=False), _asked("a")],
        request_id="id",
        priority=2,
        timeout=500,
    )
    call, answer = parse_infer("m", None, bytes(body), header)
    assert bytes(call.inputs[0].data) == np.arange(4, dtype="<f4").tobytes()
    assert bytes(call.inputs[1].data) == encode_strings([b"ab", b""])
    assert call.parameters["priority"] == 2
    assert call.parameters["timeout"] == 500
    assert call.outputs == ["b", "a"]
    assert answer.binary == {"b": False, "a": True}


def _asked(name: str) -> triton.InferRequestedOutput:
    return triton.InferRequestedOutput(name, binary_data=True)


def test_header_parameters_lose_against_the_body():
    body = orjson.dumps({"parameters": {"application": "body"}, "inputs": []})
    call, _ = parse_infer("m", None, body, None, {"application": "header", "late": "discard"})
    assert call.parameters == {"application": "body", "late": "discard"}


def test_a_raw_binary_request():
    call, answer = parse_infer("m", None, b"\x01\x02", 0, {"late": "discard"})
    assert [(t.name, bytes(t.data)) for t in call.inputs] == [("", b"\x01\x02")]
    assert call.parameters == {"late": "discard"}
    assert answer.binary_default


def test_an_answer_in_json():
    value = OutputValue("y", Datatype.INT32, (1, 2), np.array([3, 4], "<i4").tobytes())
    head, buffers = format_reply(reply(value, request_id="q", queue_us=12), AnswerFormat())
    assert buffers == []
    assert orjson.loads(head) == {
        "model_name": "m",
        "model_version": "1",
        "id": "q",
        "parameters": {"queue_us": 12},
        "outputs": [{"name": "y", "datatype": "INT32", "shape": [1, 2], "data": [3, 4]}],
    }


def test_outputs_come_in_the_order_asked_for_each_in_its_form():
    a = OutputValue("a", Datatype.UINT8, (1,), b"\x01")
    b = OutputValue("b", Datatype.UINT8, (2,), b"\x02\x03")
    c = OutputValue("c", Datatype.UINT8, (0,), b"")
    _, answer = parse(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [],
            "outputs": [
                {"name": "c"},
                {"name": "b", "parameters": {"binary_data": False}},
                {"name": "a"},
            ],
        }
    )
    head, buffers = format_reply(reply(a, b, c), answer)
    outputs = orjson.loads(head)["outputs"]
    assert [output["name"] for output in outputs] == ["c", "b", "a"]
    assert outputs[0]["parameters"] == {"binary_data_size": 0}
    assert "parameters" not in outputs[1]
    assert outputs[1]["data"] == [2, 3]
    assert buffers == [b"", b"\x01"]
    assert "id" not in orjson.loads(head)


def test_strings_that_are_not_text_go_as_binary():
    value = OutputValue("s", Datatype.BYTES, (1,), encode_strings([b"\xff\xfe"]))
    head, buffers = format_reply(reply(value), AnswerFormat())
    assert orjson.loads(head)["outputs"][0]["parameters"] == {"binary_data_size": 6}
    assert buffers == [value.data]


def test_null_means_left_out():
    tensor = FP32_DATA | {"parameters": {"binary_data_size": None, "other": None}}
    document = {
        "id": None,
        "parameters": {"timeout": None, "priority": 2, "binary_data_output": None},
        "inputs": [tensor],
        "outputs": [{"name": "y", "parameters": {"binary_data": None, "classification": None}}],
    }
    call, answer = parse_infer("m", None, orjson.dumps(document), None)
    assert (call.id, call.parameters, call.outputs) == ("", {"priority": 2}, ["y"])
    assert call.inputs[0].data == parse_infer(
        "m", None, orjson.dumps({"inputs": [FP32_DATA]}), None
    )[0].inputs[0].data  # fmt: skip
    assert answer.binary_default is False
    assert answer.binary == {}
    both = FP32_DATA | {"data": None, "parameters": {"binary_data_size": 4}, "shape": [1]}
    text = orjson.dumps({"inputs": [both]})
    (read,) = parse_infer("m", None, text + b"abcd", len(text))[0].inputs
    assert bytes(read.data) == b"abcd"


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "-NaN", "nan", "inf", "-inf", "Inf"]
)
@pytest.mark.parametrize("before", ["1.5, ", '"é NaN", ', ""])
def test_numbers_that_are_no_json_are_named_with_their_cure(value, before):
    text = f'{{"inputs": [{{"name": "x", "data": [{before}{value}, 2.0]}}]}}'
    with pytest.raises(WireError, match=r"NaN and Infinity are not JSON.*null.*binary data"):
        parse_infer("m", None, text.encode(), None)


@pytest.mark.parametrize("value", ["naan", "x", "inform", "-"])
def test_other_texts_that_are_no_json_are_not_taken_for_them(value):
    with pytest.raises(WireError, match="invalid JSON at position"):
        parse_infer("m", None, f'{{"inputs": [{value}]}}'.encode(), None)


BAD_DOCUMENTS = {
    "a list": ([], "body"),
    "a string": ("x", "body"),
    "no inputs": ({}, "inputs"),
    "inputs an object": ({"inputs": {}}, "inputs"),
    "input a number": ({"inputs": [3]}, r"inputs\[0\]"),
    "numeric id": ({"id": 7, "inputs": []}, "id"),
    "long id": ({"id": "x" * 2000, "inputs": []}, "id"),
    "parameters a list": ({"parameters": [1], "inputs": []}, "parameters"),
    "parameters zero": ({"parameters": 0, "inputs": []}, "parameters"),
    "nested parameter": ({"parameters": {"a": {}}, "inputs": []}, r"parameters\.a"),
    "binary_data_output": ({"parameters": {"binary_data_output": 1}, "inputs": []}, "binary_data"),
    "nameless": ({"inputs": [FP32_DATA | {"name": ""}]}, r"inputs\[0\]\.name"),
    "numeric name": ({"inputs": [FP32_DATA | {"name": 3}]}, r"inputs\[0\]\.name"),
    "name twice": ({"inputs": [FP32_DATA, FP32_DATA]}, r"inputs\[1\]\.name"),
    "unknown type": ({"inputs": [FP32_DATA | {"datatype": "FP99"}]}, r"inputs\[0\]\.datatype"),
    "no shape": ({"inputs": [FP32_DATA | {"shape": None}]}, r"inputs\[0\]\.shape"),
    "negative": ({"inputs": [FP32_DATA | {"shape": [-1]}]}, r"inputs\[0\]\.shape"),
    "count": ({"inputs": [FP32_DATA | {"shape": [3]}]}, r"inputs\[0\]\.data"),
    "no data": ({"inputs": [{"name": "x", "shape": [2], "datatype": "FP32"}]}, r"\.data"),
    "data twice": ({"inputs": [FP32_DATA | FP32_RAW]}, r"\.data"),
    "no header": ({"inputs": [FP32_RAW]}, "binary_data_size"),
    "size a string": (
        {"inputs": [FP32_RAW | {"parameters": {"binary_data_size": "8"}}]},
        "binary_data_size",
    ),
    "size negative": (
        {"inputs": [FP32_RAW | {"parameters": {"binary_data_size": -8}}]},
        "binary_data_size",
    ),
    "shared memory": (
        {"inputs": [FP32_RAW | {"parameters": {"shared_memory_region": "r"}}]},
        "shared_memory_region",
    ),
    "input parameters": ({"inputs": [FP32_DATA | {"parameters": 3}]}, r"inputs\[0\]\.parameters"),
    "outputs a string": ({"inputs": [], "outputs": "y"}, "outputs"),
    "output a string": ({"inputs": [], "outputs": ["y"]}, r"outputs\[0\]"),
    "output twice": ({"inputs": [], "outputs": [{"name": "y"}] * 2}, r"outputs\[1\]\.name"),
    "binary_data": (
        {"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        "binary_data",
    ),
    "output region": (
        {"inputs": [], "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
        "shared_memory_region",
    ),
    "classification": (
        {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": "3"}}]},
        r"outputs\[0\]\.parameters\.classification",
    ),
    "classification of none": (
        {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        "classification",
    ),
}


def test_classes_are_requested_by_output():
    outputs = [
        {"name": "y", "parameters": {"classification": 3}},
        {"name": "z", "parameters": {"classification": 0, "binary_data": True}},
    ]
    body = orjson.dumps({"inputs": [FP32_DATA], "outputs": outputs})
    call, answer = parse_infer("m", None, body, None)
    assert call.classification == {"y": 3}
    assert answer.binary["z"]
    binary, length = binary_form(body, None)
    assert parse_infer("m", None, binary, length)[0].classification == {"y": 3}
    body = orjson.dumps({"inputs": [FP32_DATA], "outputs": outputs[1:]})
    assert parse_infer("m", None, body, None)[0].classification is None


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_bad_documents_are_refused_naming_the_field(case: str):
    document, field = BAD_DOCUMENTS[case]
    with pytest.raises(BadField, match=field) as caught:
        parse(document)
    assert caught.value.reason is Reason.BAD_INPUT


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 2000])
def test_a_body_that_is_not_json_is_refused(body: bytes):
    with pytest.raises(WireError, match=r"^body: invalid JSON at position \d+: "):
        parse_infer("m", None, body, None)


@pytest.mark.parametrize("sizes", [(8, 7), (8, 9), (9, 8), (7, 8), (1 << 60, 8)])
def test_sizes_that_lie_are_refused(sizes: tuple[int, int]):
    stated_size, came = sizes
    tensor = FP32_RAW | {"parameters": {"binary_data_size": stated_size}}
    with pytest.raises(BadField):
        parse({"inputs": [tensor]}, bytes(came))


def test_no_bytes_of_binary_data_need_no_header():
    tensor = FP32_RAW | {"shape": [0, 2], "parameters": {"binary_data_size": 0}}
    (read,) = parse_infer("m", None, orjson.dumps({"inputs": [tensor]}), None)[0].inputs
    assert (read.shape, bytes(read.data)) == ((0, 2), b"")
    tensor["parameters"] = {"binary_data_size": 8}
    with pytest.raises(BadField, match="Inference-Header-Content-Length"):
        parse_infer("m", None, orjson.dumps({"inputs": [tensor]}), None)


def test_a_json_length_beyond_the_body_is_refused():
    with pytest.raises(BadField, match="Inference-Header-Content-Length"):
        parse_infer("m", None, b"{}", 3)


keys = st.sampled_from(
    [
        "id",
        "inputs",
        "outputs",
        "parameters",
        "name",
        "shape",
        "datatype",
        "data",
        "x",
        "binary_data_size",
        "binary_data",
        "binary_data_output",
        "shared_memory_region",
    ]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "x", ""]),
)
documents = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=5)),
    max_leaves=25,
)


@given(documents, st.binary(max_size=20), st.one_of(st.none(), st.integers(0, 300)))
def test_random_documents_raise_nothing_but_wire_errors(document, tail, header):
    try:
        call, _ = parse_infer("m", None, orjson.dumps(document) + tail, header)
    except WireError:
        return
    assert call.model == "m"
    assert len({tensor.name for tensor in call.inputs}) == len(call.inputs)


@given(st.data())
def test_mutated_requests_raise_nothing_but_wire_errors(data):
    tensor = dict(FP32_RAW)
    target = data.draw(st.sampled_from(sorted(tensor)))
    tensor[target] = data.draw(documents)
    try:
        call, _ = parse({"inputs": [tensor]}, bytes(data.draw(st.integers(1, 12))))
    except WireError:
        return
    for parsed in call.inputs:
        if parsed.datatype is not Datatype.BYTES:
            assert len(parsed.data) == math.prod(parsed.shape) * parsed.datatype.itemsize


@given(
    st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_tensors_sent_as_binary_or_json_arrive_unchanged(rows, forms):
    """A request's tensors, sent back as an answer in the same forms, are the same bytes."""
    inputs, tail = [], b""
    for index, row in enumerate(rows):
        item = {"name": str(index), "shape": [len(row)], "datatype": "INT16"}
        raw = np.array(row, "<i2").tobytes()
        if forms[index]:
            item["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            item["data"] = row
        inputs.append(item)
    outputs = [
        {"name": str(index), "parameters": {"binary_data": forms[index]}}
        for index in range(len(rows))
    ]
    head = orjson.dumps({"inputs": inputs, "outputs": outputs})
    call, answer = parse_infer("m", None, head + tail, len(head))
    values = [OutputValue(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    document, buffers = format_reply(reply(*reversed(values)), answer)
    rest = iter(buffers)
    for row, output in zip(rows, orjson.loads(document)["outputs"], strict=True):
        came = np.frombuffer(next(rest), "<i2").tolist() if "data" not in output else output["data"]
        assert came == row
    assert next(rest, None) is None


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        (Datatype.INT32, np.arange(40_000, dtype=np.int32).tobytes()),
        (Datatype.BYTES, encode_strings([b"\xc3\xa9" * 9] * 40_000)),
    ],
)
def test_outputs_that_are_views_are_written_as_bytes_are(datatype, data):
    """Executors give views where outputs are long."""
    plain = OutputValue("y", datatype, (40_000,), data)
    view = OutputValue("y", datatype, (40_000,), memoryview(data))
    assert [*write_values(view)] == [*write_values(plain)]
    binary = AnswerFormat(binary_default=True)
    assert format_reply(reply(view), binary) == format_reply(reply(plain), binary)
