from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import BatchTiming, ExitReport, Leaving
from slacktide.domain.crops import Glue
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.crop_frames import (
    decode_attach,
    decode_crops,
    encode_attach,
    encode_crops,
)
from slacktide.executors.hand_over import protocol as p
from slacktide.executors.ports import (
    BatchOrder,
    CropPayload,
    ExitSource,
    MemberFault,
    OpenedModel,
    OutputRun,
    Payload,
    PicturesDamaged,
    SessionSize,
    TensorRef,
)
from slacktide.executors.spawning import SpawnRequest

WORD = st.integers(0, 2**63 - 1)
SHAPE = st.lists(WORD, max_size=5).map(tuple)
REFS = st.builds(TensorRef, WORD, WORD, SHAPE)
DECODERS = [
    p.decode_batch,
    p.decode_finished,
    p.decode_text,
    p.decode_number,
    p.decode_ready,
    p.decode_aborted,
    p.decode_damaged,
    decode_crops,
    decode_attach,
]


@st.composite
def batches(draw: st.DrawFn) -> list[Payload]:
    inputs = draw(st.integers(0, 3))
    tensors = st.lists(REFS, min_size=inputs, max_size=inputs).map(tuple)
    return draw(st.lists(st.builds(Payload, WORD, tensors), min_size=1, max_size=6))


@st.composite
def reports(draw: st.DrawFn) -> ExitReport:
    """Ramps, and rows that left at any of them, or in the middle of an aborted batch."""
    ramps = tuple(sorted(draw(st.sets(st.integers(0, 99), max_size=4))))
    judgements, agrees, left = [], [], []
    for _ in range(draw(st.integers(0, 4))):
        judged = draw(st.integers(0, len(ramps)))
        judgements.append(tuple(draw(st.floats(0, 1)) for _ in range(judged)))
        to_the_end = judged > 0 and draw(st.booleans())
        agrees.append(tuple(draw(st.booleans()) for _ in range(judged)) if to_the_end else ())
        left.append(draw(st.integers(-1, judged - 1)))
    times = tuple(draw(st.integers(0, 10**9)) / 1e9 for _ in ramps[: draw(st.integers(0, 4))])
    answers = tuple(draw(st.integers(0, 999)) if agreed else -1 for agreed in agrees)
    with_answers = max(answers, default=-1) >= 0
    return ExitReport(
        ramps, tuple(judgements), tuple(agrees), tuple(left), times, answers if with_answers else ()
    )


@st.composite
def results(draw: st.DrawFn) -> p.FinishedMessage:
    """Outputs in runs of any length; the same number of members in each."""
    members, outputs = draw(runs())
    timing = BatchTiming(0.001, 1.25, 3e-9, 2.5, 1.25)
    exits = draw(st.none() | reports())
    return p.FinishedMessage(draw(WORD), timing, 4096, members, outputs, exits)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[list[OutputRun]]]:
    members = draw(st.integers(0, 6))
    outputs = []
    for _ in range(draw(st.integers(0, 3))):
        cuts = draw(st.sets(st.integers(1, members - 1))) if members > 1 else set()
        edges = [*sorted({0, members, *cuts})]
        sizes = [end - start for start, end in pairwise(edges)]
        outputs.append(
            [draw(st.builds(OutputRun, st.just(size), WORD, WORD, SHAPE)) for size in sizes]
        )
    return members, outputs


def only(data: bytes, kind: p.FrameKind) -> bytes:
    """The body of the one frame in `data`."""
    frames = list(p.FrameReader().feed(data))
    assert [frame_kind for frame_kind, _ in frames] == [kind]
    return frames[0][1]


@given(st.integers(-(2**63), 2**63 - 1), batches(), WORD, st.sampled_from(Leaving), st.sets(WORD))
def test_batches_come_back_as_they_went(
    batch: int, members: list[Payload], size: int, leaving: Leaving, some: set[int]
) -> None:
    final = sorted({place % len(members) for place in some})
    order = BatchOrder(batch, members, size, leaving, final)
    assert p.decode_batch(only(p.encode_batch(order), p.FrameKind.BATCH)) == order


def test_a_batch_names_places_and_ways_that_there_are() -> None:
    member = Payload(1, (TensorRef(0, 4, (1,)),))
    for final in ([1], [-1]):
        frame = p.encode_batch(BatchOrder(1, [member], final=final))
        with pytest.raises(p.ProtocolError, match="wrong count"):
            p.decode_batch(only(frame, p.FrameKind.BATCH))
    with pytest.raises(p.ProtocolError, match="3 for leaving early"):
        p.decode_batch(p.to_bytes([1, 0, 0, 0, 3]))


@given(WORD, st.none() | reports())
def test_ends_of_batches_come_back(batch: int, report: ExitReport | None) -> None:
    body = only(p.encode_aborted(batch, report), p.FrameKind.ABORTED)
    assert p.decode_aborted(body) == (batch, report)


@given(results())
def test_results_come_back_as_they_went(message: p.FinishedMessage) -> None:
    body = only(p.encode_finished(message), p.FrameKind.FINISHED)
    assert p.decode_finished(body) == message


@given(WORD, st.dictionaries(st.integers(0, 5), st.builds(MemberFault, st.text(), st.booleans())))
def test_faults_come_back_and_name_members(batch: int, faults: dict[int, MemberFault]) -> None:
    body = only(p.encode_faults(batch, faults), p.FrameKind.FAULTS)
    assert p.decode_faults(body, 6) == (batch, faults)
    for wrong in (
        b"[]",
        b"{",
        b'{"6": ["", 0]}',
        b'{"-1": ["", 0]}',
        b'{"x": ["", 0]}',
        b'{"1": 2}',
    ):
        with pytest.raises(p.ProtocolError):
            p.decode_faults(body[:8] + wrong, 6)


@given(WORD, st.integers(1, 2**63 - 1))
def test_damaged_pictures_come_back(batch: int, pictures: int) -> None:
    body = only(p.encode_damaged(batch, pictures), p.FrameKind.DAMAGED)
    assert p.decode_damaged(body) == PicturesDamaged(batch, pictures)
    for wrong in ([batch], [batch, 0], [batch, -1], [batch, 1, 1]):
        with pytest.raises(p.ProtocolError, match="damaged pictures"):
            p.decode_damaged(p.to_bytes(wrong))


@given(WORD, st.text())
def test_texts_and_numbers_come_back(number: int, text: str) -> None:
    assert p.decode_text(
        only(p.encode_text(p.FrameKind.FAILED, number, text), p.FrameKind.FAILED)
    ) == (
        number,
        text,
    )
    assert (
        p.decode_number(only(p.encode_number(p.FrameKind.ABORT, number), p.FrameKind.ABORT))
        == number
    )


def test_the_report_of_a_ready_worker_comes_back() -> None:
    specs = tuple(TensorSpec(f"é{d.wire_name}", d, (-1, 3)) for d in Datatype)
    interface = ModelInterface(specs, specs[:1], 8)
    opened = OpenedModel(interface, (SessionSize(4, 3 << 30), SessionSize(1, 0)), "no 2: é")
    opened = replace(opened, labels=("é",), padded_outputs={"y": PaddedOutput(2, 8, 3)})
    assert p.decode_ready(only(p.encode_ready(opened), p.FrameKind.READY)) == opened


@given(st.sampled_from(DECODERS), st.one_of(st.binary(max_size=200), st.lists(
    st.one_of(st.integers(-3, 6), st.integers(-(2**63), 2**63 - 1)), max_size=30
).map(p.to_bytes)))  # fmt: skip
def test_nonsense_is_refused_as_nonsense(decode: object, body: bytes) -> None:
    assert callable(decode)
    with contextlib.suppress(p.ProtocolError):
        assert decode(body) is not None


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1))
def test_frames_survive_any_cutting(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(p.frame(p.FrameKind.FAILED, body) for body in bodies)
    reader = p.FrameReader()
    bodies_read, at, turn = [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        bodies_read += [body for _, body in reader.feed(stream[at : at + step])]
        at, turn = at + step, turn + 1
    assert bodies_read == bodies


@pytest.mark.parametrize("header", [(4, 99), (1 << 31, 1), (0, 0)])
def test_a_false_header_is_refused(header: tuple[int, int]) -> None:
    with pytest.raises(p.ProtocolError):
        list(p.FrameReader().feed(p._HEADER.pack(*header)))


def test_a_reader_left_in_the_middle_keeps_the_rest() -> None:
    reader = p.FrameReader()
    stream = p.frame(p.FrameKind.FAILED, b"one") + p.frame(p.FrameKind.STOP)
    assert next(reader.feed(stream)) == (p.FrameKind.FAILED, b"one")
    assert list(reader.feed(b"")) == [(p.FrameKind.STOP, b"")]


def test_members_with_unlike_numbers_of_tensors_are_no_batch() -> None:
    ref = TensorRef(0, 4, (1,))
    with pytest.raises(ValueError, match="1 and 2 tensors"):
        p.encode_batch(BatchOrder(1, [Payload(1, (ref,)), Payload(1, (ref, ref))]))


def test_spawn_requests_come_back(kit, tmp_path) -> None:
    source = kit.source(
        tmp_path / "é.onnx",
        max_batch=4,
        providers=("cuda",),
        warmup_shapes={"x": (3, 4), "y": ()},
        padding=Padding(
            {"x": PaddedInput(1, -2, mask=True)},
            {"z": PaddedOutput(2, 8)},
            (4, 8),
            {"z": PaddedOutput(2, 8, 3)},
        ),
        more_shapes=({"x": (3, 8)}, {"x": (3, 16), "y": ()}),
        values={"y": 16000, "z": "é", "m": True},
        samples=tmp_path / "rows.npz",
        sample_rows={"x": tmp_path / "x.raw"},
        exits=ExitSource(tmp_path / "exits", "x", "é", ("a", "b"), ("c",)),
    )
    request = SpawnRequest(7, source, (0, 3), "cuda:1")
    assert SpawnRequest.decode(request.encode()) == request


VALUES = st.lists(st.binary(max_size=9), max_size=3).map(tuple)


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(WORD, st.binary(max_size=64), VALUES), max_size=4)
)
def test_crops_come_through_a_stream(crops: dict[int, tuple[int, bytes, Any]]) -> None:
    whole = {
        place: (number, boxes[: len(boxes) // 16 * 16], values)
        for place, (number, boxes, values) in crops.items()
    }
    members = {
        place: CropPayload(len(boxes) // 16, (TensorRef(0, 0, ()),), number, boxes, values)
        for place, (number, boxes, values) in whole.items()
    }
    ((kind, body),) = p.FrameReader().feed(encode_crops(members))
    assert kind is p.FrameKind.CROPS
    assert decode_crops(body) == whole
    with pytest.raises(ValueError, match="5 bytes of boxes for 1 rows"):
        encode_crops({0: CropPayload(1, (), 1, b"12345")})


def test_quads_come_through_a_stream() -> None:
    members = {3: CropPayload(2, (TensorRef(0, 0, ()),), 9, bytes(range(64)))}
    ((_, body),) = p.FrameReader().feed(encode_crops(members))
    assert decode_crops(body) == {3: (9, bytes(range(64)), ())}
    with pytest.raises(p.ProtocolError, match="wrong count"):
        decode_crops(body[:-1])


@pytest.mark.parametrize("most", [8.0, None])
def test_glue_comes_through_a_stream(most: float | None) -> None:
    glue = Glue(0.25, "shop.pictures:straighten", max_aspect=most)
    ((kind, body),) = p.FrameReader().feed(encode_attach(7, glue))
    assert (kind, decode_attach(body)) == (p.FrameKind.ATTACH, (7, glue))
