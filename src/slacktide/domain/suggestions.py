"""The nearest valid word, for messages about a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word most like `word`, whatever its case; None if none is alike."""
    by_lower = {candidate.lower(): candidate for candidate in valid}
    matches = get_close_matches(word.lower()[:128], by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` behind a message, or nothing."""
    candidate = nearest(word, valid)
    return "" if candidate is None else f"; did you mean {candidate!r}?"


def suggestion(word: str, valid: Iterable[str], *, noun: str = "valid") -> str:
    """The tail of a message: `did you mean 'x'?`, or else all that is valid."""
    valid = tuple(valid)
    if (candidate := nearest(word, valid)) is not None:
        return f"did you mean {candidate!r}?"
    return f"{noun}: {', '.join(valid)}" if valid else f"none is {noun}"


def escaped(text: str) -> str:
    """A file's name or path as UTF-8 can state it: bytes that are not UTF-8 become `\\xff`, where
    Python has surrogates for them."""
    return text if text.isascii() else _SURROGATE.sub(_named_byte, text)


def _named_byte(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def shown(value: object, limit: int = 60) -> str:
    """`value` for a message: its repr, cut short; a key without a value has nothing."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
