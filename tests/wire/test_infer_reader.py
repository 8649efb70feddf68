"""Remembered calls mean what they meant the first time, and nothing else is taken for them."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.wire.errors import WireError
from slacktide.wire.infer_reader import MAX_ENTRIES, InferReader
from slacktide.wire.oip_json import parse_infer


def body(rows=2, *, id="", data=None, datatype="FP32", outputs=True):
    tensor = {"name": "x", "shape": [rows, 3], "datatype": datatype}
    tail = b""
    if data is None:
        tail = np.arange(rows * 3, dtype="<f4").tobytes()
        tensor["parameters"] = {"binary_data_size": len(tail)}
    else:
        tensor["data"] = data
    document = {"id": id, "inputs": [tensor], "parameters": {"priority": 2}}
    if outputs:
        document["outputs"] = [{"name": "y", "parameters": {"binary_data": True}}]
    head = orjson.dumps(document)
    return head + tail, len(head)


def plain(pair):
    call, answer = pair
    tensors = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    return call.model, call.version, call.id, tensors, call.outputs, call.parameters, answer


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from(["", "a", "b"]), st.booleans(), st.booleans()),
        max_size=12,
    )
)
def test_reads_as_if_it_remembered_nothing(calls):
    reader = InferReader()
    for rows, id, as_json, outputs in calls:
        data = [[1.0, 2.0, 3.0]] * rows if as_json else None
        message, length = body(rows, id=id, data=data, outputs=outputs)
        assert plain(reader.read("m", "1", message, length)) == plain(
            parse_infer("m", "1", message, length)
        )


def test_tensors_are_the_new_bytes():
    reader = InferReader()
    message, length = body()
    reader.read("m", None, message, length)
    other = message[:length] + b"\1" * (len(message) - length)
    call, _ = reader.read("other", "7", other, length)
    assert (call.model, call.version) == ("other", "7")
    assert bytes(call.inputs[0].data) == b"\1" * 24


@pytest.mark.parametrize("change", [-1, 1])
def test_a_remembered_text_with_another_length_is_still_refused(change):
    reader = InferReader()
    message, length = body()
    reader.read("m", None, message, length)
    wrong = message[:-1] if change < 0 else message + b"\0"
    with pytest.raises(WireError):
        reader.read("m", None, wrong, length)


def test_a_length_beyond_the_body_is_refused_behind_a_remembered_text_too():
    reader = InferReader()
    message, length = body(0)
    assert len(message) == length
    reader.read("m", None, message, length)
    with pytest.raises(WireError, match="Inference-Header-Content-Length"):
        reader.read("m", None, message, length + 1)


def test_strings_are_checked_every_time():
    reader = InferReader()
    tensor = {
        "name": "s",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": 6},
    }
    head = orjson.dumps({"inputs": [tensor]})
    reader.read("m", None, head + b"\2\0\0\0ab", len(head))
    with pytest.raises(WireError):
        reader.read("m", None, head + b"\3\0\0\0ab", len(head))


def test_clients_that_never_repeat_themselves_fill_no_memory():
    reader = InferReader()
    for i in range(MAX_ENTRIES + 10):
        message, length = body(id=str(i))
        reader.read("m", None, message, length)
    assert len(reader._meanings) <= MAX_ENTRIES
