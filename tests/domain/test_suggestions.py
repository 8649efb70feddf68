"""Names in messages."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.suggestions import escaped


@given(st.binary(max_size=20))
def test_every_file_name_can_be_stated_in_utf_8(name: bytes) -> None:
    text = escaped(os.fsdecode(name))
    text.encode()
    try:
        assert text == name.decode()
    except UnicodeDecodeError:
        assert "\\x" in text


def test_bytes_that_are_no_utf_8_are_escaped_and_other_text_stays() -> None:
    assert escaped(os.fsdecode(b"m\xff")) == "m\\xff"
    assert escaped("café") == "café"
    assert escaped("a\ud800b") == "a\\ud800b"
