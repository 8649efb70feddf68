"""A worker that gives the model's last answer to a session again, and says what to remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.test_stages import POOL, Bench, Ran, images

from slacktide.domain import NEVER, ExitPolicy, Leaving
from slacktide.executors.exit_frames import (
    decode_features,
    decode_remembered,
    encode_remembered,
)
from slacktide.executors.hand_over.protocol import FrameKind, FrameReader, ProtocolError
from slacktide.executors.remembering import RememberedRow, RowMemory, decode_row, encode_row

LIMIT = 0.02


def remembering(*ramps: int, threshold: float = LIMIT, **more: Any) -> ExitPolicy:
    limits = (threshold, *[0.0] * (len(ramps) - 1))
    return ExitPolicy(POOL, ramps, limits, revision=1, remember_frames=2, **more)


@pytest.fixture
def bench(models: Any, kit: Any, arena: Any) -> Bench:
    path = models.layers()
    bench = Bench(kit, arena, path, exits=kit.write_ramps(path))
    assert bench.arrange(remembering(0, 1, 2)).detail == ""
    return bench


def run(
    bench: Bench, *members: Any, remembered: dict[int, bytes], refreshes: bool = False, **more: Any
) -> tuple[Ran, dict[int, bytes]]:
    """What a batch gives, and what it lets the server remember."""
    bench.runner.remembered = int(refreshes), remembered
    frames: list[bytes] = []
    read = bench.read

    def reading(data: bytes, count: int) -> Ran:
        frames.append(data)
        return read(data, count)

    bench.read = reading  # type: ignore[method-assign]
    ran = bench.run(*members, **more)
    bench.read = read  # type: ignore[method-assign]
    kept = [
        decode_remembered(body)[1]
        for kind, body in FrameReader().feed(frames[0])
        if kind is FrameKind.REMEMBERED
    ]
    return ran, kept[0] if kept else {}


@pytest.mark.parametrize("leaving", [Leaving.RUN_ON, Leaving.SHRINK])
def test_a_frame_like_the_remembered_one_gets_its_answer(bench: Bench, leaving: Leaving) -> None:
    first, other = images(1, 1)
    whole, kept = run(bench, first, other, remembered={0: b"", 1: b""}, leaving=leaving)
    assert whole.ramps == {}
    assert kept.keys() == {0, 1}
    again, _ = run(bench, first, first, other, remembered={0: kept[0], 1: kept[1], 2: kept[1]})
    assert again.ramps == {}  # none may leave
    again, later = run(
        bench, first, first, other, remembered={0: kept[0], 1: kept[1], 2: kept[1]}, leaving=leaving
    )
    assert again.ramps == {0: 0, 2: 0}
    np.testing.assert_array_equal(again.outputs[0][0], whole.outputs[0][0])
    np.testing.assert_array_equal(again.outputs[2][0], whole.outputs[1][0])
    np.testing.assert_allclose(again.outputs[1][0], whole.outputs[0][0], atol=1e-6)
    assert again.report is not None
    distances = [row[0] for row in again.report.uncertainty]
    assert distances[0] == distances[2] == 0.0
    assert LIMIT < distances[1] < 1.0
    assert later.keys() == {1}  # answered rows refresh nothing


def test_answered_rows_refresh_memory_where_they_run_on_anyway(bench: Bench) -> None:
    (frame,) = images(1)
    _, kept = run(bench, frame, remembered={0: b""})
    near = frame + np.float32(1e-4)
    for refreshes in (False, True):
        ran, later = run(
            *(bench, near),
            remembered={0: kept[0]},
            refreshes=refreshes,
            leaving=Leaving.RUN_ON,
        )
        assert ran.ramps == {0: 0}
        assert ran.report is not None
        assert ran.report.agrees[0][0]
        assert (later.keys() == {0}) is refreshes
    # A frame that must stay does not refresh it either: others would have left.
    ran, later = run(bench, near, remembered={0: kept[0]}, leaving=Leaving.SHRINK, final=(0,))
    assert (ran.ramps, later) == ({}, {})


def test_without_memory_no_row_leaves_and_it_counts_as_right(bench: Bench) -> None:
    frame, rows = images(1, 2)
    ran, kept = run(bench, frame, rows, remembered={0: b""}, leaving=Leaving.RUN_ON)
    assert ran.report is not None
    assert [row[0] for row in ran.report.uncertainty] == [NEVER] * 3
    assert [row[0] for row in ran.report.agrees] == [True] * 3
    assert kept.keys() == {0}  # the other is of no session
    assert FrameKind.REMEMBERED not in bench.run(frame).kinds


def test_a_wrong_memory_is_seen_where_the_row_runs_on(bench: Bench) -> None:
    (frame,) = images(1)
    _, kept = run(bench, frame, remembered={0: b""})
    row = decode_row(kept[0])
    false = encode_row(row._replace(answer=row.answer + 1))
    ran, _ = run(bench, frame, remembered={0: false}, leaving=Leaving.RUN_ON)
    assert ran.ramps == {0: 0}
    assert ran.report is not None
    assert not ran.report.agrees[0][0]


@pytest.mark.parametrize("ramps", [(0, 1), (1,)])
def test_features_tell_what_memory_would_have_said(bench: Bench, ramps: tuple[int, ...]) -> None:
    assert bench.arrange(remembering(*ramps, threshold=0.0, features=True)).detail == ""
    frame, other = images(1, 1)
    _, kept = run(bench, frame, remembered={0: b""})
    ran, _ = run(
        *(bench, frame, other, frame),
        remembered={0: kept[0], 1: kept[0], 2: b""},
        leaving=Leaving.RUN_ON,
    )
    features = ran.features
    if features is None:  # it is sent in a gap
        ((_, body),) = FrameReader().feed(bench.later.get(timeout=60))
        features = decode_features(body)
    unsure, agrees = np.frombuffer(features.memory, np.float32).reshape(3, 2).T
    assert unsure[0] == 0.0
    assert LIMIT < unsure[1] < 1.0
    assert unsure[2] == NEVER
    assert agrees[0] == agrees[2] == 1.0


numbers = st.sampled_from([np.float32, np.int64, np.bool_])


@given(
    *(st.integers(0, 9), st.floats(0.0, 1.0), st.integers(0, 9)),
    st.dictionaries(st.text(max_size=3), numbers),
)
def test_a_row_is_read_as_it_was_written(
    answer: int, doubt: float, width: int, outputs: Any
) -> None:
    arrays = {name: np.ones((1, 3), dtype) for name, dtype in outputs.items()}
    features = np.arange(width, dtype=np.float32)
    row = decode_row(encode_row(RememberedRow(answer, doubt, features, arrays)))
    assert (row.answer, row.doubt) == (answer, doubt)
    assert row.features.tolist() == features.tolist()
    assert row.outputs.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(row.outputs[name], array)
        assert row.outputs[name].dtype == array.dtype


def test_texts_are_not_remembered() -> None:
    row = RememberedRow(1, 0.5, np.zeros(2, np.float32), {"y": np.array([["a"]], object)})
    assert encode_row(row) == b""


def test_means_of_another_length_are_no_memory() -> None:
    content = encode_row(RememberedRow(1, 0.5, np.zeros(2, np.float32), {}))
    memory = RowMemory({0: content})
    memory.compare([0], np.zeros((1, 3), np.float32))
    assert memory.verdict(0) == (NEVER, None)


@given(st.integers(0, 99), st.dictionaries(st.integers(0, 9), st.binary(max_size=9)))
def test_contents_cross_as_they_are(number: int, contents: dict[int, bytes]) -> None:
    ((kind, body),) = FrameReader().feed(encode_remembered(number, contents))
    assert kind is FrameKind.REMEMBERED
    assert decode_remembered(body) == (number, contents)


@given(st.binary(max_size=80))
def test_any_other_bytes_are_refused(body: bytes) -> None:
    try:
        _, contents = decode_remembered(body)
    except ProtocolError:
        return
    assert len(body) == 16 + sum(16 + len(content) for content in contents.values())
