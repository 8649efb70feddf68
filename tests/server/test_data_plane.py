"""The data plane on a driver that only notes: priorities, counts, and memory of uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import Outcome, PoolId, Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.arena import Arena
from slacktide.models.inputs import InputCheck
from slacktide.models.repository.definition import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.tally import Tally
from slacktide.models.versions import Catalog, LoadedVersion
from slacktide.observability.observers import AnsweredRequest, Observers
from slacktide.profiles import ClassedTimes, LatencyTable
from slacktide.server import infer_ticket
from slacktide.server.data_plane import ServerDataPlane
from slacktide.server.infer_ticket import InferTicket
from slacktide.server.upload import ServerUpload
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor, Parameter

NOTHING: Any = None
SPEC = TensorSpec("x", Datatype.FP32, (-1, 4))
INTERFACE = ModelInterface((SPEC,), (SPEC,), 8)
ROW = np.arange(4, dtype="<f4").tobytes()


class NotingDriver:
    """Keeps what it is told. `end` answers a request and frees its slots."""

    def __init__(self) -> None:
        self.ids = 0
        self.now = 1.0
        self.told: list[Any] = []
        self.open: dict[int, Callable[..., None]] = {}
        self.releases: dict[int, Callable[[], None]] = {}
        self.kept: list[Callable[[], None]] = []

    def clock(self) -> float:
        return self.now

    def new_id(self) -> int:
        self.ids += 1
        return self.ids

    def announce(self, notice: Any, done: Any, release: Any = None) -> None:
        self.told.append(notice)
        self.open[notice.id] = done
        self.releases[notice.id] = release

    def submit(self, request: Any, payload: Any, done: Any, release: Any = None) -> None:
        self.told.append(request)
        self.open[request.id] = done
        if release is not None:
            self.releases[request.id] = release

    def refuse(self, event: Any, id: int, done: Any) -> None:
        self.open[id] = done
        self.end(id, event.reason)

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

    def is_open(self, id: int) -> bool:
        return id in self.open

    def cancel(self, id: int, reason: Reason) -> None:
        del self.open[id]
        self.releases.pop(id)()

    def end(self, id: int, reason: Reason, outputs: Any = None) -> None:
        self.open.pop(id)(Outcome(reason, self.now), outputs, None)
        if id in self.releases:
            self.releases.pop(id)()


class Noting:
    def __init__(self) -> None:
        self.seen: list[AnsweredRequest] = []

    def answered(self, request: AnsweredRequest) -> None:
        self.seen.append(request)


class Bench:
    """A data plane with one model, `m`, whose own priority is 1."""

    def __init__(self, **limits: Any) -> None:
        self.driver: Any = NotingDriver()
        self.noted = Noting()
        catalog = Catalog()
        settings = ModelSettings(priority=1)
        definition = ModelDefinition("m", "1", Path(), Path(), settings, {})
        self.arena = Arena(1 << 20)
        times = ClassedTimes(LatencyTable.flat(0.01, max_batch=8))
        check = InputCheck(INTERFACE, settings)
        self.version = LoadedVersion(
            PoolId("m", "1"), definition, NOTHING, INTERFACE, times, self.arena, check, Tally()
        )
        catalog.serve("m", {"1": self.version})
        self.plane = ServerDataPlane(
            self.driver, catalog, observers=Observers(self.noted), **limits
        )
        self.replies: list[InferReply] = []

    def infer(self, **parameters: Parameter) -> InferTicket:
        ticket: Any = self.plane.infer(call(ROW, **parameters), context(), self.replies.append)
        return ticket

    def announce(self, length: int, **parameters: Parameter) -> Any:
        return self.plane.announce("m", None, length, parameters, context())


def call(data: Any, **parameters: Parameter) -> InferCall:
    return InferCall("m", None, "", [InputTensor("x", Datatype.FP32, (1, 4), data)], [], parameters)


def context() -> CallContext:
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
        bench.infer(**stated)
        bench.announce(64, **stated)
        assert [told.penalty for told in bench.driver.told] == [penalty, penalty]

    on_loop(test)


def test_requests_of_a_client_are_counted_until_their_end():
    def test() -> None:
        bench = Bench(client_limit=1)
        first = bench.infer()
        bench.infer()
        assert [reply.outcome.reason for reply in bench.replies] == [Reason.CLIENT_LIMIT]
        first.cancel(Reason.DISCONNECTED)
        bench.infer()
        assert len(bench.replies) == 1
        assert bench.version.in_flight == 1

    on_loop(test)


def test_a_bug_while_the_payload_is_written_leaves_nothing_behind():
    def test() -> None:
        bench = Bench(client_limit=1)
        bench.version.times = NOTHING
        with pytest.raises(AttributeError):
            bench.infer()
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0

    on_loop(test)


def test_bodies_that_a_client_announces_and_does_not_send_are_bounded():
    def test() -> None:
        bench = Bench(arriving_limit=1000)
        large = bench.announce(2000)  # one alone may be of any size
        refused = bench.announce(64)
        assert isinstance(refused, InferReply)
        assert refused.outcome.reason is Reason.CLIENT_LIMIT
        large.cancel(Reason.NO_BODY)
        uploads = [bench.announce(500), bench.announce(500)]
        assert all(isinstance(upload, ServerUpload) for upload in uploads)
        assert isinstance(bench.announce(1), InferReply)

    on_loop(test)


def test_small_bodies_that_never_come_do_not_fill_the_queue(monkeypatch):
    monkeypatch.setattr(infer_ticket, "MOST_BODIES", 2)

    def test() -> None:
        bench = Bench()
        first, second = bench.announce(1), bench.announce(1)
        assert isinstance(bench.announce(1), InferReply)
        first.cancel(Reason.NO_BODY)
        assert isinstance(bench.announce(1), ServerUpload)
        second.cancel(Reason.NO_BODY)

    on_loop(test)


def test_an_upload_keeps_the_memory_it_comes_into():
    def test() -> None:
        bench = Bench()
        upload = bench.announce(len(ROW))
        bench.driver.end(1, Reason.EXPIRED)
        bench.version.retire()
        upload.body()[:] = ROW
        assert bench.version.in_flight == 1
        upload.complete(call(upload.body()), bench.replies.append)
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0
        assert bench.arena.fd < 0

    on_loop(test)


@pytest.mark.parametrize("end", ["cancel", "refuse", "bug"])
def test_an_upload_gives_everything_back_however_it_ends(end):
    def test() -> None:
        bench = Bench(client_limit=1, arriving_limit=1)
        upload = bench.announce(len(ROW))
        if end == "cancel":
            upload.cancel(Reason.DISCONNECTED)
        elif end == "refuse":
            upload.refuse(Reason.BAD_INPUT, "no")
        else:
            bench.version.times = NOTHING
            with pytest.raises(AttributeError):
                upload.complete(call(upload.body()), bench.replies.append)
        assert bench.version.in_flight == 0
        assert bench.arena.bytes_in_use == 0
        assert bench.driver.open == {}
        assert len(bench.noted.seen) == 1

    on_loop(test)


def test_what_a_front_end_refused_is_told_with_its_caller():
    def test() -> None:
        bench = Bench()
        bench.plane.body_refused("m", None, Reason.TOO_LARGE, "too large", context())
        (seen,) = bench.noted.seen
        assert seen.context.first_byte == 0.5
        assert seen.context.traceparent == "00-a-b-01"
        assert seen.outcome.reason is Reason.TOO_LARGE

    on_loop(test)


@pytest.mark.parametrize("announced", [False, True])
def test_samples_make_room_for_requests(announced: bool) -> None:
    async def play() -> None:
        bench = Bench()
        everything = bench.arena.allocate(bench.arena.limit)
        bench.driver.kept.append(lambda: bench.arena.free(everything))
        if announced:
            upload = bench.announce(64)
            assert upload.body().nbytes == 64
        else:
            bench.infer()
        assert len(bench.driver.told) == 1

    asyncio.run(play())


def test_without_samples_there_is_no_room_to_make() -> None:
    async def play() -> None:
        bench = Bench()
        bench.arena.allocate(bench.arena.limit)
        bench.infer()
        assert [reply.outcome.reason for reply in bench.replies] == [Reason.MEMORY_LIMIT]
        assert bench.driver.told == []

    asyncio.run(play())
