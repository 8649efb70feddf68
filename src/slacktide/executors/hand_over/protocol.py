"""The messages between a server and a worker.

They travel over a stream socket pair. A frame is a header (u32 length of the body, u32 kind) and a
body. Bodies that matter for speed are arrays of native 64-bit integers: both ends are on one
machine, and one array conversion is cheaper than a struct per tensor. There is no pickle: the worst
that a faulty worker can send is wrong numbers, and these are checked.

A *tensor* is offset, nbytes, rank, then `rank` dimensions. The bodies, as words:

    BATCH     batch, members, inputs, side of the square that images are resized to (0: they are
              not), whether members may leave early (0: no; 1: yes, and their rows run on; 2: yes,
              and their rows leave the batch). Then for each member: its rows, and one tensor per
              input (an image has four axes if it is pixels, fewer if it is BYTES with one JPEG per
              row). Then the places of members that may not leave early
    ABORT     batch                      (on a socket of its own, to overtake batches)
    ATTACH    number of a frame arena, its glue as JSON text; the message carries its descriptor
    DETACH    number of a frame arena    (on the socket of ABORT, like ATTACH; a batch waits until
              its arenas are attached)
    CROPS     sent before the BATCH that it belongs to. For each member: place, number of the
              arena, bytes of boxes, number and sizes of the glue's values, the boxes, the values
    STOP      nothing
    CORES     number of cores for the batches that follow
    READY     the model's interface and the worker's sessions as JSON text
    BROKEN    1 (permanent), 2 (memory limit exceeded) or 0; then text. The worker ends
    FINISHED  batch, input ns, infer ns, output ns, CPU ns of all threads, CPU ns of the thread that
              ran the batch, bytes of the output file, members, outputs, then for each output its
              runs, until all members are covered: number of members in the run, then the tensor of
              its first member; in the file, the other members' tensors lie behind it. Members
              that were RELEASED are omitted. At the end, if the model has ramps, their report
    FAULTS    batch, then JSON text: places of members without rows, each with the reason and
              whether a glue function is at fault. FINISHED follows; ignore their outputs in it
    ROWS      batch, then text: outputs and inputs differ in their number of rows. FINISHED or
              FAILED follows
    DAMAGED   batch, number of pictures that may be damaged but were decoded. FINISHED follows
    FAILED    batch, then text
    ABORTED   batch, then the ramps' report up to then
    EXITS     the policy of early exits from now on, as JSON text
    ARRANGED  the stages that batches run through from now on, as JSON text
    RELEASED  batch, position of the ramp, bytes of the output file, members, outputs, places of the
              members, then their outputs as in FINISHED
    FEATURES  rows, positions, bytes of the JSON text that names them, floats per row of each
              position, of the logits and of the memory; then that text and all floats
    REMEMBERED  sent before BATCH: whether the batch refreshes what is remembered. Sent by a worker
              before FINISHED: batch. Then for each member, place and bytes of the content; then
              the contents
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import Final, NamedTuple

from slacktide.domain import BatchTiming, ExitReport, Leaving
from slacktide.domain.padding import PaddedOutput
from slacktide.domain.tensors import ModelInterface
from slacktide.executors.ports import (
    BatchOrder,
    MemberFault,
    OpenedModel,
    OutputRun,
    Payload,
    PicturesDamaged,
    SessionSize,
    TensorRef,
)

_HEADER = struct.Struct("=II")
_WORD: Final = 8
_MAX_BODY: Final = 256 << 20
"""Bytes: far above any batch, but few enough that a garbled length is noticed."""
_MAX_RANK: Final = 64
_MAX_RAMPS: Final = 62
"""Maximum number of ramps: each takes one bit of a word."""
_LEAVING: Final = (Leaving.NONE, Leaving.RUN_ON, Leaving.SHRINK)


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
    EXITS = 11
    ARRANGED = 12
    RELEASED = 13
    FEATURES = 14
    ATTACH = 15
    DETACH = 16
    CROPS = 17
    ROWS = 18
    DAMAGED = 19
    REMEMBERED = 20


class ProtocolError(Exception):
    """A malformed frame. Close the connection."""


class FinishedMessage(NamedTuple):
    """A worker's report of a finished batch."""

    batch: int
    timing: BatchTiming
    file_bytes: int
    members: int
    """Number of members, without those released earlier."""
    outputs: list[list[OutputRun]]
    """Place of each output's parts in the worker's output file."""
    exits: ExitReport | None = None


_KINDS = {int(kind): kind for kind in FrameKind}


def frame(kind: FrameKind, body: bytes = b"") -> bytes:
    """A complete frame, ready to send."""
    return _HEADER.pack(len(body), kind) + body


class FrameReader:
    """Cuts a stream of received bytes into frames."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Frames completed by `data`. Raises ProtocolError at the first malformed frame."""
        if self._tail:
            data = self._tail + data
        start, size = 0, len(data)
        while size - start >= _HEADER.size:
            length, number = _HEADER.unpack_from(data, start)
            kind = _KINDS.get(number)
            if kind is None or length > _MAX_BODY:
                raise ProtocolError(f"frame of kind {number} and {length} bytes")
            end = start + _HEADER.size + length
            if end > size:
                break
            # Set before the frame is yielded, because the consumer may stop here.
            self._tail = data[end:] if end < size else b""
            yield kind, data[start + _HEADER.size : end]
            start = end
        self._tail = data[start:] if start else data


def to_bytes(numbers: Iterable[int]) -> bytes:
    """Encode a body of words."""
    return array("q", numbers).tobytes()


def to_words(body: bytes) -> list[int]:
    """Decode a body of words. Raises ProtocolError."""
    words = array("q")
    try:
        words.frombytes(body)
    except ValueError:
        raise ProtocolError(f"{len(body)} bytes are not whole words") from None
    return words.tolist()


def _tensors(words: list[int], at: int, count: int) -> tuple[list[TensorRef], int]:
    """Read `count` tensors from index `at` on. Returns them and the index after them."""
    tensors = []
    for _ in range(count):
        offset, nbytes, rank = words[at : at + 3]
        at += 3
        if offset < 0 or nbytes < 0 or not 0 <= rank <= _MAX_RANK:
            raise ProtocolError(f"tensor of {nbytes} bytes and rank {rank} at {offset}")
        tensors.append(TensorRef(offset, nbytes, tuple(words[at : at + rank])))
        at += rank
    return tensors, at


def encode_batch(order: BatchOrder) -> bytes:
    """Encode BATCH. Every member has as many tensors as the model has inputs."""
    members = order.members
    inputs = len(members[0].tensors)
    words = [order.batch, len(members), inputs, order.size, _LEAVING.index(order.leaving)]
    for member in members:
        if len(member.tensors) != inputs:
            raise ValueError(f"members with {inputs} and {len(member.tensors)} tensors in a batch")
        words.append(member.rows)
        for tensor in member.tensors:
            shape = tensor.shape
            words += (tensor.offset, tensor.nbytes, len(shape), *shape)
    words += order.final
    return frame(FrameKind.BATCH, to_bytes(words))


def decode_batch(body: bytes) -> BatchOrder:
    """Decode BATCH. Raises ProtocolError."""
    words = to_words(body)
    members = []
    try:
        batch, count, inputs, size, leaving = words[:5]
        _check_counts(count, inputs, len(words))
        at = 5
        for _ in range(count):
            rows = words[at]
            tensors, at = _tensors(words, at + 1, inputs)
            members.append(Payload(rows, tuple(tensors)))
    except (IndexError, ValueError):
        raise ProtocolError("a truncated batch") from None
    final = words[at:]
    if at > len(words) or not all(0 <= place < count for place in final):
        raise ProtocolError("a batch with a wrong count")
    if not 0 <= leaving < len(_LEAVING):
        raise ProtocolError(f"a batch with {leaving} for leaving early")
    return BatchOrder(batch, members, size, _LEAVING[leaving], final)


def _check_counts(members: int, tensors: int, words: int) -> None:
    """Refuse counts that are negative or exceed the length of the message."""
    if not (0 <= members <= words and 0 <= tensors <= words):
        raise ProtocolError(f"{members} members with {tensors} tensors in {words} words")


def run_words(outputs: Sequence[Sequence[OutputRun]]) -> list[int]:
    """Encode the runs of each output."""
    words: list[int] = []
    for runs in outputs:
        for run in runs:
            words += (run.members, run.offset, run.nbytes, len(run.shape), *run.shape)
    return words


def read_runs(
    words: list[int], at: int, members: int, outputs: int
) -> tuple[list[list[OutputRun]], int]:
    """Decode `run_words` from index `at` on. Returns the runs and the index after them."""
    _check_counts(0, outputs, len(words))
    all_runs = []
    for _ in range(outputs):
        runs, remaining = [], members
        while remaining > 0:
            run_members = words[at]
            if not 0 < run_members <= remaining:
                raise ProtocolError(f"a run of {run_members} members where {remaining} are left")
            (first,), at = _tensors(words, at + 1, 1)
            runs.append(OutputRun(run_members, first.offset, first.nbytes, first.shape))
            remaining -= run_members
        all_runs.append(runs)
    return all_runs, at


def encode_finished(message: FinishedMessage) -> bytes:
    timing = message.timing
    parts = (timing.input_s, timing.infer_s, timing.output_s, timing.cpu_s, timing.thread_s)
    words = [message.batch, *[round(seconds * 1e9) for seconds in parts]]
    words += (message.file_bytes, message.members, len(message.outputs))
    words += run_words(message.outputs)
    if message.exits is not None:
        words += _report_words(message.exits)
    return frame(FrameKind.FINISHED, to_bytes(words))


def decode_finished(body: bytes) -> FinishedMessage:
    """Decode FINISHED. Times are rounded to nanoseconds. Raises ProtocolError."""
    words = to_words(body)
    try:
        batch, file_bytes, members, count = words[0], *words[6:9]
        outputs, at = read_runs(words, 9, members, count)
    except (IndexError, ValueError):
        raise ProtocolError("a truncated result") from None
    exits = _read_report(words, at) if at != len(words) else None
    timing = BatchTiming(*[nanoseconds / 1e9 for nanoseconds in words[1:6]])
    return FinishedMessage(batch, timing, file_bytes, members, outputs, exits)


def encode_aborted(batch: int, exits: ExitReport | None) -> bytes:
    words = [batch] if exits is None else [batch, *_report_words(exits)]
    return frame(FrameKind.ABORTED, to_bytes(words))


def decode_aborted(body: bytes) -> tuple[int, ExitReport | None]:
    words = to_words(body)
    if not words:
        raise ProtocolError("ABORTED without a batch")
    return words[0], _read_report(words, 1) if len(words) > 1 else None


def _report_words(report: ExitReport) -> list[int]:
    """Encode a report of ramps: numbers of ramps, of rows and of timed ramps; positions; times in
    ns; then for each row the ramp where it left, the number of ramps that judged it, a bit mask of
    the ramps that agree with the model (−1: unknown), the model's class (−1: unknown), and the
    ramps' uncertainties."""
    words = [len(report.ramps), len(report.left), len(report.stage_s), *report.ramps]
    words += [round(seconds * 1e9) for seconds in report.stage_s]
    answers = report.answers or (-1,) * len(report.left)
    rows = zip(report.uncertainty, report.agrees, report.left, answers, strict=True)
    for uncertainties, agrees, stage, answer in rows:
        bits = sum([1 << at for at, agreed in enumerate(agrees) if agreed]) if agrees else -1
        encoded = array("q", array("d", uncertainties).tobytes())
        words += (stage, len(encoded), bits, answer, *encoded)
    return words


def _read_report(words: list[int], at: int) -> ExitReport:
    """Decode `_report_words` from index `at` to the end of `words`. Times are rounded to ns."""
    try:
        ramps, rows, timed = words[at : at + 3]
        if not (0 <= ramps <= _MAX_RAMPS and 0 <= timed <= ramps and 0 <= rows <= len(words)):
            raise ProtocolError(f"a report of {ramps} ramps on {rows} rows")
        positions, at = tuple(words[at + 3 : at + 3 + ramps]), at + 3 + ramps
        stage_s, at = tuple([ns / 1e9 for ns in words[at : at + timed]]), at + timed
        uncertainty, agrees, lefts, answers = [], [], [], []
        for _ in range(rows):
            stage, judged, bits, answer = words[at : at + 4]
            at += 4
            if not (-1 <= stage < ramps and 0 <= judged <= ramps and -1 <= bits < 1 << judged):
                raise ProtocolError(f"a row that left at {stage} after {judged} of {ramps} ramps")
            uncertainties = array("d", array("q", words[at : at + judged]).tobytes())
            at += judged
            uncertainty.append(tuple(uncertainties))
            agrees.append(() if bits < 0 else tuple([bool(bits >> i & 1) for i in range(judged)]))
            lefts.append(stage)
            answers.append(max(answer, -1))
    except ValueError:
        raise ProtocolError("a truncated report") from None
    if at != len(words):
        raise ProtocolError("a report with a wrong count")
    classes = tuple(answers) if max(answers, default=-1) >= 0 else ()
    return ExitReport(positions, tuple(uncertainty), tuple(agrees), tuple(lefts), stage_s, classes)


def encode_text(kind: FrameKind, number: int, text: str) -> bytes:
    """A frame of a word and text, such as FAILED, ROWS or BROKEN."""
    return frame(kind, to_bytes((number,)) + text.encode("utf-8", "replace"))


def decode_text(body: bytes) -> tuple[int, str]:
    return decode_number(body[:_WORD]), body[_WORD:].decode("utf-8", "replace")


def encode_faults(batch: int, faults: Mapping[int, MemberFault]) -> bytes:
    return encode_text(FrameKind.FAULTS, batch, json.dumps(faults))


def decode_faults(body: bytes, members: int) -> tuple[int, dict[int, MemberFault]]:
    """Decode FAULTS of a batch with this many members."""
    batch, text = decode_text(body)
    try:
        faults = {
            int(member): MemberFault(str(detail), bool(of_glue))
            for member, (detail, of_glue) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("unreadable faults") from None
    if not all(0 <= member < members for member in faults):
        raise ProtocolError(f"faults beyond the {members} members of the batch")
    return batch, faults


def encode_number(kind: FrameKind, number: int) -> bytes:
    """A frame of one word, such as ABORT or CORES."""
    return frame(kind, to_bytes((number,)))


def decode_number(body: bytes) -> int:
    words = to_words(body)
    if len(words) != 1:
        raise ProtocolError(f"expected one word, got {len(words)}")
    return words[0]


def encode_damaged(batch: int, pictures: int) -> bytes:
    return frame(FrameKind.DAMAGED, to_bytes((batch, pictures)))


def decode_damaged(body: bytes) -> PicturesDamaged:
    words = to_words(body)
    if len(words) != 2 or words[1] < 1:
        raise ProtocolError("an unreadable number of damaged pictures")
    return PicturesDamaged(*words)


def encode_ready(opened: OpenedModel) -> bytes:
    document = {
        **opened.interface.to_dict(),
        "sessions": opened.sessions,
        "note": opened.note,
        "row_shapes": dict(opened.row_shapes),
        "cold": opened.cold,
        "tolerance": opened.tolerance,
        "labels": opened.labels,
        "padded_outputs": {name: asdict(pad) for name, pad in opened.padded_outputs.items()},
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
        note, cold = str(document["note"]), str(document["cold"])
        tolerance, labels = float(document["tolerance"]), tuple(map(str, document["labels"]))
        padded = {
            str(name): PaddedOutput.from_dict(pad)
            for name, pad in document["padded_outputs"].items()
        }
        return OpenedModel(interface, sessions, note, shapes, cold, tolerance, labels, padded)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("an unreadable interface") from None
