"""What is too long for a turn of the loop: in steps, beside it, and counted before it begins."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import zlib

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.executors.hand_over.arena import MemoryBudget
from slacktide.frontends import text_reader
from slacktide.frontends.settings import KIB, MIB
from slacktide.frontends.unpacking import (
    DIRECT_BYTES,
    FREE_BYTES,
    MEMORY_FACTOR,
    MOST_TIMES,
    MOST_TYPED,
    STEP_BYTES,
    Inflation,
    Unpacker,
    states_timeout,
)
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_messages import encode_call, read_request
from slacktide.wire.oip_json import MAX_REST, binary_form, parse_infer
from slacktide.wire.proto.messages import ModelInferRequest

PACK = {b"gzip": gzip.compress, b"deflate": zlib.compress}


def refusal_of(attempt) -> Reason:
    with pytest.raises(WireError) as caught:
        attempt()
    return caught.value.reason


# ------------------------------------------------------------------------------- inflation


@given(
    data=st.binary(max_size=5000), step=st.integers(1, 3000), encoding=st.sampled_from(list(PACK))
)
def test_inflating_in_steps_gives_the_same_and_no_step_gives_more(data, step, encoding):
    inflation = Inflation(PACK[encoding](data), encoding, 10_000)
    before = 0
    while not inflation.step(step):
        assert 0 < len(inflation.data) - before <= step
        before = len(inflation.data)
    assert bytes(inflation.data) == data


@pytest.mark.parametrize("encoding", list(PACK))
def test_a_bomb_is_refused_by_its_ratio_long_before_the_limit_on_bodies(encoding):
    bomb = PACK[encoding](bytes(64 * MIB))
    inflation = Inflation(bomb, encoding, 64 * MIB)
    assert refusal_of(lambda: [inflation.step(STEP_BYTES) for _ in range(64)]) is Reason.TOO_LARGE
    assert len(inflation.data) <= max(FREE_BYTES, MOST_TIMES * len(bomb)) + 1
    assert len(inflation.data) < 16 * MIB


def test_zeros_may_inflate_to_a_megabyte_whatever_their_ratio():
    inflation = Inflation(zlib.compress(bytes(FREE_BYTES)), b"deflate", 64 * MIB)
    assert inflation.step(2 * FREE_BYTES)


def test_a_black_frame_may_inflate_to_what_its_model_takes():
    frame = 1080 * 1920 * 3
    packed = zlib.compress(bytes(frame + 500))
    assert len(packed) * MOST_TIMES < frame
    assert Inflation(packed, b"deflate", 64 * MIB, largest=frame).step(frame + MIB)
    assert refusal_of(lambda: Inflation(packed, b"deflate", MIB, frame).step(64 * MIB))
    bomb = Inflation(zlib.compress(bytes(4 * frame)), b"deflate", 64 * MIB, frame)
    with pytest.raises(WireError, match="over 200 times its length; send it unc"):
        bomb.step(64 * MIB)
    assert len(bomb.data) <= frame + FREE_BYTES + 1


@pytest.mark.parametrize("size", [10, 300_000])
def test_broken_cut_and_padded_streams_are_refused_at_any_length(size):
    whole = zlib.compress(os.urandom(size))
    for bad in (
        whole[:-3],
        whole + b"x",
        b"x" + whole,
        whole[: size // 2] + b"\xff" + whole[size // 2 :],
    ):
        inflation = Inflation(bad, b"deflate", MIB)
        assert refusal_of(lambda: inflation.step(MIB)) is Reason.BAD_INPUT  # noqa: B023


async def test_memory_of_an_inflation_is_counted_before_each_step_and_given_back():
    budget = MemoryBudget(100 * MIB, per_owner=6 * STEP_BYTES)
    unpacker = Unpacker(budget)
    data = os.urandom(4 * MIB)
    packed = zlib.compress(data, 1)
    inflation = Inflation(packed, b"deflate", 64 * MIB)
    with pytest.raises(WireError) as caught:
        await unpacker.inflate(inflation, "c")
    assert caught.value.reason is Reason.CLIENT_LIMIT
    assert len(inflation.data) <= 3 * STEP_BYTES
    assert budget.bytes_in_use == 0
    other = await unpacker.inflate(Inflation(packed[:0] + zlib.compress(b"x"), b"deflate", 9), "d")
    assert other == b"x"
    unpacker.close()


# ------------------------------------------------------------------------------- the same in binary

DOCUMENT = {
    "id": "r",
    "parameters": {"slacktide_timeout": 5, "text": "é"},
    "inputs": [
        {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1.5, 2], [3, 4]]},
        {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["x", "yé"]},
        {"name": "none", "datatype": "INT64", "shape": [0], "data": []},
    ],
    "outputs": [{"name": "o"}, {"name": "p", "parameters": {"binary_data": True}}],
}


@pytest.mark.parametrize("default", [None, False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_the_binary_form_means_the_same(default, binary):
    document = orjson.loads(orjson.dumps(DOCUMENT))
    if default is not None:
        document["parameters"]["binary_data_output"] = default
    tail = b""
    if binary:
        document["inputs"].append(
            {"name": "b", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}}
        )
        tail = b"abc"
    head = orjson.dumps(document)
    length = len(head) if binary else None
    form, form_length = binary_form(head + tail, length)
    call, answer = parse_infer("m", None, head + tail, length)
    again, answer_again = parse_infer("m", None, form, form_length)
    assert [bytes(t.data) for t in again.inputs] == [bytes(t.data) for t in call.inputs]
    assert [(t.name, t.datatype, t.shape) for t in again.inputs] == [
        (t.name, t.datatype, t.shape) for t in call.inputs
    ]
    assert (again.id, again.outputs, again.parameters) == (call.id, call.outputs, call.parameters)
    for name in ("o", "p", "other"):
        wanted = answer.binary.get(name, answer.binary_default)
        assert answer_again.binary.get(name, answer_again.binary_default) is wanted
    assert answer_again.order == answer.order


def test_long_json_that_is_no_data_is_refused():
    document = {"inputs": [], "parameters": {"x": "a" * MAX_REST}}
    assert refusal_of(lambda: binary_form(orjson.dumps(document), None)) is Reason.TOO_LARGE


# ------------------------------------------------------------------------------- another process


def long_json(values: int) -> bytes:
    data = list(range(values))
    tensor = {"name": "x", "datatype": "INT32", "shape": [values], "data": data}
    return orjson.dumps({"inputs": [tensor]})


def typed_message(values: int) -> bytes:
    request = ModelInferRequest(model_name="m", id="r")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[values])
    tensor.contents.fp32_contents.extend(range(values))
    return request.SerializeToString()


async def test_texts_with_a_deadline_are_read_at_normal_priority_and_behind_no_others():
    unpacker = Unpacker(MemoryBudget(1024 * MIB))
    text, message = long_json(100_000), typed_message(50_000)
    await unpacker.binary_form(text, None, "c", urgent=True)
    await unpacker.raw_form(message, "c", urgent=True)
    await unpacker.binary_form(text, None, "c")
    readers = unpacker._readers
    urgent, patient = readers[True, True]._process, readers[True, False]._process
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, urgent.pid) == ours
    assert os.getpriority(os.PRIO_PROCESS, patient.pid) > ours or ours == 19
    unpacker.close()


@pytest.mark.parametrize(
    ("body", "stated"),
    [
        (b'{"parameters":{"timeout":5},"inputs":[' + b"0," * 9000, True),
        (b"[" + b"0," * 9000 + b'],"parameters":{"timeout":5}}', True),
        (
            b'{"id":"'
            + b"a" * 30_000
            + b'","parameters":{"timeout":5},"inputs":['
            + b"0," * 90_000,
            True,
        ),
        (
            b"[" + b"0," * 90_000 + b'],"parameters":{"timeout":5,"a":"' + b"a" * 30_000 + b'"}}',
            True,
        ),
        (b"[" + b"0," * 9000, False),
        (b"", False),
    ],
)
def test_a_deadline_is_seen_before_a_text_is_read(body, stated):
    assert states_timeout(body) is stated
    assert states_timeout(memoryview(body)) is stated


async def test_long_texts_are_read_by_a_nice_process_and_their_memory_is_counted():
    budget = MemoryBudget(1024 * MIB)
    unpacker = Unpacker(budget)
    text = long_json(100_000)
    reader = unpacker._readers[True, False]
    start, counted = reader._start, []

    def begin() -> None:
        counted.append(budget.owned("c"))
        start()

    reader._start = begin
    form, length = await unpacker.binary_form(text, None, "c")
    assert counted == [MEMORY_FACTOR * len(text)]
    assert budget.bytes_in_use == 0
    call, _ = parse_infer("m", None, form, length)
    assert bytes(call.inputs[0].data) == np.arange(100_000, dtype=np.int32).tobytes()
    message = await unpacker.raw_form(typed_message(50_000), "c")
    (raw,) = read_request(message).raw
    assert bytes(raw) == np.arange(50_000, dtype=np.float32).tobytes()
    process = unpacker._readers[True, False]._process
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, ours + text_reader.NICENESS)
    assert unpacker._readers[False, False]._process is None  # none for middling ones was needed
    unpacker.close()
    while process.poll() is None:
        await asyncio.sleep(0.01)


async def test_errors_of_long_and_short_texts_are_the_same():
    unpacker = Unpacker()
    bad = long_json(10_000).replace(b",77,", b',"77",')
    with pytest.raises(WireError) as caught:
        await unpacker.binary_form(bad, None, "c")
    with pytest.raises(WireError) as directly:
        parse_infer("m", None, bad, None)
    assert (caught.value.reason, caught.value.message) == (
        directly.value.reason,
        directly.value.message,
    )
    assert caught.value.message.startswith("inputs[0].data: expected integers")
    unpacker.close()


async def test_a_text_whose_memory_does_not_fit_is_refused_before_it_is_read():
    text = long_json(10_000)
    unpacker = Unpacker(MemoryBudget(MEMORY_FACTOR * len(text) - 1))
    with pytest.raises(WireError) as caught:
        await unpacker.binary_form(text, None, "c")
    assert caught.value.reason is Reason.MEMORY_LIMIT
    assert unpacker._readers[False, False]._process is None
    unpacker.close()


async def test_a_process_that_dies_costs_one_request():
    budget = MemoryBudget(1024 * MIB)
    unpacker = Unpacker(budget)
    text = long_json(10_000)
    whole = await unpacker.binary_form(text, None, "c")
    unpacker._readers[False, False]._process.send_signal(signal.SIGKILL)
    with pytest.raises(WireError) as caught:
        await unpacker.binary_form(text, None, "c")
    assert caught.value.reason is Reason.RUNTIME_ERROR
    assert await unpacker.binary_form(text, None, "c") == whole
    assert budget.bytes_in_use == 0
    unpacker.close()


async def test_memory_of_a_text_that_its_client_gave_up_is_counted_until_the_work_is_over():
    budget = MemoryBudget(1024 * MIB)
    unpacker = Unpacker(budget)
    text = long_json(10_000)
    gone = asyncio.ensure_future(unpacker.binary_form(text, None, "c"))
    behind = asyncio.ensure_future(unpacker.binary_form(text, None, "c"))
    while not budget.bytes_in_use:
        await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert gone.cancelled()
    assert budget.owned("c") == MEMORY_FACTOR * len(text)  # one at a time
    await behind
    assert budget.bytes_in_use == 0
    unpacker.close()


async def test_short_messages_and_raw_tensors_of_any_length_are_left_alone():
    unpacker = Unpacker()
    raw = InputTensor("x", Datatype.UINT8, (MIB,), bytes(MIB))
    for message in (typed_message(100), encode_call(InferCall("m", None, "r", [raw], []))):
        assert await unpacker.raw_form(message, "c") is message
    with pytest.raises(WireError) as caught:
        await unpacker.raw_form(typed_message(MOST_TYPED // 4 + 1), "c")
    assert caught.value.reason is Reason.TOO_LARGE
    unpacker.close()


def test_the_direct_way_is_for_short_ones():
    assert len(long_json(1000)) < DIRECT_BYTES < len(long_json(10_000)) < 128 * KIB
