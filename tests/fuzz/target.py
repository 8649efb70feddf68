"""`Target`: a parser under attack; and what the targets share."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mutate import Change, of_bytes, of_json, of_message


@dataclass(frozen=True)
class Target:
    """A parser under attack."""

    name: str
    examples: Callable[[], Sequence[bytes]]
    """Inputs that are right."""
    run: Callable[[bytes], None]
    changes: Callable[[Sequence[bytes]], Sequence[Change]]
    """Ways to damage an example; one is drawn for each input."""
    apart: bool = False
    """Runs code that may end its process (C++), so only ever in a process of its own."""


def text(*words: bytes) -> Callable[[Sequence[bytes]], Sequence[Change]]:
    return lambda examples: [of_bytes(examples, words)]


def documents(*words: bytes) -> Callable[[Sequence[bytes]], Sequence[Change]]:
    return lambda examples: [of_json, of_json, of_bytes(examples, words)]


def messages(make: Callable[[], Any]) -> Callable[[Sequence[bytes]], Sequence[Change]]:
    return lambda examples: [of_message(make), of_message(make), of_bytes(examples)]


@cache
def folder() -> Path:
    """For targets that read files; gone with the process."""
    kept = tempfile.TemporaryDirectory(prefix="slacktide-fuzz-")
    atexit.register(kept.cleanup)
    return Path(kept.name)


def sentence(error: Exception, begins: str = "") -> str:
    """What a refusal says: one line that begins like this and tells no path of this machine."""
    message = str(error)
    assert message.startswith(begins)
    assert "\n" not in message
    assert str(folder()) not in message
    return message
