"""A server with peers behind links in memory, which answer when they are told to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tests.server.test_data_plane import ROW, Bench, NotingDriver, call

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.engine import NextStart
from slacktide.peers import ForwardingRule, LoadReport, ModelLoad, PeerHello, PeerLoads
from slacktide.peers.messages import PROTOCOL
from slacktide.server.peers.forwarding import ForwardingPlane
from slacktide.server.peers.host import ServerPeers
from slacktide.wire.calls import CallContext, InferCall, InferReply, OutputValue

BUDGET_S = 10.0


class SentCall:
    def __init__(self, call: InferCall, budget_s: float | None, done: Callable[..., None]) -> None:
        self.call, self.budget_s, self.done = call, budget_s, done
        self.payload = [bytes(tensor.data) for tensor in call.inputs]
        self.cancelled = self.ended = False

    def cancel(self) -> None:
        assert not self.ended
        self.cancelled = True

    def end(self, reply: InferReply | None) -> None:
        assert not self.ended
        self.ended = True
        if not self.cancelled:
            # The slot has kept the payload until now.
            assert [bytes(tensor.data) for tensor in self.call.inputs] == self.payload
            self.done(reply)


class FakeLink:
    """A link to a peer that answers when it is told to."""

    address = "10.0.0.2:8001"
    dialled = True
    rtt = 0.0

    def __init__(self, machine: str = "b") -> None:
        self.machine = machine
        self.sent: list[SentCall] = []
        self.reports: list[LoadReport] = []
        self.hellos: list[PeerHello] = []
        self.room = True

    def has_room(self, nbytes: int) -> bool:
        return self.room

    def forward(
        self,
        call: InferCall,
        context: CallContext,
        budget_s: float | None,
        done: Callable[[InferReply | None], None],
    ) -> int:
        self.sent.append(SentCall(call, budget_s, done))
        return len(self.sent) - 1

    def withdraw(self, id: int) -> None:
        self.sent[id].cancel()

    def report(self, report: LoadReport) -> None:
        self.reports.append(report)

    def greet(self, hello: PeerHello) -> None:
        self.hellos.append(hello)

    def close(self, why: str) -> None: ...

    @property
    def waiting(self) -> list[SentCall]:
        return [sent for sent in self.sent if not (sent.ended or sent.cancelled)]


class LateDriver(NotingDriver):
    """Frees the slot of a withdrawn request at the end of the turn, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.withdrawn: list[int] = []
        self.wait_s = 0.0

    @property
    def in_flight(self) -> int:
        return len(self.open) or int(self.wait_s > 0.0)

    def next_start(self, model: str, pin: str) -> NextStart:
        return NextStart(self.wait_s, 0.01, 0.001)

    def cancel(self, id: int, reason: Reason) -> None:
        if self.open[id].waits:
            super().cancel(id, reason)
        else:
            del self.open[id]
            self.withdrawn.append(id)

    def end(self, id: int, reason: Reason, outputs: Any = None, ramp: int | None = None) -> None:
        ended = self.open.pop(id)
        ended.waits, ended.outputs = False, outputs
        ended.answered(Outcome(reason, self.now, budget_s=0.5 + BUDGET_S - self.now))
        self.release(id)

    def flush(self) -> None:
        withdrawn, self.withdrawn = self.withdrawn, []
        for id in withdrawn:
            self.release(id)


class Home:
    """A server whose wait is `wait_s`, with peers `b` and `c` that start at once."""

    def __init__(self, wait_s: float = 1.0, peers: str = "bc", **limits: Any) -> None:
        self.bench = bench = Bench(**limits)
        bench.plane.driver = bench.driver = LateDriver()
        self.loads = PeerLoads()
        self.peers = ServerPeers("a", bench.plane, self.loads, lambda version: "same")
        self.wait_s = wait_s
        rule = ForwardingRule(self.loads, random.Random(1))
        self.plane = ForwardingPlane(bench.plane, self.peers, self.loads, rule)
        self.links: dict[str, FakeLink] = {}
        for machine in peers:
            self.join(machine)

    @property
    def wait_s(self) -> float:
        return self.bench.driver.wait_s

    @wait_s.setter
    def wait_s(self, wait_s: float) -> None:
        self.bench.driver.wait_s = wait_s

    def join(self, machine: str, wait_s: float = 0.0, address: str = "") -> FakeLink:
        link = self.links[machine] = FakeLink(machine)
        hello = PeerHello(PROTOCOL, "1", machine, {"m:1": "same"}, "", address, address)
        self.peers.joined(link, hello)
        self.report(machine, wait_s)
        return link

    def report(self, machine: str, wait_s: float) -> None:
        report = LoadReport((ModelLoad("m", wait_s, 0.01, 0.001),), 0)
        self.peers.reported(self.links[machine], report)

    def lose(self, machine: str) -> None:
        link = self.links.pop(machine, None)
        if link is not None:
            self.peers.left(link, "gone")
            for sent in link.sent:
                if not sent.ended:
                    sent.end(None)

    def open(self) -> Any:
        return self.plane.call("m", None, CallContext(0.5, "client", "http"))

    def elsewhere(self, **parameters: Any) -> str:
        parameters.setdefault("timeout", int(BUDGET_S * 1e6))
        return str(self.open().elsewhere(100, parameters))

    def submit(self, **parameters: Any) -> tuple[Any, list[InferReply]]:
        replies: list[InferReply] = []
        opened = self.open()
        parameters.setdefault("timeout", int(BUDGET_S * 1e6))
        opened.submit(call(ROW, **parameters), replies.append)
        return opened, replies

    @property
    def away(self) -> list[SentCall]:
        return [sent for link in self.links.values() for sent in link.waiting]

    def turn(self) -> None:
        self.bench.driver.flush()

    def counts(self) -> dict[Reason, int]:
        return self.bench.version.counters.by_reason

    def check_empty(self) -> None:
        assert self.bench.plane.limits.clients == frozenset()
        assert self.bench.version.in_flight == 0
        assert self.bench.arena.bytes_in_use == 0
        assert self.bench.driver.open == self.bench.driver.named == {}
        reported = [peer.models for peer in self.loads._peers.values()]
        assert all(model.outstanding == 0 for models in reported for model in models.values())


def served(
    reason: Reason = Reason.ON_TIME,
    datatype: Datatype = Datatype.FP32,
    shape: tuple[int, ...] = (1, 4),
) -> InferReply:
    outputs = [OutputValue("x", datatype, shape, ROW)]
    outcome = Outcome(reason, 77.0, 0.1, 0.2, 3, 5.0)
    return InferReply(outcome, "m", "1", "", outputs, variant="")


def refused(reason: Reason) -> InferReply:
    return InferReply(Outcome(reason, 77.0), "m", "1", "", None, "no")


def run(test: Callable[[], Any]) -> None:
    async def main() -> None:
        test()

    asyncio.run(main())
