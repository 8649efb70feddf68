"""Suggestions for misspelt words in error messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_SURROGATE = re.compile(r"[\ud800-\udfff]")


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word most similar to `word`, ignoring case; None if none is similar."""
    by_lower = {candidate.lower(): candidate for candidate in valid}
    matches = get_close_matches(word.lower()[:128], by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` to end a message with, or an empty string."""
    candidate = nearest(word, valid)
    return "" if candidate is None else f"; did you mean {candidate!r}?"


def suggestion(word: str, valid: Iterable[str], *, noun: str = "valid") -> str:
    """The end of a message: `did you mean 'x'?`, or else all valid words."""
    valid = tuple(valid)
    if (candidate := nearest(word, valid)) is not None:
        return f"did you mean {candidate!r}?"
    return f"{noun}: {', '.join(valid)}" if valid else f"none is {noun}"


def escaped(text: str) -> str:
    """A file name or path as valid UTF-8: other bytes, which Python holds as surrogates, are
    written `\\xff`."""
    return text if text.isascii() else _SURROGATE.sub(_named_byte, text)


def _named_byte(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def shown(value: object, limit: int = 60) -> str:
    """`value` for a message: its repr, shortened; `nothing` for a key without a value."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
