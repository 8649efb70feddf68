from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors import onnx_runtime
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.tensor_io import (
    InputGatherer,
    TensorError,
    cut_outputs,
    decode_strings,
    encode_strings,
    lay_out,
)
from slacktide.executors.onnx_runtime import ModelError, client_detail
from slacktide.executors.ports import TensorRef
from slacktide.executors.session import ModelSession

FLOATS = TensorSpec("x", Datatype.FP32, (-1, 2))
STRINGS = TensorSpec("s", Datatype.BYTES, (-1,))


def cut(array: Any, spec: TensorSpec, rows: list[int], *, batches: bool = True) -> list[Any]:
    """One output laid out for its members and cut apart again."""
    data, runs = lay_out(array, spec, rows, batches, at=3)
    assert sum(run.members for run in runs) == len(rows)
    return [output for (output,) in cut_outputs([(b"..." + data, runs)])]


def objects(elements: list[Any]) -> Any:
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=8))
def test_strings_come_back(elements: list[str]) -> None:
    assert decode_strings(encode_strings(objects(elements))) == elements


@given(st.binary(max_size=30))
def test_garbled_strings_are_refused_or_read_to_the_end(data: bytes) -> None:
    try:
        elements = decode_strings(data)
    except TensorError:
        elements = None
    assert elements is None or encode_strings(objects(elements)) == data


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_members_are_joined_in_order_and_cut_apart_again(rows: list[int]) -> None:
    memory = bytearray(8192)
    refs, parts = [], []
    at = 4  # not aligned: everything must be copied
    for index, count in enumerate(rows):
        part = np.full((count, 2), index, np.float32)
        memory[at : at + part.nbytes] = part.tobytes()
        refs.append(TensorRef(at, part.nbytes, part.shape))
        parts.append(part)
        at += part.nbytes + 12
    joined = InputGatherer(FLOATS).gather(refs, memoryview(memory))
    assert np.array_equal(joined, np.concatenate(parts))
    assert joined.ctypes.data % 64 == 0
    assert cut(joined, FLOATS, rows) == [(part.shape, part.tobytes()) for part in parts]


def test_a_single_aligned_member_is_not_copied_and_buffers_are_kept(arena: Arena) -> None:
    memory = memoryview(bytearray(1024))
    start = -np.frombuffer(memory, np.uint8).ctypes.data % 64
    memory = memory[start:]
    gatherer = InputGatherer(FLOATS)
    alone = gatherer.gather([TensorRef(64, 16, (2, 2))], memory)
    assert np.shares_memory(alone, np.frombuffer(memory, np.uint8))
    two = [TensorRef(64, 16, (2, 2)), TensorRef(128, 8, (1, 2))]
    first = gatherer.gather(two, memory)
    assert not np.shares_memory(first, np.frombuffer(memory, np.uint8))
    assert np.shares_memory(first, gatherer.gather(two[::-1], memory))


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        ([TensorRef(0, 12, (2, 2))], "does not match its shape"),
        ([TensorRef(0, 16, (2, 2)), TensorRef(64, 12, (1, 3))], "different shapes"),
        ([TensorRef(0, 16, (2, 2)), TensorRef(64, 4, ())], "different shapes"),
        ([TensorRef(1000, 800, (100, 2))], "outside"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(refs: list[TensorRef], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        InputGatherer(FLOATS).gather(refs, memoryview(bytes(1024)))


def test_strings_of_several_members_and_false_counts() -> None:
    data = encode_strings(objects(["a", "bé"])) + encode_strings(objects(["c"]))
    gatherer = InputGatherer(STRINGS)
    refs = [TensorRef(0, 12, (2,)), TensorRef(12, 5, (1,))]
    array = gatherer.gather(refs, memoryview(data))
    assert array.tolist() == ["a", "bé", "c"]
    pieces = cut(array, STRINGS, [2, 1])
    assert b"".join(piece for _, piece in pieces) == data
    assert [shape for shape, _ in pieces] == [(2,), (1,)]
    with pytest.raises(TensorError, match="elements do not match its shape"):
        gatherer.gather([TensorRef(0, 12, (3,))], memoryview(data))
    with pytest.raises(TensorError, match="not UTF-8"):
        decode_strings(b"\x01\0\0\0\xff")


def test_outputs_without_a_batch_axis_stay_whole() -> None:
    scalar = np.array(2.5, np.float32)
    assert cut(scalar, FLOATS, [1], batches=False) == [((), scalar.tobytes())]
    text = objects(["x"])
    assert cut(text, STRINGS, [1], batches=False) == [((1,), b"\x01\0\0\0x")]
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert cut(turned, FLOATS, [3]) == [((3, 2), turned.tobytes())]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ValueError("cannot open /srv/models/a/model.onnx: no\n  File x"), "cannot open …: no"),
        (RuntimeError("Name:'/layer/Conv' at /src/core/op.cc:12 f()"), "Name:'/layer/Conv' at"),
        (MemoryError(), "out of memory"),
        (RuntimeError("std::bad_alloc"), "out of memory"),
        (KeyError(), "KeyError"),
        (ValueError("x" * 900), "x" * 160 + "…" + "x" * 351),
        ("a / b and 3/4 stay", "a / b and 3/4 stay"),
    ],
)
def test_details_show_no_paths(error: BaseException | str, detail: str) -> None:
    shown = client_detail(error)
    assert shown.startswith(detail)
    assert "/src" not in shown
    assert "/srv" not in shown


SIGNATURE = (
    "onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, "
    "std::function<void(int)>, bool) const [with T = float; U = int] "
)


@pytest.mark.parametrize(
    "function",
    [
        SIGNATURE,
        f"static void {SIGNATURE}",
        "onnxruntime::common::Status a::B<int>::Compute(C*) const::<lambda(int)> ",
        "bool a::operator==(const B&, const B&) ",
        "Compute ",
        "a::B::Compute ",
    ],
)
def test_the_reason_is_kept_and_not_the_function_that_says_it(function: str) -> None:
    name = "/".join(f"a_block_with_a_long_name_{number}" for number in range(40))
    reason = "size != 0 (of 7) was false. Input shape:{3,4}, requested shape:{-1,7}"
    place = "/onnxruntime_src/core/providers/reshape_helper.h:84 "
    begin = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape. "
    shown = client_detail(f"{begin}Name:'/{name}' Status Message: {place}{function}{reason}\n")
    assert shown.startswith(begin)
    assert shown.endswith(f"…{shown.partition('…')[2]}")
    assert shown.endswith(f" Status Message: {reason}")
    assert len(shown) == 512
    assert client_detail(f"{place}{function}{reason}") == reason


@pytest.mark.parametrize("field", ["ir_version", "opset"])
def test_onnx_runtimes_own_refusals_end_with_their_reason(
    models: Any, kit: Any, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    onnx_runtime._logged.clear()
    path = models.matmul()
    model = onnx.load(str(path))
    if field == "opset":
        model.opset_import[0].version = 99
    else:
        model.ir_version = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as refused:
        ModelSession.open(kit.source(path), threads=1)
    message = str(refused.value)
    assert "99" in message
    assert re.search(r"(max supported IR version: \d+|till opset \d+\.)$", message)
    assert "::" not in message
    assert "onnxruntime_src" not in message
    assert "ONNX Runtime, in full: " in caplog.text
    assert "onnxruntime::" in caplog.text


def test_lines_below_the_first_are_kept_and_traces_are_not() -> None:
    assert client_detail(
        "Got invalid dimensions\n index: 1 Got: 5\n Please fix\nStacktrace:\n0# f"
    ) == ("Got invalid dimensions index: 1 Got: 5 Please fix")


def test_the_whole_text_is_logged_once_and_not_without_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    onnx_runtime._logged.clear()
    for number in range(100):
        for _ in range(2):
            client_detail(f"a.cc:1 f reason {number}")
    assert len(caplog.messages) == 64
    assert caplog.messages[0] == "ONNX Runtime, in full: a.cc:1 f reason 0"


def test_a_private_path_with_spaces_is_hidden(tmp_path: Any) -> None:
    place = tmp_path / "my models" / "m.onnx"
    shown = client_detail(f"cannot read {place}", place, tmp_path)
    assert shown == "cannot read …"
