"""Answers that are too long to be copied in one turn of the loop: order, ends, steps."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.played_worker import PlayedWorker

from slacktide.domain import BatchFailed, BatchFinished, BatchTiming, Leaving, ReplicaLost
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.exit_frames import ReleasedMessage, encode_released
from slacktide.executors.hand_over.output_file import COPY_BYTES, COPY_TURNS
from slacktide.executors.hand_over.protocol import (
    FinishedMessage,
    FrameKind,
    FrameReader,
    decode_number,
    encode_finished,
    encode_text,
    frame,
)
from slacktide.executors.hand_over.tensor_io import copy_outputs, cut_outputs, encode_strings
from slacktide.executors.ports import (
    BatchOrder,
    MembersReleased,
    OutputRun,
    Outputs,
    Payload,
    TensorRef,
)

BYTES = TensorSpec("y", Datatype.UINT8, (-1, -1))
TEXTS = TensorSpec("t", Datatype.BYTES, (-1, 1))
INTERFACE = ModelInterface((BYTES,), (BYTES, TEXTS), 4)
MEMBERS = [Payload(1, (TensorRef(0, 8, (1, 8)),))] * 2
LONG = 16 * COPY_BYTES


@pytest.fixture
def played(kit: Any) -> Iterator[PlayedWorker]:
    loop = asyncio.new_event_loop()
    worker = PlayedWorker(loop, kit.replica(), INTERFACE)
    worker.heard.clear()
    yield worker
    worker.close()
    loop.close()


def numbers(batch: int, members: int, nbytes: int) -> Any:
    """Unlike in every batch, and at every place."""
    some = np.random.default_rng(batch).integers(0, 256, 1_000_003, np.uint8)
    return np.resize(some, (members, nbytes))


def finished(played: PlayedWorker, nbytes: int, batch: int = 7, members: int = 2) -> bytes:
    """The worker's answer: so many bytes, and as many in strings, between its members."""
    values = numbers(batch, members, nbytes // members)
    texts = np.array([[f"{batch}" * (nbytes // members)]] * members, object)
    runs = played.file.write([values, texts], [1] * members, INTERFACE)
    message = FinishedMessage(batch, BatchTiming(), played.file.file_bytes, members, runs)
    return encode_finished(message)


def answers(nbytes: int, batch: int = 7, members: int = 2) -> list[Any]:
    """What is then reported."""
    values = numbers(batch, members, nbytes // members)
    text = encode_strings(np.array([f"{batch}" * (nbytes // members)], object))
    shape = (1, nbytes // members)
    return [((shape, row.tobytes()), ((1, 1), text)) for row in values]


def turn_until(played: PlayedWorker, reports: int) -> int:
    """Turns of the loop until there are so many reports."""

    async def turn() -> int:
        turns = 0
        while len(played.heard) < reports and turns < 5000:
            await asyncio.sleep(0)
            turns += 1
        return turns

    return played.loop.run_until_complete(turn())


def events(played: PlayedWorker) -> list[type]:
    return [type(event) for event, _ in played.heard]


def test_a_long_answer_leaves_the_loop_to_others(played: PlayedWorker) -> None:
    nbytes = 60_000_000
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, nbytes))
    assert turn_until(played, 1) > 2 * nbytes // COPY_BYTES - 10  # it has begun as it was told
    assert played.heard == [(BatchFinished(7, BatchTiming()), answers(nbytes))]


def test_a_huge_answer_takes_larger_steps(played: PlayedWorker) -> None:
    nbytes = 3 * COPY_TURNS * COPY_BYTES // 2
    runs = played.file.write([np.zeros((1, nbytes), np.uint8), None], [1], INTERFACE)
    played.handle.run(BatchOrder(7, MEMBERS[:1]))
    message = FinishedMessage(7, BatchTiming(), played.file.file_bytes, 1, runs)
    played.tell(encode_finished(message))
    assert COPY_TURNS - 10 < turn_until(played, 1) <= COPY_TURNS
    ((_, (((_, data), _),)),) = played.heard
    assert len(data) == nbytes


@pytest.mark.parametrize("extra", [0, 1])
def test_outputs_that_fit_one_turn_are_reported_as_soon_as_they_are_read(
    played: PlayedWorker, extra: int
) -> None:
    runs = played.file.write([np.ones((1, COPY_BYTES + extra), np.uint8), None], [1], INTERFACE)
    played.handle.run(BatchOrder(7, MEMBERS[:1]))
    message = FinishedMessage(7, BatchTiming(), played.file.file_bytes, 1, runs)
    played.control.sendall(encode_finished(message))
    assert played.handle._receive()
    assert len(played.heard) == 1 - extra


def test_a_short_answer_after_a_long_one_is_copied_at_once_again(played: PlayedWorker) -> None:
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, 4 * COPY_BYTES))
    turn_until(played, 1)
    played.handle.run(BatchOrder(8, MEMBERS))
    played.control.sendall(finished(played, 16, batch=8))
    assert played.handle._receive()
    assert played.heard[1] == (BatchFinished(8, BatchTiming()), answers(16, batch=8))


def test_messages_during_a_copy_are_handled_after_it(played: PlayedWorker) -> None:
    """Members that a ramp has answered, then those at the end, then a batch that failed."""
    played.handle.run(BatchOrder(7, MEMBERS, leaving=Leaving.RUN_ON))
    values = numbers(1, 1, LONG // 4)
    runs = played.file.write([values, None], [1], INTERFACE)
    early = ReleasedMessage(7, 2, played.file.file_bytes, [1], runs)
    runs = played.file.write([values, None], [1], INTERFACE, at=played.file.end)
    last = FinishedMessage(7, BatchTiming(), played.file.file_bytes, 1, runs)
    played.tell(encode_released(early) + encode_finished(last))
    played.tell(encode_text(FrameKind.FAILED, 8, "of the next batch"))
    turn_until(played, 3)
    outputs = (values.shape, values.tobytes()), ((), b"")
    assert played.heard == [
        (MembersReleased(7, (1,), 2), [outputs]),
        (BatchFinished(7, BatchTiming()), [outputs, ()]),
        (BatchFailed(8, "of the next batch"), []),
    ]


def test_a_worker_that_dies_during_a_copy_has_answered(played: PlayedWorker) -> None:
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, LONG))
    played.handle.not_spawned("it died")
    played.handle.exited(-9)
    played.control.close()
    assert played.heard == []
    turn_until(played, 2)
    assert played.heard[0] == (BatchFinished(7, BatchTiming()), answers(LONG))
    assert played.heard[1] == (ReplicaLost(0, "it died"), [])
    assert played.gone


def test_nonsense_behind_a_long_answer_costs_the_worker_not_the_answer(
    played: PlayedWorker,
) -> None:
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, LONG) + frame(FrameKind.BATCH))
    turn_until(played, 1)
    assert played.heard == [(BatchFinished(7, BatchTiming()), answers(LONG))]
    played.handle.exited(-9)
    played.handle.not_spawned("")
    assert "invalid message: BATCH from a worker" in played.heard[1][0].detail


def test_a_request_that_is_cancelled_during_a_copy_ends_with_its_batch(
    played: PlayedWorker,
) -> None:
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, LONG))
    played.handle.abort(7)
    turn_until(played, 1)
    assert events(played) == [BatchFinished]
    ((kind, body),) = FrameReader().feed(played.aborts.recv(100))
    assert (kind, decode_number(body)) == (FrameKind.ABORT, 7)


def test_a_handle_that_is_stopped_during_a_copy_reports_nothing_and_ends(
    played: PlayedWorker,
) -> None:
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, LONG))
    played.handle.stop()
    played.handle.not_spawned("it was stopped")
    assert not played.gone
    turn_until(played, 1)
    assert played.gone
    assert played.heard == []


columns = st.lists(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20)), min_size=1, max_size=3), max_size=3
)


@given(columns, st.integers(4, 16))
def test_steps_copy_the_same_and_each_at_most_its_share(
    columns: list[list[tuple[int, int]]], step: int
) -> None:
    members = min([sum(count for count, _ in runs) for runs in columns], default=0)
    size, placed = 0, []
    for runs in columns:
        places: list[OutputRun] = []
        for count, nbytes in runs:
            count = min(count, members - sum(run.members for run in places))
            if count:
                places.append(OutputRun(count, size, nbytes, (nbytes,)))
                size += count * nbytes
        placed.append(places)
    file = mmap.mmap(-1, max(size, 1))
    file[:] = bytes(at % 251 for at in range(len(file)))
    outputs, _ = drain(copy_outputs(file, placed, step), lambda number: None)
    assert outputs == cut_outputs([(file, places) for places in placed])

    def number_everything(number: int) -> None:
        file[:] = bytes([number]) * len(file)

    number_everything(0)
    outputs, steps = drain(copy_outputs(file, placed, step), number_everything)
    content = b"".join(data for member in outputs for _, data in member)
    assert len(content) == size
    assert max(content.count(number) for number in range(steps + 1)) <= step


def drain(
    steps: Generator[None, None, list[Outputs]], between: Callable[[int], object]
) -> tuple[list[Outputs], int]:
    """What they return, and how many times they yielded. `between` is called whenever they did."""
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, number
        number += 1
        between(number)
