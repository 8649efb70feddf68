"""A process that runs one tokenizer: `python -m slacktide.executors.tokenizer_process FD`.

The first message states what to run. Each further message is a part of a request's texts. Only the
last part is answered: with the request's tensors, or with the reason why there are none. The
process ends when the server's end of its socket closes. `tokenizing.py` is the other end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from slacktide.executors.hand_over.tensor_io import split_elements

HEADER = struct.Struct("<QBQ")
"""Number of the request, whether this is its last part, and bytes that follow."""
ANSWER = struct.Struct("<QBQ")
"""Number of the request, kind and bytes that follow."""
PART, TENSORS, REFUSAL = range(3)
LENGTH = struct.Struct("<Q")
"""Number of tokens in each row; precedes the tensors, which come in the order of `roles`."""
MOST_BYTES = 256 << 20
"""Maximum bytes of a request's tensors, in which short texts are padded to the longest."""
MISSING = "needs the package tokenizers: pip install 'slacktide[text]'"


class Encoder:
    """Makes a request's tensors of its texts."""

    def __init__(self, stated: dict[str, Any]) -> None:
        """`stated`: `path` of the tokenizer.json, and the fields of `TokenizerProcess`. Raises
        ValueError."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ValueError(MISSING) from None
        self._stated = stated
        try:
            self._tokenizer = Tokenizer.from_str(Path(stated["path"]).read_text("utf-8-sig"))
            self._tokenizer.no_padding()
            if stated["max_length"]:
                as_in_file = {**(self._tokenizer.truncation or {}), "stride": 0}
                as_in_file["max_length"] = stated["max_length"]
                self._tokenizer.enable_truncation(**as_in_file)
            self._tokenizer.encode_batch(["a"])
        except Exception as error:  # the package raises plain exceptions
            raise ValueError(f"the tokenizer cannot be opened: {error}") from None

    def encode(self, elements: Sequence[memoryview | bytes], before: int) -> list[Any]:
        """The encodings of these texts. `before`: number of the request's texts in earlier parts.
        Raises ValueError."""
        texts = []
        for index, element in enumerate(elements, before):
            try:
                texts.append(str(element, "utf-8"))
            except UnicodeDecodeError:
                raise ValueError(f"expected UTF-8, element {index} is not") from None
        rows: list[Any] = texts
        if self._stated["pairs"]:
            rows = list(zip(texts[::2], texts[1::2], strict=True))
        try:
            encodings: list[Any] = self._tokenizer.encode_batch_fast(rows)
        except Exception as error:  # the package raises plain exceptions
            last = before + len(elements) - 1
            raise ValueError(f"elements {before} to {last} have no tokens: {error}") from None
        for index, encoding in enumerate(encodings):
            if not len(encoding):
                place = before + index * (1 + self._stated["pairs"])
                raise ValueError(f"expected a text with tokens, element {place} has none")
        return encodings

    def tensors(self, encodings: Sequence[Any]) -> bytes:
        """The rows' length and their tensors. Raises ValueError if they cannot be padded."""
        stated, roles = self._stated, self._stated["roles"]
        longest = max(map(len, encodings))
        length: int = stated["length"] or -(-longest // stated["multiple"]) * stated["multiple"]
        if stated["pad_id"] is None and any(len(row) < length for row in encodings):
            raise ValueError(
                f"expected texts of {length} tokens, since the tokenizer has no padding token and "
                "the model no mask"
            )
        nbytes = len(encodings) * length * sum(np.dtype(dtype).itemsize for _, dtype in roles)
        if nbytes > MOST_BYTES:
            got = f"{len(encodings)} rows of {length} tokens"
            raise ValueError(f"expected texts of at most {MOST_BYTES} bytes of ids, got {got}")
        parts = [LENGTH.pack(length)]
        pads = {"input_ids": stated["pad_id"], "token_type_ids": stated["pad_type_id"]}
        for role, dtype in roles:
            table = np.full((len(encodings), length), pads.get(role) or 0, dtype)
            for row, encoding in zip(table, encodings, strict=True):
                content = {"input_ids": "ids", "token_type_ids": "type_ids"}.get(role)
                numbers = 1 if content is None else getattr(encoding, content)
                count = len(encoding)
                row[length - count if stated["pads_left"] else 0 :][:count] = numbers
            parts.append(table.tobytes())
        return b"".join(parts)


def _serve(stream: BinaryIO, server: socket.socket, encoder: Encoder) -> None:
    """Read and answer requests until the server's end closes."""
    whole: dict[int, tuple[list[Any], int, str]] = {}
    """By request: its encodings so far, its number of texts, and why it is refused."""
    while header := stream.read(HEADER.size):
        number, last, size = HEADER.unpack(header)
        elements = list(split_elements(stream.read(size)))
        encodings, count, refusal = whole.pop(number, ([], 0, ""))
        kind, answer = PART, b""
        try:
            if not refusal:
                encodings += encoder.encode(elements, count)
            if last and not refusal:
                kind, answer = TENSORS, encoder.tensors(encodings)
        except ValueError as error:
            refusal = str(error)
        if not last:
            whole[number] = ([] if refusal else encodings, count + len(elements), refusal)
        elif refusal:
            kind, answer = REFUSAL, refusal.encode()
        server.sendall(ANSWER.pack(number, kind, len(answer)) + answer)


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them and closes our socket
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    server = socket.socket(fileno=int(arguments[0]))
    stream = server.makefile("rb")
    with contextlib.suppress(ConnectionError):
        _, _, size = HEADER.unpack(stream.read(HEADER.size))
        try:
            encoder = Encoder(orjson.loads(stream.read(size)))
        except ValueError as error:
            server.sendall(ANSWER.pack(0, REFUSAL, len(str(error).encode())) + str(error).encode())
            return 1
        server.sendall(ANSWER.pack(0, TENSORS, 0))
        _serve(stream, server, encoder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
