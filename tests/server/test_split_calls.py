"""A call with more rows than a batch holds is several requests with one deadline and one answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.server.test_data_plane import Bench, on_loop

from slacktide.domain import Cancelled, Reason
from slacktide.domain.tensors import Datatype
from slacktide.executors.hand_over.arena import Slot
from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.calls import InferCall, InputTensor


def submitted(rows: int, bench: Bench, **parameters: Any) -> tuple[Any, Any]:
    """A call of that many rows of the model, which takes eight at a time, and its rows."""
    x = np.arange(4 * rows, dtype="<f4").reshape(rows, 4)
    tensor = InputTensor("x", Datatype.FP32, x.shape, x.tobytes())
    opened = bench.open()
    opened.submit(InferCall("m", None, "", [tensor], [], parameters), bench.replies.append)
    return opened, x


def answer(bench: Bench, request: Any, reason: Reason = Reason.ON_TIME) -> None:
    """Answer a part with its own rows."""
    (ref,) = bench.driver.named[request.id].payload.tensors
    data = bytes(bench.arena.view(Slot(ref.offset, ref.nbytes)))
    bench.driver.end(request.id, reason, [(ref.shape, data)])


def test_parts_share_the_deadline_and_are_joined_in_order() -> None:
    def test() -> None:
        bench = Bench(settings=ModelSettings(slo="1s", work_hint="rows"))
        opened, x = submitted(20, bench)
        first, *others = parts = list(bench.driver.told)
        assert [part.rows for part in parts] == [8, 8, 4]
        assert [part.work_hint for part in parts] == pytest.approx([8.0, 8.0, 4.0])
        assert {part.deadline for part in parts} == {1.5}
        assert first.id == opened.id
        for part in (*others, first):
            assert not bench.replies
            answer(bench, part, Reason.ON_TIME if part is not others[0] else Reason.AFTER_DEADLINE)
        (reply,) = bench.replies
        assert reply.outcome.reason is Reason.AFTER_DEADLINE
        assert reply.outputs is not None
        assert reply.outputs[0].shape == (20, 4)
        assert bytes(reply.outputs[0].data) == x.tobytes()
        assert bench.arena.bytes_in_use == 0
        assert bench.version.in_flight == 0

    on_loop(test)


def test_one_refused_part_refuses_the_call_and_withdraws_the_others() -> None:
    def test() -> None:
        bench = Bench()
        submitted(20, bench)
        first, second, third = list(bench.driver.told)
        answer(bench, first)
        bench.driver.end(second.id, Reason.QUEUE_FULL)
        (reply,) = bench.replies
        assert reply.outcome.reason is Reason.QUEUE_FULL
        assert list(bench.driver.open) == []
        assert bench.arena.bytes_in_use == 0
        assert third.id not in bench.driver.named

    on_loop(test)


def test_a_client_that_leaves_withdraws_all_parts() -> None:
    def test() -> None:
        bench = Bench()
        opened, _ = submitted(9, bench)
        opened.cancel(Reason.DISCONNECTED)
        assert list(bench.driver.open) == []
        assert bench.arena.bytes_in_use == 0
        assert not bench.replies
        assert not any(isinstance(event, Cancelled) for event in bench.driver.told)

    on_loop(test)


def test_limits_and_dependence_still_bound_a_request() -> None:
    def test() -> None:
        bench = Bench(settings=ModelSettings(limits={"rows": 12}))
        submitted(13, bench)
        bench.version.dependence = "rows influence each other"
        submitted(9, bench)
        assert [reply.outcome.reason for reply in bench.replies] == [Reason.BAD_INPUT] * 2
        assert bench.driver.told == []

    on_loop(test)
