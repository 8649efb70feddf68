"""The data plane on a driver that only notes: priorities, counts, and memory of uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import Cancelled, Outcome, Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena
from slacktide.models.calls.input_blocklist import BLOCK_S
from slacktide.models.calls.input_check import InputCheck
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.repository.early_exit import EarlyExitSettings
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import Catalog, LoadedExits, LoadedVersion
from slacktide.observability.observers import AnsweredRequest, Observers
from slacktide.profiles import ClassedTimes, LatencyTable
from slacktide.server.calls import data_plane
from slacktide.server.calls.call import ServerCall
from slacktide.server.calls.data_plane import ClientLimits, ServerDataPlane
from slacktide.server.calls.driver import Driver
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor, Parameter

NOTHING: Any = None
SPEC = TensorSpec("x", Datatype.FP32, (-1, 4))
INTERFACE = ModelInterface((SPEC,), (SPEC,), 8)
ROW = np.arange(4, dtype="<f4").tobytes()


class NotingDriver(Driver):
    """Keeps what it is told. `end` answers a request and frees its slots."""

    def __init__(self) -> None:
        self.clock = lambda: self.now
        self.ids = 0
        self.now = 1.0
        self.told: list[Any] = []
        self.open: dict[int, Any] = {}
        """Requests that have no outcome yet."""
        self.named: dict[int, Any] = {}
        """Requests whose payload is still named."""
        self.kept: list[Callable[[], None]] = []

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def announce(self, notice: Any, call: Any) -> None:
        self.told.append(notice)
        self.add(call)

    def submit(self, request: Any, call: Any) -> None:
        self.told.append(request)
        self.add(call)

    def refuse(self, event: Any, call: Any) -> None:
        self.add(call)
        self.end(event.id, event.reason)

    def add(self, call: Any) -> None:
        call.waits = True
        self.open[call.id] = self.named[call.id] = call

    def flush(self) -> None:
        pass

    def reclaim(self) -> bool:
        """Frees what is kept for profiling, if anything is."""
        kept, self.kept = self.kept, []
        for release in kept:
            release()
        return bool(kept)

    def waiting(self) -> list[Any]:
        return list(self.open.values())

    def post(self, event: Any) -> None:
        self.told.append(event)

    def cancel(self, id: int, reason: Reason) -> None:
        if self.open[id].waits:
            self.told.append(Cancelled(id, reason))
        else:
            del self.open[id]
            self.release(id)

    def end(self, id: int, reason: Reason, outputs: Any = None, ramp: int | None = None) -> None:
        call = self.open.pop(id)
        call.waits = False
        call.outputs = outputs
        call.answered(Outcome(reason, self.now, ramp=ramp))
        self.release(id)

    def release(self, id: int) -> None:
        call = self.named.pop(id, None)
        if call is not None:
            call.released()


class Noting:
    def __init__(self) -> None:
        self.seen: list[AnsweredRequest] = []

    def answered(self, request: AnsweredRequest) -> None:
        self.seen.append(request)


class Bench:
    """A data plane with one model, `m`, whose own priority is 1."""

    def __init__(
        self,
        requests: int | None = None,
        arriving: int | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        self.driver: Any = NotingDriver()
        self.noted = Noting()
        catalog = Catalog()
        settings = settings or ModelSettings(priority=1)
        definition = ModelDefinition("m", "1", Path(), Path(), settings, {})
        self.arena = Arena(1 << 20)
        times = ClassedTimes(LatencyTable.flat(0.01, max_batch=8))
        check = InputCheck(INTERFACE, settings)
        self.version = LoadedVersion(
            "m", "1", 0, definition, INTERFACE, self.arena, check, ModelCounters()
        )
        self.version.add_pool(NOTHING, times)
        catalog.serve("m", {"1": self.version})
        self.plane = ServerDataPlane(
            self.driver, catalog, ClientLimits(requests, arriving), Observers(self.noted)
        )
        self.replies: list[InferReply] = []

    def open(self, context: CallContext | None = None) -> ServerCall:
        return self.plane.call("m", None, context or calling())

    def submit(self, data: Any = ROW, **parameters: Parameter) -> ServerCall:
        opened = self.open()
        opened.submit(call(data, **parameters), self.replies.append)
        return opened

    def announce(self, length: int, **parameters: Parameter) -> tuple[ServerCall, Any]:
        """The call, and the memory for its body or the refusal."""
        opened = self.open()
        return opened, opened.announce(length, parameters)


def call(data: Any, **parameters: Parameter) -> InferCall:
    return InferCall("m", None, "", [InputTensor("x", Datatype.FP32, (1, 4), data)], [], parameters)


def calling() -> CallContext:
    return CallContext(0.5, "client", "http", traceparent="00-a-b-01")


def on_loop(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("stated", "penalty"), [({}, 4.0), ({"priority": 0}, 4.0), ({"priority": 3}, 1.0)]
)
def test_a_priority_that_is_stated_wins_over_the_models(stated, penalty):
    def test() -> None:
        bench = Bench()
        bench.submit(**stated)
        bench.announce(64, **stated)
        assert [event.penalty for event in bench.driver.told] == [penalty, penalty]

    on_loop(test)


def exiting() -> Bench:
    """A model with early exits, at the tensors `early` and `late`, that make its one output."""
    bench = Bench(settings=ModelSettings(early_exit=EarlyExitSettings()))
    assert bench.version.exits is bench.version.pool.exits is not None
    bench.version.exits.learnt(1, ("early", "late"), ("x",))
    return bench


def test_only_requests_for_what_ramps_make_may_be_answered_early():
    def test() -> None:
        bench = exiting()
        exits = bench.version.exits
        assert exits is not None
        bench.submit()
        bench.submit(final=True)
        exits.outputs = ("y", "x")
        exits.learnt(2, ("early", "late"), ("y",))
        assert exits.makes([0])
        assert not exits.makes([0, 1])
        bench.version.pool.exits = bench.version.exits = LoadedExits(("x",))
        bench.submit()
        assert [event.final for event in bench.driver.told] == [False, True, True]

    on_loop(test)


def test_a_model_without_early_exits_has_no_final_requests_and_no_exit_to_report():
    def test() -> None:
        bench = Bench()
        call = bench.submit(final=True, report_timing=True)
        assert bench.driver.told[0].final is False
        bench.driver.end(call.id, Reason.ON_TIME, (((1, 4), ROW),))
        assert "exit" not in bench.replies[0].parameters

    on_loop(test)


@pytest.mark.parametrize(("ramp", "exit"), [(None, ""), (1, "late"), (7, "7")])
def test_timing_says_where_the_answer_left_the_network(ramp: int | None, exit: str):
    def test() -> None:
        bench = exiting()
        bench.submit(report_timing=True)
        bench.submit()
        reason = Reason.ON_TIME if ramp is None else Reason.EARLY_EXIT
        for call in list(bench.driver.open.values()):
            bench.driver.end(call.id, reason, (((1, 4), ROW),), ramp=ramp)
        timed, plain = bench.replies
        assert timed.parameters["exit"] == exit
        assert plain.parameters == {}
        assert timed.outputs == plain.outputs
        assert timed.outputs is not None
        assert bench.version.counters.exits == ({} if ramp is None else {ramp: 2})

    on_loop(test)


def test_requests_of_a_client_are_counted_until_their_end():
    def test() -> None:
        bench = Bench(requests=1)
        first = bench.submit()
        bench.submit()
        assert [reply.outcome.reason for reply in bench.replies] == [Reason.CLIENT_LIMIT]
        first.cancel(Reason.DISCONNECTED)
        bench.submit()
        assert len(bench.replies) == 1
        assert bench.version.in_flight == 1

    on_loop(test)


def test_a_bug_while_the_payload_is_written_leaves_nothing_behind():
    def test() -> None:
        bench = Bench(requests=1)
        bench.version.pool.times = NOTHING
        with pytest.raises(AttributeError):
            bench.submit()
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0

    on_loop(test)


def test_bodies_that_a_client_announces_and_does_not_send_are_bounded():
    def test() -> None:
        bench = Bench(arriving=1000)
        large, _ = bench.announce(2000)  # one alone may be of any size
        _, refused = bench.announce(64)
        assert isinstance(refused, InferReply)
        assert refused.outcome.reason is Reason.CLIENT_LIMIT
        large.cancel(Reason.NO_BODY)
        places = [bench.announce(500)[1], bench.announce(500)[1]]
        assert all(isinstance(place, memoryview) for place in places)
        assert isinstance(bench.announce(1)[1], InferReply)

    on_loop(test)


def test_a_client_that_leaves_at_once_again_and_again_is_refused():
    def test() -> None:
        bench = Bench()
        bench.plane.limits = limits = ClientLimits(None, None, lambda: bench.driver.now)
        most, per_s = round(data_plane.MOST_CANCELLED), data_plane.FORGIVEN_PER_S

        def leave(reason: Reason, after: float = 0.0, **parameters: Parameter) -> None:
            call = bench.submit(**parameters)
            bench.driver.now += after
            call.cancel(reason)

        for reason in (Reason.CLIENT_CANCELLED, Reason.DISCONNECTED):
            for _ in range(most):
                leave(reason)
            assert bench.replies == []
            bench.submit()
            _, refused = bench.announce(64)
            assert isinstance(refused, InferReply)
            for reply in (bench.replies.pop(), refused):
                assert reply.outcome.reason is Reason.CLIENT_LIMIT
                assert "cancels too many" in reply.message
            limits.admit("another address")
            bench.driver.now += 1.5 / per_s
            bench.submit().cancel(Reason.DISCONNECTED)
            assert bench.replies == []
            bench.driver.now += most / per_s  # all is forgotten

    on_loop(test)


def test_a_client_that_gives_requests_half_of_their_time_or_is_served_is_not_refused():
    def test() -> None:
        bench = Bench()
        bench.plane.limits = ClientLimits(None, None, lambda: bench.driver.now)
        most = round(data_plane.MOST_CANCELLED)
        for _ in range(most + 10):  # it gives up at its own deadline
            call = bench.submit(timeout=100_000)
            bench.driver.now += 0.06
            call.cancel(Reason.CLIENT_CANCELLED)
        bench.driver.now += 60.0
        for _ in range(most):  # as a balancer that asks two servers and takes the first answer
            for _ in range(2):
                bench.driver.end(bench.submit().id, Reason.ON_TIME, (((1, 4), ROW),))
            for _ in range(2):
                bench.submit().cancel(Reason.CLIENT_CANCELLED)
        for _ in range(2 * most):  # what never came, and what the server withdrew, costs no lane
            bench.announce(64)[0].cancel(Reason.NO_BODY)
            bench.submit().cancel(Reason.RUNTIME_ERROR)
        assert {reply.outcome.reason for reply in bench.replies} == {Reason.ON_TIME}
        assert bench.plane.limits._cancelled_by("client") <= 2

    on_loop(test)


def test_addresses_that_left_long_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(data_plane, "MOST_ADDRESSES", 3)
    now = 0.0
    limits = ClientLimits(None, None, lambda: now)
    for number in range(10):
        limits.cancelled(str(number))
        now += 1.0
    assert len(limits._cancelled) <= 3


def test_small_bodies_that_never_come_do_not_fill_the_queue(monkeypatch):
    monkeypatch.setattr(data_plane, "MOST_BODIES", 2)

    def test() -> None:
        bench = Bench()
        (first, _), (second, _) = bench.announce(1), bench.announce(1)
        assert isinstance(bench.announce(1)[1], InferReply)
        first.cancel(Reason.NO_BODY)
        assert isinstance(bench.announce(1)[1], memoryview)
        second.cancel(Reason.NO_BODY)

    on_loop(test)


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        (Reason.QUEUE_FULL, True),
        (Reason.BEHIND_WORK, True),
        (Reason.MEMORY_LIMIT, True),
        (Reason.CLIENT_LIMIT, False),
        (Reason.DRAINING, False),
        (Reason.EXPIRED, False),
        (Reason.BAD_INPUT, False),
    ],
)
def test_how_long_to_wait_is_told_where_a_wait_helps(reason: Reason, waits: bool) -> None:
    def test() -> None:
        bench = Bench()
        call = bench.submit()
        bench.driver.end(call.id, reason)
        (reply,) = bench.replies
        assert reply.retry_after_s == (bench.version.expected_alone if waits else None)

    on_loop(test)


def test_only_an_input_that_has_just_crashed_the_model_is_refused():
    def test() -> None:
        bench = Bench()
        bench.driver.end(bench.submit().id, Reason.CRASHED)
        bench.submit()
        assert [reply.outcome.reason for reply in bench.replies[1:]] == [Reason.CRASHED_BEFORE]
        other = bench.submit(np.full(4, 7.0, "<f4").tobytes())
        announced, place = bench.announce(len(ROW))
        assert set(bench.driver.open) == {other.id, announced.id}
        place[:] = ROW
        announced.submit(call(place), bench.replies.append)
        assert [reply.outcome.reason for reply in bench.replies[2:]] == [Reason.CRASHED_BEFORE]
        bench.driver.now += BLOCK_S
        again = bench.submit()
        assert set(bench.driver.open) == {other.id, again.id}

    on_loop(test)


def test_a_result_that_came_as_its_request_was_withdrawn_is_not_sent():
    def test() -> None:
        bench = Bench()
        computed = (((1, 4), ROW),)
        bench.driver.end(bench.submit().id, Reason.CRASHED_BEFORE, computed)
        (reply,) = bench.replies
        assert (reply.outcome.reason, reply.outputs) == (Reason.CRASHED_BEFORE, None)
        assert not bench.noted.seen[0].has_result

    on_loop(test)


@pytest.mark.parametrize(
    ("model", "version", "message"),
    [
        ("nobody", None, "unknown model 'nobody'"),
        ("nobody", "1", "unknown model 'nobody'"),
        ("m", "2", "model 'm' has no version '2'"),
    ],
)
async def test_missing_models_and_versions_are_named(
    model: str, version: str | None, message: str
) -> None:
    bench = Bench()
    answered = asyncio.Event()

    def reply(answer: InferReply) -> None:
        bench.replies.append(answer)
        answered.set()

    bench.plane.call(model, version, calling()).submit(call(ROW), reply)
    await answered.wait()
    (answer,) = bench.replies
    assert (answer.outcome.reason, answer.message) == (Reason.NOT_FOUND, message)


def test_a_body_keeps_the_memory_it_comes_into():
    def test() -> None:
        bench = Bench()
        announced, place = bench.announce(len(ROW))
        bench.driver.end(announced.id, Reason.EXPIRED)
        bench.version.retire()
        place[:] = ROW
        assert bench.version.in_flight == 1
        announced.submit(call(place), bench.replies.append)
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0
        assert bench.arena.fd < 0

    on_loop(test)


@pytest.mark.parametrize("end", ["cancel", "refuse", "bug"])
def test_an_announced_call_gives_everything_back_however_it_ends(end):
    def test() -> None:
        bench = Bench(requests=1, arriving=1)
        announced, place = bench.announce(len(ROW))
        if end == "cancel":
            announced.cancel(Reason.DISCONNECTED)
        elif end == "refuse":
            announced.refuse(Reason.BAD_INPUT, "no")
        else:
            bench.version.pool.times = NOTHING
            with pytest.raises(AttributeError):
                announced.submit(call(place), bench.replies.append)
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0
        assert bench.driver.open == {}
        assert len(bench.noted.seen) == 1

    on_loop(test)


def test_a_refusal_by_a_front_end_names_its_caller():
    def test() -> None:
        bench = Bench()
        bench.open().refuse(Reason.TOO_LARGE, "too large")
        (noted_call,) = bench.noted.seen
        assert noted_call.context.first_byte == 0.5
        assert noted_call.context.traceparent == "00-a-b-01"
        assert noted_call.outcome.reason is Reason.TOO_LARGE

    on_loop(test)


@pytest.mark.parametrize("announced", [False, True])
async def test_samples_make_room_for_requests(announced: bool) -> None:
    bench = Bench()
    everything = bench.arena.allocate(bench.arena.limit)
    bench.driver.kept.append(lambda: bench.arena.free(everything))
    if announced:
        assert bench.announce(64)[1].nbytes == 64
    else:
        bench.submit()
    assert len(bench.driver.told) == 1


async def test_without_samples_there_is_no_room_to_make() -> None:
    bench = Bench()
    bench.arena.allocate(bench.arena.limit)
    bench.submit()
    assert [reply.outcome.reason for reply in bench.replies] == [Reason.MEMORY_LIMIT]
    assert bench.driver.told == []
