"""JSON and raw tensor data: exact types, exact ranges, exact layouts."""

from __future__ import annotations

import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.tensors import Datatype
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import (
    MAX_STRINGS,
    check_raw,
    check_shape,
    datatype_of,
    encode_strings,
    from_json,
    split_strings,
    to_json,
)

INTEGERS = [d for d in Datatype if d.wire_name.startswith(("INT", "UINT"))]
JSON_TYPES = [d for d in Datatype if d not in (Datatype.FP16, Datatype.BF16)]


def values_of(datatype: Datatype) -> st.SearchStrategy[object]:
    if datatype is Datatype.BOOL:
        return st.booleans()
    if datatype is Datatype.BYTES:
        return st.text(max_size=6)
    if datatype.is_float:
        return st.floats(width=8 * datatype.itemsize, allow_nan=False, allow_infinity=False)
    limits = np.iinfo(datatype.dtype)
    return st.integers(int(limits.min), int(limits.max))


def through_json(value: object) -> object:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@given(st.data(), st.sampled_from(JSON_TYPES), st.lists(st.integers(0, 3), max_size=3))
def test_json_to_raw_to_json_is_the_same(data, datatype, dims):
    shape = tuple(dims)
    count = math.prod(shape)
    flat = data.draw(st.lists(values_of(datatype), min_size=count, max_size=count))
    raw = from_json(flat, datatype, shape, "data")
    check_raw(raw, datatype, shape, "data")
    back = through_json(to_json(raw, datatype, shape))
    # A float32 is written with as few digits as name it, so it is compared as a float32.
    assert from_json(back, datatype, shape, "data") == raw
    assert datatype is Datatype.FP32 or back == flat


@pytest.mark.parametrize("datatype", JSON_TYPES)
def test_nested_and_flat_lists_mean_the_same(datatype: Datatype):
    flat: list[object] = [0, 1, 2, 3, 4, 5]
    if datatype is Datatype.BOOL:
        flat = [bool(value) for value in flat]
    if datatype is Datatype.BYTES:
        flat = [str(value) for value in flat]
    nested = [flat[:3], flat[3:]]
    assert from_json(nested, datatype, (2, 3), "d") == from_json(flat, datatype, (2, 3), "d")


def test_raw_integers_and_floats_are_little_endian():
    assert from_json([1, -2], Datatype.INT32, (2,), "d") == struct.pack("<ii", 1, -2)
    assert from_json([0.5, 2], Datatype.FP32, (2,), "d") == struct.pack("<ff", 0.5, 2.0)
    assert from_json([True, False], Datatype.BOOL, (2,), "d") == b"\x01\x00"
    assert from_json(["a", "bcé"], Datatype.BYTES, (2,), "d") == (
        b"\x01\x00\x00\x00a\x04\x00\x00\x00bc\xc3\xa9"
    )


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_must_fit(datatype: Datatype):
    limits = np.iinfo(datatype.dtype)
    edge = [int(limits.min), int(limits.max)]
    assert np.frombuffer(from_json(edge, datatype, (2,), "d"), datatype.dtype).tolist() == edge
    for beyond in (int(limits.min) - 1, int(limits.max) + 1):
        with pytest.raises(BadField, match=r"d: expected integers from .* got"):
            from_json([0, beyond], datatype, (2,), "d")


@pytest.mark.parametrize(
    ("datatype", "value", "words"),
    [
        (Datatype.INT32, 1.0, "integers"),
        (Datatype.INT32, True, "integers"),
        (Datatype.UINT8, "1", "integers"),
        (Datatype.UINT64, 1.8446744073709552e19, "integers"),
        (Datatype.FP32, True, "numbers"),
        (Datatype.FP64, "1", "numbers"),
        (Datatype.FP32, 1e39, "range"),
        (Datatype.BOOL, 1, "true or false"),
        (Datatype.BYTES, 1, "strings"),
        (Datatype.FP32, {}, "numbers"),
        (Datatype.FP32, [1], "numbers"),
    ],
)
def test_values_of_another_type_are_refused(datatype: Datatype, value: object, words: str):
    good = {"BOOL": True, "BYTES": "x"}.get(datatype.wire_name, 1)
    with pytest.raises(BadField, match=words):
        from_json([good, value], datatype, (2,), "d")


@pytest.mark.parametrize("count", [10, 20_000])
def test_few_floats_and_many_become_the_same_bytes_and_keep_to_the_same_range(count: int):
    values = [0.1, -3, 3.4028235e38] + [1.5] * (count - 3)
    for datatype in (Datatype.FP32, Datatype.FP64):
        assert (
            from_json(values, datatype, (count,), "d") == np.array(values, datatype.dtype).tobytes()
        )
    for beyond in (-3.5e38, -(10**400)):
        with pytest.raises(BadField, match=r"d: expected values within the range of FP32"):
            from_json([beyond, *values[1:]], Datatype.FP32, (count,), "d")


@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
def test_half_floats_do_not_come_as_json(datatype: Datatype):
    complaint = f"^d: {datatype.wire_name} cannot be sent as JSON; send binary data"
    with pytest.raises(WireError, match=complaint):
        from_json([1.0], datatype, (1,), "d")


@pytest.mark.parametrize(
    "data",
    ["abc", 1, {}, None, [1, 2], [1, 2, 3, 4], [[1, 2], [3]], [[1], 2, 3], [1, [2], 3], []],
)
def test_wrong_counts_and_ragged_lists_are_refused(data: object):
    with pytest.raises(BadField):
        from_json(data, Datatype.INT8, (3,), "d")


def test_deep_nesting_is_refused():
    data: object = [1]
    for _ in range(500):
        data = [data]
    with pytest.raises(BadField, match="levels"):
        from_json(data, Datatype.INT8, (1,), "d")


@pytest.mark.parametrize("datatype", [Datatype.FP32, Datatype.FP64])
@pytest.mark.parametrize("count", [3, 10_000])
def test_null_is_nan_so_that_answers_can_be_sent_back(datatype, count):
    values = np.linspace(-1, 1, count).astype(datatype.dtype)
    values[1] = math.nan
    answer = through_json(to_json(values.tobytes(), datatype, (count,)))
    assert answer[1] is None
    raw = from_json(answer, datatype, (count,), "d")
    assert np.array_equal(np.frombuffer(raw, datatype.dtype), values, equal_nan=True)
    nested = from_json([[None, 1], [2.5, None]], datatype, (2, 2), "d")
    expected = [math.nan, 1, 2.5, math.nan]
    assert np.array_equal(np.frombuffer(nested, datatype.dtype), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["INT32", "UINT8", "BOOL", "BYTES"])
def test_null_is_no_other_value(name):
    datatype = datatype_of(name, "datatype")
    with pytest.raises(BadField, match="d: expected"):
        from_json([None], datatype, (1,), "d")


def test_values_that_json_cannot_express():
    raw = np.array([math.nan, math.inf, 1.0], "<f4").tobytes()
    assert through_json(to_json(raw, Datatype.FP32, (3,))) == [None, None, 1.0]
    half = np.array([1.5, -2.0], "<f2").tobytes()
    assert through_json(to_json(half, Datatype.FP16, (2,))) == [1.5, -2.0]
    brain = (np.array([1.5, -2.0], "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    assert through_json(to_json(brain, Datatype.BF16, (2,))) == [1.5, -2.0]
    assert to_json(encode_strings([b"\xff"]), Datatype.BYTES, (1,)) is None


@given(st.lists(st.binary(max_size=5), max_size=8))
def test_strings_survive_their_layout(elements: list[bytes]):
    raw = encode_strings(elements)
    check_raw(raw, Datatype.BYTES, (len(elements),), "d")
    assert split_strings(raw, len(elements)) == elements


@given(st.binary(max_size=40), st.integers(0, 6))
def test_any_bytes_are_a_layout_or_a_bad_field(raw: bytes, count: int):
    try:
        elements = split_strings(raw, count)
    except BadField:
        return
    assert encode_strings(elements) == raw
    assert len(elements) == count


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (b"", 1),
        (b"\x00\x00\x00\x00", 0),
        (b"\x05\x00\x00\x00abc", 1),
        (b"\xff\xff\xff\xffabc", 1),
        (b"\x01\x00\x00\x00a\x01\x00\x00\x00", 2),
        (b"\x00\x00\x00\x00" * 3, 2),
        (b"\x01\x00\x00\x00a\x00\x00\x00\x00", 2 << 20),
    ],
)
def test_lengths_that_do_not_add_up(raw: bytes, count: int):
    with pytest.raises(BadField):
        check_raw(raw, Datatype.BYTES, (count,), "d")


def test_raw_sizes_are_exact():
    check_raw(bytes(24), Datatype.FP32, (2, 3), "d")
    check_raw(b"", Datatype.FP32, (0, 3), "d")
    with pytest.raises(BadField, match="24 bytes for FP32"):
        check_raw(bytes(23), Datatype.FP32, (2, 3), "d")


@pytest.mark.parametrize(
    "shape", [None, 3, "3", [1.0], [-1], [True], ["1"], [1 << 40, 1 << 40], [1] * 33, [[1]]]
)
def test_bad_shapes(shape: object):
    with pytest.raises(BadField, match="shape"):
        check_shape(shape, "shape")


def test_datatypes_go_by_wire_name():
    assert datatype_of("FP32", "t") is Datatype.FP32
    for bad in ("fp32", "FLOAT", None, 3, ["FP32"]):
        with pytest.raises(BadField, match="one of BOOL"):
            datatype_of(bad, "t")


def test_countless_strings_are_refused_before_they_are_walked():
    lengths = bytes(4 * (MAX_STRINGS + 1))
    assert len(split_strings(lengths[:-4], MAX_STRINGS)) == MAX_STRINGS
    with pytest.raises(BadField, match="at most 131072 strings"):
        split_strings(lengths, MAX_STRINGS + 1)


def test_text_that_no_utf_8_can_say_is_refused():
    with pytest.raises(BadField, match="data: expected a string without lone surrogates"):
        from_json(["ab", "\ud800"], Datatype.BYTES, (2,), "data")
