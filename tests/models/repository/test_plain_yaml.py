"""YAML without surprises: whatever the text, plain data or YamlError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.models.repository.yaml_text import YamlError, parse_yaml, parse_yaml_lines


def test_plain_data() -> None:
    text = "a: 1\nb: [x, 2.5, true, null]\nc: {d: 150ms}\n"
    assert parse_yaml(text) == {"a": 1, "b": ["x", 2.5, True, None], "c": {"d": "150ms"}}
    assert parse_yaml("") is None


def test_dates_stay_text() -> None:
    assert parse_yaml("a: 2026-01-31") == {"a": "2026-01-31"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' is repeated"),
        ("a: {b: 1, b: 2}", "line 1: key 'b' is repeated"),
        ("a: &x [1]\nb: *x", "line 1: anchors and aliases"),
        ("a: *x", "line 1: anchors and aliases"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: tags"),
        ("a: !!binary aGk=", "line 1: tags"),
        ("1: 2", "line 1: expected a string as key"),
        ("? [a]\n: 1", "line 1: expected a string as key"),
        ("a: [", "line 1: "),
        ("--- 1\n--- 2", "line 2: "),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "9" * 5000, "Exceeds the limit"),
        ("a: 9223372036854775808", "line 1: expected a whole number of at most 64 bits"),
        ("a: \x07", "special characters"),
    ],
)
def test_refused_yaml_is_explained(text: str, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merge_keys_are_ordinary_keys() -> None:
    assert parse_yaml("<<: {a: 1}\nb: 2") == {"<<": {"a": 1}, "b": 2}


@given(st.text(alphabet="ab:-[]{},!&*?|>'\"#%@` \n\t0123456789.<=~\\x", max_size=60))
def test_no_text_is_worse_than_a_yaml_error(text: str) -> None:
    try:
        data = parse_yaml(text)
    except YamlError:
        return
    assert data is None or isinstance(data, (dict, list, str, int, float))


def test_every_key_and_element_has_its_line() -> None:
    text = "a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n"
    document, lines = parse_yaml_lines(text)
    assert document == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert lines == {
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
        ("b", 1, "d"): 5,
    }
    assert parse_yaml_lines("") == (None, {})
