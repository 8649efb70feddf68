"""What a worker says of early exits, as the server's end of it hears it: a worker is played."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.executors.played_worker import PlayedWorker

from slacktide.domain import (
    BatchAborted,
    BatchFinished,
    BatchTiming,
    ExitMode,
    ExitPolicy,
    ExitReport,
    Leaving,
    PoolId,
    ReplicaLost,
    ReplicaUp,
)
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.exit_frames import (
    ReleasedMessage,
    decode_exits,
    encode_arranged,
    encode_features,
    encode_released,
)
from slacktide.executors.hand_over.protocol import (
    FinishedMessage,
    FrameKind,
    decode_batch,
    encode_aborted,
    encode_finished,
)
from slacktide.executors.ports import (
    Arranged,
    BatchOrder,
    FeaturesSeen,
    MembersReleased,
    OutputRun,
    Payload,
    TensorRef,
)

SPEC = TensorSpec("y", Datatype.FP32, (-1, 2))
INTERFACE = ModelInterface((SPEC,), (SPEC, SPEC), 4)
MEMBERS = [Payload(1, (TensorRef(0, 8, (1, 2)),))] * 3
REPORT = ExitReport((2,), ((0.1,), (0.7,), (0.2,)), ((True,), (True,), (False,)), (0, -1, 0))
POLICY = ExitPolicy(PoolId("m", "1"), (2,), (0.5,), ExitMode.RELEASE)


def write(played: PlayedWorker, *values: float) -> list[list[OutputRun]]:
    """One row of the first output for each value; the second is one that ramps do not make."""
    array = np.array([[value, value] for value in values], np.float32)
    only = ModelInterface((SPEC,), (SPEC,), 4)
    runs = played.file.write([array], [1] * len(values), only)
    return [*runs, [OutputRun(len(values), 0, 0, ())]]


@pytest.fixture
def played(kit: Any) -> Iterator[PlayedWorker]:
    loop = asyncio.new_event_loop()
    worker = PlayedWorker(loop, kit.replica(), INTERFACE)
    assert worker.heard.pop()[0] == ReplicaUp(0)
    yield worker
    worker.close()
    loop.close()


def row(value: float) -> Any:
    return ((1, 2), np.array([value, value], np.float32).tobytes())


def finished(played: PlayedWorker, *values: float) -> bytes:
    runs = write(played, *values)
    message = FinishedMessage(7, BatchTiming(), played.file.file_bytes, len(values), runs, REPORT)
    return encode_finished(message)


def released(played: PlayedWorker, places: list[int], *values: float) -> bytes:
    runs = write(played, *values)
    return encode_released(ReleasedMessage(7, 2, played.file.file_bytes, places, runs))


def test_members_are_released_with_their_outputs_and_the_rest_follows(played: PlayedWorker) -> None:
    played.handle.run(BatchOrder(7, MEMBERS, leaving=Leaving.SHRINK, final=(1,)))
    ((kind, body),) = played.told()
    assert kind is FrameKind.BATCH
    order = decode_batch(body)
    assert (order.leaving, order.final) == (Leaving.SHRINK, [1])
    played.tell(released(played, [2, 0], 5.0, 6.0))
    played.tell(finished(played, 9.0))
    empty = ((), b"")
    assert played.heard == [
        (MembersReleased(7, (2, 0), 2), [(row(5.0), empty), (row(6.0), empty)]),
        (BatchFinished(7, BatchTiming(), REPORT), [(), (row(9.0), empty), ()]),
    ]


def test_the_next_batch_has_all_its_members_again(played: PlayedWorker) -> None:
    played.handle.run(BatchOrder(7, MEMBERS, leaving=Leaving.RUN_ON))
    played.tell(released(played, [0, 1, 2], 1.0, 2.0, 3.0))
    played.tell(encode_aborted(7, REPORT))
    assert played.heard[-1] == (BatchAborted(7, REPORT), [])
    played.handle.run(BatchOrder(7, MEMBERS))
    played.tell(finished(played, 4.0, 5.0, 6.0))
    assert [outputs[0] for outputs in played.heard[-1][1]] == [row(4.0), row(5.0), row(6.0)]


@pytest.mark.parametrize("nonsense", ["twice", "none left", "too few outputs"])
def test_a_worker_that_releases_members_twice_is_lost(played: PlayedWorker, nonsense: str) -> None:
    played.handle.run(BatchOrder(7, MEMBERS, leaving=Leaving.RUN_ON))
    if nonsense == "too few outputs":
        message = ReleasedMessage(7, 2, 0, [0], [])
        played.tell(encode_released(message))
    else:
        played.tell(released(played, [0], 1.0))
        again = nonsense == "twice"
        played.tell(released(played, [0], 1.0) if again else finished(played, 1.0, 2.0, 3.0))
    played.handle.not_spawned("")
    assert isinstance(played.heard[-1][0], ReplicaLost)
    assert "invalid message" in played.heard[-1][0].detail


def test_policies_go_out_and_what_comes_of_them_comes_back(played: PlayedWorker) -> None:
    played.handle.publish(POLICY)
    ((kind, body),) = played.told()
    assert (kind, decode_exits(body)) == (FrameKind.EXITS, POLICY)
    arranged = Arranged(1, (2,), "", (1, 4), (0.25, 0.5), ((0.125, 0.25), (0.25, 0.5)))
    features = FeaturesSeen(2, ("a",), (0.5,), (bytes(16),), bytes(24), ("y",))
    played.tell(encode_arranged(arranged) + encode_features(features))
    assert [event for event, _ in played.heard] == [arranged, features]
