"""config.pbtxt and its JSON form, read into plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.models.repository.errors import ModelConfigError
from slacktide.models.repository.triton.messages import fields_of, parse_json, parse_text, to_text

TEXT = """
name: "m"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
dynamic_batching { max_queue_delay_microseconds: 500 }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "a" value { string_value: "b" } }
"""

PLAIN: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}],
    "dynamic_batching": {"max_queue_delay_microseconds": 500},
    "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
    "parameters": {"a": {"string_value": "b"}},
}


def test_text_and_json_give_the_same_plain_data() -> None:
    assert parse_text(TEXT.encode(), where="") == PLAIN
    assert parse_text(b"\xef\xbb\xbf" + TEXT.encode(), where="") == PLAIN
    assert parse_json(json.dumps(PLAIN), where="") == PLAIN
    assert parse_text(to_text(PLAIN), where="") == PLAIN


def test_64_bit_numbers_may_come_as_strings_and_leave_as_numbers() -> None:
    config = parse_json('{"input": [{"dims": ["-1", 4]}]}', where="")
    assert config == {"input": [{"dims": [-1, 4]}]}


def test_a_stated_zero_is_not_nothing() -> None:
    assert parse_text(b"max_batch_size: 0", where="") == {"max_batch_size": 0}
    assert parse_text(b"", where="") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nmax_batch_sise: 3", "line 2: unknown field 'max_batch_sise' in ModelConfig; did you"),
        ("dynamic_batching { delay: 1 }", "line 1: unknown field 'delay' in ModelDynamicBatching"),
        ("input { data_type: TYPE_FP33 }", "unknown value 'TYPE_FP33' of DataType; did you mean"),
        ("input { data_type: 99 }", "data_type: expected one of TYPE_INVALID"),
        ('name: "a" name: "b"', 'should not have multiple "name" fields'),
        ("dynamic_batching {} sequence_batching {}", "another member of oneof"),
        ("max_batch_size: 99999999999", "Value out of range"),
        ("name: 3", "Expected string"),
        ("{", "Expected identifier"),
        ('name: "x', "String missing ending quote"),
        ('name: "\\xff"', "utf-8"),
        ("[a.b/c] {}", "does not have extensions"),
        ("\x00", "Expected identifier"),
    ],
)
def test_mistakes_in_text(text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_text(text.encode(), where="m/config.pbtxt")
    assert message in str(caught.value)
    assert str(caught.value).startswith("m/config.pbtxt: ")


def test_bytes_that_are_no_text_at_all() -> None:
    with pytest.raises(ModelConfigError, match="expected UTF-8"):
        parse_text(b"\xff", where="m/config.pbtxt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"max_batch_sise": 4}', "unknown field 'max_batch_sise' in ModelConfig; did you mean"),
        ('{"input":[{"data_type":"TYPE_FP33"}]}', "unknown value 'TYPE_FP33' of DataType; did"),
        ("[]", "expected a JSON object, got '[]'"),
        ("null", "expected a JSON object"),
        ("", "expected a JSON object"),
        ("{", "Failed to load JSON"),
        ('{"a":' * 5000, "recursion"),
        ('{"max_batch_size":1,"max_batch_size":2}', "duplicate key max_batch_size"),
        ('{"name":1}', "name"),
        ('{"dynamic_batching":3}', "dynamic_batching"),
        ('{"max_batch_size":NaN}', "max_batch_size"),
        ('{"name":"' + "x" * 2**20 + '"}', "expected at most 1048576 characters"),
    ],
)
def test_mistakes_in_json(text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_json(text, where="config")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000


_fields = st.sampled_from([*fields_of("inference.ModelConfig"), "x"])
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.one_of(_fields, st.sampled_from(["dims", "count"])), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(st.dictionaries(_fields, _values, max_size=3))
def test_no_json_is_worse_than_a_config_error(document: dict[str, Any]) -> None:
    try:
        plain = parse_json(json.dumps(document), where="config")
    except ModelConfigError:
        return
    assert parse_text(to_text(plain), where="") == plain


@given(st.text(alphabet='name:"{}[]<>, \n#0123.-\\x/inputdims', max_size=40))
def test_no_text_is_worse_than_a_config_error(text: str) -> None:
    try:
        plain = parse_text(text.encode(), where="m/config.pbtxt")
    except ModelConfigError:
        return
    assert parse_text(to_text(plain), where="") == plain
