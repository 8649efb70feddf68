"""What the benchmarks' own client makes of an answer."""

from __future__ import annotations

from typing import Any

import pytest
from bench.clients import read_answer

HEAD = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 5\r\nContent-Length: 1000\r\n\r\n"


class Pieces:
    """A connection whose bytes come in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = list(pieces)

    def recv(self, most: int) -> bytes:
        return self.left.pop(0)


def test_an_answer_with_binary_tensors_is_read_to_its_end() -> None:
    connection: Any = Pieces(HEAD, b"\0" * 600, b"\0" * 400)
    read_answer(connection, "test")
    assert connection.left == []


def test_a_refusal_is_an_error_with_its_text() -> None:
    connection: Any = Pieces(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 4\r\n\r\nbusy")
    with pytest.raises(RuntimeError, match="busy"):
        read_answer(connection, "test")
