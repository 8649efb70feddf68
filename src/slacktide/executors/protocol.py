"""What a server says to its fork server and its workers.

To the fork server: a `SpawnRequest`, as JSON beside four descriptors (SCM_RIGHTS): the worker's
ends of the control and the abort socket, the pool's input arena, the worker's output file. It
answers with the process id and a pidfd, and later reports how the process ended.

To a worker, over a stream socket pair: a frame is a header (u32 length of the body, u32 kind) and a
body. Bodies that matter for speed are arrays of native 64-bit integers: both ends are on one
machine, and one array conversion is cheaper than a struct per tensor. There is no pickle: a worker
gone mad can send wrong numbers, which are checked, and nothing else.

A *tensor* is offset, nbytes, rank, then `rank` dimensions. The bodies, as words:

    BATCH     batch, members, inputs, side of the square that images are resized to (0: none),
              then for each member: rows, a tensor per input; that of an image has four axes if it
              is pixels, else fewer: BYTES, a JPEG for each row
    ABORT     batch                      (on a socket of its own, so that it can overtake)
    STOP      nothing
    CORES     number of cores for the batches that follow
    READY     the model's interface and the worker's sessions as JSON text
    BROKEN    1 if permanent, 2 if it took more memory than it may, else 0; then text: the worker
              cannot go on, and ends
    FINISHED  batch, input ns, infer ns, output ns, cpu ns, bytes of the output file, members,
              outputs, then for each output its runs, until all members have had theirs: members
              of the run, then a tensor: that of the first one; those of the others follow it
    FAULTS    batch, then JSON text: members whose input was wrong, by their place, and why;
              FINISHED follows, with outputs of theirs that mean nothing
    FAILED    batch, then text
    ABORTED   batch
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from slacktide.domain import BatchTiming
from slacktide.domain.padding import PaddedInput, Padding
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.ports import (
    ModelSource,
    OpenedModel,
    OutputRun,
    Payload,
    RowShapes,
    SessionSize,
    TensorRef,
)

_HEADER = struct.Struct("=II")
_WORD: Final = 8
_MAX_BODY: Final = 256 << 20
"""Bytes. Far above any batch; below what a garbled length would make the reader wait for."""
_MAX_RANK: Final = 64


class FrameKind(IntEnum):
    BATCH = 1
    ABORT = 2
    STOP = 3
    READY = 4
    BROKEN = 5
    FINISHED = 6
    FAILED = 7
    ABORTED = 8
    CORES = 9
    FAULTS = 10


class ProtocolError(Exception):
    """A malformed frame: the connection is to be closed."""


class FinishedMessage(NamedTuple):
    """A finished batch as the worker reports it."""

    batch: int
    timing: BatchTiming
    file_bytes: int
    members: int
    outputs: list[list[OutputRun]]
    """Where in the worker's output file the members' parts of each output lie."""


_KINDS = {int(kind): kind for kind in FrameKind}


def frame(kind: FrameKind, body: bytes = b"") -> bytes:
    """A whole frame, ready to send."""
    return _HEADER.pack(len(body), kind) + body


class FrameReader:
    """Cuts a stream into frames. Feed it what `recv` gave."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """The frames completed by `data`. Raises ProtocolError at the first one that is wrong."""
        if self._rest:
            data = self._rest + data
        start, size = 0, len(data)
        while size - start >= _HEADER.size:
            length, number = _HEADER.unpack_from(data, start)
            kind = _KINDS.get(number)
            if kind is None or length > _MAX_BODY:
                raise ProtocolError(f"frame of kind {number} and {length} bytes")
            end = start + _HEADER.size + length
            if end > size:
                break
            # What is left is kept before the frame is handed out: a consumer may stop here.
            self._rest = data[end:] if end < size else b""
            yield kind, data[start + _HEADER.size : end]
            start = end
        self._rest = data[start:] if start else data


def _words(numbers: Iterable[int]) -> bytes:
    return array("q", numbers).tobytes()


def _numbers(body: bytes) -> list[int]:
    words = array("q")
    try:
        words.frombytes(body)
    except ValueError:
        raise ProtocolError(f"{len(body)} bytes are not whole words") from None
    return words.tolist()


def _tensors(words: list[int], at: int, count: int) -> tuple[list[TensorRef], int]:
    """So many tensors from index `at` on, and the index after them."""
    tensors = []
    for _ in range(count):
        offset, nbytes, rank = words[at : at + 3]
        at += 3
        if offset < 0 or nbytes < 0 or not 0 <= rank <= _MAX_RANK:
            raise ProtocolError(f"tensor of {nbytes} bytes and rank {rank} at {offset}")
        tensors.append(TensorRef(offset, nbytes, tuple(words[at : at + rank])))
        at += rank
    return tensors, at


def encode_batch(batch: int, members: Sequence[Payload], size: int = 0) -> bytes:
    """BATCH frame. All members have the same number of tensors, as the model's inputs."""
    inputs = len(members[0].tensors)
    words = [batch, len(members), inputs, size]
    for member in members:
        if len(member.tensors) != inputs:
            raise ValueError(f"members with {inputs} and {len(member.tensors)} tensors in a batch")
        words.append(member.rows)
        for tensor in member.tensors:
            shape = tensor.shape
            words += (tensor.offset, tensor.nbytes, len(shape), *shape)
    return frame(FrameKind.BATCH, _words(words))


def decode_batch(body: bytes) -> tuple[int, list[Payload], int]:
    """Batch id, members and size of a BATCH body."""
    words = _numbers(body)
    members = []
    try:
        batch, count, inputs, size = words[:4]
        _check_counts(count, inputs, len(words))
        at = 4
        for _ in range(count):
            rows = words[at]
            tensors, at = _tensors(words, at + 1, inputs)
            members.append(Payload(rows, tuple(tensors)))
    except (IndexError, ValueError):
        raise ProtocolError("a batch that ends early") from None
    if at != len(words):
        raise ProtocolError("a batch with a false count")
    return batch, members, size


def _check_counts(members: int, tensors: int, words: int) -> None:
    """No count is negative or could keep a loop busy for longer than the message is."""
    if not (0 <= members <= words and 0 <= tensors <= words):
        raise ProtocolError(f"{members} members with {tensors} tensors in {words} words")


def encode_finished(message: FinishedMessage) -> bytes:
    timing = message.timing
    parts = (timing.input_s, timing.infer_s, timing.output_s, timing.cpu_s)
    words = [message.batch, *[round(seconds * 1e9) for seconds in parts]]
    words += (message.file_bytes, message.members, len(message.outputs))
    for runs in message.outputs:
        for run in runs:
            words += (run.members, run.offset, run.nbytes, len(run.shape), *run.shape)
    return frame(FrameKind.FINISHED, _words(words))


def decode_finished(body: bytes) -> FinishedMessage:
    """What `encode_finished` was given (times to the nanosecond)."""
    words = _numbers(body)
    outputs = []
    try:
        batch, input_ns, infer_ns, output_ns, cpu_ns, file_bytes, members, count = words[:8]
        _check_counts(0, count, len(words))
        at = 8
        for _ in range(count):
            runs, left = [], members
            while left > 0:
                alike = words[at]
                if not 0 < alike <= left:
                    raise ProtocolError(f"a run of {alike} members where {left} are left")
                (first,), at = _tensors(words, at + 1, 1)
                runs.append(OutputRun(alike, first.offset, first.nbytes, first.shape))
                left -= alike
            outputs.append(runs)
    except (IndexError, ValueError):
        raise ProtocolError("a result that ends early") from None
    if at != len(words):
        raise ProtocolError("a result with a false count")
    timing = BatchTiming(input_ns / 1e9, infer_ns / 1e9, output_ns / 1e9, cpu_ns / 1e9)
    return FinishedMessage(batch, timing, file_bytes, members, outputs)


def encode_text(kind: FrameKind, number: int, text: str) -> bytes:
    """FAILED or BROKEN: a word and some text."""
    return frame(kind, _words((number,)) + text.encode("utf-8", "replace"))


def decode_text(body: bytes) -> tuple[int, str]:
    return decode_number(body[:_WORD]), body[_WORD:].decode("utf-8", "replace")


def encode_faults(batch: int, faults: Mapping[int, str]) -> bytes:
    return encode_text(FrameKind.FAULTS, batch, json.dumps(faults))


def decode_faults(body: bytes, members: int) -> tuple[int, dict[int, str]]:
    """Batch, and what is wrong with which of its `members`."""
    batch, text = decode_text(body)
    try:
        faults = {int(member): str(detail) for member, detail in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError):
        raise ProtocolError("faults that cannot be read") from None
    if not all(0 <= member < members for member in faults):
        raise ProtocolError(f"faults of other members than {members}")
    return batch, faults


def encode_number(kind: FrameKind, number: int) -> bytes:
    """ABORT, ABORTED or CORES: a word."""
    return frame(kind, _words((number,)))


def decode_number(body: bytes) -> int:
    words = _numbers(body)
    if len(words) != 1:
        raise ProtocolError(f"{len(words)} words where one belongs")
    return words[0]


def encode_ready(opened: OpenedModel) -> bytes:
    document = {
        **opened.interface.to_dict(),
        "sessions": opened.sessions,
        "note": opened.note,
        "row_shapes": dict(opened.row_shapes),
        "cold": opened.cold,
    }
    return frame(FrameKind.READY, json.dumps(document).encode())


def decode_ready(body: bytes) -> OpenedModel:
    try:
        document = json.loads(body)
        sessions = tuple(
            SessionSize(int(threads), int(nbytes)) for threads, nbytes in document["sessions"]
        )
        interface = ModelInterface.from_dict(document)
        shapes = {str(name): tuple(shape) for name, shape in document["row_shapes"].items()}
        return OpenedModel(
            interface, sessions, str(document["note"]), shapes, str(document["cold"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("an interface that cannot be read") from None


DESCRIPTORS: Final = 4
MESSAGE_LIMIT: Final = 1 << 16
"""Bytes of one message; a model with more warm-up shapes than fit is refused."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One worker to be made. `id` is the server's, and comes back in the answer."""

    id: int
    source: ModelSource
    cores: tuple[int, ...]
    device: str

    def encode(self) -> bytes:
        return json.dumps(asdict(self), default=str).encode()  # as text: paths

    @classmethod
    def decode(cls, message: bytes) -> SpawnRequest:
        document = json.loads(message)
        told = document["source"]
        read = {
            "path": Path(told["path"]),
            "root": Path(told["root"]),
            "providers": tuple(told["providers"]),
            "warmup_shapes": _shapes(told["warmup_shapes"]),
            "padding": _padding(told["padding"]),
            "threads": tuple(told["threads"]),
            "more_shapes": tuple(_shapes(more) for more in told["more_shapes"]),
            "samples": None if told["samples"] is None else Path(told["samples"]),
            "sample_rows": {name: Path(path) for name, path in told["sample_rows"].items()},
            "image_sizes": tuple(told["image_sizes"]),
        }
        source = ModelSource(**{**told, **read})
        return cls(document["id"], source, tuple(document["cores"]), document["device"])


def _shapes(document: Mapping[str, Sequence[int]]) -> RowShapes:
    return {name: tuple(shape) for name, shape in document.items()}


def _padding(document: Any) -> Padding | None:
    if document is None:
        return None
    inputs = {name: PaddedInput(**one) for name, one in document["inputs"].items()}
    return Padding(inputs, document["outputs"], tuple(document["lengths"]))
